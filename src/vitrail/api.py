"""The Python surface: `create`, `load`, `fit`, `open` and `Run`, under the names of the command line's verbs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from .data.open import is_memory
from .doors import progress, wishes
from .doors.creating import Size, create, load
from .run import Run
from .train import fit as training
from .train import folding
from .train.dataset import MEMORY
from .train.run import default_path

__all__ = ["Run", "create", "fit", "load", "open"]


def fit(
    source: object,
    model: str | None = None,
    weights: str | Path | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    image_size: Size | None = None,
    channels: int | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    skip_bad: bool = False,
    task: str | None = None,
    group: str | None = None,
    exclude: str | Path | None = None,
    folds: int | None = None,
    pretrain: bool = False,
    settings: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Run:
    """Train a model on a source of pictures and evaluate it; what `vitrail train` does, shown in the same way.

    Args:
        source: a named set, a folder or file by its path, "hf:NAME"; or an object: a torch Dataset, a DataFrame, a list
            of (picture, label) pairs, or a pair of arrays (pictures, labels).
        weights: a checkpoint to begin from: a file, a folder, a run, "hf:OWNER/NAME" or "dinov2-small"; "auto", as by
            default, takes a recommended one that is on this machine, and "none" begins from random values.
        minutes, epochs, steps: the budget, one of them; ten minutes if none is given.
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        task: "classes", "labels" or "number"; by default as the labels look.
        group: the column whose equal values (one patient, one module) never cross from one split to another.
        exclude: a CSV of pictures to leave out, such as `vitrail check --out DIR` writes.
        folds: train a model for each of so many folds, the minutes shared; with "data.fold" in settings that one.
        pretrain: learn from the pictures without their labels first, for a part of the budget.
        settings: fields of the plan by their dotted names, such as {"recipe.batch": 64}.
        quiet: show nothing.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see `vitrail.errors`.
        InterruptedRun: stopped and saved; the message says how to go on.
    """
    given = source if is_memory(source) else None
    asked = wishes.Asked(
        source=str(source) if given is None else MEMORY,
        model=model, weights=None if weights is None else str(weights), minutes=minutes, epochs=epochs, steps=steps,
        seed=seed, image_size=None if image_size is None else wishes.pixels(image_size), channels=channels,
        device=device, data_root=None if data_root is None else Path(data_root),
        skip_bad=skip_bad, task=task, group=group, exclude=None if exclude is None else Path(exclude),
        folds=folds, pretrain=pretrain, changes={name: _text(value) for name, value in (settings or {}).items()},
    )  # fmt: skip
    wanted, chosen = wishes.wishes(asked)
    path = _folder(out, wanted.data.source, model)
    events = training.fit(wanted, chosen, path, given=given)
    if wishes.wants_all_folds(asked, wanted):
        events = folding.fit_folds(wanted, chosen, path, given)
    progress.follow(events, path, progress.stream(quiet))
    return Run(path, given, device)


def open(run: str | Path) -> Run:  # noqa: A001 - `vitrail.open` is meant to read like the built-in
    """A run that was trained before, by its folder.

    Raises:
        UsageError: no training has made this folder.
    """
    return Run(run)


def _folder(out: str | Path | None, source: str, model: str | None) -> Path:
    """The run folder that was asked for, or one named after the time, the source and the model."""
    return Path(out) if out is not None else default_path(source, model or "automatic", datetime.now())


def _text(value: object) -> str:
    """A value of a setting as the command line would write it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
