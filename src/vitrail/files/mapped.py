"""Tensors that are views of a mapped file, and how they come into memory of their own without both staying there."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor


def owned(tensors: dict[str, Tensor], memory: mmap.mmap) -> dict[str, Tensor]:
    """The tensors in memory of their own; the pages of the file behind each are given back as soon as it is copied.

    Args:
        tensors: emptied on the way; those that lie elsewhere are kept as they are.
        memory: the mapped file, to which nothing was written.
    """
    base = torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
    found: dict[str, Tensor] = {}
    for name in list(tensors):
        tensor = tensors.pop(name)
        begin, length = tensor.untyped_storage().data_ptr() - base, tensor.untyped_storage().nbytes()
        inside = 0 <= begin < len(memory)
        found[name] = tensor.clone() if inside else tensor
        if inside:
            _give_back(memory, begin, length)
    return found


def _give_back(memory: mmap.mmap, begin: int, length: int) -> None:
    """Let the system drop the whole pages between; touched again, they are read from the file again."""
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = min(begin + length, len(memory)) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):  # Windows has no such call
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
