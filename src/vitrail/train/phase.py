"""Run a resumable phase before the training, such as pre-training, for its number of steps or its share of the minutes.

Each phase has its own checkpoints, which are removed when its result is in the run folder, and its own rows in
metrics.jsonl, at step 0 of the training and with the phase's name in their keys.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import time
import tomllib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import nn

from .. import config
from ..checkpoints import bundle_weights
from ..checkpoints.model_card import UNLABELED_KEY
from ..data.loader import Batch, ImageStore, iter_batches
from ..errors import DamagedFileError, InterruptedRun, ResourceError
from ..files import atomic, safetensors_file
from ..model.vit import ViT
from ..randomness import derive
from ..runtime import is_out_of_memory
from . import checkpoint, loop, optim, plan_changes
from .context import TrainContext
from .events import Event, Note, StepProgress
from .guards import Guards, PhaseLabel
from .loop import StepResult, TrainState
from .losses import Loss, mean_loss
from .plan import Plan, ProgressiveStage, Recipe, replan_steps
from .run_folder import RunFolder
from .signals import listen_for_signals, resume_instructions
from .time_budget import StepPrices, TimeBudget

PHASE_RECORDED_ROWS = 200
MEASURED_STEPS, ENOUGH_SECONDS = 12, 10.0
IMAGES_HASH_KEY = "prelude_pictures"
PHASE_NAMES = ("pretrain", "teacher")
"""In their order in a run."""
BEGAN_KEY = "began"
"""In a checkpoint: what the run's clock showed when the phase began."""


@dataclass(frozen=True, kw_only=True)
class TrainingPhase:
    """A module, its loss, its data and its recipe."""

    name: str
    """In file names and metrics: pretrain or teacher."""
    title: str
    """In messages, such as "pre-training"."""
    plan: Plan
    """Of the run."""
    module: nn.Module
    """On its device; all its trainable parameters are optimised."""
    recipe: Recipe
    """Steps, batch, optimiser and learning rates of the phase."""
    seed: int
    """Differs from that of the training, so that the two have other orders of the images."""
    compute_loss: Callable[[Batch, int, int], Loss]
    """From (batch, step, epoch) to (total, weight)."""
    images: ImageStore
    targets: Shaped[np.ndarray, " n *K"]
    """One per image, even if the loss does not read them."""
    shard_ids: Int64[np.ndarray, " n"] | None = None
    advice: str
    """Printed when it diverges."""
    image_names: Sequence[str] = ()
    """By row, for messages."""
    images_hash: str = ""
    """A hash of the images, where they differ from those of the training."""

    @property
    def section(self) -> str:
        """The section of the plan that has its number of steps."""
        return "pretrain" if self.name == "pretrain" else "distill"


