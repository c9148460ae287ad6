"""Average gradients over ranks: by torch's DDP, by FSDP2 with sharded parameters, or not for one process.

Each rank differentiates its own total loss divided by the weight of all ranks, times the number of ranks, because DDP
and FSDP2 take the mean over ranks: the result is d(total of all) / (weight of all).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .collectives import SINGLE_PROCESS, RankGroup

StrategyName = Literal["auto", "ddp", "fsdp"]
BYTES_PER_PARAMETER = 20  # float32 weights, gradients, two moments and the EMA
MAX_PARAMETER_FRACTION = 0.6  # of a GPU's memory; the rest is for activations


class ParallelModel:
    """A model whose gradients are averaged over the ranks; call `forward` in place of the model."""

    def __init__(self, model: nn.Module, group: RankGroup = SINGLE_PROCESS, sharded: bool = False):
        self.group = group
        self._model = model
        self._ddp = None
        if group.world_size > 1 and not sharded and any(p.requires_grad for p in model.parameters()):
            with group.translate_errors(), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # the new name of broadcast_buffers is not in torch 2.9
                self._ddp = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        self._sharded = sharded
        self.forward: Callable[..., Tensor] = model if self._ddp is None else self._ddp

    @contextmanager
    def gradient_sync(self, is_last: bool) -> Iterator[None]:
        """Around a forward and backward pass: gradients are averaged over ranks after the last micro-batch only."""
        with self.group.translate_errors():
            if self._sharded:
                from .fsdp import set_gradient_sync  # a second to import, for sharded runs only

                set_gradient_sync(self._model, is_last)
            if self._ddp is None or is_last:
                yield
            else:
                with self._ddp.no_sync():
                    yield


def choose_strategy(
    strategy: StrategyName, group: RankGroup, parameters: int, device: str
) -> tuple[Literal["alone", "ddp", "fsdp"], str]:
    """The parallel strategy of a training and its reason; "alone" for a single process, whatever its plan says."""
    if group.world_size == 1:
        return "alone", "one process"
    if strategy != "auto":
        return strategy, "asked for"
    if device == "cuda":
        room = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory * MAX_PARAMETER_FRACTION
        if parameters * BYTES_PER_PARAMETER > room:
            need = parameters * BYTES_PER_PARAMETER / 2**30
            return "fsdp", f"weights, gradients and moments take {need:.0f} GiB, too much for one GPU"
    return "ddp", f"the model fits into each of {group.world_size} processes"
