"""The training loop: a page of plain code. It yields what happened, so that whoever called it can show it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ..data.loader import Batch, Pictures, steps
from ..data.source import Task
from ..data.transforms import normalise
from ..randomness import derive, uniform
from . import optimizer as rates
from .guards import Guards
from .imbalance import balance
from .objective import loss_for, mean
from .optimizer import Average
from .plan import Plan
from .recipe import Recipe
from .views import augment, mixed, sized


@dataclass(frozen=True)
class Step:
    """What one optimiser step did. `step` counts finished steps, `seconds` is its wall clock."""

    step: int
    epoch: float
    loss: float
    rate: float
    pictures: int
    seconds: float


@dataclass
class Learner:
    """The parts that a training moves: all of it is what a checkpoint holds."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    average: Average | None


def prepare(model: nn.Module, plan: Plan) -> Learner:
    """The model on its device, with the optimisers and the running mean that the recipe asks for."""
    model.to(plan.compute.device).train()
    average = Average(model, plan.recipe.ema) if plan.recipe.ema else None
    return Learner(model, rates.build(model, plan.recipe, plan.compute.device), average)


def train(
    learner: Learner,
    pictures: Pictures,
    targets: Shaped[np.ndarray, " n *K"],
    plan: Plan,
    start: int = 0,
    blocks: Int64[np.ndarray, " n"] | None = None,
    task: Task = "classes",
    guards: Guards | None = None,
) -> Iterator[Step]:
    """Train from step `start` to the plan's last, one yielded `Step` at a time.

    The learning rate, the dropped patches, the augmentation and dropout depend on the seed and the step alone, so a
    run that stops after any step and starts again there ends with the same bits.

    Args:
        targets: in the order of `pictures.indices`: class numbers [n] or the probability of each class [n, K]; for
            labels and numbers float32 [n, K], in which NaN is unknown and masked.
        blocks: the shard that each picture lies in, where pictures lie in shards.
        task: decides the loss.
        guards: decide which steps are applied; new ones unless given.

    Raises:
        DivergedError: three steps in a row gave a loss or gradient that is not finite; none of them was applied.
    """
    recipe, device = plan.recipe, plan.compute.device
    guards = guards or Guards(recipe)
    weights = balance(task, recipe, targets, plan.model.outputs)
    loss_of = loss_for(task, recipe, None if weights is None else weights.to(device))
    forward = torch.compile(learner.model) if plan.compute.compile else learner.model
    began = time.perf_counter()
    for step, epoch, batch in steps(pictures, targets, recipe.batch, plan.seed, start, recipe.repeats, blocks):
        if step == recipe.steps:
            return
        rates.set_rates(learner.optimizers, recipe, step)
        torch.manual_seed(derive(plan.seed, "dropout", step))
        shown = augment(batch, recipe, plan.seed, epoch, device)
        shown, expected = mixed(shown, batch, recipe, plan.seed, epoch, plan.model.outputs)
        images, rows = normalise(sized(shown, plan, step), plan.image), kept_rows(batch, plan, step, epoch)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=plan.compute.number_format == "bfloat16"):
            logits = forward(images, rows)
        loss = mean(*loss_of(logits, expected))
        loss.backward()
        answer = apply(learner, recipe, guards, step, loss, batch, logits)
        passed = (step + 1) * min(recipe.batch // recipe.repeats, len(targets)) / len(targets)
        seconds = time.perf_counter() - began
        yield Step(step + 1, passed, answer, recipe.rate_factor(step), len(batch.indices), seconds)
        began = time.perf_counter()  # what the caller did in between is not training


def kept_rows(batch: Batch, plan: Plan, step: int, epoch: int) -> Int[Tensor, "B n"] | None:
    """Which patches each picture shows at this step; None means all of them."""
    patches = plan.recipe.grid_at(step, plan.model.grid).patches
    kept = plan.recipe.patches_at(step, patches)
    if kept == patches:
        return None
    order = uniform(plan.seed, "patches", epoch, batch.keys, patches).argsort(axis=1)[:, :kept]
    return torch.from_numpy(np.sort(order, axis=1)).to(plan.compute.device)


def apply(
    learner: Learner, recipe: Recipe, guards: Guards, step: int, loss: Tensor, batch: Batch, logits: Tensor
) -> float:
    """Move the weights by their gradients, or leave them if the guards do not allow it. Gives the loss."""
    norm = clip_grad_norm_(learner.model.parameters(), recipe.clip or math.inf)
    answer, size = torch.stack([loss.detach(), norm.to(loss)]).tolist()  # the one wait for the device
    allowed = guards.applying = guards.allow(step, answer, size, batch, logits)
    for optimizer in learner.optimizers:
        if allowed:
            optimizer.step()
        optimizer.zero_grad()
    if allowed and learner.average is not None:
        learner.average.update(learner.model, step)
    guards.applying = False
    return float(answer)
