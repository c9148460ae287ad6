"""The Python surface: `create`, `load`, `fit`, `open` and `Run`, under the names of the command line's verbs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .data.open import is_in_memory
from .run import Run
from .services import train_arguments, train_progress
from .services.open_model import ImageSizeArgument, create, load
from .train import cross_validation
from .train import fit as training
from .train.custom_functions import CustomAugment, CustomFunctions, CustomLoss
from .train.dataset import MEMORY

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
    image_size: ImageSizeArgument | None = None,
    channels: int | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    skip_bad: bool = False,
    task: str | None = None,
    group: str | None = None,
    exclude: str | Path | None = None,
    folds: int | None = None,
    pretrain: bool = False,
    loss: CustomLoss | None = None,
    augment: CustomAugment | None = None,
    settings: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Run:
    """Train a model on a source of images and evaluate it; what `vitrail train` does, shown in the same way.

    Args:
        source: a named set, a folder or file by its path, "hf:NAME"; or an object: a torch Dataset, a DataFrame, a list
            of (image, label) pairs, or a pair of arrays (images, labels).
        weights: a checkpoint to begin from: a file, a folder, a run, "hf:OWNER/NAME" or "dinov2-small"; "auto", as by
            default, takes a recommended one that is on this machine, and "none" begins from random values.
        minutes, epochs, steps: the budget, one of them; ten minutes if none is given.
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        task: "classes", "labels" or "number"; by default as the labels look.
        group: the column whose equal values (one patient, one module) never cross from one split to another.
        exclude: a CSV of images to leave out, such as `vitrail check --out DIR` writes.
        folds: train a model for each of so many folds, the minutes shared; with "data.fold" in settings that one.
        pretrain: learn from the images without their labels first, for a part of the budget.
        loss: a function of (outputs float32 [B, K], targets) instead of the task's own: a number for each [B], or one.
        augment: a function of images uint8 [B, C, H, W], after the plan's augmentation and before mixing.
        settings: fields of the plan by their dotted names, such as {"recipe.batch_size": 64}.
        quiet: show nothing.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see `vitrail.errors`.
        InterruptedRun: stopped and saved; the message says how to go on.
    """
    given, brought = source if is_in_memory(source) else None, CustomFunctions(loss, augment)
    asked = train_arguments.TrainArguments(
        source=str(source) if given is None else MEMORY,
        model=model,
        weights=None if weights is None else str(weights),
        minutes=minutes,
        epochs=epochs,
        steps=steps,
        seed=seed,
        image_size=None if image_size is None else train_arguments.parse_image_size(image_size),
        channels=channels,
        device=device,
        data_root=_to_path(data_root),
        skip_bad=skip_bad,
        task=task,
        group=group,
        exclude=_to_path(exclude),
        folds=folds,
        pretrain=pretrain,
        changes=brought.plan_overrides | {k: _to_setting_text(v) for k, v in (settings or {}).items()},
    )
    wanted, chosen = train_arguments.build_train_request(asked)
    every = cross_validation.fit_folds if train_arguments.should_train_all_folds(asked, wanted) else training.fit
    events = every(wanted, chosen, _to_path(out), source_object=given, custom_functions=brought)
    return Run(train_progress.follow_training(events, train_progress.choose_stream(quiet)).run, given, device, brought)


def open(run: str | Path) -> Run:  # noqa: A001 - `vitrail.open` is meant to read like the built-in
    """A run that was trained before, by its folder.

    Raises:
        UsageError: no training has made this folder.
    """
    return Run(run)


def _to_path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _to_setting_text(value: object) -> str:
    """A value of a setting as the command line would write it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
