"""One step's gradients: forward and backward over all its pictures, in parts, and shared by all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from ...data.preprocess import normalize
from ..engines.engine import Engine
from ..plan import Plan
from ..teacher.lesson import Lesson
from .objective import Loss, mean

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LossOf = Callable[[Tensor, Tensor], Loss]
"""From outputs and targets to (total, weight)."""
Measure = Callable[[Tensor, "Tensor | None", Tensor], tuple[Tensor, Tensor]]
"""From pictures, the patches that they show, and targets to the loss's total and the outputs [B, K]."""


class Shown(NamedTuple):
    """What a process shows the model at a step."""

    images: UInt8[Tensor, "B C H W"]
    rows: Int[Tensor, "B n"] | None
    """The patches that each picture shows; None is all."""
    targets: Tensor
    said: Float[Tensor, "B K"] | None = None
    """What a teacher answers."""


def measured(engine: Engine, loss: LossOf, plan: Plan) -> Measure:
    """The function that is differentiated, from bytes to the loss; one graph where the plan asks to compile."""
    dtype = FORMATS[plan.compute.number_format]

    def measure(images: Tensor, rows: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = normalize(images, plan.image)
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            outputs = engine.answer(x, rows)
        return loss(outputs, targets)[0], outputs

    # Each size by itself: kernels for any size would depend on what was met before, and so would a resumed run's bits.
    return torch.compile(measure, dynamic=False) if plan.compute.compile else measure


def backward(
    engine: Engine,
    measure: Measure,
    loss: LossOf,
    shown: Shown,
    outputs: int,
    parts: int = 1,
    scale: float = 1.0,
    lesson: Lesson | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B K"]]:
    """Leave d(total) / (weight) of all processes and parts in the parameters' gradients.

    Returns that loss, and this process's outputs.

    The weight of all parts is known before the first one, because it depends on the targets alone: every part is
    divided by it, and the sum of their gradients is that of the whole.

    Args:
        outputs: how many the model has.
        parts: in how many the pictures go through the model, one after another.
        scale: what the gradients are multiplied with, for float16.
        lesson: the teacher who has `said` something; its term is divided by the pictures of all.
    """
    targets = shown.targets
    nothing = torch.zeros(len(targets), outputs, device=targets.device)
    weight = engine.team.summed(loss(nothing, targets)[1])
    factor = engine.team.world * scale
    heads = engine.team.summed(torch.full_like(weight, len(targets))) if lesson else weight
    said: list[Tensor] = []
    total, unlike = torch.zeros(2, device=targets.device)
    pieces = [[None] * parts if each is None else each.tensor_split(parts) for each in shown]
    for number, (images, rows, aims, answered) in enumerate(zip(*pieces, strict=True), 1):
        with engine.gathering(last=number == parts):
            part, answers = measure(images, rows, aims)
            value = mean(part, weight)
            if lesson is not None:
                apart = lesson.disagreement(answers, answered)[0]
                value = lesson.blended(value, mean(apart, heads))
                unlike += apart.detach()
            (value * factor).backward()
        total += part.detach()
        said.append(answers.detach())
    average = mean(engine.team.summed(total), weight)
    if lesson is not None:
        average = lesson.blended(average, mean(engine.team.summed(unlike), heads))
    return average, said[0] if parts == 1 else torch.cat(said)
