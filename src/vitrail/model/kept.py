"""Tensors that follow from settings alone, as tables for a grid of patches do: made once, kept for the next forward."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")
MOST = 64
"""Choices of settings that are kept for each function, and tables for each module."""


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """The same function, computed once for each choice of its arguments, which must be hashable and no tensors.

    Whoever gets a kept tensor must not write to it. A traced model computes it inside its graph.
    """

    @lru_cache(maxsize=MOST)
    def once(*settings: Hashable) -> Made:
        with torch.inference_mode(False):  # or what was first made for a prediction could not serve a training
            return make(*settings)

    @wraps(make)
    def found(*settings: Hashable) -> Made:
        return make(*settings) if torch.compiler.is_compiling() else once(*settings)

    return found


class KeptFor:
    """What a module makes of a tensor of its own: made again when that tensor is another one or was written to."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], object] = {}

    def __call__(self, source: Tensor, settings: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """What `make` gives, from an earlier call with the same settings if there was one. Nothing of a traced model,
        and nothing that gradients flow through, is kept.
        """
        traced = torch.compiler.is_compiling() or source.is_inference()
        if traced or (source.requires_grad and torch.is_grad_enabled()):
            return make()
        key = (source.data_ptr(), source._version, source.dtype, source.device, *settings)
        if key not in self._found:
            if len(self._found) == MOST:
                self._found.clear()
            with torch.inference_mode(False), torch.no_grad():
                self._found[key] = make()
        made: Made = self._found[key]  # type: ignore[assignment]
        return made

    def __deepcopy__(self, memo: object) -> KeptFor:
        return KeptFor()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return KeptFor, ()
