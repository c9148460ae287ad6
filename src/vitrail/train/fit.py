"""A whole training from wish to report: check, plan, train, evaluate, keep. It yields events and prints nothing."""

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
from ..model.vit import ViT, create_model, parameter_count
from ..plural import counted
from ..report.page import SHEET
from . import before, sheet
from .accompany import accompany
from .brought import NOTHING, Brought
from .checked import checked, told_of
from .dataset import MEMORY, Dataset, keep, located, open_dataset, with_moments
from .engines import agreement, awaited
from .engines.engine import chosen
from .engines.group import found
from .engines.team import Team, joined
from .engines.whole import whole_learner
from .events import Event, Note, Opened, Planned
from .finish import conclude
from .follow import follow
from .keeping.extend import Extension, plan_of
from .keeping.resuming import reopened, restore
from .keeping.signals import ending, go_on, unharmed
from .logbook import logged
from .loop import prepare
from .plan import Plan
from .planning import forecast, idle, pace, planner
from .planning.cost import Cost
from .planning.forecast import Watch
from .planning.reading import look
from .planning.settle import NO_STEPS
from .planning.wishes import Reasons, Wishes
from .run import RunFolder, make_default
from .stepping.guards import Guards
from .stepping.views import cut_of
from .teacher.lesson import Lesson
from .teacher.teaching import lesson, shared
from .tracking import settings as tracking
from .tracking.tracked import tracked
from .transfer import begin, budget, choosing, drafting, weights


def fit(
    wishes: Wishes,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    dry_run: bool = False,
    given: object | None = None,
    brought: Brought = NOTHING,
) -> Iterator[Event]:
    """Make a plan for the wishes and follow it into a new run folder; with `dry_run` stop at the plan.

    Args:
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        given: pictures and labels as an object of this program; the plan then calls its source "memory".
        brought: a loss or an augmentation of this program's own.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see errors.py.
        InterruptedRun: stopped from outside and saved; the message says how to go on.
    """
    watch = Watch()
    tracking.wished(wishes.overrides).check()
    with _together(settings) as (machine, team):
        if out is not None:
            team.led(lambda: RunFolder.check_free(out))
        data = located(wishes.data) if given is None else dataclasses.replace(wishes.data, source=MEMORY)
        wishes = dataclasses.replace(wishes, data=data)
        dataset = open_dataset(wishes.data, wishes.seed, None, given, brought)
        yield from _told(dataset)
        if busy := runtime.crowded(machine):
            yield Note(busy)
        found_here = look(dataset, wishes.data, wishes.overrides, wishes.seed)
        plan, reasons, notes = drafting.draft(found_here, wishes, machine, team.world)
        plan.answers.check(dataset.source.task, dataset.source.classes)
        brought.check(plan)
        for text in notes:
            yield Note(text)
        plan = _for_all(team, dataset, plan, reasons, "recipe.batch" in wishes.overrides)
        dataset, findings = checked(dataset, plan, team)
        yield from told_of(dataset, findings)
        with watch.decodes():
            pictures = _pictures(dataset, plan)
        plan = plan if plan.start.from_checkpoint else _measured(plan, pictures, wishes, reasons)
        plan, spent = before.settled(plan, dataset, pictures, reasons, dry_run)
        plan, spent = agreement.the_leaders(team, plan), team.told(spent)
        plan, measured, spent = drafting.settled(plan, wishes, reasons, pictures, dataset, spent, dry_run, team)
        plan = agreement.the_leaders(team, plan)
        agreement.check(team, plan)
        cost = None
        if measured is not None and team.leads:
            cost = forecast.foretell(plan, measured, spent, watch, pictures, dataset, team)
        yield Planned(plan, reasons, cost)
        if not dry_run:
            run = _new_folder(out, plan, team)
            yield Opened(run.path)
            events = _begin(run, plan, reasons, dataset, findings, pictures, team)
            yield from watch.kept(events, run.path, plan, cost) if team.leads else events


