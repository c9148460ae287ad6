"""Run a whole training: check, plan, train, evaluate, write the report. Yields events and prints nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np

from .. import config, runtime
from ..data.checks.findings import DataCheckReport
from ..data.loader import ImageStore
from ..data.settings import MEMORY
from ..errors import DataError
from ..evaluate.cases import check_case_settings, find_case_targets, index_cases
from ..evaluate.device_check import choose_checked_runtime
from ..files.atomic import write_json
from ..files.disk import check_writable
from ..files.lock import Lock
from ..formatting import format_count
from ..model.vit import ViT, create_model, parameter_count
from ..report.page import CONTACT_SHEET_FILE
from . import contact_sheet, phases
from .batch_augment import make_crop
from .context import PlanContext, TrainContext
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .dataset import (
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
from .events import Event, Note, PlanEvent, RunCost, RunFolderEvent, StageEvent
from .finetune import features, finetune_planner, weights, wise_ft
from .finish import finish_run
from .guards import Guards
from .loop import build_train_state, gather_train_state
from .plan import Plan, read_track_settings
from .plan_changes import PLACES
from .planning import cost_estimate, planner, throughput, unused_settings
from .planning.cost_estimate import RunTimer
from .planning.finalize import NO_THROUGHPUT
from .planning.fingerprint import fingerprint_dataset
from .request import DatasetFingerprint, Reasons, TrainRequest
from .resume import Extension, read_current_plan, relocate_data, reopen_run_as_json, restore_checkpoint
from .run_folder import DEFAULT_FOLDER, RunFolder, log_events, make_default_folder, track_run
from .signals import ignore_save_signals, raise_on_signal, resume_instructions
from .teacher_targets import DistillationTeacher
from .trainer import run_trainer, train_worker_rank

PREPARATION_SECONDS, PREPARATION_FRACTION = 10.0, 0.1
"""What comes before the first step may take so many seconds and this fraction of the minutes; decoding takes what it
takes."""
OUTSIDE_SECONDS = 3.0
"""Of these: what loads torch before this clock begins, and what writes the run folder after the last measurement."""


def fit(
    request: TrainRequest,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    dry_run: bool = False,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Generator[Event]:
    """Make a plan for a request and follow it into a new run folder; with `dry_run` stop at the plan.

    Args:
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        source_object: images and labels as a Python object; the plan then calls its source "memory".
        custom_functions: a loss or an augmentation of the caller's program.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see errors.py.
        InterruptedRun: stopped from outside and saved; the message says how to resume.
    """
    timer = RunTimer()
    read_track_settings(request.overrides).check()
    with _training_group(settings) as (compute, group):
        _check_run_folder_free(out, group, dry_run)
        request = resolve_request_data(request, source_object)
        yield StageEvent(f"Opening {Path(request.data.source).name}")
        dataset = open_dataset(request.data, request.seed, None, source_object, custom_functions)
        yield from _describe_dataset(dataset)
        if busy := runtime.busy_cpu_warning(compute, not (settings.threads or request.epochs or request.steps)):
            yield Note(busy)
        yield StageEvent("Looking at some pictures")
        fingerprint = fingerprint_dataset(dataset, request.data, request.overrides, request.seed)
        draft, draft_reasons = yield from _draft_plan(fingerprint, request, dataset, compute, group)
        context, findings = yield from _check_and_load_images(draft, dataset, group, timer)
        yield StageEvent("Measuring some steps, to plan as many as fit into the time")
        context, why_threads = _choose_threads(context, settings)
        plan, reasons, cost = _finalize_plan(context, request, draft_reasons | why_threads, timer, dry_run)
        yield PlanEvent(plan, reasons, cost)
        if not dry_run:
            run = _create_run_folder(out, plan, group)
            yield RunFolderEvent(run.path)
            events = _start_run(context.in_run(run, plan), reasons, findings)
            yield from timer.record_cost(events, run.path, plan, cost) if group.is_rank0 else events


def fit_plan(
    plan: Plan,
    out: Path | None = None,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
    dry_run: bool = False,
    changes: Mapping[str, str] | None = None,
) -> Generator[Event]:
    """Follow a written plan from its first step into a new run folder, without its extension if it has one.

    Args:
        dry_run: stop before the first step, when the cost of the run is known.
        changes: explicit changes of the plan by dotted names, which it contains already; one without effect is
            refused.

    Raises:
        as `fit`.
    """
    timer = RunTimer()
    plan.track.check()
    with _training_group(_runtime_settings(plan)) as (_, group):
        _check_run_folder_free(out, group, dry_run)
        if at := plan.recipe.extended_at:
            yield Note(f"The plan was extended after step {at:,}. Begun anew, its rate rises once and falls once.")
        plan = _resolve_written_plan(plan, changes or {})
        yield StageEvent(f"Opening {Path(plan.data.source).name}")
        dataset = open_dataset(plan.data, plan.seed, None, source_object, custom_functions)
        _check_written_plan(plan, dataset, changes or {})
        yield from _describe_dataset(dataset)
        _check_ranks_agree(group, dataset, plan)
        context, findings = yield from _check_and_load_images(plan, dataset, group, timer)
        phases.check_extra_images(context)
        if dry_run:
            yield StageEvent("Measuring some steps")
        plan = dataclasses.replace(plan, minutes=0.0)  # its steps are written down; the check of the data was its own
        yield PlanEvent(plan, {}, _estimate_written_plan(context, timer) if dry_run else None)
        if not dry_run:
            run = _create_run_folder(out, plan, group)
            yield RunFolderEvent(run.path)
            yield from _start_run(context.in_run(run, plan), {}, findings)


def resume_run(
    path: Path,
    source_object: object | None = None,
    extension: Extension | None = None,
    compute: Mapping[str, str] | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Generator[Event]:
    """Continue a run from its newest complete checkpoint; without one, from its first step.

    Args:
        source_object: the object that the run was started with, if it was one.
        extension: more steps than its plan has; also for a run that is complete.
        compute: fields of [compute] and [track] by their dotted names that change from now on, and new places of the
            same images: `plan_changes.PLACES`.

    Raises:
        as `fit`; DataError: other images at a new place; UsageError: its plan was changed in a way that it cannot
        follow; DamagedFileError: there are checkpoints and none is complete.
    """
    run = RunFolder.open_existing(path)
    yield RunFolderEvent(path)
    saved_plan = read_current_plan(run)
    changed = config.override(saved_plan, compute or {})
    changed.track.check()
    with _training_group(_runtime_settings(changed)) as (_, group):
        if not set(PLACES).isdisjoint(compute or {}):
            moved = dataclasses.replace(saved_plan, data=resolve_data_paths(changed.data))
            source = open_dataset(moved.data, moved.seed, run, source_object).source
            yield Note(group.run_on_rank0(lambda: relocate_data(run, moved, source)))
            saved_plan = moved
            compute = {name: value for name, value in (compute or {}).items() if name not in PLACES}
        if group.run_on_rank0(run.is_finished) and extension is None:
            yield Note(f"{path} is complete already; its report is {path / 'report.html'}.")
            return
        custom_functions.check(saved_plan)
        yield StageEvent(f"Opening {Path(saved_plan.data.source).name}")
        # Opening may fail, so it comes before the run folder is changed.
        dataset = open_dataset(saved_plan.data, saved_plan.seed, run, source_object, custom_functions)
        consistency.check_same_inputs(group, dataset.source, dataset.splits, saved_plan)
        reopened = group.run_on_rank0(lambda: reopen_run_as_json(run, extension, compute))
        plan, reasons = config.read(Plan, reopened["plan"], str(run.plan_file)), reopened["reasons"]
        for text in (*reopened["notes"], *dataset.notes):
            yield Note(text)
        yield PlanEvent(plan, reasons)
        yield StageEvent(f"Decoding {format_count(len(dataset.splits['train']), 'picture')}")
        images = _load_training_images(dataset, plan)
        yield from _run_training(TrainContext(run=run, plan=plan, dataset=dataset, images=images, group=group), reasons)


# -- Steps of the three functions above, in order


@contextmanager
def _training_group(settings: runtime.RuntimeSettings) -> Iterator[tuple[runtime.Runtime, RankGroup]]:
    """The resolved runtime, with torch set to it, and the processes that train together."""
    compute = choose_checked_runtime(settings, group_from_env().local_world_size)
    runtime.apply(compute)
    with ignore_save_signals(), join_group(compute.device, compute.timeout) as group:
        yield compute, group


def _runtime_settings(plan: Plan) -> runtime.RuntimeSettings:
    """The runtime that the plan names, or an error: a plan is followed exactly or not at all."""
    compute = plan.compute
    return runtime.RuntimeSettings(
        device=compute.device, precision=compute.precision, threads=compute.threads, num_workers=compute.num_workers,
        compile=compute.compile, strategy=compute.strategy, timeout=compute.timeout,
    )  # fmt: skip


def _check_run_folder_free(out: Path | None, group: RankGroup, dry_run: bool) -> None:
    """Check before any work that the run folder can be made; in a dry run only one that was named."""
    if out is not None:
        group.run_on_rank0(lambda: RunFolder.check_free(out))
    elif not dry_run:
        group.run_on_rank0(lambda: check_writable(DEFAULT_FOLDER / "run"))


def resolve_request_data(request: TrainRequest, source_object: object | None) -> TrainRequest:
    """The request with absolute paths of its data, or "memory" as the name of an object."""
    if source_object is None:
        return dataclasses.replace(request, data=resolve_data_paths(request.data))
    return dataclasses.replace(request, data=dataclasses.replace(request.data, source=MEMORY))


def _resolve_written_plan(plan: Plan, changes: Mapping[str, str]) -> Plan:
    """The plan with absolute paths, without an extension, and with steps only where a phase had a share of the minutes
    too.
    """
    data, recipe = resolve_data_paths(plan.data), plan.recipe.without_extension()
    plan = phases.drop_fractions(plan, changes)
    return phases.resolve_plan_paths(dataclasses.replace(plan, data=data, recipe=recipe))


def _check_written_plan(plan: Plan, dataset: Dataset, changes: Mapping[str, str]) -> None:
    """Check a written plan against its data, before an image is decoded.

    Raises:
        UsageError: a part of the plan does not fit the rest, the data or the caller's functions.
    """
    planner.check_plan(plan, len(dataset.source.classes), dataset.source.task)
    unused_settings.check_unused_settings(plan, changes)
    _check_decisions(plan, dataset)
    dataset.custom_functions.check(plan)
    phases.check_written_phases(plan, dataset)
    if plan.finetune.from_checkpoint:
        weights.check_checkpoint(weights.open_checkpoint(plan.finetune.weights), plan.model, plan.finetune)


def _check_decisions(plan: Plan, dataset: Dataset) -> None:
    """Check that decisions, and cases if they are asked for, can be made of this data.

    Raises:
        UsageError: a setting of another task, or cases that cannot be had.
        DataError: images of one case have different targets.
    """
    source, groups = dataset.source, dataset.source.groups
    plan.decisions.check_task(source.task, source.classes)
    validation = None if groups is None else groups[dataset.splits["val"]]
    check_case_settings(plan.decisions.case, source.task, groups, validation, plan.data.folds)
    if plan.decisions.case != "none" and groups is not None:
        find_case_targets(dataset.true_targets(np.arange(len(source))), *index_cases(groups), source.classes)


def _describe_dataset(dataset: Dataset) -> Iterator[Event]:
    """Notes before anything is decoded: the task and why, how the data was read and split."""
    source = dataset.source
    if source.reason:
        yield Note(f"Task {source.task}: {source.reason.rstrip('.')}.")
    for text in (*source.notes, *dataset.notes):
        yield Note(text)
    counts = ", ".join(f"{len(rows):,} {name}" for name, rows in dataset.splits.items())
    images = format_count(sum(map(len, dataset.splits.values())), "picture")
    one, more = {
        "classification": ("class", "classes"), "multilabel": ("label", "labels"), "regression": ("number", "numbers"),
        "anomaly": ("class", "classes"), "segmentation": ("class", "classes"),
    }[source.task]  # fmt: skip
    outputs = f"{len(source.classes)} {one if len(source.classes) == 1 else more}"
    yield Note(f"{source.name}: {outputs}, {images} ({counts}).")


def _draft_plan(
    fingerprint: DatasetFingerprint,
    request: TrainRequest,
    dataset: Dataset,
    compute: runtime.Runtime,
    group: RankGroup,
) -> Generator[Event, None, tuple[Plan, Reasons]]:
    """The plan before any image is decoded, the same on all ranks, and its reasons."""
    plan, reasons, notes = finetune_planner.draft_from_request(fingerprint, request, compute, group.world_size)
    _check_decisions(plan, dataset)
    dataset.custom_functions.check(plan)
    for text in notes:
        yield Note(text)
    new: Reasons = {}
    if "recipe.batch_size" not in request.overrides:
        divisible = consistency.round_up_batch_size(group, plan)
        if divisible != plan:
            new["recipe.batch_size"] = f"{reasons['recipe.batch_size']}, shared by {group.world_size} processes"
            plan = divisible
    new["compute.strategy"] = _check_ranks_agree(group, dataset, plan)
    return plan, reasons | new


def _check_ranks_agree(group: RankGroup, dataset: Dataset, plan: Plan) -> str:
    """Check that all ranks have the same plan and data; why the parallel strategy is what it is."""
    consistency.check_plan_for_group(group, plan)
    consistency.check_same_inputs(group, dataset.source, dataset.splits, plan)
    return choose_strategy(plan.compute.strategy, group, parameter_count(plan.model), plan.compute.device)[1]


def _check_and_load_images(
    plan: Plan, dataset: Dataset, group: RankGroup, timer: RunTimer
) -> Generator[Event, None, tuple[PlanContext, DataCheckReport | None]]:
    """Check the images, leave out unreadable ones where the plan allows it, and decode the training images."""
    yield StageEvent(f"Checking {format_count(sum(map(len, dataset.splits.values())), 'picture')}")
    checked, findings = check_and_filter(dataset, plan, group)
    yield from report_findings(checked, findings)
    yield StageEvent(f"Decoding {format_count(len(checked.splits['train']), 'picture')}")
    with timer.time_decoding():
        images = _load_training_images(checked, plan)
    allowed = PREPARATION_SECONDS - OUTSIDE_SECONDS + PREPARATION_FRACTION * 60 * plan.minutes
    until = timer.start + allowed if plan.minutes else None
    return PlanContext(plan=plan, dataset=checked, images=images, group=group, measure_until=until), findings


def _load_training_images(dataset: Dataset, plan: Plan) -> ImageStore:
    images = dataset.load_training_images(plan.image, make_crop(plan.recipe, plan.seed), plan.compute.num_workers)
    is_weighted = dataset.source.weights is not None
    dataset.custom_functions.try_out(plan, images, dataset.loss_targets("train"), is_weighted)
    return images


def _choose_threads(context: PlanContext, settings: runtime.RuntimeSettings) -> tuple[PlanContext, Reasons]:
    """The context with the number of threads whose steps are fastest, where minutes are given and threads are not."""
    plan, cores = context.plan, runtime.count_usable_cores()
    is_free = not settings.threads and plan.compute.threads == cores > 1  # else OMP_NUM_THREADS has chosen
    if not (is_free and plan.minutes and plan.compute.device == "cpu" and context.group.world_size == 1):
        return context, {}
    if plan.finetune.from_checkpoint and plan.finetune.method == "probe":
        return context, {}  # no steps
    if plan.finetune.from_checkpoint:
        step = finetune_planner.estimate_step_seconds(plan, finetune_planner.measure_feature_seconds(context, 0.0))
        if 4 * step > max(context.measuring_seconds(), throughput.SHORT_SECONDS):
            return context, {"compute.threads": f"all cores: a step of {step:.0f} s leaves no time to try fewer"}
    plan, reasons = throughput.choose_threads(context)
    return context.with_plan(plan), reasons


def _finalize_plan(
    draft: PlanContext, request: TrainRequest, draft_reasons: Reasons, timer: RunTimer, dry_run: bool
) -> tuple[Plan, Reasons, RunCost | None]:
    """Resolve what needs images and measured steps; rank 0's result, on all ranks.

    Returns the plan, its reasons, and its cost where steps were measured.
    """
    group = draft.group
    normalized, why_normalized = _measure_normalization(draft, request)
    phased, why_phased, phase_seconds = phases.finalize_phases(draft.with_plan(normalized), dry_run)
    reasons = draft_reasons | why_normalized | why_phased
    shared = draft.with_plan(consistency.broadcast_plan(group, phased))
    final, why_final, measured, seconds_before_steps = finetune_planner.finalize_draft(
        shared, request, reasons, group.broadcast_object(phase_seconds), dry_run
    )
    plan = consistency.broadcast_plan(group, final)
    consistency.check_plan_for_group(group, plan)
    cost = None
    if measured is not None and group.is_rank0:
        cost = cost_estimate.estimate_cost(shared.with_plan(plan), measured, seconds_before_steps, timer)
    return plan, reasons | why_final, cost


def _measure_normalization(draft: PlanContext, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with mean and standard deviation of the training images, except requested ones, and new reasons.

    A run from a checkpoint keeps the checkpoint's.
    """
    plan = draft.plan
    measured = [name for name in ("mean", "std") if f"image.{name}" not in request.overrides]
    if plan.finetune.from_checkpoint or not measured:
        return plan, {}
    spec = measure_mean_std(plan.image, draft.images, plan.seed)
    image = dataclasses.replace(plan.image, **{name: vars(spec)[name] for name in measured})
    reasons = {f"image.{name}": "measured on the training pictures" for name in measured}
    return dataclasses.replace(plan, image=image), reasons


