"""What a person asks of a report's first page: for whom it is, what is looked for, and where it will be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..data.source import Task
from ..errors import UsageError

Reader = Literal["radiology", "inspection"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A first page for one reader."""

    reader: Reader
    positive: str = ""
    """The only class or label that the page speaks of; empty: all labels, or the classes that make sense."""
    prevalence: str = ""
    """Where it will be used, the share that has what is looked for: "0.05", or "NAME=0.05,OTHER=0.01"."""
    parts_per_minute: float | None = None
    """Of an inspection."""
    hours: float | None = None
    """Of a shift."""

    def __post_init__(self) -> None:
        paced = (self.parts_per_minute, self.hours)
        if self.reader != "inspection" and paced != (None, None):
            raise UsageError("--parts-per-minute and --hours are for --for inspection. Leave them out.")
        if (self.parts_per_minute is None) != (self.hours is None):
            raise UsageError("--parts-per-minute and --hours make the parts of a shift together. Give both or neither.")
        for name, value in (("--parts-per-minute", self.parts_per_minute), ("--hours", self.hours)):
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name} must be above 0. Got {value:g}.")

    @property
    def parts(self) -> float | None:
        """Of a shift."""
        return None if self.parts_per_minute is None or self.hours is None else self.parts_per_minute * 60 * self.hours

    def check(self, task: Task, names: Sequence[str]) -> None:
        """Refuse what this run cannot be asked.

        Raises:
            UsageError: numbers, or a name that is none of its classes or labels.
        """
        if task == "number":
            raise UsageError(
                f"--for {self.reader} speaks of what is found and missed, and this run answers with numbers. "
                "Leave --for out."
            )
        if self.positive and self.positive not in names:
            what = "classes" if task == "classes" else "labels"
            raise UsageError(f"--positive must be one of the {what} {_listed(names)}. Got {self.positive!r}.")

    def prevalences(self, names: Sequence[str]) -> dict[str, float]:
        """Those that were stated.

        Args:
            names: what the page speaks of.

        Raises:
            UsageError: no share, a name that the page does not speak of, or one share for several.
        """
        words = [word.strip() for word in self.prevalence.split(",") if word.strip()]
        found: dict[str, float] = {}
        for word in words:
            name, equals, share = word.rpartition("=")
            if not equals and len(names) > 1:
                raise UsageError(
                    f"--prevalence {word} is one share, and this page speaks of {len(names)}: write "
                    f"--prevalence {names[0]}={word},{names[1]}=..., or name one with --positive."
                )
            name = name if equals else names[0]
            if name not in names:
                raise UsageError(f"--prevalence must name one of {_listed(names)}. Got {name!r}.")
            found[name] = _share(share)
        return found


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UsageError(f"--prevalence must be a share between 0 and 1, for example 0.05. Got {text!r}.")
    return share


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
