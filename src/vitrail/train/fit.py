"""Run a whole training: check, plan, train, evaluate, write the report. Yields events and prints nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from .. import config, runtime
from ..data.checks.findings import DataCheckReport
from ..data.loader import ImageStore
from ..errors import DataError
from ..files.atomic import write_json
from ..files.lock import Lock
from ..formatting import format_count
from ..model.vit import ViT, create_model, parameter_count
from ..report.page import CONTACT_SHEET_FILE
from . import contact_sheet, phases
from . import plan as tracking
from .batch_augment import make_crop
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .dataset import (
    MEMORY,
    Dataset,
    check_and_filter,
    measure_mean_std,
    open_dataset,
    report_findings,
    resolve_data_paths,
    save_dataset_record,
)
from .distill.distillation import broadcast_teacher, build_teacher
from .distributed import consistency, wait_for_rank0
from .distributed.collectives import RankGroup, group_from_env, join_group
from .distributed.data_parallel import choose_strategy
from .events import Event, Note, PlanEvent, RunCost, RunFolderEvent
from .finetune import features, finetune_planner, weights, wise_ft
from .finish import finish_run
from .guards import Guards
from .loop import build_train_state, gather_train_state
from .plan import Plan
from .planning import cost_estimate, planner, throughput, unused_settings
from .planning.cost_estimate import RunTimer
from .planning.finalize import NO_THROUGHPUT
from .planning.fingerprint import fingerprint_dataset
from .request import Reasons, TrainRequest
from .resume import Extension, read_current_plan, reopen_run_as_json, restore_checkpoint
from .run_folder import RunFolder, log_events, make_default_folder, track_run
from .signals import ignore_save_signals, raise_on_signal, resume_instructions
from .teacher_targets import DistillationTeacher
from .trainer import run_trainer, train_worker_rank


def fit(
    request: TrainRequest,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    dry_run: bool = False,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Iterator[Event]:
    """Make a plan for the wishes and follow it into a new run folder; with `dry_run` stop at the plan.

    Args:
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        source_object: pictures and labels as an object of this program; the plan then calls its source "memory".
        custom_functions: a loss or an augmentation of this program's own.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see errors.py.
        InterruptedRun: stopped from outside and saved; the message says how to go on.
    """
    watch = RunTimer()
    tracking.read_track_settings(request.overrides).check()
    with _training_group(settings) as (machine, team):
        if out is not None:
            team.run_on_rank0(lambda: RunFolder.check_free(out))
        data = (
            resolve_data_paths(request.data)
            if source_object is None
            else dataclasses.replace(request.data, source=MEMORY)
        )
        request = dataclasses.replace(request, data=data)
        dataset = open_dataset(request.data, request.seed, None, source_object, custom_functions)
        yield from _describe_dataset(dataset)
        if busy := runtime.busy_cpu_warning(machine):
            yield Note(busy)
        found_here = fingerprint_dataset(dataset, request.data, request.overrides, request.seed)
        plan, reasons, notes = finetune_planner.draft_from_request(found_here, request, machine, team.world_size)
        plan.decisions.check_task(dataset.source.task, dataset.source.classes)
        custom_functions.check(plan)
        for text in notes:
            yield Note(text)
        plan, why = _adapt_plan_to_group(team, dataset, plan, reasons, "recipe.batch_size" in request.overrides)
        reasons |= why
        dataset, findings = check_and_filter(dataset, plan, team)
        yield from report_findings(dataset, findings)
        with watch.time_decoding():
            pictures = _load_training_images(dataset, plan)
        if not plan.finetune.from_checkpoint:
            plan, why = _measure_normalization(plan, pictures, request)
            reasons |= why
        plan, why, spent = phases.finalize_phases(plan, dataset, pictures, dry_run)
        reasons |= why
        plan, spent = consistency.broadcast_plan(team, plan), team.broadcast_object(spent)
        plan, why, measured, spent = finetune_planner.finalize_draft(
            plan, request, reasons, pictures, dataset, spent, dry_run, team
        )
        reasons |= why
        plan = consistency.broadcast_plan(team, plan)
        consistency.check_plan_for_group(team, plan)
        cost = None
        if measured is not None and team.is_rank0:
            cost = cost_estimate.estimate_cost(plan, measured, spent, watch, pictures, dataset, team)
        yield PlanEvent(plan, reasons, cost)
        if not dry_run:
            run = _create_run_folder(out, plan, team)
            yield RunFolderEvent(run.path)
            events = _start_run(run, plan, reasons, dataset, findings, pictures, team)
            yield from watch.record_cost(events, run.path, plan, cost) if team.is_rank0 else events


def fit_plan(
    plan: Plan,
    out: Path | None = None,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
    dry_run: bool = False,
    changes: Mapping[str, str] | None = None,
) -> Iterator[Event]:
    """Follow a written plan from its first step into a new run folder; it is taken as it is, but for an extension.

    Args:
        dry_run: stop before the first step, when it is known what the run would take.
        changes: fields of the plan by their dotted names that were asked for beside it, and are in it already; one
            that would have no effect is refused.

    Raises:
        as `fit`.
    """
    watch = RunTimer()
    plan.track.check()
    with _training_group(_runtime_settings(plan)) as (_, team):
        if out is not None:
            team.run_on_rank0(lambda: RunFolder.check_free(out))
        if at := plan.recipe.extended_at:
            yield Note(f"The plan was extended after step {at:,}. Begun anew, its rate rises once and falls once.")
        plan = phases.resolve_plan_paths(
            dataclasses.replace(plan, data=resolve_data_paths(plan.data), recipe=plan.recipe.without_extension())
        )
        dataset = open_dataset(plan.data, plan.seed, None, source_object, custom_functions)
        planner.check_plan(plan, len(dataset.source.classes), dataset.source.task)
        unused_settings.check_unused_settings(plan, changes or {})
        plan.decisions.check_task(dataset.source.task, dataset.source.classes)
        custom_functions.check(plan)
        phases.check_written_phases(plan, dataset)
        if plan.finetune.from_checkpoint:
            weights.check_checkpoint(weights.open_checkpoint(plan.finetune.weights), plan.model, plan.finetune)
        yield from _describe_dataset(dataset)
        plan, _ = _adapt_plan_to_group(team, dataset, plan, {}, True)
        dataset, findings = check_and_filter(dataset, plan, team)
        yield from report_findings(dataset, findings)
        with watch.time_decoding():
            pictures = _load_training_images(dataset, plan)
        phases.check_extra_images(plan, dataset, pictures)
        yield PlanEvent(plan, {}, _estimate_written_plan(plan, pictures, dataset, watch, team) if dry_run else None)
        if not dry_run:
            run = _create_run_folder(out, plan, team)
            yield RunFolderEvent(run.path)
            yield from _start_run(run, plan, {}, dataset, findings, pictures, team)


def resume_run(
    path: Path,
    source_object: object | None = None,
    extension: Extension | None = None,
    compute: Mapping[str, str] | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Iterator[Event]:
    """Go on with a run where its newest whole checkpoint stands; without one, from its first step.

    Args:
        source_object: the object that the run was begun with, if it was one.
        extension: more steps than its plan has; also for a run that is complete.
        compute: fields of [compute] and [track] by their dotted names that are to be others from now on.

    Raises:
        as `fit`; UsageError: its plan was changed in a way that it cannot follow; DamagedFileError: there are
        checkpoints and none is whole.
    """
    run = RunFolder.open_existing(path)
    yield RunFolderEvent(path)
    begun = read_current_plan(run)
    changed = config.override(begun, compute or {})
    changed.track.check()
    with _training_group(_runtime_settings(changed)) as (_, team):
        if team.run_on_rank0(run.is_finished) and extension is None:
            yield Note(f"{path} is complete already; its report is {path / 'report.html'}.")
            return
        custom_functions.check(begun)
        dataset = open_dataset(
            begun.data, begun.seed, run, source_object, custom_functions
        )  # may fail: before the run is changed
        consistency.check_same_inputs(team, dataset.source, dataset.splits, begun)
        opened = team.run_on_rank0(lambda: reopen_run_as_json(run, extension, compute))
        plan, reasons = config.read(Plan, opened["plan"], str(run.plan_file)), opened["reasons"]
        for text in (*opened["notes"], *dataset.notes):
            yield Note(text)
        yield PlanEvent(plan, reasons)
        yield from _run_training(run, plan, reasons, dataset, _load_training_images(dataset, plan), team)


@contextmanager
def _training_group(settings: runtime.RuntimeSettings) -> Iterator[tuple[runtime.Runtime, RankGroup]]:
    """The machine as it was chosen, with torch set to it, and the processes that train together."""
    machine = runtime.choose(settings, group_from_env().local_world_size)
    runtime.apply(machine)
    with ignore_save_signals(), join_group(machine.device, machine.timeout) as team:
        yield machine, team


def _runtime_settings(plan: Plan) -> runtime.RuntimeSettings:
    """A machine as the plan says, or a refusal: a plan is followed exactly or not at all."""
    asked = plan.compute
    return runtime.RuntimeSettings(
        device=asked.device, precision=asked.precision, threads=asked.threads, num_workers=asked.num_workers,
        compile=asked.compile, strategy=asked.strategy, timeout=asked.timeout,
    )  # fmt: skip


def _adapt_plan_to_group(
    group: RankGroup, dataset: Dataset, plan: Plan, reasons: Reasons, batch_asked: bool
) -> tuple[Plan, Reasons]:
    """The plan for this number of processes, and new reasons; all processes have the same plan or none starts."""
    new: Reasons = {}
    if not batch_asked and (shared := consistency.round_up_batch_size(group, plan)) != plan:
        plan = shared
        new["recipe.batch_size"] = f"{reasons['recipe.batch_size']}, shared by {group.world_size} processes"
    consistency.check_plan_for_group(group, plan)
    consistency.check_same_inputs(group, dataset.source, dataset.splits, plan)
    parameters = parameter_count(plan.model)
    _, new["compute.strategy"] = choose_strategy(plan.compute.strategy, group, parameters, plan.compute.device)
    return plan, new


def _create_run_folder(out: Path | None, plan: Plan, group: RankGroup) -> RunFolder:
    """The run folder, which the leader makes; each process has its own clock, and all use the leader's name."""

    def create_folder() -> str:
        return str(RunFolder.create(out or make_default_folder(plan.data.source, plan.model_name, datetime.now())).path)

    return RunFolder(Path(group.run_on_rank0(create_folder)))


