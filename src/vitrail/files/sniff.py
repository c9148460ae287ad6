"""Detect a file's kind from its first bytes, with advice for kinds that hold no readable weights."""

from __future__ import annotations

from pathlib import Path

from ..errors import DamagedFileError

HEAD_BYTES = 512
"""Bytes that are read."""

_MAGIC_BYTES = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "empty zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x1f\x8b", "gzip"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x93NUMPY", "npy"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"GGUF", "gguf"),
    (b"version https://git-lfs", "lfs"),
    (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "legacy"),  # torch's magic number, protocol 2
)

_ADVICE_BY_KIND = {
    "empty": "is empty. Copy it again",
    "empty zip": "is an empty zip archive. Copy it again",
    "7z": "is a 7z archive. Unpack it and give the weights file inside",
    "gzip": "is packed with gzip. Unpack it and give the weights file inside",
    "rar": "is a RAR archive. Unpack it and give the weights file inside",
    "xz": "is packed with xz. Unpack it and give the weights file inside",
    "bzip2": "is packed with bzip2. Unpack it and give the weights file inside",
    "zstd": "is packed with zstd. Unpack it and give the weights file inside",
    "hdf5": "is an HDF5 file (Keras). Save the weights as safetensors where Keras is installed",
    "gguf": "is a GGUF file, quantised for language models. Take the safetensors file of the same model",
    "lfs": "is a Git LFS pointer, not the weights themselves. Run `git lfs pull` in its folder",
    "html": "is a web page, not a weights file. The download was answered with a page; download it again by hand",
    "tar": "is a tar archive, the format of torch before 0.1.10 or a packed folder. Unpack it, or load it where you "
    "trust it and save the weights again: torch.save(model.state_dict(), path)",
}


def detect_kind(path: Path) -> str:
    """safetensors, zip, npy, legacy, pickle, a kind without readable weights, or "unknown".

    Raises:
        DamagedFileError: the file is missing or cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise DamagedFileError(f"There is no weights file {path}. Check the path.")
    if not path.is_file():  # a folder, or a pipe that would never end
        raise DamagedFileError(f"The weights file {path} cannot be read: it is no plain file. Check the path.")
    try:
        with path.open("rb") as file:
            data = file.read(HEAD_BYTES)
    except OSError as error:
        raise DamagedFileError(
            f"The weights file {path} cannot be read: {error.strerror or error}. Check the path and its permissions."
        ) from error
    return kind_from_bytes(data)


def require_weights_kind(path: Path) -> str:
    """The kind of a file that may hold weights.

    Raises:
        DamagedFileError: a kind without readable weights; the message says what to do.
    """
    kind = detect_kind(path)
    if kind in _ADVICE_BY_KIND:
        raise DamagedFileError(f"{path} {_ADVICE_BY_KIND[kind]}.")
    return kind


def kind_from_bytes(data: bytes) -> str:
    """The kind of a file that begins with these bytes; `HEAD_BYTES` of them are enough."""
    if not data:
        return "empty"
    if data[8:10] in (b'{"', b"{ ", b"{}") and int.from_bytes(data[:8], "little") < 2**40:
        return "safetensors"  # checked first: its length may equal the magic bytes of another kind
    for beginning, kind in _MAGIC_BYTES:
        if data.startswith(beginning):
            return kind
    if data[257:262] == b"ustar":
        return "tar"
    if data.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    return "pickle" if data[0] == 0x80 or data[:1] in b"(]}cilVSINFKX" else "unknown"
