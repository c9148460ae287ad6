"""A plan in a few aligned lines: what was chosen, and why, for whoever watches a training begin."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from ..errors import printable
from ..train.events import PlanEvent
from ..train.plan import CNN_TEACHER, Plan
from .amounts import duration, memory

WIDTH = 118
"""Of lines that go into a file or a wide terminal; a narrow one has narrower lines."""
NARROWEST = 30
"""Of the column of reasons; where there is no room for it, they stand below."""


def lines(planned: PlanEvent) -> list[str]:
    """A choice is its name, its value and its reason in columns; a long reason goes on below itself.

    In a narrow terminal all of a reason stands below its choice.
    """
    plan, model, recipe = planned.plan, planned.plan.model, planned.plan.recipe
    height, width = model.image_size
    pictures = (
        f"{height} x {width} x {model.channels}, {model.grid.patches} patches of {model.patch[0]} x {model.patch[1]}"
    )
    machine = f"{recipe.optimizer}, {plan.compute.device}, {plan.compute.number_format}"
    rows = [
        ("model", f"{plan.model_name}: {model.depth} blocks, width {model.width}".removeprefix(": "), "model_name"),
        ("pictures", pictures, "model.image_size"),
        ("pre-training", _pretraining(plan), "pretrain.steps"),
        ("teacher", _teacher(plan), "teacher.steps" if plan.teacher.first else "teacher.model"),
        ("steps", f"{recipe.steps:,} of {recipe.batch} pictures", "recipe.steps"),
        ("early steps", _early(plan), "recipe.keep_patches"),
        ("variety", _variety(plan), "recipe.mixup"),
        ("answers", _averaged(plan), "recipe.shift" if recipe.shift else "recipe.mirror"),
        ("machine", machine, "compute.number_format"),
    ]
    told = [(name, value, planned.reasons.get(field, "")) for name, value, field in rows if value]
    if planned.cost is not None:
        cost = planned.cost
        told.append(("takes", f"{duration(cost.seconds)}, {memory(cost.memory)}", "as the first steps here did"))
    left, middle = (max(len(row[column]) for row in told) for column in (0, 1))
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns - 1)
    beside = width - left - middle - 4 >= NARROWEST
    column = left + 2 if not beside else left + middle + 4
    found = []
    for name, value, why in told:
        wrapped = textwrap.wrap(printable(why), max(NARROWEST, width - column))
        first = wrapped.pop(0) if beside and wrapped else ""
        found.append(f"{name:<{left}}  {value:<{middle}}  {first}".rstrip())
        found += [f"{'':<{column}}{more}" for more in wrapped]
    return found


def expected(planned: PlanEvent) -> list[str]:
    """What the run will take, in a sentence; nothing where it was not measured."""
    cost = planned.cost
    if cost is None:
        return []
    parts = {"preparation": cost.preparation, "training": cost.training, "evaluation and report": cost.evaluation}
    listed = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items())
    where = "of memory" if planned.plan.compute.device == "cpu" else "on the device"
    return [f"Expected on this machine: {duration(cost.seconds)} ({listed}), {memory(cost.memory)} {where}."]


def _pretraining(plan: Plan) -> str:
    """What is learnt before any label."""
    settings = plan.pretrain
    if not settings.steps:
        return ""
    further = f", also of {Path(settings.pictures).name}" if settings.pictures else ""
    batch = settings.batch or plan.recipe.batch
    return f"{settings.steps:,} steps of {batch} pictures{further}, {settings.mask:.0%} hidden"


def _teacher(plan: Plan) -> str:
    """Who teaches, and how."""
    settings = plan.teacher
    if not settings.wanted:
        return ""
    name = "a CNN" if settings.model == CNN_TEACHER else Path(settings.model).name
    if settings.kind == "features":
        return f"{settings.steps:,} steps of the features of {name}"
    own = f" of {settings.steps:,} steps" if settings.model == CNN_TEACHER else ""
    return f"{name}{own}, {settings.weight:.0%} of the loss"


def _early(plan: Plan) -> str:
    """What the early steps leave out."""
    recipe = plan.recipe
    dropped = recipe.keep_patches < 1 and recipe.keep_until > 0
    smaller = recipe.small_size < 1 and recipe.small_until > 0
    parts = [f"{recipe.keep_patches:.0%} of the patches until {recipe.keep_until:.0%}"] * dropped
    parts += [f"{recipe.small_size:.0%} of the size until {recipe.small_until:.0%}"] * smaller
    return ", ".join(parts)


def _variety(plan: Plan) -> str:
    """What makes one picture many."""
    recipe = plan.recipe
    flips = {"mirror": recipe.flip, "upside down": recipe.flip_vertical, "quarter turns": recipe.transpose}
    words = [name for name, used in flips.items() if used]
    words += [f"shift {recipe.crop_padding}"] * bool(recipe.crop_padding)
    places = {"turn": f"{recipe.turn:g}°", "stretch": f"{recipe.stretch:.0%}", "move": f"{recipe.move:.0%}"}
    words += [f"{name} {amount}" for name, amount in places.items() if getattr(recipe, name)]
    words += [f"crops from {recipe.crop_scale:g}"] * bool(recipe.crop_scale)
    words += [recipe.augment] * (recipe.augment != "none")
    numbers = {"erase": recipe.erase, "mixup": recipe.mixup, "cutmix": recipe.cutmix, "depth": plan.model.drop_path}
    return ", ".join([*words, *(f"{name} {value:g}" for name, value in numbers.items() if value)])


def _averaged(plan: Plan) -> str:
    """What an answer is the mean of."""
    views = plan.recipe.views
    words = ["mirrored"] * views.mirror + [f"moved by {views.shift}"] * bool(views.shift)
    return f"mean of {views.count} views: {', '.join(words)}" if words else ""
