"""From pictures, a wish and a machine to a plan, each line with its reason. The rules are few and stand here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import config
from ..errors import UsageError
from ..model import attention
from ..model.config import ViTConfig
from ..model.sizes import SIZES, named, small_picture_parts
from ..runtime import Runtime
from ..spec import ImageSpec
from .plan import ComputeSettings, DataSettings, Plan
from .recipe import Recipe

DEFAULT_MINUTES = 10.0
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


Reasons = dict[str, str]


def draft(found: Fingerprint, wishes: Wishes, runtime: Runtime) -> tuple[Plan, Reasons]:
    """The plan but for what must be measured: mean and deviation of the pictures, and the number of steps.

    Raises:
        UsageError: wishes that contradict each other, or a field that does not exist.
    """
    reasons: Reasons = {f"compute.{name}": reason for name, reason in runtime.reasons.items()}
    model = _model(found, wishes, reasons)
    image = ImageSpec(
        height=model.image_size[0], width=model.image_size[1], channels=model.channels, low=found.low, high=found.high
    )
    plan = Plan(
        model_name=wishes.model or "automatic",
        seed=wishes.seed,
        minutes=_minutes(wishes),
        data=wishes.data,
        image=image,
        model=model,
        recipe=_recipe(found, model, wishes, reasons),
        compute=ComputeSettings(
            device=runtime.device,
            number_format=runtime.number_format,
            threads=runtime.threads,
            compile=runtime.compile,
        ),
    )
    plan = config.override(plan, wishes.overrides)
    for name in wishes.overrides:
        reasons[name] = "asked for"
    _check(plan, found)
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


def fix_steps(plan: Plan, seconds_early: float, seconds_late: float, reasons: Reasons) -> Plan:
    """The plan with as many steps as its minutes allow, given what a step takes with few and with all patches."""
    recipe = plan.recipe
    mean = recipe.keep_until * seconds_early + (1 - recipe.keep_until) * seconds_late
    steps = max(20, round(plan.minutes * 60 / mean))
    reasons["recipe.steps"] = f"{plan.minutes:g} minutes at {mean:.3f} s a step, measured before the first one"
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


def _model(found: Fingerprint, wishes: Wishes, reasons: Reasons) -> ViTConfig:
    """A named model, or the small-picture design on the pictures' own grid; outputs and channels follow the data."""
    channels = wishes.channels or found.channels
    if wishes.model is not None:
        base = named(wishes.model)
        size = wishes.image_size or base.image_size
        reasons["model_name"] = "asked for"
    else:
        size = wishes.image_size or _image_size(found, reasons)
        patch = patch_for(size)
        reasons["model.patch"] = f"{size[0] // patch} x {size[1] // patch} patches: about 49 teach most per second"
        shape = SIZES["nano"]
        reasons["model.width"] = "the nano size: what two cores can teach in minutes"
        size = (size[0] // patch * patch, size[1] // patch * patch)
        base = small_picture_parts(
            ViTConfig(
                image_size=size, patch=(patch, patch),
                width=shape.width, depth=shape.depth, heads=shape.heads, mlp_width=shape.mlp_width,
            )
        )  # fmt: skip
    reasons["model.channels"] = "as the pictures are" if wishes.channels is None else "asked for"
    return dataclasses.replace(base, image_size=size, channels=channels, outputs=found.classes)


def _image_size(found: Fingerprint, reasons: Reasons) -> tuple[int, int]:
    short = min(found.height, found.width)
    if short <= 64:
        reasons["model.image_size"] = f"the pictures' own size, {found.height} x {found.width}"
        return found.height, found.width
    reasons["model.image_size"] = f"pictures are {found.height} x {found.width}; minutes from scratch can use 64"
    return 64, 64


def patch_for(size: tuple[int, int]) -> int:
    """The patch side that cuts a picture's short side into about seven patches, and both sides evenly if one can."""
    short = min(size)
    near = max(min(short, 2), round(short / 7))  # a token of a single pixel says little
    sides = sorted(range(1, short + 1), key=lambda patch: abs(math.log(patch / near)))
    return next(patch for patch in sides if size[0] % patch == 0 and size[1] % patch == 0)


def _recipe(found: Fingerprint, model: ViTConfig, wishes: Wishes, reasons: Reasons) -> Recipe:
    batch = min(128, max(16, 2 ** round(math.log2(max(found.count, 1) / 12))))
    many = model.grid.patches >= 36
    mirror = found.name not in MIRROR_CHANGES_MEANING
    reasons["recipe.batch"] = f"{found.count:,} training pictures"
    reasons["recipe.flip"] = "mirrored pictures mean the same" if mirror else "a mirrored digit is another sign"
    halves = "half of the patches teach nearly as much at half the price"
    reasons["recipe.keep_patches"] = halves if many else "few patches: all are needed"
    recipe = Recipe(
        batch=batch,
        keep_patches=0.5 if many else 1.0,
        keep_until=0.7 if many else 0.0,
        crop_padding=max(1, min(model.image_size) // 14),
        flip=mirror,
        mirror=mirror,
    )
    if wishes.steps is not None:
        reasons["recipe.steps"] = "asked for"
        return dataclasses.replace(recipe, steps=wishes.steps)
    if wishes.epochs is not None:
        steps = max(1, math.ceil(wishes.epochs * found.count / batch))
        reasons["recipe.steps"] = f"{wishes.epochs:g} epochs of {found.count:,} pictures, {batch} a step"
        return dataclasses.replace(recipe, steps=steps)
    return recipe


def _check(plan: Plan, found: Fingerprint) -> None:
    """What only the whole plan can show to be wrong, before a second is spent."""
    if plan.model.image_size != plan.image.size or plan.model.channels != plan.image.channels:
        raise UsageError(
            f"The model reads {plan.model.image_size[0]}x{plan.model.image_size[1]} pixels of {plan.model.channels} "
            f"channels, but [image] gives {plan.image.height}x{plan.image.width} of {plan.image.channels}. "
            "Make them equal."
        )
    if plan.model.outputs != found.classes:
        raise UsageError(f"The model needs one output per class, {found.classes}. Got outputs={plan.model.outputs}.")
