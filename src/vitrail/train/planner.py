"""From pictures, a wish and a machine to a plan, each line with its reason. The rules are few and stand here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import config
from ..data.settings import DataSettings
from ..data.source import Task
from ..errors import UsageError
from ..model import attention
from ..model.config import ViTConfig
from ..model.sizes import named
from ..runtime import Runtime
from ..spec import ImageSpec, Window
from . import objective
from .plan import ComputeSettings, Plan
from .pretrain import planning as pretraining
from .recipe import Recipe

DEFAULT_MINUTES = 10.0
LARGEST_SIDE = 64
FEW_PICTURES = 5000
MIRROR_CHANGES_MEANING = ("digits", "mnist")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asked for; None leaves the choice to the plan."""

    data: DataSettings
    model: str | None = None
    minutes: float | None = None
    epochs: float | None = None
    steps: int | None = None
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    pretrain: bool = False
    seed: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Plan fields by their dotted names, as text."""


@dataclass(frozen=True)
class Fingerprint:
    """What the plan needs to know of the training pictures."""

    name: str
    count: int
    classes: int
    height: int
    width: int
    channels: int
    low: float
    high: float
    range_reason: str = ""
    window: Window = "none"
    window_reason: str = ""
    task: Task = "classes"


Reasons = dict[str, str]


def draft(found: Fingerprint, wishes: Wishes, runtime: Runtime) -> tuple[Plan, Reasons]:
    """The plan but for what must be measured: mean and deviation of the pictures, and the number of steps.

    Raises:
        UsageError: wishes that contradict each other, or a field that does not exist.
    """
    reasons: Reasons = {f"compute.{name}": reason for name, reason in runtime.reasons.items()}
    name, model = _model(found, wishes, runtime, reasons)
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
        minutes=_minutes(wishes),
        data=wishes.data,
        image=image,
        model=model,
        pretrain=pretraining.wished(wishes.pretrain, wishes.overrides, reasons),
        recipe=_recipe(found, model, wishes, reasons),
        compute=ComputeSettings(
            device=runtime.device,
            number_format=runtime.number_format,
            threads=runtime.threads,
            workers=runtime.workers,
            compile=runtime.compile,
        ),
    )
    plan = config.override(plan, wishes.overrides)
    if "recipe.steps" in wishes.overrides:
        plan = dataclasses.replace(plan, minutes=0.0)
    for name in wishes.overrides:
        reasons[name] = "asked for"
    check_plan(plan, found.classes, found.task)
    reasons["model.attention"] = attention_words(plan)
    return plan, reasons


def attention_words(plan: Plan) -> str:
    """Which attention path will run in training and in inference, in words."""
    training, inference = attention_paths(plan)
    return f"{training} in training, {inference} in inference: {plan.compute.number_format}, {plan.model.tokens} tokens"


def attention_paths(plan: Plan) -> tuple[attention.Path, attention.Path]:
    """The attention paths with and without gradients, by the measured table."""
    model, compute = plan.model, plan.compute
    place = attention.place(compute.device)
    training = attention.choose_path(model.attention, place, compute.number_format, model.tokens, True)
    return training, attention.choose_path(model.attention, place, compute.number_format, model.tokens, False)


def fix_steps(plan: Plan, seconds_early: float, seconds_late: float, reasons: Reasons, spent: float = 0.0) -> Plan:
    """The plan with as many steps as its minutes allow, given what a step takes with few and with all patches.

    Args:
        spent: seconds of the minutes that something else takes.
    """
    recipe = plan.recipe
    mean = recipe.keep_until * seconds_early + (1 - recipe.keep_until) * seconds_late
    steps = max(20, round((plan.minutes * 60 - spent) / mean))
    reasons["recipe.steps"] = (
        f"{plan.minutes - spent / 60:.4g} minutes at {mean:.3f} s a step, measured before the first one"
    )
    return dataclasses.replace(plan, recipe=dataclasses.replace(recipe, steps=steps))


def _minutes(wishes: Wishes) -> float:
    budgets = {"minutes": wishes.minutes, "epochs": wishes.epochs, "steps": wishes.steps}
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"Give one budget. Got --{' and --'.join(given)}.")
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise UsageError(f"--{name} must be above 0. Got {value}.")
    if wishes.epochs is not None or wishes.steps is not None:
        return 0.0
    return wishes.minutes or DEFAULT_MINUTES


def _model(found: Fingerprint, wishes: Wishes, runtime: Runtime, reasons: Reasons) -> tuple[str, ViTConfig]:
    """A named model: the one asked for, or a small one on the pictures' grid. Outputs and channels follow the data."""
    if wishes.model is not None:
        name, reasons["model_name"] = wishes.model, "asked for"
    else:
        name = _suitable(found, wishes, runtime, reasons)
    base = named(name)
    size = wishes.image_size if wishes.model is not None and wishes.image_size else base.image_size
    channels = wishes.channels or found.channels
    if channels != found.channels and {channels, found.channels} != {1, 3}:
        raise UsageError(
            f"--channels {channels} cannot be made of pictures with {found.channels}; only grey and colour (1 and 3) "
            f"turn into each other. Leave it out, or use {found.channels}."
        )
    reasons["model.channels"] = "as the pictures are" if wishes.channels is None else "asked for"
    return name, dataclasses.replace(base, image_size=size, channels=channels, outputs=found.classes)


