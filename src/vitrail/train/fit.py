"""A whole training from wish to report: check, plan, train, evaluate, keep. It yields events and prints nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from .. import runtime
from ..data import splits as parts
from ..data.doctor.check import check
from ..data.doctor.findings import Findings
from ..data.loader import Pictures
from ..errors import DataError
from ..files.atomic import Lock, write_json
from ..model.vit import create
from . import forecast, planner, sheet
from .dataset import MEMORY, Dataset, keep, located, open_dataset, with_moments
from .events import Event, Note, Planned
from .extend import Extension
from .finish import conclude
from .follow import follow
from .forecast import Watch
from .guards import Guards
from .loop import prepare
from .plan import Plan
from .pretrain.learning import pretrain
from .pretrain.learning import settled as pretraining_settled
from .pretrain.planning import check_written
from .reading import look
from .resuming import reopen, restore
from .run import RunFolder, default_path
from .settle import settle
from .signals import ending, go_on
from .views import cut_of
from .wishes import Reasons, Wishes

CHECKED_SHARE = 0.05  # of the minutes, that the check may take


def fit(
    wishes: Wishes,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    dry_run: bool = False,
    given: object | None = None,
) -> Iterator[Event]:
    """Make a plan for the wishes and follow it into a new run folder; with `dry_run` stop at the plan.

    Args:
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        given: pictures and labels as an object of this program; the plan then calls its source "memory".

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see errors.py.
        InterruptedRun: stopped from outside and saved; the message says how to go on.
    """
    if out is not None:
        RunFolder.check_free(out)
    watch = Watch()
    machine = runtime.choose(settings)
    runtime.apply(machine)
    data = located(wishes.data) if given is None else dataclasses.replace(wishes.data, source=MEMORY)
    wishes = dataclasses.replace(wishes, data=data)
    dataset = open_dataset(wishes.data, wishes.seed, None, given)
    yield from _told(dataset)
    plan, reasons = planner.draft(look(dataset, wishes.data, wishes.overrides, wishes.seed), wishes, machine)
    dataset, findings = _checked(dataset, plan)
    yield from _found(dataset, findings)
    with watch.decodes():
        pictures = _pictures(dataset, plan)
    plan = _measured(plan, pictures, wishes, reasons)
    plan, spent = pretraining_settled(plan, dataset, pictures, reasons)
    plan, pace = settle(plan, wishes, reasons, pictures, dataset, spent, dry_run)
    cost = forecast.foretell(plan, pace, spent, watch, pictures, dataset) if pace else None
    yield Planned(plan, reasons, cost)
    if not dry_run:
        run = RunFolder.create(out or default_path(plan.data.source, plan.model_name, datetime.now()))
        yield from watch.kept(_begin(run, plan, reasons, dataset, findings, pictures), run.path, plan, cost)


def fit_plan(plan: Plan, out: Path | None = None, given: object | None = None) -> Iterator[Event]:
    """Follow a written plan from its first step into a new run folder; it is taken as it is.

    Raises:
        as `fit`.
    """
    if out is not None:
        RunFolder.check_free(out)
    _apply(plan)
    plan = dataclasses.replace(plan, data=located(plan.data))
    dataset = open_dataset(plan.data, plan.seed, None, given)
    planner.check_plan(plan, len(dataset.source.classes), dataset.source.task)
    check_written(plan)
    yield from _told(dataset)
    dataset, findings = _checked(dataset, plan)
    yield from _found(dataset, findings)
    yield Planned(plan, {})
    path = out or default_path(plan.data.source, plan.model_name, datetime.now())
    yield from _begin(RunFolder.create(path), plan, {}, dataset, findings, _pictures(dataset, plan))


def resume(
    path: Path,
    given: object | None = None,
    longer: Extension | None = None,
    compute: Mapping[str, str] | None = None,
) -> Iterator[Event]:
    """Go on with a run where its newest whole checkpoint stands; without one, from its first step.

    Args:
        given: the object that the run was begun with, if it was one.
        longer: more steps than its plan has; also for a run that is complete.
        compute: fields of [compute] by their dotted names that are to be others from now on.

    Raises:
        as `fit`; UsageError: its plan was changed in a way that it cannot follow; DamagedFileError: there are
        checkpoints and none is whole.
    """
    run = RunFolder.existing(path)
    if run.finished() and longer is None:
        yield Note(f"{path} is complete already; its report is {path / 'report.html'}.")
        return
    plan = yield from reopen(run, longer, compute)
    _apply(plan)
    dataset = open_dataset(plan.data, plan.seed, run, given)
    for text in dataset.notes:
        yield Note(text)
    reasons = run.read_reasons()
    yield Planned(plan, reasons)
    yield from _go(run, plan, reasons, dataset, _pictures(dataset, plan))


def _apply(plan: Plan) -> None:
    """Set the machine as the plan says, or refuse: a plan is followed exactly or not at all."""
    settings = runtime.RuntimeSettings(
        device=plan.compute.device,
        number_format=plan.compute.number_format,
        threads=plan.compute.threads,
        workers=plan.compute.workers,
        compile=plan.compute.compile,
    )
    runtime.apply(runtime.choose(settings))


def _told(dataset: Dataset) -> Iterator[Event]:
    """What a person should know before anything is decoded: the task and why, and how the data was read and parted."""
    source = dataset.source
    if source.reason:
        yield Note(f"Task {source.task}: {source.reason.rstrip('.')}.")
    for text in (*source.notes, *dataset.notes):
        yield Note(text)
    counts = ", ".join(f"{len(rows):,} {name}" for name, rows in dataset.splits.items())
    one, more = {
        "classes": ("class", "classes"), "labels": ("label", "labels"), "number": ("number", "numbers"),
    }[source.task]  # fmt: skip
    outputs = f"{len(source.classes)} {one if len(source.classes) == 1 else more}"
    yield Note(f"{source.name}: {outputs}, pictures: {counts}.")


def _checked(dataset: Dataset, plan: Plan) -> tuple[Dataset, Findings]:
    """Look at the pictures, at all of them where the minutes allow; leave out bad ones if asked to, else refuse.

    To leave out bad ones all must be looked at, however long it takes: one that is met later would end the training.

    Raises:
        DataError: pictures that cannot be read, all of them named, or what would make the training worthless.
    """
    seconds = CHECKED_SHARE * 60 * plan.minutes if plan.minutes and not plan.data.skip_bad else None
    findings = check(dataset.source, dataset.splits, plan.image, plan.model.patch, seconds)
    if findings.bad and not plan.data.skip_bad:
        listed = "; ".join(f"{name} ({reason.rstrip('.')})" for name, reason in findings.bad[:20])
        more = f" and {len(findings.bad) - 20:,} more" if len(findings.bad) > 20 else ""
        raise DataError(
            f"{len(findings.bad):,} of {len(dataset.source):,} pictures cannot be read: {listed}{more}. "
            "Mend or remove them, or leave them out with --skip-bad."
        )
    if findings.stops:
        raise DataError(" ".join(findings.stops))
    left = parts.without(dataset.splits, findings.bad_indices)
    if not len(left["train"]):
        raise DataError(f"No training picture of {dataset.source.name} can be read, so nothing is left to train on.")
    return dataclasses.replace(dataset, splits=left), findings


def _found(dataset: Dataset, findings: Findings) -> Iterator[Event]:
    """What the check noticed, and what was left out because of it."""
    if findings.bad:
        yield Note(f"Left out {len(findings.bad):,} pictures that cannot be read; check.json names them.")
    warnings = [f"{each.text} {each.advice}".strip() for each in findings.concerns if each.severity == "warning"]
    for text in (*findings.notes, *warnings):
        if text not in (dataset.source.reason, *dataset.source.notes):
            yield Note(text)


def _measured(plan: Plan, pictures: Pictures, wishes: Wishes, reasons: Reasons) -> Plan:
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


def _pictures(dataset: Dataset, plan: Plan) -> Pictures:
    return dataset.training_pictures(plan.image, cut_of(plan.recipe, plan.seed), plan.compute.workers)


def _begin(
    run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, findings: Findings, pictures: Pictures
) -> Iterator[Event]:
    keep(run, dataset)
    write_json(run.path / "check.json", findings.to_json())
    run.write_plan(plan, reasons)  # last: a folder with a plan can be resumed
    try:
        sheet.write(run.figures / sheet.NAME, dataset.source, pictures, plan)
    except DataError as error:  # pictures that the check had no time for; the training decides about them
        yield Note(f"There is no sheet of what the model sees: {error}")
    yield from _go(run, plan, reasons, dataset, pictures)


def _go(run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, pictures: Pictures) -> Iterator[Event]:
    """Train from the newest checkpoint, or from nothing, to the report."""
    with Lock(run.path):
        model = create(plan.model, plan.seed)
        yield from pretrain(run, plan, model, dataset, pictures)
        learner = prepare(model, plan)
        guards = Guards(plan.recipe, run.path, dataset.source.ids)
        start = yield from restore(run, learner, guards)
        if start:
            yield Note(f"Going on after step {start} of {plan.recipe.steps}.")
        yield from follow(run, plan, learner, dataset, pictures, start, guards)
        with ending(f"Interrupted after the last step, which is saved. {go_on(run.path)}"):
            yield from conclude(run, plan, reasons, learner, dataset)
