"""Follow a plan step by step: record, evaluate now and then, save, and stop cleanly when asked to."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..data.loader import Pictures, Streamed
from ..errors import DataError, InterruptedRun
from ..evaluate.collect import collect
from ..evaluate.glance import glance
from . import state
from .dataset import Dataset, class_of
from .events import Evaluated, Event, Note, Progress
from .loop import Learner, Step, train
from .optimizer import averaged
from .plan import Plan
from .run import RunFolder
from .signals import StopWish, listening

EVALUATIONS = 10
EVALUATED_PICTURES = 1000
SECONDS_BETWEEN_SAVES = 60.0
RECORDS = 500
LOST_SHOWN = 10


def follow(
    run: RunFolder, plan: Plan, learner: Learner, dataset: Dataset, pictures: Pictures, start: int
) -> Iterator[Event]:
    """Train from step `start` to the end; afterwards the newest checkpoint is that of the last step.

    Raises:
        InterruptedRun: Ctrl-C or SIGTERM came; the run is saved and the message says how to go on.
        DataError: too many pictures were lost on the way, or one of the val split was; the run is saved here too.
    """
    steps = plan.recipe.steps
    evaluate_every = plan.recipe.evaluate_every or max(1, steps // EVALUATIONS)
    record_every = max(1, steps // RECORDS)
    valid = dataset.sample("val", EVALUATED_PICTURES, plan.seed)
    valid_pictures = dataset.pictures("val", plan.image, plan.compute.workers) if len(valid) else None
    pace: deque[float] = deque(maxlen=50)
    saved_at = time.monotonic()
    with listening() as wish:
        for done in _kept(run, learner, plan, dataset, pictures, start):
            pace.append(done.seconds)
            progress = _progress(done, plan, pace)
            if done.step % record_every == 0 or done.step == steps:
                run.record(_row(done, progress))
            yield progress
            if valid_pictures is not None and (done.step % evaluate_every == 0 or done.step == steps):
                try:
                    yield from _evaluate(run, plan, learner, dataset, valid_pictures, valid, done.step)
                except DataError as error:
                    raise _saved(run, learner, plan, done.step, error) from error
            due = plan.recipe.save_every and done.step % plan.recipe.save_every == 0
            due = due or (not plan.recipe.save_every and time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES)
            if due or wish or done.step == steps:
                state.save(run.checkpoints, done.step, learner.model, learner.optimizers, learner.average)
                saved_at = time.monotonic()
            if wish and done.step < steps:
                _stop(run, wish, done.step, steps)
    if isinstance(pictures, Streamed) and pictures.lost:
        names = "; ".join(reason.rstrip(".") for _, reason in pictures.lost[:LOST_SHOWN])
        more = f" and {len(pictures.lost) - LOST_SHOWN:,} more" if len(pictures.lost) > LOST_SHOWN else ""
        yield Note(f"{len(pictures.lost):,} pictures could not be read any more on the way: {names}{more}.")
    if start >= steps:
        yield Note("All steps were done before; only the evaluation and the report are missing.")


def _kept(
    run: RunFolder, learner: Learner, plan: Plan, dataset: Dataset, pictures: Pictures, start: int
) -> Iterator[Step]:
    """The steps of the training; if the pictures give out, the last one is saved first."""
    last = start
    try:
        targets, blocks = dataset.learnt("train"), dataset.blocks("train")
        for done in train(learner, pictures, targets, plan, start, blocks, dataset.source.task):
            last = done.step
            yield done
    except DataError as error:
        if not last:
            raise
        raise _saved(run, learner, plan, last, error) from error


def _saved(run: RunFolder, learner: Learner, plan: Plan, step: int, error: DataError) -> DataError:
    """Save the run after `step`; the same error, which then says how to go on."""
    state.save(run.checkpoints, step, learner.model, learner.optimizers, learner.average)
    go_on = f"Continue with: vitrail train --resume {run.path}"
    return DataError(f"{error} Step {step} of {plan.recipe.steps} is saved. {go_on}")


def _progress(done: Step, plan: Plan, pace: deque[float]) -> Progress:
    return Progress(
        step=done.step,
        steps=plan.recipe.steps,
        epoch=done.epoch,
        loss=done.loss,
        images_per_second=done.pictures / statistics.median(pace),
        left=_seconds_left(done.step, plan, statistics.median(pace)),
    )


def _seconds_left(step: int, plan: Plan, now: float) -> float:
    """Steps to come times the present pace, and those that will see more patches in proportion to their number."""
    patches = plan.model.grid.patches
    turn = math.ceil(plan.recipe.keep_until * plan.recipe.steps)
    early, late = max(0, turn - step), plan.recipe.steps - max(step, turn)
    slower = patches / plan.recipe.patches_at(max(step - 1, 0), patches)
    return early * now + late * now * slower


def _evaluate(
    run: RunFolder,
    plan: Plan,
    learner: Learner,
    dataset: Dataset,
    pictures: Pictures,
    rows: NDArray[np.int64],
    step: int,
) -> Iterator[Evaluated]:
    """A figure and the loss on a fixed sample of the validation pictures, without the mirror, for the curve."""
    with averaged(learner.model, learner.average):
        logits = collect(
            learner.model, pictures, rows, plan.image, 250, plan.compute.device, plan.compute.number_format
        )
    source, scaling = dataset.source, dataset.scaling
    targets = class_of(source, rows) if source.task == "classes" else source.targets[rows]
    found = glance(source.task, logits, targets if scaling is None else scaling.standardised(targets))
    if found is None:
        return
    figure = {} if found.figure is None else {f"val_{found.name.lower()}": found.figure}
    run.record({"step": step, **figure, "val_loss": found.loss})
    yield Evaluated(step, found.figure, found.loss, found.name)


def _row(done: Step, progress: Progress) -> dict[str, float | int]:
    return {
        "step": done.step,
        "epoch": round(done.epoch, 4),
        "loss": done.loss,
        "lr": done.rate,
        "images_per_second": round(progress.images_per_second, 1),
        "seconds": round(done.seconds, 4),
        "images": done.pictures,
    }


def _stop(run: RunFolder, wish: StopWish, step: int, steps: int) -> None:
    message = f"Interrupted at step {step} of {steps}, saved. Continue with: vitrail train --resume {run.path}"
    run.log(message)
    raise InterruptedRun(message, wish.exit_code)
