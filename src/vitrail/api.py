"""The Python API: models (`create`, `load`, `save`) and runs (`fit`, `open`), named as the commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import config
from .caller_state import isolate
from .config.keywords import explain_keywords
from .data.open import is_in_memory
from .model.config import ViTConfig
from .model.vit import ViT
from .run import Run
from .services import train_arguments, train_progress
from .services.model_api import ImageSizeArgument, Model, create, load, save
from .spec import ImageSpec
from .train import cross_validation
from .train import fit as training
from .train.custom_functions import CustomAugment, CustomFunctions, CustomLoss
from .train.dataset import MEMORY
from .train.plan import Plan

__all__ = [
    "ImageSpec",
    "Model",
    "Run",
    "ViT",
    "ViTConfig",
    "create",
    "fit",
    "load",
    "open",
    "save",
]


@explain_keywords(settings=Plan)
@isolate
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
    """Train a model on a source of images and evaluate it, as `vitrail train`, with the same progress display.

    Args:
        source: a named set, a folder or file by its path, "hf:NAME"; or an object: a torch Dataset, a DataFrame, a list
            of (image, label) pairs, or a pair of arrays (images, labels).
        weights: a checkpoint to start from: a file, a folder, a run, "hf:OWNER/NAME" or "dinov2-small"; "auto" (the
            default) takes a recommended one that is on this machine, and "none" starts from random values.
        minutes, epochs, steps: the budget, at most one of them; ten minutes by default.
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        task: "classification", "multilabel" or "regression"; by default inferred from the labels.
        group: a column whose equal values (one patient, one module) stay in one split.
        exclude: a CSV of images to leave out, such as `vitrail check --out DIR` writes.
        folds: cross-validation with a model for each fold, which share the minutes; with "data.fold" in settings only
            that one.
        pretrain: pretrain on the images without labels first, for a part of the budget.
        loss: a loss function of (outputs float32 [B, K], targets): a value for each image [B], or one.
        augment: an augmentation of images uint8 [B, C, H, W] (int32 where 16 bits are kept), after the plan's and
            before mixing.
        settings: fields of the plan by their dotted names, such as {"recipe.batch_size": 64}.
        quiet: show no progress.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see `vitrail.errors`.
        InterruptedRun: stopped and saved; the message says how to resume.
    """
    source_object, custom_functions = source if is_in_memory(source) else None, CustomFunctions(loss, augment)
    arguments = train_arguments.TrainArguments(
        source=str(source) if source_object is None else MEMORY,
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
        changes=custom_functions.plan_overrides | config.to_texts(settings),
    )
    request, runtime_settings = train_arguments.build_train_request(arguments)
    all_folds = train_arguments.should_train_all_folds(arguments, request)
    fit_function = cross_validation.fit_folds if all_folds else training.fit
    events = fit_function(
        request, runtime_settings, _to_path(out), source_object=source_object, custom_functions=custom_functions
    )
    outcome = train_progress.follow_training(events, train_progress.choose_stream(quiet))
    return Run(outcome.run, source_object, device, custom_functions)


def open(run: str | Path, precision: str = "float32") -> Run:  # noqa: A001 - meant to read like the built-in
    """Open the run in a folder.

    Args:
        precision: number format of predictions. "float32" gives the same predictions on every machine; "bf16" and
            "fp16" are faster on some, and `run.predictor.precision_notes` says what they change.

    Raises:
        UsageError: not a run folder, or an unknown number format.
    """
    return Run(run, precision=precision)


def _to_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