def _estimate_written_plan(
    plan: Plan, images: ImageStore, dataset: Dataset, timer: RunTimer, group: RankGroup
) -> RunCost | None:
    """What a written plan would take, by some of its steps, if it has any, and of what comes before them."""
    spent = phases.estimate_phase_seconds(plan, dataset, images)
    spent += finetune_planner.estimate_probe_seconds(plan, images, dataset) if plan.finetune.from_checkpoint else 0.0
    found = throughput.measure_throughput(plan, images, dataset, group) if plan.recipe.steps else NO_THROUGHPUT
    return cost_estimate.estimate_cost(plan, found, spent, timer, images, dataset, group) if group.is_rank0 else None


def _describe_dataset(dataset: Dataset) -> Iterator[Event]:
    """What a person should know before anything is decoded: the task and why, and how the data was read and parted."""
    source = dataset.source
    if source.reason:
        yield Note(f"Task {source.task}: {source.reason.rstrip('.')}.")
    for text in (*source.notes, *dataset.notes):
        yield Note(text)
    counts = ", ".join(f"{len(rows):,} {name}" for name, rows in dataset.splits.items())
    pictures = format_count(sum(map(len, dataset.splits.values())), "picture")
    one, more = {
        "classes": ("class", "classes"), "labels": ("label", "labels"), "number": ("number", "numbers"),
    }[source.task]  # fmt: skip
    outputs = f"{len(source.classes)} {one if len(source.classes) == 1 else more}"
    yield Note(f"{source.name}: {outputs}, {pictures} ({counts}).")