def _estimate_written_plan(context: PlanContext, timer: RunTimer) -> RunCost | None:
    """The cost of a written plan, from some of its phases' and its own steps; None on other ranks than 0."""
    plan = context.plan
    seconds = phases.estimate_phase_seconds(context)
    seconds += finetune_planner.estimate_probe_seconds(context)[0] if plan.finetune.from_checkpoint else 0.0
    measured = throughput.measure_throughput(context) if plan.recipe.steps else NO_THROUGHPUT
    return cost_estimate.estimate_cost(context, measured, seconds, timer) if context.group.is_rank0 else None


def _create_run_folder(out: Path | None, plan: Plan, group: RankGroup) -> RunFolder:
    """The run folder, which rank 0 makes; each process has its own clock, and all use rank 0's name."""

    def create_folder() -> str:
        return str(RunFolder.create(out or make_default_folder(plan.data.source, plan.model_name, datetime.now())).path)

    return RunFolder(Path(group.run_on_rank0(create_folder)))


def _start_run(context: TrainContext, reasons: Reasons, findings: DataCheckReport | None) -> Generator[Event]:
    """Write the record of a new run, then train."""
    if findings is not None:  # only rank 0 has checked the images, and writes
        run, plan, dataset = context.run, context.plan, context.dataset
        with Lock(run.path):
            save_dataset_record(run, dataset)
            write_json(run.path / "check.json", findings.to_json())
            run.write_plan(plan, reasons)  # last: a folder with a plan can be resumed
        try:
            contact_sheet.write_contact_sheet(
                run.path / CONTACT_SHEET_FILE, dataset.source, context.images, plan, dataset.custom_functions
            )
        except DataError as error:  # images that the check had no time for; the training decides about them
            yield Note(f"There is no sheet of what the model sees: {error}")
    yield from _run_training(context, reasons)


