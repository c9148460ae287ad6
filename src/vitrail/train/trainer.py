"""Run the loop of a plan: record metrics, evaluate, save checkpoints, and stop cleanly on request."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections import deque
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..data.loader import ImageStore, StreamingImageStore
from ..errors import DataError, DivergedError, InterruptedRun, PeerError, ResourceError
from ..evaluate.inference import InferenceSettings, run_inference
from ..evaluate.mask_overlap import MaskComparison, measure_quickly
from ..evaluate.quick_metrics import compute_quick_metrics
from ..files import disk
from ..formatting import format_count
from ..model.vit import ViT
from ..runtime import is_out_of_memory
from . import checkpoint, events, guards, loop
from .checkpoint import CheckpointSaver, save_when_closed
from .context import TrainContext
from .distributed.consistency import broadcast_plan
from .events import EndSwitch, Event, Note, StepEvent, StepProgress, ValidationEvent
from .guards import LEARNING_CHECK_STEP, Guards
from .loop import StepResult, TrainState, gather_train_state, train_steps
from .optim import use_ema_weights
from .plan import MAX_VALIDATION_IMAGES, Plan, replan_steps
from .run_folder import RunFolder
from .signals import SignalRequest, listen_for_signals, resume_instructions
from .time_budget import MIN_STEPS, StepPrices, TimeBudget, limit_step_seconds

MAX_RECORDED_ROWS = 500
MAX_LOST_SHOWN = 10
COOL_DOWN = 0.1
"""Steps from `StepEvent.finish` to the end, of those done."""


def run_trainer(
    context: TrainContext, train_state: TrainState, start: int, guards: Guards
) -> Generator[Event, None, Plan]:
    """Train from step `start` to the end; afterwards the newest checkpoint is that of the last step.

    Returns the plan as it was followed: with minutes, its steps were replanned on the way.

    Raises:
        InterruptedRun: Ctrl-C, SIGTERM or SIGHUP came, be it in the last step; the run is saved and the message says
            how to resume.
        DataError: too many images were lost on the way, or one of the val split was; the run is saved here too.
        DivergedError: see `guards`; the newest checkpoint is from before.
        ResourceError: the disk or the memory is full; the message says what is saved and what would fit.
        PeerError: another process of the group died; the run is saved if all its weights are here.
    """
    run, plan, dataset, group = context.run, context.plan, context.dataset, context.group
    predicted_seconds, evaluation_seconds = events.read_step_seconds(run.path)
    budget = _make_time_budget(context, start, predicted_seconds, evaluation_seconds)
    if budget is not None and budget.is_short_before_first_step(plan.recipe, start):
        plan = _replan(run, plan, budget, 0)
    plan = broadcast_plan(group, plan)
    guards.recipe = plan.recipe
    record_every = max(1, plan.recipe.steps // MAX_RECORDED_ROWS)
    val_rows = dataset.sample("val", MAX_VALIDATION_IMAGES, plan.seed)
    val_images = dataset.load_images("val", plan.image, plan.compute.num_workers) if len(val_rows) else None
    step_seconds: deque[float] = deque(maxlen=50)
    saver = CheckpointSaver(run, plan, train_state, guards, group)
    stop, finish = 0, EndSwitch()  # the number of a signal, and whether an event asked to finish
    yield from _batch_warnings(context, start)
    with listen_for_signals() as signal_request, save_when_closed(saver.save_last_step):
        for done in _steps_saved_on_error(context, train_state, start, saver, guards):
            saver.step = done.step
            step_seconds.append(done.seconds)
            if budget is not None:
                budget.finish_step(plan.recipe, done.step)
            progress = _make_progress(done, plan, step_seconds, predicted_seconds)
            if done.step % record_every == 0 or done.step == plan.recipe.steps:
                run.record(_metrics_row(done, progress))
            news: list[Event] = [progress]
            if val_images is not None and plan.recipe.evaluates_at(done.step):
                gathered = gather_train_state(train_state, plan, group)
                try:
                    news += _evaluate(context, gathered, val_images, val_rows, done.step, guards)
                except (DataError, MemoryError, RuntimeError) as error:
                    raise _evaluation_error(run, saver, done.step, error) from error
            for event in news:  # the training may be closed here, and then its metrics are whole
                yield dataclasses.replace(event, _finish=finish) if isinstance(event, StepEvent) else event
            messages = guards.take_messages(done.step)
            due, stop, replans = _agree_on_next(context, saver, done.step, signal_request, budget, finish)
            if replans:
                if finish.is_on:
                    plan, finish = _plan_cool_down(run, plan, done.step), EndSwitch()
                    budget = budget if plan.minutes else None
                elif budget is not None:
                    plan = _replan(run, plan, budget, done.step)
                saver.plan = plan
                guards.recipe = plan.recipe
                group.broadcast_object(plan.recipe.steps)
            if due:
                messages += saver.save(done.step)
            if signal_request.save:
                signal_request.save = False
                where = f"step {done.step:,} of {plan.recipe.steps:,}"
                messages.append(f"Saved after {where}, as a signal asked; the training goes on.")
            yield from map(Note, messages + _log_write_warning(run) + run.trackers.take_messages())
            if stop and done.step < plan.recipe.steps:
                group.broadcast_object()  # the other ranks wait here until everything is saved
                where = f"step {done.step} of {plan.recipe.steps}"
                raise InterruptedRun(f"Interrupted at {where}, saved. {resume_instructions(run.path)}", 128 + stop)
            if budget is not None:
                budget.begin_step()
    yield from _report_lost_images(context.images)
    if start >= plan.recipe.steps:
        yield Note("All steps were done before; only the evaluation and the report are missing.")
    if stop := stop or signal_request.signal or 0:
        gather_train_state(train_state, plan, group)  # the other ranks are over their last step too, and gather as ever
        group.leave()
        raise InterruptedRun(
            f"Interrupted after the last step, which is saved. {resume_instructions(run.path)}", 128 + stop
        )
    return plan


def _make_time_budget(
    context: TrainContext, start: int, predicted_seconds: Sequence[float], evaluation_seconds: float
) -> TimeBudget | None:
    """The budget of a plan's minutes; None without minutes."""
    run, plan = context.run, context.plan
    if not plan.minutes:
        return None
    recipe = plan.recipe
    progress = recipe.progress(start) if start < recipe.steps else 0.0
    prices, is_measured = _step_prices(plan, predicted_seconds), len(predicted_seconds) > 0
    keeps_start = plan.finetune.from_checkpoint and context.group.world_size == 1  # unless tuning is better
    least = 1 if keeps_start else MIN_STEPS
    return TimeBudget(
        60 * plan.minutes, run.clock, prices, is_measured=is_measured, progress=progress, min_steps=least,
        evaluation=evaluation_seconds if len(context.dataset.splits["val"]) else 0.0,
    )  # fmt: skip


