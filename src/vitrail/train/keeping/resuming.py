"""What stands between a run that stopped and its next step: leftovers, changes, and the newest whole checkpoint."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from ... import config
from ...files import atomic
from ...files.lock import Lock
from .. import prelude
from ..events import Note
from ..loop import Learner
from ..plan import Plan
from ..run import RunFolder
from ..stepping.guards import Guards
from . import changes, extend, started, state
from .extend import Extension


def reopen(
    run: RunFolder, longer: Extension | None = None, compute: Mapping[str, str] | None = None
) -> Generator[Note, None, Plan]:
    """The plan to go on with, after everything that a crash left has been put in order.

    Args:
        longer: more steps than the plan has.
        compute: plan fields by their dotted names, of those that change how and not what is computed.

    Raises:
        UsageError: another process has the run, or its plan was changed in a way that it cannot follow.
        DamagedFileError: there are checkpoints and none is whole.
    """
    with Lock(run.path) as lock:
        atomic.remove_leftovers(run.path, before=lock.since)
        if run.extension_file.is_file():
            extend.finish(run)
            yield Note(f"The extension that was begun is carried out: {run.read_plan().recipe.steps:,} steps in all.")
        newest, _ = state.newest(run.checkpoints)
        plan = config.override(run.read_plan(), compute or {})
        told = changes.check(_since(run, plan, newest))  # may refuse, so it comes before the run is changed
        if longer is not None:
            yield Note(extend.extend(run, longer))
            plan = config.override(run.read_plan(), compute or {})
        if compute:
            run.write_plan(plan, run.read_reasons() | dict.fromkeys(compute, "asked for with --resume"))
        if newest is None and not prelude.under_way(run):
            yield Note("The run stopped before its first checkpoint, so it begins again at step 0 of its plan.")
        yield from map(Note, told)
        return plan


def reopened(run: RunFolder, longer: Extension | None, compute: Mapping[str, str] | None) -> dict[str, Any]:
    """What `reopen` has to say, as JSON has words for it: only rank 0 may touch the run folder."""
    notes, work = [], reopen(run, longer, compute)
    while True:
        try:
            notes.append(next(work).text)
        except StopIteration as done:
            return {"notes": notes, "plan": config.write(done.value), "reasons": run.read_reasons()}


def _since(run: RunFolder, plan: Plan, newest: Path | None) -> list[changes.Change]:
    """What has changed since a checkpoint was saved, or what comes before the training was done; no extension."""
    if newest is None:
        before = started.saved_plan(run)
        return [] if before is None else changes.but_for_extension(changes.between(before, plan))
    saved = state.saved_plan(newest)
    if saved is None:
        return []
    found, at = changes.between(saved, plan), plan.recipe.extended_at
    extended = at > saved.recipe.extended_at or at == state.facts(newest)["step"]
    return changes.but_for_extension(found) if extended else found


def restore(run: RunFolder, learner: Learner, guards: Guards) -> Generator[Note, None, int]:
    """Put the newest whole checkpoint into a learner and its guards; how many steps it has done.

    Raises:
        DamagedFileError: there are checkpoints and none is whole, or one does not fit.
        ResourceError: the disk has no room for those to come.
    """
    newest, complaints = state.newest(run.checkpoints)
    for complaint in complaints:
        yield Note(f"{complaint} Falling back to the checkpoint before it.")
    start = 0
    if newest is not None:
        start = state.load(newest, learner.model, learner.optimizers, learner.average)
        facts = state.facts(newest)
        guards.remember(facts.get("guards", {}))
        learner.remember(facts)
        for text in changes.check_machine(facts, state.machine()):
            yield Note(text)
    run.forget_after(start)
    state.check_room(run.checkpoints, learner)
    return start
