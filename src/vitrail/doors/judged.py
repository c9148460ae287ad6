"""The pictures that a Python program has a run judged on, and a warning of what should be known of them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path

from ..data.source import Task
from .evaluation import Labelled, held_out, other_source, reading


def labelled(
    run: Path, trained_on: object | None, task: Callable[[], Task], source: object | None, split: str | None
) -> Labelled:
    """Those of a source, read as the run's own; without one, those that the run has held out.

    Args:
        trained_on: the object that the run was trained on, if this program has it.
        task: of the run's model, which is opened for it where a source is read.
    """
    if source is None:
        return held_out(run, split, trained_on)
    return other_source(source, split, reading(run, source, {}, task=task()))


def warned(labelled: Labelled) -> Labelled:
    """The same pictures; each of their notes is a UserWarning, of the line outside of the package that asked."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("vitrail."):
        frame, level = frame.f_back, level + 1
    for note in labelled.notes:
        warnings.warn(note, UserWarning, stacklevel=level)
    return labelled
