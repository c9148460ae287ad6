"""Caches of tensors that follow from settings, such as tables for a grid of patches, across forward passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import TypeVar

import torch
from torch import Tensor

CachedValue = TypeVar("CachedValue")
MAX_CACHED = 64
"""Entries that are kept for each function and for each module."""
_holders: list[list[object]] = []


@contextmanager
def hold_results() -> Iterator[list[object]]:
    """A list of the cached results that the block uses; as long as it lives, so do they.

    For recorded kernels, which read the same memory when they are replayed.
    """
    held: list[object] = []
    _holders.append(held)
    try:
        yield held
    finally:
        _holders.remove(held)


def _hold(result: CachedValue) -> CachedValue:
    for held in _holders:
        held.append(result)
    return result


def cache_results(make: Callable[..., CachedValue]) -> Callable[..., CachedValue]:
    """The same function, computed once for each set of arguments, which must be hashable and no tensors.

    A cached tensor must not be written to. A traced model computes it inside its graph.
    """

    @lru_cache(maxsize=MAX_CACHED)
    def once(*settings: Hashable) -> CachedValue:
        with torch.inference_mode(False):  # an inference tensor could not be used in training later
            return make(*settings)

    @wraps(make)
    def get_or_make(*settings: Hashable) -> CachedValue:
        return make(*settings) if torch.compiler.is_compiling() else _hold(once(*settings))

    return get_or_make


class TensorCache:
    """Results that a module computes from one of its tensors, until that tensor is replaced or written to."""

    def __init__(self) -> None:
        self._values: dict[tuple[object, ...], object] = {}

    def __call__(self, source: Tensor, settings: tuple[object, ...], make: Callable[[], CachedValue]) -> CachedValue:
        """The result of `make`, or of an earlier call with the same settings. Nothing of a traced model, and nothing
        that gradients flow through, is kept.
        """
        traced = torch.compiler.is_compiling() or source.is_inference()
        if traced or (source.requires_grad and torch.is_grad_enabled()):
            return make()
        key = (source.data_ptr(), source._version, source.dtype, source.device, *settings)
        if key not in self._values:
            if len(self._values) == MAX_CACHED:
                self._values.clear()
            with torch.inference_mode(False), torch.no_grad():
                self._values[key] = make()
        made: CachedValue = self._values[key]  # type: ignore[assignment]
        return _hold(made)

    def __deepcopy__(self, memo: object) -> TensorCache:
        return TensorCache()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return TensorCache, ()
