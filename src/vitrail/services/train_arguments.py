"""Arguments of `vitrail train` and `vitrail.fit` as a `TrainRequest`, or as changes of a written plan."""

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
ALPHA, CASE = "decisions.alpha", "decisions.case"


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Arguments of a training; None and empty leave the choice to the planner."""

    source: str | None = None
    """As `data.open.open_source`; "memory" for an object that is passed separately."""
    val: str | None = None
    test: str | None = None
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
    alpha: float | None = None
    case: str | None = None
    weights: str | None = None
    changes: Mapping[str, str] | None = None
    """Plan fields by their dotted names, as text."""


def build_train_request(arguments: TrainArguments) -> tuple[TrainRequest, RuntimeSettings]:
    """The request and runtime settings for `train.fit.fit`.

    Raises:
        UsageError: no source, an unknown dotted name, or one that duplicates a flag.
    """
    if not arguments.source:
        raise UsageError(
            "A training needs a SOURCE: a folder that holds one folder per class, a manifest (CSV, TSV, JSONL, "
            f"Parquet), arrays, tar shards, hf:NAME, or one of {', '.join(BUILT_IN)}."
        )
    fields, overrides = _explicit_fields(arguments), dict(arguments.changes or {})
    data = {name: text for name, text in fields.items() if name.startswith("data.")}
    compute = {name.removeprefix("compute."): text for name, text in fields.items() if name.startswith("compute.")}
    weights = overrides.pop("finetune.weights", None) or arguments.weights or "auto"
    request = TrainRequest(
        data=config.override(Plan(), data).data,
        model=arguments.model,
        minutes=arguments.minutes,
        epochs=arguments.epochs,
        steps=arguments.steps,
        image_size=arguments.image_size,
        channels=arguments.channels,
        pretrain=arguments.pretrain,
        weights=weights,
        seed=arguments.seed or 0,
        overrides={
            name: text
            for name, text in (overrides | {name: fields[name] for name in (ALPHA, CASE) if name in fields}).items()
            if not name.startswith(("data.", "compute."))
        },
    )
    return request, config.override(RuntimeSettings(), compute)


def should_train_all_folds(arguments: TrainArguments, request: TrainRequest) -> bool:
    """Whether to train a model for every fold, not only for the one that data.fold names."""
    return request.data.folds > 0 and "data.fold" not in (arguments.changes or {})


def override_plan(plan: Plan, arguments: TrainArguments) -> Plan:
    """A written plan with the changes of flags and dotted names.

    Raises:
        UsageError: a flag for the planner, whose choice the plan already holds, or an unknown dotted name.
    """
    planner_flags: dict[str, object] = {
        "--model": arguments.model,
        "--minutes": arguments.minutes,
        "--epochs": arguments.epochs,
        "--image-size": arguments.image_size,
        "--channels": arguments.channels,
        "--weights": arguments.weights,
        "--pretrain": arguments.pretrain or None,
    }
    if given := [name for name, value in planner_flags.items() if value is not None]:
        raise UsageError(
            f"A plan has settled {' and '.join(given)} already. Change its fields by name, such as --recipe.steps 500; "
            "--help-plan lists them."
        )
    fields = _explicit_fields(arguments)
    if arguments.folds and "data.fold" not in fields:
        raise UsageError(
            f"A plan trains one model. Give --data.fold NUMBER beside --folds {arguments.folds}, or leave --plan out "
            "to train all folds."
        )
    steps = [name for name in ("recipe.steps", "pretrain.steps", "distill.steps") if name in fields]
    return config.override(plan, dict.fromkeys((f"{name}_history" for name in steps), "") | fields)


def check_plan_fields(changes: Mapping[str, str]) -> None:
    """Check that plan fields exist, before any image is read.

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


def _explicit_fields(arguments: TrainArguments) -> dict[str, str]:
    """Explicit plan fields by their dotted names, as text: those with a flag of their own, and `changes`."""
    changes = dict(arguments.changes or {})
    check_plan_fields(changes)
    flags: dict[str, tuple[str, object]] = {
        "data.source": ("SOURCE", arguments.source or None),
        "data.val_source": ("--val", arguments.val),
        "data.test_source": ("--test", arguments.test),
        "data.data_root": ("--data-root", arguments.data_root),
        "data.skip_bad": ("--skip-bad", "true" if arguments.skip_bad else None),
        "data.task": ("--task", arguments.task),
        "data.group": ("--group", arguments.group),
        "data.exclude": ("--exclude", arguments.exclude),
        "data.folds": ("--folds", arguments.folds),
        "compute.device": ("--device", None if arguments.device == "auto" else arguments.device),
        "recipe.steps": ("--steps", arguments.steps),
        "seed": ("--seed", arguments.seed),
        "model.channels": ("--channels", arguments.channels),
        "finetune.weights": ("--weights", arguments.weights),
        ALPHA: ("--alpha", arguments.alpha),
        CASE: ("--case", arguments.case),
    }
    for name, (flag, value) in flags.items():
        if value is not None and name in changes:
            raise UsageError(f"{flag} and --{name} are the same setting. Give one of them.")
    return {name: str(value) for name, (_, value) in flags.items() if value is not None} | changes
