"""What every tracker can do, and under what it files a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Filed:
    """What a tracker is told when it is opened."""

    folder: Path
    """The run folder."""
    name: str
    """Of the run, as people will see it."""
    project: str
    """What was asked for; may be empty."""
    settings: Mapping[str, object]
    """The plan, each field by its dotted name."""
    known_as: str = ""
    """The tracker's own word for this run, if it had it before; a resumed run goes on under it."""


class Tracker(ABC):
    """One place that takes a run's numbers. Whatever it raises ends its part in the run, and never the run."""

    known_as: str = ""
    """Its own word for this run, kept in the run folder; empty if it needs none."""

    @abstractmethod
    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Take a row of the curves.

        Args:
            axis: what `step` counts: "step" for the training, another name for what comes before it.
        """

    @abstractmethod
    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of the held-out pictures, of a run that ended after so many steps."""

    @abstractmethod
    def close(self, whole: bool) -> None:
        """Wait until all is delivered.

        Args:
            whole: whether the run came to its end.
        """
