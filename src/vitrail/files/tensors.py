"""Tensors in safetensors files: written whole, judged before they are read, read without running anything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from ..errors import DamagedFileError
from .atomic import write_bytes
from .header import Entry, Header, not_whole, read_header

CHECKSUM = "vitrail_sha256"
"""Where a file that stands alone keeps its own hash: that of the whole file, with zeros in the place of the hash."""
_ZEROS = "0" * 64
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], checksum: bool = False) -> None:
    """Write named tensors at once; values, shapes and types are kept, shared storage and gradients are not.

    Args:
        checksum: keep the file's hash in its header, for a file that no manifest lists. `load` compares it.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    plain = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    if not checksum:
        write_bytes(path, safetensors.save(plain, dict(metadata)))
        return
    data = safetensors.save(plain, {**metadata, CHECKSUM: _ZEROS})
    place = data.index(f'"{CHECKSUM}":"{_ZEROS}"'.encode()) + len(CHECKSUM) + 4
    digest = hashlib.sha256(data).hexdigest().encode()
    write_bytes(path, b"".join((memoryview(data)[:place], digest, memoryview(data)[place + 64 :])))


def load(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name, mapped into memory, so that numbers are read when they are used.

    Raises:
        DamagedFileError: the file is missing, cut short, not in the safetensors format, or its hash is not the one
            in its header.
    """
    path = Path(path)
    with _in_words(path):
        _compare_checksum(path, read_header(path))
        return safetensors.load_file(path)


def open_tensors(path: Path) -> Stored:
    """The tensors of a file, each read anew from the disk when it is asked for, in memory of its own.

    For files whose numbers are converted on the way: nothing of the file stays in memory.

    Raises:
        DamagedFileError: as `load`.
    """
    path = Path(path)
    with _in_words(path):
        header = read_header(path)
        _compare_checksum(path, header)
    return Stored(path, header)


class Stored(Mapping[str, Tensor]):
    """Tensors that stay on the disk until they are asked for."""

    def __init__(self, path: Path, header: Header):
        self._path = path
        self._header = header

    def __getitem__(self, name: str) -> Tensor:
        entry: Entry = self._header.entries[name]
        with _in_words(self._path), self._path.open("rb") as file:
            file.seek(self._header.start + entry.begin)
            data = bytearray(entry.end - entry.begin)
            if file.readinto(data) != len(data):
                raise not_whole(self._path, f"{name} is no longer there")
        if not data:
            return torch.empty(entry.shape, dtype=_DTYPES[entry.number])
        return torch.frombuffer(data, dtype=_DTYPES[entry.number]).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.entries)

    def __len__(self) -> int:
        return len(self._header.entries)

    def shapes(self) -> dict[str, Tensor]:
        """Every tensor on the meta device: shape and number format, without reading a number."""
        entries = self._header.entries.items()
        return {name: torch.empty(entry.shape, dtype=_DTYPES[entry.number], device="meta") for name, entry in entries}


def metadata(path: Path) -> dict[str, str]:
    """The texts stored in a file's header, read without reading any tensor.

    Raises:
        DamagedFileError: the file is missing, cut short, or not in the safetensors format.
    """
    with _in_words(Path(path)):
        return dict(read_header(Path(path)).metadata)


def has_checksum(path: Path) -> bool:
    """Whether a file keeps its own hash; one without, and without a manifest, is loaded unverified.

    Raises:
        DamagedFileError: as `metadata`.
    """
    return CHECKSUM in metadata(path)


def _compare_checksum(path: Path, header: Header) -> None:
    expected = header.metadata.get(CHECKSUM)
    if expected is None:
        return
    found = hashlib.sha256()
    with path.open("rb") as file:
        text = file.read(header.start)
        if text.count(expected.encode()) != 1 or len(expected) != 64:
            raise not_whole(path, "the hash in its header is no hash")
        found.update(text.replace(expected.encode(), _ZEROS.encode()))
        while piece := file.read(2**20):
            found.update(piece)
    if found.hexdigest() != expected:
        raise DamagedFileError(
            f"Checksum mismatch in {path}: expected {expected[:8]}, got {found.hexdigest()[:8]}. "
            "It was changed since it was written; copy it again."
        )


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The format stores no ties between tensors, so each gets its own storage."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        own[name] = torch.clone(tensor) if storage in seen else tensor
        seen.add(storage)
    return own


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Turn what the operating system and the format's reader say into a sentence."""
    try:
        yield
    except OSError as error:
        raise DamagedFileError(
            f"The weights file {path} cannot be read: {error.strerror or error}. Check the path and its permissions."
        ) from error
    except (SafetensorError, ValueError) as error:
        raise not_whole(path, str(error)[:200]) from error
