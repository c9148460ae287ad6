"""The Python API: models (`create`, `load`, `save`) and runs (`fit`, `train`, `tune`, `open`), named as the verbs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import config
from .caller_state import isolate, replace_missing_streams
from .config.keywords import explain_keywords
from .data.open import gather_objects
from .data.settings import MEMORY
from .errors import UsageError
from .model.config import ViTConfig
from .model.vit import ViT
from .run import Run
from .runtime import RuntimeSettings
from .services import train_arguments, train_progress
from .services.model_api import ImageSizeArgument, Model, create, load, save
from .services.train_progress import EventCallback
from .spec import ImageSpec
from .train import cross_validation, tuning
from .train import fit as training
from .train.custom_functions import CustomAugment, CustomFunctions, CustomLoss
from .train.events import Event, make_stoppable, spell_notes
from .train.plan import Plan
from .train.request import TrainRequest
from .train.signals import lend_signals
from .train.tuning import DEFAULT_TRIALS, Trial, TrialResult

__all__ = [
    "ImageSpec",
    "Model",
    "Run",
    "TuneResult",
    "ViT",
    "ViTConfig",
    "create",
    "fit",
    "load",
    "open",
    "save",
    "train",
    "tune",
]
OTHER_WORDS = {
    **dict.fromkeys(("validation", "valid", "validation_data", "val_data", "eval_dataset"), "It is called val here."),
    **dict.fromkeys(
        ("early_stopping", "patience"),
        "A training has a budget of minutes, epochs or steps; a function in callbacks= can end it by event.stop().",
    ),
}
"""Keywords of other libraries' trainings, and what to do instead."""


@explain_keywords(settings=Plan, hints=OTHER_WORDS)
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
    *,
    val: object | None = None,
    test: object | None = None,
    alpha: float | None = None,
    case: str | None = None,
    callbacks: Sequence[EventCallback] = (),
) -> Run:
    """Train a model on a source of images and evaluate it, as `vitrail train`, with the same progress display.

    Args:
        source: a named set, a folder or file by its path, "hf:NAME"; or an object: a torch Dataset, a DataFrame, a list
            of (image, label) pairs, a pair of arrays (images, labels), a Dataset or DatasetDict of `datasets`.
        val, test: sources of their own for validation and test, of any kind; none of their images is trained on. What
            is not given is taken from the training images, unless `source` has such a split.
        weights: a checkpoint to start from: a file, a folder, a run, "hf:OWNER/NAME" or "dinov2-small"; "auto" (the
            default) takes a recommended one that is on this machine, and "none" starts from random values.
        minutes, epochs, steps: the budget, at most one of them; ten minutes by default.
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        task: "classification", "multilabel" or "regression", by default inferred from the labels; or "anomaly", which
            learns from good images alone, or "segmentation", which learns from masks.
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
        alpha: with task "anomaly" the share of good images that may be called defects; 0.01 by default.
        case: with `group`, one answer for all images of a group too: "mean", "max", "attention" or "auto", whichever
            suits the validation groups.
        callbacks: functions that are called with every event, as `train` yields them. One that calls `event.stop()`
            ends the training, whose run is then returned unfinished; an error of one saves the run and is raised.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see `vitrail.errors`.
        InterruptedRun: stopped and saved; the message says how to resume.
    """
    functions = CustomFunctions(loss, augment)
    events, source_object = _start_training(
        source, val, test, out, functions, settings,
        train_arguments.TrainArguments(
            model=model, weights=_to_text(weights), minutes=minutes, epochs=epochs, steps=steps, seed=seed,
            image_size=_to_size(image_size), channels=channels, device=device, data_root=_to_path(data_root),
            skip_bad=skip_bad, task=task, group=group, exclude=_to_path(exclude), folds=folds, pretrain=pretrain,
            alpha=alpha, case=case,
        ),
    )  # fmt: skip
    with replace_missing_streams():
        outcome = train_progress.follow_training(events, train_progress.choose_stream(quiet), callbacks)
    return Run(outcome.run, source_object, device, functions)


@explain_keywords(settings=Plan, hints=OTHER_WORDS)
def train(
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
    *,
    val: object | None = None,
    test: object | None = None,
    alpha: float | None = None,
    case: str | None = None,
) -> Generator[Event, None, None]:
    """Train as `fit`, and yield what happens: `for event in vitrail.train("digits", minutes=1): ...`

    The events are the plan, each step, validation and so on up to a `FinishEvent`, or a `StopEvent` after
    `event.stop()`. The training goes on while the next event is asked for; between two events torch's state,
    signals and threads are the caller's own. A loop that is left saves the last step, and the run can be resumed:
    `vitrail.open(run).resume()`. Nothing is printed.

    Args:
        as `fit`.

    Raises:
        as `fit`, from the loop.
    """
    events, _ = _start_training(
        source, val, test, out, CustomFunctions(loss, augment), settings,
        train_arguments.TrainArguments(
            model=model, weights=_to_text(weights), minutes=minutes, epochs=epochs, steps=steps, seed=seed,
            image_size=_to_size(image_size), channels=channels, device=device, data_root=_to_path(data_root),
            skip_bad=skip_bad, task=task, group=group, exclude=_to_path(exclude), folds=folds, pretrain=pretrain,
            alpha=alpha, case=case,
        ),
    )  # fmt: skip
    return lend_signals(events)


