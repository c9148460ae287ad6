"""From pictures, a wish and a machine to a plan, each line with its reason. The rules are few and stand here."""

from __future__ import annotations

import dataclasses
import math

from ... import config
from ...data.source import Task
from ...errors import UsageError
from ...model import attention
from ...plural import counted
from ...runtime import Runtime
from ...spec import ImageSpec
from ..plan import ComputeSettings, Plan
from ..pretrain import planning as pretraining
from ..recipe import LOOKED_AT
from ..stepping import objective
from ..teacher import planning as teaching
from . import diet, idle, shape
from .pace import Pace
from .reasons import asked
from .wishes import Fingerprint, Reasons, Wishes

DEFAULT_MINUTES = 10.0
STEPS = "recipe.steps"
"""The field that says the budget too."""
FEWEST_STEPS = 20
LOOKS_SHARE = 0.1
"""Of the minutes, for looks at the validation pictures on the way."""


def draft(found: Fingerprint, wishes: Wishes, runtime: Runtime) -> tuple[Plan, Reasons]:
    """The plan but for what must be measured: mean and deviation of the pictures, and the number of steps.

    Raises:
        UsageError: wishes that contradict each other, or a field that does not exist.
    """
    reasons: Reasons = {f"compute.{name}": reason for name, reason in runtime.reasons.items()}
    name, model = shape.model_for(found, wishes, runtime, reasons)
    image = ImageSpec(
        height=model.image_size[0],
        width=model.image_size[1],
        channels=model.channels,
        low=found.low,
        high=found.high,
        window=found.window,
    )
    why = {"image.low": found.range_reason, "image.high": found.range_reason, "image.window": found.window_reason}
    reasons |= {name: reason for name, reason in why.items() if reason}
    plan = Plan(
        model_name=name,
        seed=wishes.seed,
        minutes=minutes_of(wishes),
        data=wishes.data,
        image=image,
        model=model,
        pretrain=pretraining.wished(wishes.pretrain, wishes.overrides, reasons),
        teacher=teaching.wished(wishes.overrides, reasons),
        recipe=diet.first(found, model, wishes, runtime.device, reasons),
        compute=compute_of(runtime),
    )
    plan = config.override(plan, wishes.overrides)
    plan = diet.with_budget(plan, found.count, wishes, reasons)
    reasons |= asked(wishes.overrides)
    check_plan(plan, found.classes, found.task)
    idle.check(plan, wishes.overrides)
    reasons["model.attention"] = attention_words(plan)
    return plan, reasons


def attention_words(plan: Plan) -> str:
    """Which attention path will run in training and in inference, in words."""
    training, inference = attention_paths(plan)
    return f"{training} in training, {inference} in inference: {plan.compute.number_format}, {plan.model.tokens} tokens"


def attention_paths(plan: Plan) -> tuple[attention.AttentionPath, attention.AttentionPath]:
    """The attention paths with and without gradients, by the measured table."""
    model, compute = plan.model, plan.compute
    place = attention.device_capability(compute.device)
    training = attention.choose_path(model.attention, place, compute.number_format, model.tokens, True)
    return training, attention.choose_path(model.attention, place, compute.number_format, model.tokens, False)


def fix_steps(plan: Plan, pace: Pace, reasons: Reasons, spent: float = 0.0) -> Plan:
    """The plan with as many steps as its minutes allow at the measured pace.

    Args:
        spent: seconds of the minutes that something else takes.
    """
    allowed = round((plan.minutes * 60 - spent) / pace.mean)
    steps = max(FEWEST_STEPS, allowed)
    why = f"{plan.minutes - spent / 60:.4g} min at {pace.mean:.3f} s a step, measured before the first one"
    if allowed < steps:
        why = f"at least, which take about {steps * pace.mean / 60:.3g} min: {why}, are {max(allowed, 0)}"
    reasons["recipe.steps"] = why
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=steps))


