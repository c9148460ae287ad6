"""When the memory is full: which batch would have fitted, found by trying."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...runtime import memory_is_full
from ..loop import Learner
from ..plan import Plan
from .gradients import FORMATS


def largest_batch(fits: Callable[[int], None], batch: int) -> int:
    """The largest of batch/2, batch/4, ... for which `fits` does not run out of memory; 0 if none does."""
    size = batch // 2
    while size:
        try:
            fits(size)
        except (MemoryError, RuntimeError) as error:
            if not memory_is_full(error):
                raise
            size //= 2
        else:
            return size
    return 0


def try_step(learner: Learner, plan: Plan, batch: int) -> None:
    """The part of a training step that takes the memory: answers and gradients of a batch of black pictures.

    Leaves the learner as it was, but for gradients, which are dropped.
    """
    device, dtype = plan.compute.device, FORMATS[plan.compute.number_format]
    images = torch.zeros(batch, plan.image.channels, *plan.image.size, device=device)
    try:
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            answers = learner.model(images)
        answers.float().sum().backward()
    finally:
        learner.model.zero_grad()


def at_once(plan: Plan, world: int = 1) -> int:
    """Pictures that go through the model of one process together."""
    return -(-plan.recipe.batch // (world * plan.recipe.accumulate))


def advice(learner: Learner, plan: Plan, command: str, world: int = 1) -> str:
    """What to type after the memory was full.

    Args:
        command: what goes on, or begins anew, and takes a flag more.
        world: of several processes none can try alone what would fit.
    """
    if world > 1:
        parts = 2 * plan.recipe.accumulate
        return f"Take the same batches in {parts} parts each: {command} --recipe.accumulate {parts}"
    size = largest_batch(lambda batch: try_step(learner, plan, batch), at_once(plan))
    if not size:
        return "Not even a single picture fits: use a smaller --image-size or model."
    parts = -(-plan.recipe.batch // size)
    return (
        f"{size} at once do (tried just now). Take the same batches in {parts} parts each: {command} "
        f"--recipe.accumulate {parts}"
    )