@dataclass(frozen=True)
class TuneResult:
    """What `tune` has found."""

    run: Run
    """The best trial, trained to its end, with its report."""
    folder: Path
    """The folder of all trials, with trials.csv."""
    trials: tuple[Trial, ...]
    """The plan itself, and its variants; `changes` says by what."""
    results: tuple[TrialResult, ...]
    """What each had reached after each round."""


@explain_keywords(settings=Plan, hints=OTHER_WORDS)
def tune(
    source: object,
    trials: int = DEFAULT_TRIALS,
    model: str | None = None,
    weights: str | Path | None = None,
    minutes: float | None = None,
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
    loss: CustomLoss | None = None,
    augment: CustomAugment | None = None,
    settings: Mapping[str, object] | None = None,
    quiet: bool = False,
    *,
    val: object | None = None,
    test: object | None = None,
    resume: bool = False,
    callbacks: Sequence[EventCallback] = (),
) -> TuneResult:
    """Train variants of the plan, stop the worse half again and again, and finish the best, as `vitrail tune`.

    Args:
        trials: the plan and its variants of learning rate, weight decay, augmentation and model size (layer decay from
            a checkpoint); what is set here is not varied.
        minutes, steps: the budget of all trials together; ten minutes by default.
        out: the folder of all trials; None makes runs/<date>-<time>-<source>-tune.
        resume: go on with the trials in `out`, which were interrupted; objects have to be given again.
        others: as `fit`.

    Raises:
        as `fit`.
    """
    functions, path = CustomFunctions(loss, augment), _to_path(out)
    if resume:
        if path is None:
            raise UsageError("resume=True goes on with the trials in out=FOLDER. Name it.")
        source_object = gather_objects(source, val, test)
        events = tuning.resume_tuning(path, source_object, functions)
    else:
        request, runtime_settings, source_object, _ = _build_request(
            source, val, test, functions, settings,
            train_arguments.TrainArguments(
                model=model, weights=_to_text(weights), minutes=minutes, steps=steps, seed=seed,
                image_size=_to_size(image_size), channels=channels, device=device, data_root=_to_path(data_root),
                skip_bad=skip_bad, task=task, group=group, exclude=_to_path(exclude),
            ),
        )  # fmt: skip
        events = tuning.tune(request, runtime_settings, trials, path, source_object, functions)
    with replace_missing_streams():
        followed = _isolate_events(events)
        folder = train_progress.follow_training(followed, train_progress.choose_stream(quiet), callbacks).run
    tuned = tuning.read_tuning(folder)
    best = Run(tuning.best_folder(folder, tuned), source_object, device, functions)
    return TuneResult(best, folder, tuned.trials, tuned.results)


def _start_training(
    source: object,
    val: object | None,
    test: object | None,
    out: str | Path | None,
    functions: CustomFunctions,
    settings: Mapping[str, object] | None,
    arguments: train_arguments.TrainArguments,
) -> tuple[Generator[Event, None, None], object | None]:
    """The events of a training of the arguments of `fit`, which are checked, and the objects to train on, if any.

    Raises:
        as `_build_request`.
    """
    request, runtime_settings, source_object, all_folds = _build_request(
        source, val, test, functions, settings, arguments
    )
    fit_function = cross_validation.fit_folds if all_folds else training.fit
    events = fit_function(
        request, runtime_settings, _to_path(out), source_object=source_object, custom_functions=functions
    )
    return _isolate_events(events), source_object


def _build_request(
    source: object,
    val: object | None,
    test: object | None,
    functions: CustomFunctions,
    settings: Mapping[str, object] | None,
    arguments: train_arguments.TrainArguments,
) -> tuple[TrainRequest, RuntimeSettings, object | None, bool]:
    """Request, runtime settings, the objects to train on (None for paths), and whether to train all folds.

    Raises:
        UsageError: see `build_train_request`.
    """
    source_object = gather_objects(source, val, test)
    is_object = source_object is not None
    arguments = replace(
        arguments,
        source=MEMORY if is_object else None if source is None else str(source),
        val=None if val is None else MEMORY if is_object else str(val),
        test=None if test is None else MEMORY if is_object else str(test),
        changes=functions.plan_overrides | config.to_texts(settings),
    )
    request, runtime_settings = train_arguments.build_train_request(arguments)
    return request, runtime_settings, source_object, train_arguments.should_train_all_folds(arguments, request)


@isolate
def _isolate_events(events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    yield from spell_notes(make_stoppable(events))


@explain_keywords()
def open(run: str | Path, precision: str = "float32") -> Run:  # noqa: A001 - meant to read like the built-in
    """Open the run in a folder, or a model that `save` wrote, which then predicts, explains and exports as a run does.

    Args:
        precision: number format of predictions. "float32" gives the same predictions on every machine; "bf16" and
            "fp16" are faster on some, and `run.predictor.precision_notes` says what they change.

    Raises:
        UsageError: neither a run folder nor such a model, or an unknown number format.
    """
    return Run(run, precision=precision)


def _to_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _to_text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _to_size(size: ImageSizeArgument | None) -> tuple[int, int] | None:
    return None if size is None else train_arguments.parse_image_size(size)
