"""Write and read safetensors files: atomic writes, a header validated in full before reading, optional checksums."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from ..errors import DamagedFileError
from .atomic import write_bytes
from .sniff import require_weights_kind
from .strict_json import parse_json

CHECKSUM = "vitrail_sha256"
"""Metadata key of a file's own hash: that of the whole file with zeros in place of the hash."""
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


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], checksum: bool = False
) -> None:
    """Write named tensors atomically; values, shapes and dtypes are kept, shared storage and gradients are not.

    Args:
        checksum: store the file's hash in its header, for a file without a manifest; loading verifies it.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    plain = _copy_shared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    if not checksum:
        write_bytes(path, _serialize(plain, metadata))
        return
    data = _serialize(plain, {**metadata, CHECKSUM: _ZEROS})
    place = data.index(f'"{CHECKSUM}":"{_ZEROS}"'.encode()) + len(CHECKSUM) + 4
    digest = hashlib.sha256(data).hexdigest().encode()
    write_bytes(path, b"".join((memoryview(data)[:place], digest, memoryview(data)[place + 64 :])))


def _serialize(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file. The library writes several entries of metadata in random order; here they are sorted."""
    data = safetensors.save(tensors, dict(metadata))
    if len(metadata) < 2:
        return data
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(data)[begin:]))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name, memory-mapped, so that data are read on access.

    Raises:
        DamagedFileError: the file is missing, truncated, not in the safetensors format, or its hash does not match.
    """
    path = Path(path)
    with _translate_read_errors(path):
        _verify_checksum(path, read_safetensors_header(path))
        return safetensors.load_file(path)


def open_tensors(path: Path) -> LazyTensors:
    """The tensors of a file, each read from disk on every access, so that nothing of the file stays in memory.

    Raises:
        DamagedFileError: as `load_tensors`.
    """
    path = Path(path)
    with _translate_read_errors(path):
        header = read_safetensors_header(path)
        _verify_checksum(path, header)
    return LazyTensors(path, header)


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are read from disk on every access."""

    def __init__(self, path: Path, header: SafetensorsHeader):
        self._path = path
        self._header = header

    def __getitem__(self, name: str) -> Tensor:
        entry: TensorEntry = self._header.entries[name]
        with _translate_read_errors(self._path), self._path.open("rb") as file:
            file.seek(self._header.data_offset + entry.begin)
            data = bytearray(entry.end - entry.begin)
            if file.readinto(data) != len(data):
                raise damaged_safetensors_error(self._path, f"{name} is no longer there")
        if not data:
            return torch.empty(entry.shape, dtype=_DTYPES[entry.dtype])
        return torch.frombuffer(data, dtype=_DTYPES[entry.dtype]).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.entries)

    def __len__(self) -> int:
        return len(self._header.entries)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in a file's header, without reading any tensor.

    Raises:
        DamagedFileError: the file is missing, truncated, or not in the safetensors format.
    """
    with _translate_read_errors(Path(path)):
        return dict(read_safetensors_header(Path(path)).metadata)


def has_checksum(path: Path) -> bool:
    """Whether a file has its own hash; without one, and without a manifest, it is loaded unverified.

    Raises:
        DamagedFileError: as `read_metadata`.
    """
    return CHECKSUM in read_metadata(path)


def _verify_checksum(path: Path, header: SafetensorsHeader) -> None:
    expected = header.metadata.get(CHECKSUM)
    if expected is None:
        return
    digest = hashlib.sha256()
    with path.open("rb") as file:
        text = file.read(header.data_offset)
        if text.count(expected.encode()) != 1 or len(expected) != 64:
            raise damaged_safetensors_error(path, "the hash in its header is no hash")
        digest.update(text.replace(expected.encode(), _ZEROS.encode()))
        while piece := file.read(2**20):
            digest.update(piece)
    if digest.hexdigest() != expected:
        raise DamagedFileError(
            f"Checksum mismatch in {path}: expected {expected[:8]}, got {digest.hexdigest()[:8]}. "
            "It was changed since it was written; copy it again."
        )


def _copy_shared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share a storage with an earlier one: the format cannot store shared data."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        own[name] = torch.clone(tensor) if storage in seen else tensor
        seen.add(storage)
    return own


@contextmanager
def _translate_read_errors(path: Path) -> Iterator[None]:
    """Translate errors of the operating system and of the safetensors library."""
    try:
        yield
    except OSError as error:
        raise DamagedFileError(
            f"The weights file {path} cannot be read: {error.strerror or error}. Check the path and its permissions."
        ) from error
    except (SafetensorError, ValueError) as error:
        raise damaged_safetensors_error(path, str(error)[:200]) from error


# -- The header of a safetensors file, validated in full before the safetensors library reads a tensor.
#
# The file is eight bytes with the header's length, the header in JSON, and the tensors without gaps. A hostile header
# costs a reader memory; a damaged one silently gives other values. Format: github.com/huggingface/safetensors.

MAX_HEADER_BYTES = 8 * 2**20
"""Longest header that is read, enough for 30,000 tensors. The format itself allows 100 MB."""
MAX_AXES = 16


class TensorEntry(NamedTuple):
    """One tensor of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Its first byte, counted from the end of the header."""
    end: int
    """The byte after its last."""


@dataclass(frozen=True)
class SafetensorsHeader:
    """The validated header of a safetensors file."""

    metadata: Mapping[str, str]
    entries: Mapping[str, TensorEntry]
    """In the order of the data."""
    data_offset: int
    """First byte of the data in the file."""


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """Read and validate a header, without reading data.

    Raises:
        DamagedFileError: the file is missing, or its header is too long, truncated, no JSON, or breaks a rule of the
            format: known dtypes, sizes that fit shapes, unique plain names, data without overlaps or gaps up to the
            last byte.
    """
    path = Path(path)
    require_weights_kind(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > size - 8:
            raise damaged_safetensors_error(path, f"its header of {length} bytes goes beyond its {size}")
        if length > MAX_HEADER_BYTES:
            raise damaged_safetensors_error(path, f"its header has {length} bytes, at most {MAX_HEADER_BYTES} are read")
        text = file.read(length)
    if not text.startswith(b"{"):
        raise damaged_safetensors_error(path, "its header does not begin with a brace")
    fields = parse_json(text, f"The header of {path}")
    metadata = _check_metadata(path, fields.pop("__metadata__", {}))
    entries = {name: _parse_entry(path, name, value) for name, value in fields.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_no_gaps(path, ordered, size - 8 - length)
    return SafetensorsHeader(metadata, ordered, 8 + length)


def damaged_safetensors_error(path: Path, reason: str) -> DamagedFileError:
    """The error for a file that breaks a rule of the format."""
    return DamagedFileError(
        f"{path} is not a whole safetensors file ({reason}). It is cut short, changed or of another kind: "
        "copy it again."
    )


def _check_metadata(path: Path, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise damaged_safetensors_error(path, "its metadata must be texts by name")


def _parse_entry(path: Path, name: str, value: Any) -> TensorEntry:
    """Validate a tensor's entry: name, dtype, shape and size."""
    label = name[:80]
    if not _is_plain_name(name):
        raise damaged_safetensors_error(path, f"a tensor is called {label!r}, which is no plain name")
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise damaged_safetensors_error(path, f"the tensor {label} must have dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise damaged_safetensors_error(
            path, f"the number format of {label} is {str(dtype)[:20]!r}, known are {', '.join(_DTYPES)}"
        )
    if not _are_counts(shape) or len(shape) > MAX_AXES:
        raise damaged_safetensors_error(path, f"the shape of {label} must be at most {MAX_AXES} counts")
    if not math.prod(shape) and math.prod(max(length, 1) for length in shape) >= 2**60:
        raise damaged_safetensors_error(path, f"no tensor can have the shape {shape}, which is that of {label}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise damaged_safetensors_error(path, f"the place of {label} must be two offsets, the smaller first")
    needed, given = math.prod(shape) * _DTYPES[dtype].itemsize, offsets[1] - offsets[0]
    if needed != given:
        raise damaged_safetensors_error(
            path, f"{label} of shape {shape} in {dtype} takes {needed} bytes, its place has {given}"
        )
    return TensorEntry(dtype, tuple(shape), *offsets)


def _is_plain_name(name: str) -> bool:
    return 0 < len(name) <= 512 and name.isprintable() and not (set(name) & set('\\"')) and ".." not in name.split("/")


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**63 for number in value)


def _check_no_gaps(path: Path, entries: Mapping[str, TensorEntry], size: int) -> None:
    """Check that the tensors fill the data without overlaps or gaps."""
    reached, last = 0, "the header"
    for name, entry in entries.items():
        if entry.begin != reached:
            what = "overlaps" if entry.begin < reached else "leaves a hole behind"
            raise damaged_safetensors_error(
                path, f"{name[:80]} begins at byte {entry.begin} and {what} {last}, which ends at {reached}"
            )
        reached, last = entry.end, name[:80]
    if reached != size:
        raise damaged_safetensors_error(path, f"its tensors take {reached} bytes, {size} are there")