def run_phase(run: RunFolder, phase: TrainingPhase) -> Generator[Event, None, Plan]:
    """Train the phase's module from its newest checkpoint, or from its first step, to its last.

    The caller saves the result and then calls `remove_phase_checkpoints`.

    Returns the plan as it was followed: with a share of the minutes, the phase's steps were replanned on the way.

    Raises:
        InterruptedRun: a stop signal came; the phase is saved and the message says how to resume.
        DataError, DivergedError, ResourceError: see `iterate_phase_steps`.
    """
    folder, began = phase_checkpoint_folder(run, phase.name), run.clock.elapsed()
    optimizers = optim.build_optimizers(phase.module, phase.recipe, str(next(phase.module.parameters()).device))
    guards, start = make_phase_guards(phase, run.path), 0
    newest, complaints = checkpoint.find_newest_checkpoint(folder)
    for complaint in complaints:
        yield Note(f"{complaint} Falling back to the checkpoint before it.")
    if newest is not None:
        facts = checkpoint.read_checkpoint_facts(newest)
        saved = checkpoint.read_checkpoint_plan(newest)
        changed = plan_changes.diff_plans(saved, phase.plan, int(facts["step"])) if saved else []
        # An extension concerns the training alone, which has not begun.
        yield from map(Note, plan_changes.check_plan_changes(plan_changes.drop_extension_changes(changed)))
        if phase.images_hash != facts.get(IMAGES_HASH_KEY, phase.images_hash):
            yield Note(
                f"The pictures of the {phase.title} are not those that it began with. {plan_changes.NOT_BIT_IDENTICAL}"
            )
        start = checkpoint.load_checkpoint(newest, phase.module, optimizers, None)
        guards.load_state_dict(facts.get("guards", {}))
        yield Note(f"Going on after step {start} of {phase.recipe.steps} of the {phase.title}.")
    drop_phase_rows(run, phase.name, start)
    if newest is not None:
        run.start_clock()  # the rows of steps that are repeated are gone
        began = facts.get(BEGAN_KEY, began)
    budget = _make_phase_budget(run, phase, start, began)
    step_seconds: deque[float] = deque(maxlen=50)
    saved_at, record_every = time.monotonic(), max(1, phase.recipe.steps // PHASE_RECORDED_ROWS)
    step = saved_step = start

    def save_step() -> None:
        if step == saved_step:
            return
        kept = {IMAGES_HASH_KEY: phase.images_hash, "guards": guards.state_dict(), BEGAN_KEY: began}
        plan_text = config.to_toml(phase.plan, {})
        checkpoint.save_checkpoint(folder, step, phase.module, optimizers, None, plan_text, kept)

    with listen_for_signals() as signal_request, checkpoint.save_when_closed(save_step):
        for done in iterate_phase_steps(phase, optimizers, start, guards):
            step = done.step
            step_seconds.append(done.seconds)
            if budget is not None:
                budget.finish_step(phase.recipe, done.step)
            last = phase.recipe.steps
            if done.step % record_every == 0 or done.step == last:
                run.record(_phase_row(phase.name, done))
            yield _phase_progress(phase, done, statistics.median(step_seconds))
            yield from map(Note, guards.take_messages(done.step))
            if budget is not None and budget.is_due(phase.recipe, done.step):
                phase = _replan(run, phase, budget, done.step)
                guards.recipe, last = phase.recipe, phase.recipe.steps
            if checkpoint.is_save_due(phase.recipe, done.step, saved_at, signal_request):
                save_step()
                saved_step = step
                if signal_request.save:
                    where = f"step {done.step:,} of {last:,} of the {phase.title}"
                    yield Note(f"Saved after {where}, as a signal asked; it goes on.")
                saved_at, signal_request.save = time.monotonic(), False
            if signal_request:
                message = (
                    f"Interrupted at step {done.step} of {last} of the {phase.title}, saved. "
                    f"{resume_instructions(run.path)}"
                )
                raise InterruptedRun(message, signal_request.exit_code)
            if budget is not None:
                budget.begin_step()
    return phase.plan


def _make_phase_budget(run: RunFolder, phase: TrainingPhase, start: int, began: float) -> TimeBudget | None:
    """The budget of a phase that has a share of the minutes; None for one that has a number of steps."""
    plan, recipe = phase.plan, phase.recipe
    section = plan.pretrain if phase.section == "pretrain" else plan.distill
    seconds = 60 * plan.minutes * section.budget_fraction
    if not seconds or start >= recipe.steps:
        return None
    prices = StepPrices([(ProgressiveStage(0.0, 1.0), 1.0)])
    return TimeBudget(seconds, run.clock, prices, began, progress=recipe.progress(start))


def _replan(run: RunFolder, phase: TrainingPhase, budget: TimeBudget, step: int) -> TrainingPhase:
    """The phase with the number of steps that its seconds still allow, which is written into the plan of the run."""
    steps = budget.replan(phase.recipe, step)
    if steps == phase.recipe.steps:
        return phase
    if phase.section == "pretrain":
        plan = dataclasses.replace(phase.plan, pretrain=replan_steps(phase.plan.pretrain, step, steps))
    else:
        plan = dataclasses.replace(phase.plan, distill=replan_steps(phase.plan.distill, step, steps))
    if not run.record_replanning(plan, f"{phase.section}.steps", step):
        return phase
    return dataclasses.replace(phase, plan=plan, recipe=replan_steps(phase.recipe, step, steps))


def iterate_phase_steps(
    phase: TrainingPhase, optimizers: Sequence[torch.optim.Optimizer], start: int = 0, guards: Guards | None = None
) -> Generator[StepResult]:
    """The optimiser steps after `start`; everything random depends on the seed and the step alone.

    Args:
        guards: decide which steps are applied; new ones, which write no files, unless given.

    Raises:
        DataError, DivergedError: see `Guards.allow`.
        ResourceError: the memory is full; the message names a batch size that fits.
    """
    try:
        yield from _iterate_steps(phase, optimizers, start, guards or make_phase_guards(phase))
        return
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler: the exception holds the frames that hold the memory.
    raise ResourceError(_out_of_memory_message(phase, optimizers))


def make_phase_guards(phase: TrainingPhase, folder: Path | None = None) -> Guards:
    """New guards for the steps of a phase."""
    return Guards(phase.recipe, folder, phase.image_names, PhaseLabel(phase.name, phase.title, phase.advice))


def _iterate_steps(
    phase: TrainingPhase, optimizers: Sequence[torch.optim.Optimizer], start: int, guards: Guards
) -> Generator[StepResult]:
    recipe = phase.recipe
    train_state = TrainState(phase.module.train(), optimizers, None)
    start_time = time.perf_counter()
    batches = iter_batches(
        phase.images, phase.targets, recipe.batch_size, phase.seed, start, recipe.repeated_augmentation, phase.shard_ids
    )
    for step, epoch, batch in batches:
        recipe = guards.recipe  # its steps may have been replanned
        if step >= recipe.steps:
            return
        optim.set_learning_rates(optimizers, recipe, step)
        torch.manual_seed(derive(phase.seed, "dropout", step))
        loss = mean_loss(*phase.compute_loss(batch, step, epoch))
        loss.backward()
        loss_value = loop.apply_step(train_state, recipe, guards, step, loss, batch)
        distinct = min(recipe.batch_size // recipe.repeated_augmentation, len(phase.targets))
        epochs_done = (step + 1) * distinct / len(phase.targets)
        seconds = time.perf_counter() - start_time
        yield StepResult(step + 1, epochs_done, loss_value, recipe.lr_factor(step), len(batch.indices), seconds)
        start_time = time.perf_counter()


def _out_of_memory_message(phase: TrainingPhase, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Find by trial a batch size that fits. The trial changes the module, which is not saved any more."""
    recipe, flag = phase.recipe, "pretrain" if phase.name == "pretrain" else "recipe"
    distinct = min(recipe.batch_size // recipe.repeated_augmentation, len(phase.targets))

    def fits(count: int) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        smaller_recipe = dataclasses.replace(recipe, batch_size=count * recipe.repeated_augmentation)
        smaller = dataclasses.replace(phase, recipe=smaller_recipe)
        with closing(_iterate_steps(smaller, optimizers, 0, make_phase_guards(smaller))) as steps:
            next(steps)

    size = loop.find_largest_batch(fits, distinct) * recipe.repeated_augmentation
    if size:
        advice = f"{size} at once do (tried just now). Begin with --{flag}.batch_size {size}."
    else:
        advice = "Nor does any smaller batch: use a smaller --image-size or model."
    return (
        f"The memory is full in the {phase.title}: {distinct * recipe.repeated_augmentation} pictures at once do "
        f"not fit. {advice}"
    )


def measure_phase_step(phase: TrainingPhase) -> float:
    """Mean seconds of a few real steps, after two that warm up, or of those that `ENOUGH_SECONDS` allow.

    They change the phase's module.
    """
    optimizers = optim.build_optimizers(phase.module, phase.recipe, str(next(phase.module.parameters()).device))
    steps = iterate_phase_steps(phase, optimizers)
    times: list[float] = []
    for done in steps:
        times.append(done.seconds)
        if len(times) == 2 + MEASURED_STEPS or sum(times) > ENOUGH_SECONDS:
            break
    steps.close()
    counted = times[2:] or times
    return sum(counted) / len(counted)


def has_phase_checkpoint(run: RunFolder) -> bool:
    """Whether a phase of this run has checkpoints to resume from."""
    return any((phase_checkpoint_folder(run, name) / "LATEST").is_file() for name in PHASE_NAMES)


def phase_checkpoint_folder(run: RunFolder, name: str) -> Path:
    """The folder of a phase's checkpoints until it is finished."""
    return run.checkpoints / name


@torch.no_grad()
def load_module(path: Path, module: nn.Module) -> None:
    """Load the result of a phase into a module.

    Raises:
        DamagedFileError: the file is damaged, or from a module of another shape.
    """
    stored, tensors = safetensors_file.load_tensors(path), module.state_dict()
    if stored.keys() != tensors.keys() or any(stored[name].shape != tensors[name].shape for name in tensors):
        raise DamagedFileError(f"{path} does not fit the plan of this run. One of the two was changed.")
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])


def remove_phase_checkpoints(run: RunFolder, name: str) -> None:
    """Remove the checkpoints of a phase whose result is saved."""
    shutil.rmtree(phase_checkpoint_folder(run, name), ignore_errors=True)


def drop_phase_rows(run: RunFolder, name: str, step: int) -> None:
    """Drop the metrics of steps that a resumed phase will repeat."""
    rows = run.read_rows()
    kept = [row for row in rows if row.get(f"{name}_step", 0) <= step]
    if len(kept) < len(rows):
        atomic.write_text(run.metrics_file, "".join(f"{json.dumps(row)}\n" for row in kept))


def sum_phase_images(rows: Sequence[dict[str, float]], name: str) -> float:
    """Images of a phase from the rows of metrics.jsonl, each of which stands for several steps."""
    images, before = 0.0, 0.0
    for row in rows:
        if f"{name}_step" in row:
            images, before = images + (row[f"{name}_step"] - before) * row[f"{name}_images"], row[f"{name}_step"]
    return images


def _phase_progress(phase: TrainingPhase, done: StepResult, step_seconds: float) -> StepProgress:
    return StepProgress(
        step=done.step,
        steps=phase.recipe.steps,
        epoch=done.epoch,
        loss=done.loss,
        images_per_second=done.num_images / step_seconds,
        seconds_left=(phase.recipe.steps - done.step) * step_seconds,
        phase=phase.title,
    )


def _phase_row(name: str, done: StepResult) -> dict[str, float | int]:
    return {
        "step": 0,
        f"{name}_step": done.step,
        f"{name}_epoch": round(done.epoch, 4),
        f"{name}_loss": done.loss,
        f"{name}_seconds": round(done.seconds, 4),
        f"{name}_images": done.num_images,
    }


# -- Initial weights of the training, in the run folder when all phases before it are done

START_WEIGHTS_FILE = "start.safetensors"
PRETRAINED_FOLDER = "pretrained"
"""The same weights as a bundle, for probes, embeddings and --weights."""
CNN_TEACHER_FILE = "teacher.safetensors"
AFTER_KEY, PLAN_KEY = "vitrail_after", "vitrail_plan"


def is_phase_done(run: RunFolder, name: str) -> bool:
    """Whether the weights in the run folder are from after this phase or a later one."""
    path = run.path / START_WEIGHTS_FILE
    after = safetensors_file.read_metadata(path).get(AFTER_KEY, "") if path.is_file() else ""
    return after in PHASE_NAMES and PHASE_NAMES.index(after) >= PHASE_NAMES.index(name)


def save_start_weights(context: TrainContext, name: str, model: ViT) -> None:
    """Write a model's weights after a phase; the bundle comes first, because a resume looks for the other file."""
    save_pretrained_bundle(context, name, model)
    header = {AFTER_KEY: name, **plan_metadata(context.plan)}
    safetensors_file.save_tensors(context.run.path / START_WEIGHTS_FILE, model.state_dict(), header, checksum=True)


def save_pretrained_bundle(context: TrainContext, name: str, model: ViT) -> None:
    """Write a model's weights after a phase as a bundle."""
    source, folder = context.dataset.source, context.run.path / PRETRAINED_FOLDER
    if folder.exists():  # of the phase before this one, or of this one before a kill
        atomic.remove_folder(folder)
    info = {UNLABELED_KEY: name, "data": {"source": source.name, "fingerprint": source.fingerprint()}}
    bundle_weights.save_bundle(folder, model, context.plan.image, source.task, source.classes, info)


def plan_metadata(plan: Plan) -> dict[str, str]:
    """Header of initial weights: the plan that led to them."""
    return {PLAN_KEY: config.to_toml(plan, {})}


def read_phase_plan(run: RunFolder) -> Plan | None:
    """The plan of the phases before the first step; None without phases, or in a run of an older version.

    Raises:
        UsageError: it was saved by a version with other settings.
    """
    for path in (run.path / CNN_TEACHER_FILE, run.path / START_WEIGHTS_FILE):
        text = safetensors_file.read_metadata(path).get(PLAN_KEY) if path.is_file() else None
        if text is not None:
            return config.read(Plan, tomllib.loads(text), str(path))
    return None
