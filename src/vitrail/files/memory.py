"""Copy tensors out of a memory-mapped file, and the machine's memory.

Truncating a file while it is mapped kills the process (SIGBUS).
"""

from __future__ import annotations

import mmap
import os
from collections import Counter

import torch
from torch import Tensor


def copy_mapped_tensors(tensors: dict[str, Tensor], memory: mmap.mmap) -> dict[str, Tensor]:
    """Copy tensors out of a mapped file and release the file's pages after each copy.

    Tensors that share a storage share one copy, so that no more memory is used than the file has bytes.

    Args:
        tensors: is emptied on the way; tensors outside the file are returned unchanged.
        memory: the mapped file, not written to.
    """
    base = torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
    sharing = Counter(_storage_range(tensor) for tensor in tensors.values())
    copies: dict[tuple[int, int], Tensor] = {}
    results: dict[str, Tensor] = {}
    for name in list(tensors):
        tensor = tensors.pop(name)
        place = _storage_range(tensor)
        begin, length = place[0] - base, place[1]
        if not 0 <= begin < len(memory):
            results[name] = tensor
            continue
        if sharing[place] == 1:
            results[name] = tensor.clone()
        else:
            if place not in copies:
                copies[place] = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()
            whole = copies[place].view(tensor.dtype)
            results[name] = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        _release_pages(memory, begin, length)
    return results


def machine_memory() -> int | None:
    """This machine's memory in bytes; None if the system does not say."""
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _storage_range(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes of the storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _release_pages(memory: mmap.mmap, begin: int, length: int) -> None:
    """Let the system drop the whole pages in a range; on access they are read from the file again."""
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = min(begin + length, len(memory)) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):  # Windows has no such call
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
