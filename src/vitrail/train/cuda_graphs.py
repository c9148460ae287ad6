"""Record the forward and backward pass of a training step as CUDA graphs: a small model waits for no kernel's launch.

A step of a small model is hundreds of kernels of a few microseconds, and a launch takes as long. A graph is launched as
one. It runs the kernels that the step without it runs, on memory of its own, so the numbers are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import MachineWarning
from ..model.cache import hold_results
from ..runtime import is_out_of_memory
from .distributed.collectives import RankGroup
from .distributed.data_parallel import ParallelModel
from .plan import Plan

ForwardLoss = Callable[[Tensor, "Tensor | None", Tensor, "Tensor | None"], tuple[Tensor, Tensor]]
"""From images, the used patches, targets and weights of the images to the loss's total and the outputs [B, K]."""
Signature = tuple[tuple[torch.Size, torch.dtype] | None, ...]
"""Shape and dtype of each input; None where there is no such input."""


def can_record(plan: Plan, group: RankGroup) -> bool:
    """Whether a step is one uncompiled pass on one GPU; the gradients of micro-batches would overwrite each other."""
    compute = plan.compute
    alone = group.world_size == 1 and plan.recipe.grad_accum_steps == 1
    return alone and compute.device.startswith("cuda") and not compute.compile


class GraphedForwardLoss:
    """A function from inputs to the loss, recorded once for each signature of its inputs and replayed after that.

    What it returns, and the gradients of the parameters, lie in memory that the next call of any signature overwrites.
    """

    def __init__(self, parallel: ParallelModel, forward_loss: ForwardLoss):
        self._parallel = parallel
        self._forward_loss = forward_loss
        self._recorded: dict[Signature, Callable[..., tuple[Tensor, Tensor]]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._held: list[object] = []
        # The recorded backward pass ends on its own stream, and torch warns of the wait for it that this takes.
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):  # torch 2.10 has none
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    def __call__(
        self, images: Tensor, rows: Tensor | None, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        inputs = (images, rows, targets, weights)
        signature = tuple(None if each is None else (each.shape, each.dtype) for each in inputs)
        given = tuple(each for each in inputs if each is not None)
        if signature not in self._recorded:
            self._recorded[signature] = self._record(given, [each is not None for each in inputs])
        return self._recorded[signature](*given)

    def _record(self, given: tuple[Tensor, ...], present: list[bool]) -> Callable[..., tuple[Tensor, Tensor]]:
        """The passes recorded with these inputs, or run kernel by kernel where one of them cannot be recorded.

        The random numbers of the step are not used up.
        """
        step = _Step(self._parallel, self._forward_loss, present)
        random_state = torch.cuda.get_rng_state(given[0].device)
        try:
            with hold_results() as held:
                sample = tuple(each.clone() for each in given)
                torch.cuda.make_graphed_callables(step, sample, allow_unused_input=True, pool=self._pool)
            self._held += held
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
            message = f"The steps are not recorded as a CUDA graph, so a small model waits for its kernels: {reason}"
            warnings.warn(message, MachineWarning, stacklevel=2)
            step = _Step(self._parallel, self._forward_loss, present)
        torch.cuda.set_rng_state(random_state, given[0].device)
        return step


class _Step(nn.Module):
    """The function as a module of tensors alone, which is what torch records; its parameters are the model's."""

    def __init__(self, parallel: ParallelModel, forward_loss: ForwardLoss, present: list[bool]):
        super().__init__()
        self.model = parallel.forward
        self._forward_loss = forward_loss
        self._present = present

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        remaining = iter(given)
        images, rows, targets, weights = (next(remaining) if here else None for here in self._present)
        assert images is not None and targets is not None
        return self._forward_loss(images, rows, targets, weights)