def _run_training(context: TrainContext, reasons: Reasons) -> Iterator[Event]:
    """Train from the newest checkpoint, or from step 0, to the report, which rank 0 makes alone."""
    if not context.group.is_rank0:
        _train_other_rank(context)
        return
    with Lock(context.run.path), track_run(context.run, context.plan):
        yield from log_events(context.run, _train_rank0(context, reasons))


def _train_other_rank(context: TrainContext) -> None:
    plan, group = context.plan, context.group
    wait_for_rank0.wait_for_rank0_work(group, resume_instructions(context.run.path))
    model = create_model(plan.model, plan.seed)
    group.broadcast_weights(model)
    train_state = build_train_state(model, plan, group)
    train_state.teacher = broadcast_teacher(group, build_teacher(plan, context.dataset, context.run), plan)
    train_worker_rank(context, train_state)
    group.leave()


def _train_rank0(context: TrainContext, reasons: Reasons) -> Generator[Event]:
    run, original, group = context.run, context.plan, context.group
    if not any(run.checkpoints.glob("step-*")):
        run.drop_rows_after(0)  # of a start that was killed: its steps are repeated, and their seconds too
    run.start_clock()
    plan, model, teacher = yield from wait_for_rank0.run_while_others_wait(
        group, _prepare_initial_model(context), resume_instructions(run.path)
    )
    context = dataclasses.replace(context, plan=plan)
    group.broadcast_weights(model)
    train_state = build_train_state(model, plan, group)
    train_state.teacher = broadcast_teacher(group, teacher, plan)
    guards = Guards(plan.recipe, run.path, context.dataset.source.ids)
    start = yield from restore_checkpoint(run, train_state, guards)
    group.broadcast_object(start)
    if start:
        run.start_clock()  # the rows of steps that are repeated are gone
        yield Note(f"Going on after step {start} of {plan.recipe.steps}.")
    if plan.recipe.steps:
        plan = yield from run_trainer(context, train_state, start, guards)
        context = dataclasses.replace(context, plan=plan)
    with raise_on_signal(f"Interrupted after the last step, which is saved. {resume_instructions(run.path)}"):
        train_state = gather_train_state(train_state, plan, group)
        group.leave()
        if plan.recipe.steps and plan.finetune.from_checkpoint:
            train_state = yield from wise_ft.choose_weights(context, train_state)
        yield from finish_run(context, reasons if plan is original else run.read_reasons(), train_state)


def _prepare_initial_model(
    context: TrainContext,
) -> Generator[Event, None, tuple[Plan, ViT, DistillationTeacher | None]]:
    """The plan after the phases before the training, the model that it begins with, and its distillation teacher."""
    plan = context.plan
    if plan.finetune.from_checkpoint:
        plan, model = yield from features.prepare_start_model(context)
        context = dataclasses.replace(context, plan=plan)
    else:
        model = create_model(plan.model, plan.seed)
    plan, teacher = yield from phases.run_phases(context, model)
    return plan, model, teacher
