"""Run the loop of a plan: record metrics, evaluate, save checkpoints, and stop cleanly on request."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..data.loader import ImageStore, StreamingImageStore
from ..errors import DataError, DivergedError, InterruptedRun, PeerError, ResourceError
from ..evaluate.inference import InferenceSettings, run_inference
from ..evaluate.quick_metrics import compute_quick_metrics
from ..files import disk
from ..formatting import format_count
from ..runtime import is_out_of_memory
from . import checkpoint, events, guards, loop
from .checkpoint import CheckpointSaver
from .dataset import Dataset, class_indices
from .distributed.collectives import SINGLE_PROCESS, RankGroup
from .events import Event, Note, StepProgress, ValidationEvent
from .guards import LEARNING_CHECK_STEP, Guards
from .loop import StepResult, TrainState, gather_train_state, train_steps
from .optim import use_ema_weights
from .plan import MAX_VALIDATION_IMAGES, Plan
from .run_folder import RunFolder
from .signals import SignalRequest, listen_for_signals, resume_instructions

MAX_RECORDED_ROWS = 500
MAX_LOST_SHOWN = 10


def run_trainer(
    run: RunFolder,
    plan: Plan,
    train_state: TrainState,
    dataset: Dataset,
    images: ImageStore,
    start: int,
    guards: Guards,
    group: RankGroup = SINGLE_PROCESS,
) -> Iterator[Event]:
    """Train from step `start` to the end; afterwards the newest checkpoint is that of the last step.

    Raises:
        InterruptedRun: Ctrl-C, SIGTERM or SIGHUP came, be it in the last step; the run is saved and the message says
            how to go on.
        DataError: too many pictures were lost on the way, or one of the val split was; the run is saved here too.
        DivergedError: see `guards`; the newest checkpoint is from before.
        ResourceError: the disk or the memory is full; the message says what is saved and what would fit.
        PeerError: another process of the team died; the run is saved if all its weights are here.
    """
    steps = plan.recipe.steps
    record_every = max(1, steps // MAX_RECORDED_ROWS)
    valid = dataset.sample("val", MAX_VALIDATION_IMAGES, plan.seed)
    valid_pictures = dataset.load_images("val", plan.image, plan.compute.num_workers) if len(valid) else None
    pace: deque[float] = deque(maxlen=50)
    foretold = events.read_step_seconds(run.path)
    keeper = CheckpointSaver(run, plan, train_state, guards, group)
    stop = 0  # the number of a signal
    yield from _batch_warnings(plan, dataset, images, start)
    with listen_for_signals() as wish:
        for done in _steps_saved_on_error(run, train_state, plan, dataset, images, start, keeper, guards, group):
            pace.append(done.seconds)
            progress = _make_progress(done, plan, pace, foretold)
            if done.step % record_every == 0 or done.step == steps:
                run.record(_metrics_row(done, progress))
            yield progress
            if valid_pictures is not None and plan.recipe.evaluates_at(done.step):
                whole = gather_train_state(train_state, plan, group)
                try:
                    yield from _evaluate(run, plan, whole, dataset, valid_pictures, valid, done.step, guards)
                except (DataError, MemoryError, RuntimeError) as error:
                    raise _evaluation_error(run, plan, keeper, done.step, error) from error
            told = guards.take_messages(done.step)
            due, stop = _agree_on_save_and_stop(run, plan, keeper, group, done.step, wish)
            if due:
                told += keeper.save(done.step)
            if wish.save:
                wish.save = False
                told.append(f"Saved after step {done.step:,} of {steps:,}, as a signal asked; the training goes on.")
            yield from map(Note, told + _log_write_warning(run) + run.trackers.take_messages())
            if stop and done.step < steps:
                group.broadcast_object()  # the others wait here until all is saved
                _raise_interrupted(run, stop, done.step, steps)
    yield from _report_lost_images(images)
    if start >= steps:
        yield Note("All steps were done before; only the evaluation and the report are missing.")
    if stop := stop or wish.signal or 0:
        gather_train_state(
            train_state, plan, group
        )  # the others are over their last step as well, and are let go as ever
        group.leave()
        raise InterruptedRun(
            f"Interrupted after the last step, which is saved. {resume_instructions(run.path)}", 128 + stop
        )


def _batch_warnings(plan: Plan, dataset: Dataset, images: ImageStore, start: int) -> Iterator[Note]:
    """Warnings about the batches, before the first of them."""
    if start == 0 and dataset.source.task == "classes":
        targets, blocks = dataset.loss_targets("train"), dataset.shard_ids("train")
        if text := guards.warn_of_single_class_batches(targets, images.indices, plan.recipe, plan.seed, blocks):
            yield Note(text)


def _report_lost_images(images: ImageStore) -> Iterator[Note]:
    """Which pictures the batches had to do without."""
    if isinstance(images, StreamingImageStore) and images.lost:
        names = "; ".join(reason.rstrip(".") for _, reason in images.lost[:MAX_LOST_SHOWN])
        more = f" and {len(images.lost) - MAX_LOST_SHOWN:,} more" if len(images.lost) > MAX_LOST_SHOWN else ""
        yield Note(f"{format_count(len(images.lost), 'picture')} could not be read any more on the way: {names}{more}.")


def _steps_saved_on_error(
    run: RunFolder,
    train_state: TrainState,
    plan: Plan,
    dataset: Dataset,
    images: ImageStore,
    start: int,
    saver: CheckpointSaver,
    guards: Guards,
    group: RankGroup,
) -> Iterator[StepResult]:
    """The steps of the training; if the pictures give out or the memory is full, the last one is saved first."""
    last = start
    try:
        targets, blocks = dataset.loss_targets("train"), dataset.shard_ids("train")
        for done in train_steps(
            train_state,
            images,
            targets,
            plan,
            start,
            blocks,
            dataset.source.task,
            guards,
            group,
            dataset.custom_functions,
        ):
            last = done.step
            yield done
    except DivergedError as error:
        newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
        kept = f"The weights of {newest.name} are kept in {newest}." if newest else "Nothing had been saved before."
        raise DivergedError(f"{error} {kept}") from error
    except (DataError, PeerError) as error:
        if not last and isinstance(error, DataError):
            raise
        raise _save_and_extend_error(run, plan, saver, last, error) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    else:
        return
    # Outside of the handler: the exception holds the frames that hold the memory.
    raise ResourceError(_save_and_advise(run, train_state, plan, last, saver, guards, group))


def _save_and_advise(
    run: RunFolder,
    train_state: TrainState,
    plan: Plan,
    last: int,
    saver: CheckpointSaver,
    guards: Guards,
    group: RankGroup,
) -> str:
    """Save what is whole, try what would have fitted, and say both."""
    if last and not guards.is_applying and saver.can_save_alone:
        saver.save(last)
    train_state.model.zero_grad()
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    safe = f"{newest.name} is saved" if newest else "nothing was saved yet"
    advice = loop.advise_smaller_batch(train_state, plan, f"vitrail train --resume {run.path}", group.world_size)
    count = loop.images_per_forward(plan, group.world_size)
    return f"The memory is full at step {last + 1}: {count} pictures at once do not fit; {safe}. {advice}"


def _agree_on_save_and_stop(
    run: RunFolder, plan: Plan, saver: CheckpointSaver, group: RankGroup, step: int, signal_request: SignalRequest
) -> tuple[int, ...]:
    """Whether to save after this step, and which signal asked to stop, here or in another process: 0 is none."""
    try:
        due, stop = group.all_reduce_max(int(saver.is_due(step, signal_request)), signal_request.signal or 0)
    except PeerError as error:
        raise _save_and_extend_error(run, plan, saver, step, error) from error
    return due or stop, stop


def _evaluation_error(run: RunFolder, plan: Plan, saver: CheckpointSaver, step: int, error: Exception) -> Exception:
    """Save the run after `step`, whose evaluation failed; what to raise, which then says how to go on."""
    if isinstance(error, DataError):
        return _save_and_extend_error(run, plan, saver, step, error)
    if not is_out_of_memory(error):
        return error
    if saver.can_save_alone:
        saver.save(step)
    saved = ", which is saved" if saver.can_save_alone else ""
    return ResourceError(
        f"The memory is full in the evaluation after step {step}{saved}. Close other programs. "
        f"{resume_instructions(run.path)}"
    )


def _save_and_extend_error(
    run: RunFolder, plan: Plan, saver: CheckpointSaver, step: int, error: DataError | PeerError
) -> DataError | PeerError:
    """Save the run after `step`, if all of it is here; the same error, which then says how to go on."""
    kept = ""
    if step and saver.can_save_alone:
        saver.save(step)
        kept = f" Step {step} of {plan.recipe.steps} is saved."
    return type(error)(f"{error}{kept} {resume_instructions(run.path)}")


def _log_write_warning(run: RunFolder) -> list[str]:
    """That a log could not be written, once until it can be again."""
    if not run.write_error or run.write_error_reported:
        return []
    run.write_error_reported = True
    return [f"{run.write_error} The training goes on without these lines."]


def _make_progress(
    done: StepResult, plan: Plan, step_seconds: deque[float], stage_seconds: Sequence[float]
) -> StepProgress:
    return StepProgress(
        step=done.step,
        steps=plan.recipe.steps,
        epoch=done.epoch,
        loss=done.loss,
        images_per_second=done.num_images / statistics.median(step_seconds),
        seconds_left=estimate_seconds_left(done.step, plan, statistics.median(step_seconds), stage_seconds),
    )


def estimate_seconds_left(step: int, plan: Plan, now: float, stage_seconds: Sequence[float] = ()) -> float:
    """Remaining steps times the present throughput; steps of another phase are scaled by their predicted cost.

    Args:
        stage_seconds: seconds of a step in each phase; without them steps cost in proportion to the patches that they
            see.
    """
    recipe, phases = plan.recipe, plan.recipe.progressive_stages()
    ends = [math.ceil((phase.begin + phase.fraction) * recipe.steps) for phase in phases]
    begins = [0, *ends[:-1]]
    seen = [recipe.tokens_at(begin, plan.model.grid) for begin in begins]
    prices = stage_seconds if len(stage_seconds) == len(phases) else seen
    present = prices[bisect_right(ends, max(step - 1, 0))]
    to_come = [max(0, end - max(step, begin)) for begin, end in zip(begins, ends, strict=True)]
    return now * sum(price / present * count for price, count in zip(prices, to_come, strict=True))


def _evaluate(
    run: RunFolder,
    plan: Plan,
    train_state: TrainState,
    dataset: Dataset,
    images: ImageStore,
    rows: NDArray[np.int64],
    step: int,
    guards: Guards,
) -> Iterator[Event]:
    """A figure and the loss on a fixed sample of the validation pictures, one view of each, for the curve."""
    with use_ema_weights(train_state.model, train_state.ema):
        settings = InferenceSettings(device=plan.compute.device, precision=plan.compute.precision, batch_size=250)
        logits = run_inference(train_state.model, images, rows, plan.image, settings)
    source, scaling = dataset.source, dataset.scaling
    targets = class_indices(source, rows) if source.task == "classes" else source.targets[rows]
    found = compute_quick_metrics(source.task, logits, targets if scaling is None else scaling.standardize(targets))
    disk.crash_if_requested("evaluated", "val")
    if found is None:
        return
    figure = {} if found.value is None else {f"val_{found.name.lower()}": found.value}
    run.record({"step": step, **figure, "val_loss": found.loss})
    yield ValidationEvent(step, found.value, found.loss, found.name)
    if (
        step >= LEARNING_CHECK_STEP
        and source.task == "classes"
        and len(set(logits.argmax(1).tolist())) == 1 < len(set(targets))
    ):
        yield Note(f"After {step:,} steps every answer is the same class. {guards.advice}")


def _metrics_row(done: StepResult, progress: StepProgress) -> dict[str, float | int]:
    return {
        "step": done.step,
        "epoch": round(done.epoch, 4),
        "loss": done.loss,
        "lr": done.lr_factor,
        "images_per_second": round(progress.images_per_second, 1),
        "seconds": round(done.seconds, 4),
        "images": done.num_images,
    }


def _raise_interrupted(run: RunFolder, signal_number: int, step: int, steps: int) -> None:
    raise InterruptedRun(
        f"Interrupted at step {step} of {steps}, saved. {resume_instructions(run.path)}", 128 + signal_number
    )


# -- Training on ranks other than 0: the same steps, without events or files


def train_worker_rank(
    run: RunFolder, plan: Plan, train_state: TrainState, dataset: Dataset, images: ImageStore, group: RankGroup
) -> None:
    """Train beside rank 0, from its first step to the last step or until a stop is requested.

    Raises:
        InterruptedRun: this or another process got a signal, and rank 0 has saved the run.
        PeerError: another process died.
        DataError: too many pictures of this process's part were lost on the way.
        DivergedError: as on rank 0.
    """
    guards = Guards(plan.recipe, None, dataset.source.ids)
    start = _restore_worker_checkpoint(run, plan, train_state, guards, int(group.broadcast_object()))
    try:
        _train_worker_steps(plan, train_state, dataset, images, start, guards, group)
    except PeerError as error:
        raise PeerError(f"{error} {resume_instructions(run.path)}") from error


def _restore_worker_checkpoint(run: RunFolder, plan: Plan, train_state: TrainState, guards: Guards, start: int) -> int:
    """The checkpoint that rank 0 begins from, out of the same folder."""
    if start:
        path = run.checkpoints / f"step-{start:08d}"
        checkpoint.load_checkpoint(path, train_state.model, train_state.optimizers, train_state.ema)
        facts = checkpoint.read_checkpoint_facts(path)
        guards.load_state_dict(facts.get("guards", {}))
        train_state.load_state_dict(facts)
    return start


def _train_worker_steps(
    plan: Plan,
    train_state: TrainState,
    dataset: Dataset,
    images: ImageStore,
    start: int,
    guards: Guards,
    group: RankGroup,
) -> None:
    """Whenever rank 0 evaluates or saves, a learner that is split over the processes is put together by all."""
    targets, blocks = dataset.loss_targets("train"), dataset.shard_ids("train")
    with listen_for_signals() as wish:
        for done in train_steps(
            train_state,
            images,
            targets,
            plan,
            start,
            blocks,
            dataset.source.task,
            guards,
            group,
            dataset.custom_functions,
        ):
            if len(dataset.splits["val"]) and plan.recipe.evaluates_at(done.step):
                gather_train_state(train_state, plan, group)
            due, stop = group.all_reduce_max(int(wish.save), wish.signal or 0)
            wish.save = False
            if train_state.sharded and (due or stop):
                checkpoint.make_sharded_save(train_state, group).help_rank0()
            if stop and done.step < plan.recipe.steps:
                group.broadcast_object()  # rank 0 has saved
                raise InterruptedRun(f"Interrupted at step {done.step} of {plan.recipe.steps}.", 128 + stop)
    gather_train_state(train_state, plan, group)