def space_looks(plan: Plan, validation: int, wishes: Wishes, reasons: Reasons) -> Plan:
    """The plan with so few looks at its validation pictures that they take no more than a tenth of the training.

    A step costs three times the answer to the same pictures, so this needs no clock: the looks may answer three tenths
    as many pictures as the training learns.
    """
    recipe, looked_at = plan.recipe, min(validation, LOOKED_AT)
    most = int(3 * LOOKS_SHARE * recipe.steps * recipe.batch / max(looked_at, 1))
    if recipe.looks <= max(most, 1) or "recipe.evaluate_every" in wishes.overrides:
        return plan
    every = math.ceil(recipe.steps / max(most, 1))
    reasons["recipe.evaluate_every"] = f"{looked_at:,} validation pictures at a look; a tenth of the time is for looks"
    return dataclasses.replace(plan, recipe=dataclasses.replace(recipe, evaluate_every=every))


def compute_of(runtime: Runtime) -> ComputeSettings:
    """What the machine was found to compute with, as a plan keeps it."""
    return ComputeSettings(
        device=runtime.device,
        number_format=runtime.number_format,
        threads=runtime.threads,
        workers=runtime.workers,
        compile=runtime.compile,
        engine=runtime.engine,
        patience=runtime.patience,
    )


def minutes_of(wishes: Wishes) -> float:
    """The minutes that were asked for or are usual; 0 with another budget.

    Raises:
        UsageError: two budgets, or none above 0.
    """
    budgets = {"minutes": wishes.minutes, "epochs": wishes.epochs, "steps": wishes.steps}
    given = {name: value for name, value in budgets.items() if value is not None}
    written = [STEPS] if STEPS in wishes.overrides else []
    if len([*given, *written]) > 1:
        raise UsageError(f"Give one budget. Got --{' and --'.join([*given, *written])}.")
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise UsageError(f"--{name} must be above 0. Got {value}.")
    if wishes.epochs is not None or wishes.steps is not None or written:
        return 0.0
    return wishes.minutes or DEFAULT_MINUTES


def check_plan(plan: Plan, classes: int, task: Task = "classes") -> None:
    """What only the whole plan and the data can show to be wrong, before a second is spent.

    Raises:
        UsageError: [model], [image] and the classes do not fit together.
    """
    if plan.model.image_size != plan.image.size or plan.model.channels != plan.image.channels:
        raise UsageError(
            f"The model reads {plan.model.image_size[0]}x{plan.model.image_size[1]} pixels of {plan.model.channels} "
            f"channels, but [image] gives {plan.image.height}x{plan.image.width} of {plan.image.channels}. "
            "Give both by --image-size and --channels."
        )
    if plan.model.outputs != classes:
        what = {"classes": "class", "labels": "label", "number": "column of numbers"}[task]
        raise UsageError(f"The model needs one output per {what}, {classes}. Got outputs={plan.model.outputs}.")
    if plan.recipe.transpose and plan.image.height != plan.image.width:
        raise UsageError(
            "recipe.transpose exchanges rows and columns, which only square pictures have alike. Leave it out, or give "
            f"a square --image-size. Got {plan.image.height}x{plan.image.width}."
        )
    if plan.recipe.shift >= plan.image.width:
        raise UsageError(
            f"recipe.shift must be below the width of the pictures, {plan.image.width} pixels. Got {plan.recipe.shift}."
        )
    if plan.recipe != plan.recipe.anew():
        raise UsageError("recipe.extended_at and recipe.extended_from are written by --extend alone. Leave them out.")
    objective.check(task, plan.recipe)
    pretraining.check(plan)
    teaching.check(plan, task)
    if plan.start.from_checkpoint and plan.pretrain.wanted:
        raise UsageError("--pretrain begins from random values and --weights from a checkpoint. Leave one of them out.")
    if plan.start.from_checkpoint and plan.start.frozen_blocks >= plan.model.depth:
        raise UsageError(
            f"start.frozen_blocks must leave a block to tune: the checkpoint has {plan.model.depth}. "
            f"Got {plan.start.frozen_blocks}; start.method probe tunes none."
        )
    if plan.recipe.steps and plan.start.from_checkpoint and plan.start.method == "probe":
        raise UsageError(
            f"start.method probe tunes nothing, so {counted(plan.recipe.steps, 'step')} cannot be made. Leave the "
            "steps or epochs out, or tune with --start.method full or lora."
        )
    if not plan.recipe.steps and not (plan.start.from_checkpoint and plan.start.method == "probe"):
        raise UsageError("recipe.steps must be at least 1; only a probe of a checkpoint trains without steps. Got 0.")
