"""The training loop: a page of plain code. It yields what happened, so that whoever called it can show it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from ..data.loader import Batch, ImageStore, iter_batches
from ..data.source import Task
from ..model.vit import ViT
from ..randomness import derive, uniform
from .brought import NOTHING, Brought
from .engines import ahead
from .engines.engine import Engine, chosen
from .engines.team import ALONE, Team
from .plan import Plan
from .planning.imbalance import balance
from .recipe import Recipe
from .stepping import optimizer as rates
from .stepping.gradients import Shown, backward, measured
from .stepping.guards import Guards
from .stepping.half import LossScale
from .stepping.objective import loss_for
from .stepping.optimizer import Average
from .stepping.views import augment, mixed, sized
from .teacher.lesson import Lesson
from .transfer.tuning import loosen, scales


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
    sharded: bool = False
    """Whether the parameters are shares of whole ones, which FSDP2 keeps apart."""
    scale: LossScale | None = None
    """What float16 needs."""
    lesson: Lesson | None = None
    """Whom it follows beside the labels; no part of a checkpoint, for it does not move."""

    def remembered(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the tensors, in JSON's kinds."""
        return {} if self.scale is None else {"loss_scale": self.scale.remembered()}

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Take over what `remembered` gave; a checkpoint without it changes nothing."""
        if self.scale is not None and "loss_scale" in facts:
            self.scale.remember(facts["loss_scale"])


def prepare(model: ViT, plan: Plan, team: Team = ALONE) -> Learner:
    """The model on its device, with the optimisers and the running mean that the recipe asks for."""
    compute = plan.compute
    if compute.compile:
        torch.compiler.reset()  # what was compiled before, as for measuring, must not decide what kernels this one gets
    model.to(compute.device).train()
    loosen(model, plan.start, plan.seed)
    fractions = scales(model, plan.start.layer_decay)
    sharded = chosen(compute.engine, team, sum(p.numel() for p in model.parameters()), compute.device)[0] == "fsdp"
    if sharded:
        from .engines.sharding import shard  # a second to import, for those few who need it

        shard(model, team, compute.device)
    average = Average(model, plan.recipe.ema) if plan.recipe.ema else None
    compiled = compute.compile and compute.device.startswith("cuda")
    optimizers = rates.build(model, plan.recipe, compute.device, sharded, compiled, fractions)
    return Learner(model, optimizers, average, sharded, LossScale() if compute.number_format == "float16" else None)


def train(
    learner: Learner,
    pictures: ImageStore,
    targets: Shaped[np.ndarray, " n *K"],
    plan: Plan,
    start: int = 0,
    blocks: Int64[np.ndarray, " n"] | None = None,
    task: Task = "classes",
    guards: Guards | None = None,
    team: Team = ALONE,
    brought: Brought = NOTHING,
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
        team: the processes that train together; each shows its part of the same batches.
        brought: a loss or an augmentation of the program's own.

    Raises:
        PartnerError: another process of the team died.
        DivergedError: three steps in a row gave a loss or gradient that is not finite; none of them was applied.
    """
    recipe, device = plan.recipe, plan.compute.device
    guards = guards or Guards(recipe)
    weights = balance(task, recipe, targets, plan.model.outputs)
    balanced = None if weights is None else weights.to(device)
    loss = brought.total if brought.loss is not None else loss_for(task, recipe, balanced)
    engine = Engine(learner.model, team, learner.sharded)
    measure = measured(engine, loss, plan)
    held = ahead.held(pictures, device)
    batches = iter_batches(held, targets, recipe.batch, plan.seed, start, recipe.repeats, blocks, team.rank, team.world)
    began = time.perf_counter()
    for step, epoch, batch in ahead.on_device(batches, device):
        if step == recipe.steps:
            return
        team.step = step + 1
        rates.set_rates(learner.optimizers, recipe, step)
        torch.manual_seed(derive(plan.seed, "dropout", step, *([team.rank] if team.rank else [])))
        shown = brought.augmented(augment(batch, recipe, plan.seed, epoch, device))
        shown, expected = mixed(shown, batch, recipe, plan.seed, epoch, plan.model.outputs)
        said = None if learner.lesson is None else learner.lesson.answers(shown)
        piece = Shown(sized(shown, plan, step), kept_rows(batch, plan, step, epoch), expected, said)
        scale = 1.0 if learner.scale is None else learner.scale.factor
        way = (recipe.accumulate, scale, learner.lesson)
        average, logits = backward(engine, measure, loss, piece, plan.model.outputs, *way)
        answer = apply(learner, recipe, guards, step, average, batch, logits)
        passed = (step + 1) * min(recipe.batch // recipe.repeats, len(targets)) / len(targets)
        seconds = time.perf_counter() - began
        yield Step(step + 1, passed, answer, recipe.rate_factor(step), len(batch.indices) * team.world, seconds)
        began = time.perf_counter()  # what the caller did in between is not training


def kept_rows(batch: Batch, plan: Plan, step: int, epoch: int) -> Int[Tensor, "B n"] | None:
    """Which patches each picture shows at this step; None means all of them."""
    patches = plan.recipe.grid_at(step, plan.model.grid).patches
    kept = plan.recipe.patches_at(step, patches)
    if kept == patches:
        return None
    order = uniform(plan.seed, "patches", epoch, batch.keys, patches).argsort(axis=1)[:, :kept]
    return torch.from_numpy(np.sort(order, axis=1)).to(plan.compute.device)


def _clipped(model: nn.Module, most: float) -> Tensor:
    """The length of all gradients together, after which they are no longer than `most`; 0 leaves them as they are."""
    if most:
        return clip_grad_norm_(model.parameters(), most)
    return get_total_norm([each.grad for each in model.parameters() if each.grad is not None])


def apply(
    learner: Learner, recipe: Recipe, guards: Guards, step: int, loss: Tensor, batch: Batch, logits: Tensor
) -> float:
    """Move the weights by their gradients, or leave them if the guards do not allow it. Gives the loss."""
    scale = 1.0 if learner.scale is None else learner.scale.factor
    if learner.scale is not None:
        learner.scale.divide(learner.model.parameters())
    norm = _clipped(learner.model, recipe.clip)
    if learner.sharded:
        from .engines.sharding import whole

        norm = whole(norm)
    answer, size = torch.stack([loss.detach(), norm.to(loss)]).tolist()  # the one wait for the device
    allowed = guards.applying = guards.allow(step, answer, size, batch, logits, scale)
    if learner.scale is not None:
        learner.scale.note(math.isfinite(answer) and not math.isfinite(size))
    for optimizer in learner.optimizers:
        if allowed:
            optimizer.step()
        optimizer.zero_grad()
    if allowed and learner.average is not None:
        learner.average.update(learner.model, step)
    guards.applying = False
    return float(answer)
