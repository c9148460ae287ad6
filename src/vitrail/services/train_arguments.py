"""From what a person typed or passed to what the training room reads: wishes and settings, or a changed plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import config
from ..config.schema import unknown_setting_message
from ..data.open import BUILT_IN
from ..errors import UsageError
from ..runtime import RuntimeSettings
from ..train.plan import Plan
from ..train.request import TrainRequest

COMMAND_LINE = "the command line"


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """A training as a person asks for it; None and empty leave the choice to the plan."""

    source: str | None = None
    """As `data.open.open_source` takes it, by name; "memory" for an object that is passed beside it."""
    model: str | None = None
    minutes: float | None = None
    epochs: float | None = None
    steps: int | None = None
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    pretrain: bool = False
    seed: int | None = None
    device: str | None = None
    data_root: Path | None = None
    skip_bad: bool = False
    task: str | None = None
    group: str | None = None
    exclude: Path | None = None
    folds: int | None = None
    weights: str | None = None
    changes: Mapping[str, str] | None = None
    """Plan fields by their dotted names, as text."""


def build_train_request(asked: TrainArguments) -> tuple[TrainRequest, RuntimeSettings]:
    """What `train.fit.fit` takes.

    Raises:
        UsageError: no source, a dotted name that does not exist, or one that says the same as a flag.
    """
    if not asked.source:
        raise UsageError(
            "A training needs a SOURCE: a folder that holds one folder per class, a manifest (CSV, TSV, JSONL, "
            f"Parquet), arrays, tar shards, hf:NAME, or one of {', '.join(BUILT_IN)}."
        )
    changes = dict(asked.changes or {})
    check_plan_fields(changes)
    _check_no_duplicates(asked, changes)
    said = {
        name: str(value)
        for name, (_, value) in _fields_with_flags(asked).items()
        if value is not None and name.startswith("data.")
    }
    data_changes = {name: text for name, text in changes.items() if name.startswith("data.")}
    compute = {name: text for name, text in changes.items() if name.startswith("compute.")}
    rest = {name: text for name, text in changes.items() if name not in data_changes and name not in compute}
    weights = rest.pop("start.weights", None) or asked.weights or "auto"
    wanted = TrainRequest(
        data=config.override(Plan(), said | data_changes).data,
        model=asked.model,
        minutes=asked.minutes,
        epochs=asked.epochs,
        steps=asked.steps,
        image_size=asked.image_size,
        channels=asked.channels,
        pretrain=asked.pretrain,
        weights=weights,
        seed=asked.seed or 0,
        overrides=rest,
    )
    settings = RuntimeSettings(device=asked.device or "auto")
    return wanted, config.override(settings, {name.partition(".")[2]: text for name, text in compute.items()})


def should_train_all_folds(asked: TrainArguments, wanted: TrainRequest) -> bool:
    """Whether a model is to be trained for every fold, and not for the one that data.fold names."""
    return wanted.data.folds > 0 and "data.fold" not in (asked.changes or {})


def override_plan(plan: Plan, asked: TrainArguments) -> Plan:
    """A written plan with what was asked beside it; a choice that the plan has already made cannot be asked again.

    Raises:
        UsageError: a flag that only makes sense before there is a plan, or a dotted name that does not exist.
    """
    early: dict[str, object] = {"--model": asked.model, "--minutes": asked.minutes, "--epochs": asked.epochs}
    early |= {"--image-size": asked.image_size, "--channels": asked.channels, "--weights": asked.weights}
    early |= {"--pretrain": asked.pretrain or None}
    if given := [name for name, value in early.items() if value is not None]:
        raise UsageError(
            f"A plan has settled {' and '.join(given)} already. Change its fields by name, such as --recipe.steps 500; "
            "--help-plan lists them."
        )
    changes = dict(asked.changes or {})
    check_plan_fields(changes)
    _check_no_duplicates(asked, changes)
    if asked.folds and "data.fold" not in changes:
        raise UsageError(
            f"A plan trains one model. Give --data.fold NUMBER beside --folds {asked.folds}, or leave --plan out to "
            "train all folds."
        )
    said = {name: str(value) for name, (_, value) in _fields_with_flags(asked).items() if value is not None}
    return config.override(plan, {**said, **changes})


def check_plan_fields(changes: Mapping[str, str]) -> None:
    """Refuse a plan field that does not exist, before a picture is read.

    Raises:
        UsageError: with the nearest name.
    """
    known = [field.name for field in config.describe(Plan) if "." in field.name]
    for name in changes:
        if name not in known:
            raise UsageError(unknown_setting_message(name, known, COMMAND_LINE))


def parse_image_size(text: str | int | tuple[int, int]) -> tuple[int, int]:
    """Height and width: 64 is 64 x 64, "60x100" is 60 high and 100 wide.

    Raises:
        UsageError: neither form, or a side below 1.
    """
    if not isinstance(text, str):
        height, width = (text, text) if isinstance(text, int) else text
    else:
        match = re.fullmatch(r"(\d+)(?:\s*[xX×,]\s*(\d+))?", text.strip())
        height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(height, width) < 1:
        raise UsageError(f"The image size is one side or HEIGHTxWIDTH in pixels, such as 64 or 60x100. Got {text!r}.")
    return height, width


def _fields_with_flags(asked: TrainArguments) -> dict[str, tuple[str, object]]:
    """Plan fields that have a flag of their own: name -> (the flag, what it was given)."""
    return {
        "data.source": ("SOURCE", asked.source or None),
        "data.data_root": ("--data-root", asked.data_root),
        "data.skip_bad": ("--skip-bad", "true" if asked.skip_bad else None),
        "data.task": ("--task", asked.task),
        "data.group": ("--group", asked.group),
        "data.exclude": ("--exclude", asked.exclude),
        "data.folds": ("--folds", asked.folds),
        "compute.device": ("--device", None if asked.device == "auto" else asked.device),
        "recipe.steps": ("--steps", asked.steps),
        "seed": ("--seed", asked.seed),
        "model.channels": ("--channels", asked.channels),
        "start.weights": ("--weights", asked.weights),
    }


def _check_no_duplicates(asked: TrainArguments, changes: Mapping[str, str]) -> None:
    for name, (flag, value) in _fields_with_flags(asked).items():
        if value is not None and name in changes:
            raise UsageError(f"{flag} and --{name} are the same setting. Give one of them.")