def fit_plan(
    plan: Plan,
    out: Path | None = None,
    given: object | None = None,
    brought: Brought = NOTHING,
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
    watch = Watch()
    plan.track.check()
    with _together(_settings(plan)) as (_, team):
        if out is not None:
            team.led(lambda: RunFolder.check_free(out))
        if at := plan.recipe.extended_at:
            yield Note(f"The plan was extended after step {at:,}. Begun anew, its rate rises once and falls once.")
        plan = before.located(dataclasses.replace(plan, data=located(plan.data), recipe=plan.recipe.anew()))
        dataset = open_dataset(plan.data, plan.seed, None, given, brought)
        planner.check_plan(plan, len(dataset.source.classes), dataset.source.task)
        idle.check(plan, changes or {})
        plan.answers.check(dataset.source.task, dataset.source.classes)
        brought.check(plan)
        before.check_written(plan, dataset)
        if plan.start.from_checkpoint:
            weights.check(weights.open_checkpoint(plan.start.weights), plan.model, plan.start)
        yield from _told(dataset)
        plan = _for_all(team, dataset, plan, {}, True)
        dataset, findings = checked(dataset, plan, team)
        yield from told_of(dataset, findings)
        with watch.decodes():
            pictures = _pictures(dataset, plan)
        before.check_pictures(plan, dataset, pictures)
        yield Planned(plan, {}, _foretold(plan, pictures, dataset, watch, team) if dry_run else None)
        if not dry_run:
            run = _new_folder(out, plan, team)
            yield Opened(run.path)
            yield from _begin(run, plan, {}, dataset, findings, pictures, team)


def resume(
    path: Path,
    given: object | None = None,
    longer: Extension | None = None,
    compute: Mapping[str, str] | None = None,
    brought: Brought = NOTHING,
) -> Iterator[Event]:
    """Go on with a run where its newest whole checkpoint stands; without one, from its first step.

    Args:
        given: the object that the run was begun with, if it was one.
        longer: more steps than its plan has; also for a run that is complete.
        compute: fields of [compute] and [track] by their dotted names that are to be others from now on.

    Raises:
        as `fit`; UsageError: its plan was changed in a way that it cannot follow; DamagedFileError: there are
        checkpoints and none is whole.
    """
    run = RunFolder.existing(path)
    yield Opened(path)
    begun = plan_of(run)
    changed = config.override(begun, compute or {})
    changed.track.check()
    with _together(_settings(changed)) as (_, team):
        if team.led(run.finished) and longer is None:
            yield Note(f"{path} is complete already; its report is {path / 'report.html'}.")
            return
        brought.check(begun)
        dataset = open_dataset(begun.data, begun.seed, run, given, brought)  # may fail: before the run is changed
        agreement.see_that_all_have_the_same(team, dataset.source, dataset.splits, begun)
        opened = team.led(lambda: reopened(run, longer, compute))
        plan, reasons = config.read(Plan, opened["plan"], str(run.plan_file)), opened["reasons"]
        for text in (*opened["notes"], *dataset.notes):
            yield Note(text)
        yield Planned(plan, reasons)
        yield from _go(run, plan, reasons, dataset, _pictures(dataset, plan), team)


@contextmanager
def _together(settings: runtime.RuntimeSettings) -> Iterator[tuple[runtime.Runtime, Team]]:
    """The machine as it was chosen, with torch set to it, and the processes that train together."""
    machine = runtime.choose(settings, found().local_world)
    runtime.apply(machine)
    with unharmed(), joined(machine.device, machine.patience) as team:
        yield machine, team


def _settings(plan: Plan) -> runtime.RuntimeSettings:
    """A machine as the plan says, or a refusal: a plan is followed exactly or not at all."""
    asked = plan.compute
    return runtime.RuntimeSettings(
        device=asked.device, number_format=asked.number_format, threads=asked.threads, workers=asked.workers,
        compile=asked.compile, engine=asked.engine, patience=asked.patience,
    )  # fmt: skip


def _for_all(team: Team, dataset: Dataset, plan: Plan, reasons: Reasons, batch_asked: bool) -> Plan:
    """The plan for as many processes as there are; all of them have the same, or nobody begins."""
    if not batch_asked and (shared := agreement.shared_batch(team, plan)) != plan:
        plan, reasons["recipe.batch"] = shared, f"{reasons['recipe.batch']}, shared by {team.world} processes"
    agreement.check(team, plan)
    agreement.see_that_all_have_the_same(team, dataset.source, dataset.splits, plan)
    reasons["compute.engine"] = chosen(plan.compute.engine, team, parameter_count(plan.model), plan.compute.device)[1]
    return plan


def _new_folder(out: Path | None, plan: Plan, team: Team) -> RunFolder:
    """The run folder, which the leader makes; each process has its own clock, and all use the leader's name."""

    def made() -> str:
        return str(RunFolder.create(out or make_default(plan.data.source, plan.model_name, datetime.now())).path)

    return RunFolder(Path(team.led(made)))


def _foretold(plan: Plan, pictures: ImageStore, dataset: Dataset, watch: Watch, team: Team) -> Cost | None:
    """What a written plan would take, by some of its steps, if it has any, and of what comes before them."""
    spent = before.seconds(plan, dataset, pictures)
    spent += budget.seconds_before(plan, pictures, dataset) if plan.start.from_checkpoint else 0.0
    found = pace.measure(plan, pictures, dataset, team) if plan.recipe.steps else NO_STEPS
    return forecast.foretell(plan, found, spent, watch, pictures, dataset, team) if team.leads else None


def _told(dataset: Dataset) -> Iterator[Event]:
    """What a person should know before anything is decoded: the task and why, and how the data was read and parted."""
    source = dataset.source
    if source.reason:
        yield Note(f"Task {source.task}: {source.reason.rstrip('.')}.")
    for text in (*source.notes, *dataset.notes):
        yield Note(text)
    counts = ", ".join(f"{len(rows):,} {name}" for name, rows in dataset.splits.items())
    pictures = counted(sum(map(len, dataset.splits.values())), "picture")
    one, more = {
        "classes": ("class", "classes"), "labels": ("label", "labels"), "number": ("number", "numbers"),
    }[source.task]  # fmt: skip
    outputs = f"{len(source.classes)} {one if len(source.classes) == 1 else more}"
    yield Note(f"{source.name}: {outputs}, {pictures} ({counts}).")


def _measured(plan: Plan, pictures: ImageStore, wishes: Wishes, reasons: Reasons) -> Plan:
    """The plan with mean and deviation of the training pictures, but for what was asked for."""
    open_fields = [name for name in ("mean", "std") if f"image.{name}" not in wishes.overrides]
    if not open_fields:
        return plan
    spec = with_moments(plan.image, pictures, plan.seed)
    image = dataclasses.replace(
        plan.image,
        mean=spec.mean if "mean" in open_fields else plan.image.mean,
        std=spec.std if "std" in open_fields else plan.image.std,
    )
    reasons.update({f"image.{name}": "measured on the training pictures" for name in open_fields})
    return dataclasses.replace(plan, image=image)


def _pictures(dataset: Dataset, plan: Plan) -> ImageStore:
    pictures = dataset.training_pictures(plan.image, cut_of(plan.recipe, plan.seed), plan.compute.workers)
    dataset.brought.try_out(plan, pictures, dataset.learnt("train"))
    return pictures


def _begin(
    run: RunFolder,
    plan: Plan,
    reasons: Reasons,
    dataset: Dataset,
    findings: DataCheckReport | None,
    pictures: ImageStore,
    team: Team,
) -> Iterator[Event]:
    if findings is not None:  # rank 0 has looked at the pictures, and writes
        with Lock(run.path):
            keep(run, dataset)
            write_json(run.path / "check.json", findings.to_json())
            run.write_plan(plan, reasons)  # last: a folder with a plan can be resumed
        try:
            sheet.write(run.path / SHEET, dataset.source, pictures, plan, dataset.brought)
        except DataError as error:  # pictures that the check had no time for; the training decides about them
            yield Note(f"There is no sheet of what the model sees: {error}")
    yield from _go(run, plan, reasons, dataset, pictures, team)


def _go(
    run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, pictures: ImageStore, team: Team
) -> Iterator[Event]:
    """Train from the newest checkpoint, or from nothing, to the report, which rank 0 makes alone."""
    if not team.leads:
        awaited.waited(team, go_on(run.path))
        model = create_model(plan.model, plan.seed)
        team.spread(model)
        learner = prepare(model, plan, team)
        learner.lesson = shared(team, lesson(plan, dataset, run), plan)
        accompany(run, plan, learner, dataset, pictures, team)
        team.part()
        return
    with Lock(run.path), tracked(run, plan):
        yield from logged(run, _lead(run, plan, reasons, dataset, pictures, team))


def _lead(
    run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, pictures: ImageStore, team: Team
) -> Generator[Event]:
    """What rank 0 does of it."""
    begins = plan.start.from_checkpoint
    model, followed = yield from awaited.led(team, _first(run, plan, dataset, pictures), go_on(run.path))
    team.spread(model)
    learner = prepare(model, plan, team)
    learner.lesson = shared(team, followed, plan)
    guards = Guards(plan.recipe, run.path, dataset.source.ids)
    start = yield from restore(run, learner, guards)
    team.told(start)
    if start:
        yield Note(f"Going on after step {start} of {plan.recipe.steps}.")
    if plan.recipe.steps:
        yield from follow(run, plan, learner, dataset, pictures, start, guards, team)
    with ending(f"Interrupted after the last step, which is saved. {go_on(run.path)}"):
        learner = whole_learner(learner, plan, team)
        team.part()
        if plan.recipe.steps and begins:
            learner = yield from choosing.chosen(run, plan, learner, dataset)
        yield from conclude(run, plan, reasons, learner, dataset)


def _first(
    run: RunFolder, plan: Plan, dataset: Dataset, pictures: ImageStore
) -> Generator[Event, None, tuple[ViT, Lesson | None]]:
    """The model that the training begins with, and who teaches it."""
    begins = plan.start.from_checkpoint
    model = (yield from begin.begun(run, plan, dataset)) if begins else create_model(plan.model, plan.seed)
    return model, (yield from before.begin(run, plan, model, dataset, pictures))