def _step_prices(plan: Plan, predicted_seconds: Sequence[float]) -> StepPrices:
    """The predicted seconds of a step in each stage; where they are not known, the patches that it sees."""
    stages, tokens = plan.recipe.progressive_stages(), plan.recipe.stage_tokens(plan.model.grid)
    prices: Sequence[float] = tokens
    if len(predicted_seconds) == len(stages):
        prices = limit_step_seconds(predicted_seconds, tokens)
    return StepPrices(tuple(zip(stages, prices, strict=True)))


def _replan(run: RunFolder, plan: Plan, budget: TimeBudget, step: int) -> Plan:
    """The plan with the number of steps that its minutes still allow, written into the run folder if it is another."""
    steps = budget.replan(plan.recipe, step)
    if steps == plan.recipe.steps:
        return plan
    replanned = dataclasses.replace(plan, recipe=replan_steps(plan.recipe, step, steps))
    return replanned if run.record_replanning(replanned, "recipe.steps", step) else plan


def _plan_cool_down(run: RunFolder, plan: Plan, step: int) -> Plan:
    """The plan that ends soon after `step`, by steps instead of minutes, written into the run folder."""
    steps = min(plan.recipe.steps, step + max(1, round(COOL_DOWN * step)))
    recipe = replan_steps(plan.recipe, step, steps) if steps < plan.recipe.steps else plan.recipe
    replanned = dataclasses.replace(plan, recipe=recipe, minutes=0.0)
    return replanned if run.record_replanning(replanned, "recipe.steps", step) else plan


def _batch_warnings(context: TrainContext, start: int) -> Iterator[Note]:
    """Warnings about the batches, before the first of them."""
    plan, dataset = context.plan, context.dataset
    if start == 0 and dataset.source.task == "classification":
        targets, shards = dataset.loss_targets("train"), dataset.shard_ids("train")
        if text := guards.warn_of_single_class_batches(targets, context.images.indices, plan.recipe, plan.seed, shards):
            yield Note(text)


