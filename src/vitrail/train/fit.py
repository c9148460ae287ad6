"""A whole training from wish to report: check, plan, train, evaluate, keep. It yields events and prints nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from .. import runtime
from ..data import splits as parts
from ..data.check import Findings, check
from ..data.loader import Pictures
from ..errors import DataError
from ..files.atomic import Lock, write_json
from ..model.vit import create
from . import planner, state
from .dataset import Dataset, located, open_dataset, with_moments
from .events import Event, Note, Planned
from .fingerprint import fingerprint
from .finish import conclude
from .follow import follow
from .loop import prepare
from .pace import seconds_per_step
from .plan import Plan
from .planner import Reasons, Wishes
from .run import RunFolder, default_path


def fit(
    wishes: Wishes, settings: runtime.RuntimeSettings, out: Path | None = None, dry_run: bool = False
) -> Iterator[Event]:
    """Make a plan for the wishes and follow it into a new run folder; with `dry_run` stop at the plan.

    Args:
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see errors.py.
        InterruptedRun: stopped from outside and saved; the message says how to go on.
    """
    if out is not None:
        RunFolder.check_free(out)
    machine = runtime.choose(settings)
    runtime.apply(machine)
    wishes = dataclasses.replace(wishes, data=located(wishes.data))
    dataset = open_dataset(wishes.data, wishes.seed)
    yield Note(_counted(dataset))
    plan, reasons = planner.draft(fingerprint(dataset.source, dataset.splits["train"], wishes.seed), wishes, machine)
    dataset, findings = _checked(dataset, plan)
    pictures = dataset.pictures("train", plan.image)
    if "image.mean" not in wishes.overrides and "image.std" not in wishes.overrides:
        plan = dataclasses.replace(plan, image=with_moments(plan.image, pictures, plan.seed))
        reasons["image.mean"] = reasons["image.std"] = "measured on the training pictures"
    if plan.minutes and "recipe.steps" not in wishes.overrides:
        plan = planner.fix_steps(plan, *seconds_per_step(plan, pictures, dataset.targets("train")), reasons)
    yield Planned(plan, reasons)
    if not dry_run:
        path = out or default_path(plan.data.source, plan.model_name, datetime.now())
        yield from _begin(RunFolder.create(path), plan, reasons, dataset, findings, pictures)


def fit_plan(plan: Plan, out: Path | None = None) -> Iterator[Event]:
    """Follow a written plan from its first step into a new run folder; it is taken as it is.

    Raises:
        as `fit`.
    """
    if out is not None:
        RunFolder.check_free(out)
    _apply(plan)
    plan = dataclasses.replace(plan, data=located(plan.data))
    dataset = open_dataset(plan.data, plan.seed)
    planner.check_plan(plan, len(dataset.source.classes))
    dataset, findings = _checked(dataset, plan)
    yield Planned(plan, {})
    path = out or default_path(plan.data.source, plan.model_name, datetime.now())
    yield from _begin(RunFolder.create(path), plan, {}, dataset, findings, dataset.pictures("train", plan.image))


def resume(path: Path) -> Iterator[Event]:
    """Go on with a run where its newest whole checkpoint stands; without one, from its first step.

    Raises:
        as `fit`; DamagedFileError: there are checkpoints and none is whole.
    """
    run = RunFolder.existing(path)
    if run.finished():
        yield Note(f"{path} is complete already; its report is {path / 'report.html'}.")
        return
    plan = run.read_plan()
    _apply(plan)
    dataset = open_dataset(plan.data, plan.seed, stored=run.splits_file)
    yield Planned(plan, {})
    yield from _go(run, plan, {}, dataset, dataset.pictures("train", plan.image))


def _apply(plan: Plan) -> None:
    """Set the machine as the plan says, or refuse: a plan is followed exactly or not at all."""
    settings = runtime.RuntimeSettings(
        device=plan.compute.device,
        number_format=plan.compute.number_format,
        threads=plan.compute.threads,
        compile=plan.compute.compile,
    )
    runtime.apply(runtime.choose(settings))


def _begin(
    run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, findings: Findings, pictures: Pictures
) -> Iterator[Event]:
    parts.write(run.splits_file, dataset.source, dataset.splits)
    run.write_plan(plan, reasons)  # last: a folder with a plan can be resumed
    write_json(run.path / "check.json", findings.to_json())
    yield from _go(run, plan, reasons, dataset, pictures)


def _go(run: RunFolder, plan: Plan, reasons: Reasons, dataset: Dataset, pictures: Pictures) -> Iterator[Event]:
    """Train from the newest checkpoint, or from nothing, to the report."""
    with Lock(run.path):
        learner = prepare(create(plan.model, plan.seed), plan)
        start = 0
        newest, complaints = state.newest(run.checkpoints)
        for complaint in complaints:
            yield Note(f"{complaint} Falling back to the checkpoint before it.")
        if newest is not None:
            start = state.load(newest, learner.model, learner.optimizers, learner.average)
            yield Note(f"Going on after step {start} of {plan.recipe.steps}.")
        run.forget_after(start)
        yield from follow(run, plan, learner, dataset, pictures, start)
        yield from conclude(run, plan, reasons, learner, dataset)


def _counted(dataset: Dataset) -> str:
    counts = ", ".join(f"{len(rows):,} {name}" for name, rows in dataset.splits.items())
    return f"{dataset.source.name}: {len(dataset.source.classes)} classes, pictures: {counts}."


def _checked(dataset: Dataset, plan: Plan) -> tuple[Dataset, Findings]:
    """Decode every file once; leave out the bad ones if the plan says so, else refuse to start.

    Raises:
        DataError: pictures that cannot be read, all of them named.
    """
    findings = check(dataset.source, dataset.splits, plan.image, plan.model.patch)
    if not findings.bad:
        return dataset, findings
    if not plan.data.skip_bad:
        listed = "; ".join(f"{name} ({reason.rstrip('.')})" for name, reason in findings.bad[:20])
        more = f" and {len(findings.bad) - 20:,} more" if len(findings.bad) > 20 else ""
        raise DataError(
            f"{len(findings.bad):,} of {len(dataset.source):,} pictures cannot be read: {listed}{more}. "
            "Mend or remove them, or leave them out with --skip-bad."
        )
    return Dataset(dataset.source, parts.without(dataset.splits, findings.bad_indices)), findings