def _measure_normalization(plan: Plan, images: ImageStore, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with mean and standard deviation of the training images, except requested ones, and new reasons."""
    open_fields = [name for name in ("mean", "std") if f"image.{name}" not in request.overrides]
    if not open_fields:
        return plan, {}
    spec = measure_mean_std(plan.image, images, plan.seed)
    image = dataclasses.replace(
        plan.image,
        mean=spec.mean if "mean" in open_fields else plan.image.mean,
        std=spec.std if "std" in open_fields else plan.image.std,
    )
    reasons = {f"image.{name}": "measured on the training pictures" for name in open_fields}
    return dataclasses.replace(plan, image=image), reasons


def _load_training_images(dataset: Dataset, plan: Plan) -> ImageStore:
    pictures = dataset.load_training_images(plan.image, make_crop(plan.recipe, plan.seed), plan.compute.num_workers)
    dataset.custom_functions.try_out(plan, pictures, dataset.loss_targets("train"))
    return pictures


def _start_run(
    run: RunFolder,
    plan: Plan,
    reasons: Reasons,
    dataset: Dataset,
    findings: DataCheckReport | None,
    images: ImageStore,
    group: RankGroup,
) -> Iterator[Event]:
    if findings is not None:  # rank 0 has looked at the pictures, and writes
        with Lock(run.path):
            save_dataset_record(run, dataset)
            write_json(run.path / "check.json", findings.to_json())
            run.write_plan(plan, reasons)  # last: a folder with a plan can be resumed
        try:
            contact_sheet.write_contact_sheet(
                run.path / CONTACT_SHEET_FILE, dataset.source, images, plan, dataset.custom_functions
            )
        except DataError as error:  # pictures that the check had no time for; the training decides about them
            yield Note(f"There is no sheet of what the model sees: {error}")
    yield from _run_training(run, plan, reasons, dataset, images, group)


def _run_training(
    run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, images: ImageStore, group: RankGroup
) -> Iterator[Event]:
    """Train from the newest checkpoint, or from nothing, to the report, which rank 0 makes alone."""
    if not group.is_rank0:
        wait_for_rank0.wait_for_rank0_work(group, resume_instructions(run.path))
        model = create_model(plan.model, plan.seed)
        group.broadcast_weights(model)
        learner = build_train_state(model, plan, group)
        learner.teacher = broadcast_teacher(group, build_teacher(plan, dataset, run), plan)
        train_worker_rank(run, plan, learner, dataset, images, group)
        group.leave()
        return
    with Lock(run.path), track_run(run, plan):
        yield from log_events(run, _train_rank0(run, plan, reasons, dataset, images, group))


def _train_rank0(
    run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, images: ImageStore, group: RankGroup
) -> Generator[Event]:
    """What rank 0 does of it."""
    begins = plan.finetune.from_checkpoint
    model, followed = yield from wait_for_rank0.run_while_others_wait(
        group, _prepare_initial_model(run, plan, dataset, images), resume_instructions(run.path)
    )
    group.broadcast_weights(model)
    learner = build_train_state(model, plan, group)
    learner.teacher = broadcast_teacher(group, followed, plan)
    guards = Guards(plan.recipe, run.path, dataset.source.ids)
    start = yield from restore_checkpoint(run, learner, guards)
    group.broadcast_object(start)
    if start:
        yield Note(f"Going on after step {start} of {plan.recipe.steps}.")
    if plan.recipe.steps:
        yield from run_trainer(run, plan, learner, dataset, images, start, guards, group)
    with raise_on_signal(f"Interrupted after the last step, which is saved. {resume_instructions(run.path)}"):
        learner = gather_train_state(learner, plan, group)
        group.leave()
        if plan.recipe.steps and begins:
            learner = yield from wise_ft.choose_weights(run, plan, learner, dataset)
        yield from finish_run(run, plan, reasons, learner, dataset)


def _prepare_initial_model(
    run: RunFolder, plan: Plan, dataset: Dataset, images: ImageStore
) -> Generator[Event, None, tuple[ViT, DistillationTeacher | None]]:
    """The model that the training begins with, and who teaches it."""
    begins = plan.finetune.from_checkpoint
    model = (
        (yield from features.prepare_start_model(run, plan, dataset)) if begins else create_model(plan.model, plan.seed)
    )
    return model, (yield from phases.run_phases(run, plan, model, dataset, images))
