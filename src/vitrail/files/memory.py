"""Tensors that are views of a mapped file, and how they come into memory of their own without both staying there.

A file that is cut short while it is mapped ends the process (SIGBUS).
"""

from __future__ import annotations

import mmap
import os
from collections import Counter

import torch
from torch import Tensor


def copy_mapped_tensors(tensors: dict[str, Tensor], memory: mmap.mmap) -> dict[str, Tensor]:
    """The tensors in memory of their own; the pages of the file behind each are given back as soon as it is copied.

    Tensors over one storage share its one copy, so that no more memory is taken than the file has bytes.

    Args:
        tensors: emptied on the way; those that lie elsewhere are kept as they are.
        memory: the mapped file, to which nothing was written.
    """
    base = torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
    sharing = Counter(_storage_range(tensor) for tensor in tensors.values())
    copies: dict[tuple[int, int], Tensor] = {}
    found: dict[str, Tensor] = {}
    for name in list(tensors):
        tensor = tensors.pop(name)
        place = _storage_range(tensor)
        begin, length = place[0] - base, place[1]
        if not 0 <= begin < len(memory):
            found[name] = tensor
        elif sharing[place] == 1:
            found[name] = tensor.clone()
        else:
            if place not in copies:
                copies[place] = _storage_bytes(tensor).clone()
            whole = copies[place].view(tensor.dtype)
            found[name] = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if found[name] is not tensor:
            _release_pages(memory, begin, length)
    return found


def machine_memory() -> int | None:
    """Bytes of memory that this machine has; None where the system does not say."""
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _storage_range(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes of the storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _storage_bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _release_pages(memory: mmap.mmap, begin: int, length: int) -> None:
    """Let the system drop the whole pages between; touched again, they are read from the file again."""
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = min(begin + length, len(memory)) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):  # Windows has no such call
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