def _report_lost_images(images: ImageStore) -> Iterator[Note]:
    """Images that the batches had to do without."""
    if isinstance(images, StreamingImageStore) and images.lost:
        names = "; ".join(reason.rstrip(".") for _, reason in images.lost[:MAX_LOST_SHOWN])
        more = f" and {len(images.lost) - MAX_LOST_SHOWN:,} more" if len(images.lost) > MAX_LOST_SHOWN else ""
        yield Note(f"{format_count(len(images.lost), 'picture')} could not be read any more on the way: {names}{more}.")


def _train_steps(context: TrainContext, train_state: TrainState, start: int, guards: Guards) -> Iterator[StepResult]:
    dataset = context.dataset
    return train_steps(
        train_state,
        context.images,
        dataset.step_targets(context.plan.image),
        context.plan,
        start,
        dataset.shard_ids("train"),
        dataset.source.task,
        guards,
        context.group,
        dataset.custom_functions,
        dataset.image_weights,
    )


def _steps_saved_on_error(
    context: TrainContext, train_state: TrainState, start: int, saver: CheckpointSaver, guards: Guards
) -> Iterator[StepResult]:
    """The steps of the training; if an image is missing or the memory is full, the last one is saved first."""
    run, last = context.run, start
    try:
        for done in _train_steps(context, train_state, start, guards):
            last = done.step
            yield done
    except DivergedError as error:
        newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
        kept = f"The weights of {newest.name} are kept in {newest}." if newest else "Nothing had been saved before."
        raise DivergedError(f"{error} {kept}") from error
    except (DataError, PeerError) as error:
        if not last and isinstance(error, DataError):
            raise
        raise _save_and_extend_error(run, saver, last, error) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    else:
        return
    # Outside of the handler: the exception holds the frames that hold the memory.
    raise ResourceError(_save_and_advise(context, train_state, last, saver, guards))


def _save_and_advise(
    context: TrainContext, train_state: TrainState, last: int, saver: CheckpointSaver, guards: Guards
) -> str:
    """Save the last complete step, find a batch size that fits, and describe both."""
    run, plan, world_size = context.run, context.plan, context.group.world_size
    if last and not guards.is_applying and saver.can_save_alone:
        saver.save(last)
    train_state.model.zero_grad()
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    safe = f"{newest.name} is saved" if newest else "nothing was saved yet"
    advice = loop.advise_smaller_batch(
        train_state, plan, f"vitrail train --resume {shlex.quote(str(run.path))}", world_size
    )
    count = loop.images_per_forward(plan, world_size)
    return f"The memory is full at step {last + 1}: {count} pictures at once do not fit; {safe}. {advice}"


def _agree_on_next(
    context: TrainContext,
    saver: CheckpointSaver,
    step: int,
    signal_request: SignalRequest,
    budget: TimeBudget | None,
    finish: EndSwitch,
) -> tuple[int, ...]:
    """Whether to save after this step, the signal to stop that a rank got (0 is none), and whether to replan."""
    is_late = budget is not None and budget.is_due(saver.plan.recipe, step)
    replans_now = is_late or (finish.is_on and step < saver.plan.recipe.steps)
    wanted = int(saver.is_due(step, signal_request)), signal_request.signal or 0, int(replans_now)
    try:
        due, stop, replans = context.group.all_reduce_max(*wanted)
    except PeerError as error:
        raise _save_and_extend_error(context.run, saver, step, error) from error
    return due or stop, stop, replans


def _evaluation_error(run: RunFolder, saver: CheckpointSaver, step: int, error: Exception) -> Exception:
    """Save the run after `step`, whose evaluation failed; return the error to raise, which says how to resume."""
    if isinstance(error, DataError):
        return _save_and_extend_error(run, saver, step, error)
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
    run: RunFolder, saver: CheckpointSaver, step: int, error: DataError | PeerError
) -> DataError | PeerError:
    """Save the run after `step`, if this process can; return the same error, which then says how to resume."""
    kept = ""
    if step and saver.can_save_alone:
        saver.save(step)
        kept = f" Step {step} of {saver.plan.recipe.steps} is saved."
    return type(error)(f"{error}{kept} {resume_instructions(run.path)}")


def _log_write_warning(run: RunFolder) -> list[str]:
    """A warning that a log could not be written, once."""
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


