"""Tensors in safetensors files: written whole, read without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor

from ..errors import DamagedFileError
from .atomic import write_bytes


def save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors at once; values, shapes and types are kept, shared storage and gradients are not.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    plain = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_bytes(path, safetensors.save(plain, dict(metadata)))


def load(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name, in main memory.

    Raises:
        DamagedFileError: the file is missing, cut short, or not in the safetensors format.
    """
    try:
        return safetensors.load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(_sentence(path, error)) from error


def metadata(path: Path) -> dict[str, str]:
    """The texts stored in a file's header, read without reading any tensor.

    Raises:
        DamagedFileError: the file is missing, cut short, or not in the safetensors format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(_sentence(path, error)) from error


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The format stores no ties between tensors, so each gets its own storage."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        own[name] = torch.clone(tensor) if storage in seen else tensor
        seen.add(storage)
    return own


def _sentence(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"There is no weights file {path}. Check the path."
    if isinstance(error, OSError):
        return f"The weights file {path} cannot be read: {error.strerror or error}. Check the path and its permissions."
    return (
        f"{path} is not a whole safetensors file ({error}). It is cut short, changed or of another kind: copy it again."
    )
