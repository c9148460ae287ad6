"""A run with its trackers open, from its first row to its last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ... import config
from ..plan import Plan
from ..run import RunFolder
from .tracker import Filed


@contextmanager
def tracked(run: RunFolder, plan: Plan) -> Iterator[None]:
    """Whatever is recorded inside goes to the trackers of the plan too; left by an error, the run counts as stopped."""
    asked = plan.track
    if not asked.to:
        yield
        return
    filed = Filed(folder=run.path, name=_name(run.path), project=asked.project, settings=config.flatten(plan))
    run.trackers.open(asked.to, filed)
    try:
        yield
    finally:
        for text in run.trackers.close():
            run.log(text)


def _name(folder: Path) -> str:
    """The run folder's own name; that of a fold says of which training."""
    path = folder.resolve()
    return f"{path.parent.name}-{path.name}" if path.name.startswith("fold-") else path.name