def estimate_seconds_left(step: int, plan: Plan, step_seconds: float, stage_seconds: Sequence[float] = ()) -> float:
    """Remaining steps times the present throughput; steps of another phase are scaled by their predicted cost.

    Args:
        stage_seconds: seconds of a step in each phase; without them steps cost in proportion to the patches that they
            see.
    """
    recipe, prices = plan.recipe, _step_prices(plan, stage_seconds)
    if step >= recipe.steps:
        return 0.0
    current = prices.at(recipe.progress(max(step - 1, 0)))
    return step_seconds * (recipe.steps - step) * prices.mean_after(recipe.progress(step)) / current


def _evaluate(
    context: TrainContext,
    train_state: TrainState,
    images: ImageStore,
    rows: NDArray[np.int64],
    step: int,
    guards: Guards,
) -> Iterator[Event]:
    """A metric and the loss on a fixed sample of the validation images, one view of each, for the curve."""
    plan, task, targets = context.plan, context.dataset.source.task, context.dataset.metric_targets(rows)
    with use_ema_weights(train_state.model, train_state.ema):
        settings = InferenceSettings(device=plan.compute.device, precision=plan.compute.precision, batch_size=250)
        if task == "segmentation":
            assert isinstance(train_state.model, ViT)
            outputs = np.zeros((0, 0), np.float32)
            metrics = measure_quickly(
                MaskComparison(train_state.model, images, context.dataset.source, rows, plan.image, settings)
            )
        else:
            outputs = run_inference(train_state.model, images, rows, plan.image, settings)
            metrics = compute_quick_metrics(task, outputs, targets)
    disk.crash_if_requested("evaluated", "val")
    if metrics is None:
        return
    row = {} if metrics.value is None else {f"val_{metrics.name.lower()}": metrics.value}
    context.run.record({"step": step, **row, "val_loss": metrics.loss})
    yield ValidationEvent(step, metrics.value, metrics.loss, metrics.name)
    may_learn = step >= LEARNING_CHECK_STEP and task == "classification" and len(set(targets)) > 1
    if may_learn and len(set(outputs.argmax(1).tolist())) == 1:
        yield Note(f"After {format_count(step, 'step')} every answer is the same class. {guards.advice}")


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


# -- Training on ranks other than 0: the same steps, without events or files


def train_worker_rank(context: TrainContext, train_state: TrainState) -> None:
    """Train beside rank 0, from its first step to the last step or until a stop is requested.

    Raises:
        InterruptedRun: this or another process got a signal, and rank 0 has saved the run.
        PeerError: another process died.
        DataError: too many images of this process's part were lost on the way.
        DivergedError: as on rank 0.
    """
    guards = Guards(context.plan.recipe, None, context.dataset.source.ids)
    start = int(context.group.broadcast_object())
    plan = broadcast_plan(context.group, context.plan)
    guards.recipe = plan.recipe
    if start:
        checkpoint.load_train_state(context.run.checkpoints / f"step-{start:08d}", train_state, guards)
    try:
        _train_worker_steps(dataclasses.replace(context, plan=plan), train_state, start, guards)
    except PeerError as error:
        raise PeerError(f"{error} {resume_instructions(context.run.path)}") from error


def _train_worker_steps(context: TrainContext, train_state: TrainState, start: int, guards: Guards) -> None:
    """All ranks gather a sharded train state whenever rank 0 evaluates or saves."""
    plan, group = context.plan, context.group
    with listen_for_signals() as signal_request:
        for done in _train_steps(context, train_state, start, guards):
            if len(context.dataset.splits["val"]) and plan.recipe.evaluates_at(done.step):
                gather_train_state(train_state, plan, group)
            due, stop, replans = group.all_reduce_max(int(signal_request.save), signal_request.signal or 0, 0)
            signal_request.save = False
            if replans and (steps := int(group.broadcast_object())) != plan.recipe.steps:
                plan = dataclasses.replace(plan, recipe=replan_steps(plan.recipe, done.step, steps))
                guards.recipe = plan.recipe
            if train_state.sharded and (due or stop):
                checkpoint.make_sharded_save(train_state, group).help_rank0()
            if stop and done.step < plan.recipe.steps:
                group.broadcast_object()  # rank 0 has saved
                raise InterruptedRun(f"Interrupted at step {done.step} of {plan.recipe.steps}.", 128 + stop)
    gather_train_state(train_state, plan, group)