def _suitable(found: Fingerprint, wishes: Wishes, runtime: Runtime, reasons: Reasons) -> str:
    """The name of a small model whose patches cut the pictures about seven times seven."""
    if wishes.image_size is not None:
        size, reasons["model.image_size"] = wishes.image_size, "asked for"
    elif min(found.height, found.width) <= LARGEST_SIDE:
        size = found.height, found.width
        reasons["model.image_size"] = f"the pictures' own size, {found.height} x {found.width}"
    else:
        size = LARGEST_SIDE, LARGEST_SIDE
        why = f"minutes from scratch can use {LARGEST_SIDE}"
        reasons["model.image_size"] = f"the pictures are {found.height} x {found.width}; {why}"
    patch, whole = patch_for(size)
    if whole != size:
        if wishes.image_size is not None:
            raise UsageError(
                f"No patch near {patch} divides {size[0]}x{size[1]}. Use {whole[0]}x{whole[1]}, or --model."
            )
        reasons["model.image_size"] += f", to the nearest whole patches {whole[0]} x {whole[1]}"
    reasons["model.patch"] = f"{whole[0] // patch} x {whole[1] // patch} patches: about 49 teach most per second"
    shape = "pico" if runtime.device == "cpu" else "micro"
    more = "more pictures seen beat more parameters" if shape == "pico" else "a GPU has time for more parameters"
    reasons["model_name"] = f"{shape}: {more} (EXPERIMENTS.md)"
    pixels = f"{whole[0]}" if whole[0] == whole[1] else f"{whole[0]}x{whole[1]}"
    return f"vit_{shape}_patch{patch}_{pixels}"


def patch_for(size: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """The patch side that cuts the short side about seven times, and the nearest size that it divides.

    A patch that divides the size as it is wins if it is no more than half as large again, or as small.
    """
    short = min(size)
    near = max(min(short, 2), round(short / 7))  # a token of a single pixel says little
    dividing = [side for side in range(1, short + 1) if size[0] % side == 0 and size[1] % side == 0]
    patch = min(dividing, key=lambda side: abs(math.log(side / near)))
    if abs(math.log(patch / near)) > math.log(1.5):
        patch = near
    return patch, (max(1, round(size[0] / patch)) * patch, max(1, round(size[1] / patch)) * patch)


def _recipe(found: Fingerprint, model: ViTConfig, wishes: Wishes, reasons: Reasons) -> Recipe:
    batch = min(128, max(16, 2 ** round(math.log2(max(found.count, 1) / 12))))
    mirror = found.name not in MIRROR_CHANGES_MEANING
    reasons["recipe.batch"] = f"{found.count:,} training pictures"
    reasons["recipe.flip"] = "mirrored pictures mean the same" if mirror else "a mirrored digit is another sign"
    few = found.count < FEW_PICTURES
    halves = "half of the patches teach nearly as much at half the price"
    reasons["recipe.keep_patches"] = (
        "few pictures: missing patches keep it from learning them by heart" if few else halves
    )
    reasons["recipe.crop_padding"] = "one pixel in 28"
    recipe = Recipe(
        batch=batch,
        keep_patches=0.6 if few else 0.5,
        keep_until=0.9 if few else 0.7,
        smoothing=0.1 if few and found.task == "classes" else 0.0,
        crop_padding=min(model.image_size) // 28,
        flip=mirror,
        mirror=mirror,
    )
    if wishes.steps is not None:
        reasons["recipe.steps"] = "asked for"
        return dataclasses.replace(recipe, steps=wishes.steps)
    if wishes.epochs is not None:
        steps = max(1, math.ceil(wishes.epochs * found.count / min(batch, found.count)))
        reasons["recipe.steps"] = f"{wishes.epochs:g} epochs of {found.count:,} pictures, {batch} a step"
        return dataclasses.replace(recipe, steps=steps)
    return recipe


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
    objective.check(task, plan.recipe)
    pretraining.check(plan)
