"""What the doctor found, for people (a table) and for machines (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...plural import counted

SHOWN = 20
"""Names in a list before it is cut short; the JSON holds all."""
SHOWN_GROUPS = 6
Severity = Literal["stop", "warning", "hint"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Height and width of a picture in pixels, and its id."""

    height: int
    width: int
    id: str


@dataclass(frozen=True, kw_only=True)
class Concern:
    """One thing that is wrong, suspicious or worth knowing."""

    code: str
    """A fixed name, for scripts."""
    severity: Severity
    """stop: no training begins; warning: the result will be worse or too good; hint: to be known."""
    text: str
    """What was found, in a sentence with its count."""
    advice: str = ""
    """What to do about it."""
    rows: tuple[int, ...] = ()
    """The pictures in question."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Rows of pictures that belong together, such as copies."""
    leave_out: tuple[tuple[int, str], ...] = ()
    """(row, reason) of pictures that are better left out, for exclude.csv."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What the check found; `bad` and `stops` keep a training from beginning, the rest is to be known."""

    name: str
    pictures: int
    """In all splits."""
    looked: int
    """Pictures that there was time to look at."""
    bad: list[tuple[str, str]]
    """(id, reason) of every picture that cannot be used."""
    bad_indices: NDArray[np.int64]
    """Their rows in the source."""
    class_counts: dict[str, dict[str, int]]
    """Pictures per class, or with each label, in each split; empty for numbers."""
    smallest: Size | None
    largest: Size | None
    depths: dict[str, int]
    """Pictures per type of stored value: uint8, uint16, ..."""
    kinds: dict[str, int]
    """Pictures per file format."""
    remarks: dict[str, int]
    """What the decoder noticed, and how often."""
    concerns: tuple[Concern, ...]
    """Worst first."""
    notes: tuple[str, ...]
    """Those of the source, then the check's own."""
    ids: Sequence[str] = field(repr=False)
    """Those of the source."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Why a training would not begin although its pictures can be read, with the way out."""
        return tuple(f"{each.text} {each.advice}".strip() for each in self.concerns if each.severity == "stop")

    def leave_out(self) -> list[tuple[int, str]]:
        """(row, reason) of all that is better left out, by row: what is unreadable, contradicts itself, or is also in a
        split that is held out. Each row once, with its first reason."""
        found = dict(zip(self.bad_indices.tolist(), (reason for _, reason in self.bad), strict=True))
        for concern in self.concerns:
            for row, reason in concern.leave_out:
                found.setdefault(row, reason)
        return sorted(found.items())

    def table(self) -> str:
        """All of it as plain text, every bad picture named."""
        return "\n".join([*self._head(), *self._bad(), *self._concerns(), *self._counts(), *self._ends()])

    def to_json(self) -> dict[str, Any]:
        """The same for machines; `bad` as objects with id and reason."""
        return {
            "name": self.name,
            "pictures": self.pictures,
            "looked_at": self.looked,
            "bad": [{"id": name, "reason": reason} for name, reason in self.bad],
            "stops": list(self.stops),
            "concerns": [self._concern_json(each) for each in self.concerns],
            "class_counts": self.class_counts,
            "smallest": vars(self.smallest) if self.smallest else None,
            "largest": vars(self.largest) if self.largest else None,
            "stored_values": self.depths,
            "formats": self.kinds,
            "remarks": self.remarks,
            "notes": list(self.notes),
        }

    def _concern_json(self, concern: Concern) -> dict[str, Any]:
        return {
            "code": concern.code,
            "severity": concern.severity,
            "text": concern.text,
            "advice": concern.advice,
            "pictures": [self.ids[row] for row in concern.rows],
            "groups": [[self.ids[row] for row in group] for group in concern.groups],
        }

    def _head(self) -> list[str]:
        seen = "" if self.looked == self.pictures else f", {self.looked:,} of them looked at"
        unusable = f"{len(self.bad):,} of them unusable" if self.bad else "all of them usable"
        lines = [f"{self.name}: {self.pictures:,} pictures{seen}, {unusable}"]
        if self.smallest and self.largest:
            small, large = self.smallest, self.largest
            if (small.height, small.width) == (large.height, large.width):
                lines.append(f"  {small.height} high, {small.width} wide")
            else:
                lines.append(f"  smallest {small.height} high, {small.width} wide ({small.id})")
                lines.append(f"  largest {large.height} high, {large.width} wide ({large.id})")
        if self.kinds:
            lines.append(f"  stored as {listed(self.kinds)}; values {listed(self.depths)}")
        return lines

    def _bad(self) -> list[str]:
        lines = [f"STOP     {counted(len(self.bad), 'picture')} cannot be used:"] if self.bad else []
        return lines + [f"           {name}  {reason}" for name, reason in self.bad]

    def _concerns(self) -> list[str]:
        lines = []
        for concern in self.concerns:
            lines.append(f"{WORDS[concern.severity]:<9}{concern.text}")
            lines += [
                f"           {' = '.join(self.ids[row] for row in group)}" for group in concern.groups[:SHOWN_GROUPS]
            ]
            if len(concern.groups) > SHOWN_GROUPS:
                lines.append(f"           and {len(concern.groups) - SHOWN_GROUPS:,} more")
            if concern.rows and not concern.groups:
                lines.append(f"           {shown([self.ids[row] for row in concern.rows[:SHOWN]], len(concern.rows))}")
            if concern.advice:
                lines.append(f"           {concern.advice}")
        return lines

    def _counts(self) -> list[str]:
        """One line a class, one column a split."""
        if not self.class_counts:
            return []
        splits = list(self.class_counts)
        names = list(self.class_counts[splits[0]])
        wide = max(map(len, [*names, "class"]))
        lines = [f"{'class':<{wide}}" + "".join(f"{split:>9}" for split in splits)]
        for name in names:
            lines.append(f"{name:<{wide}}" + "".join(f"{self.class_counts[split][name]:>9,}" for split in splits))
        return lines

    def _ends(self) -> list[str]:
        return [f"note: {note}" for note in self.notes]


WORDS: dict[Severity, str] = {"stop": "STOP", "warning": "WARNING", "hint": "hint"}


def shown(names: Sequence[str], total: int | None = None) -> str:
    """At most twenty names of `total`, and how many there are beside them."""
    total = len(names) if total is None else total
    more = f" and {total - SHOWN:,} more" if total > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def listed(counts: Mapping[str, int]) -> str:
    """Counts and what they count: 12 PNG, 3 JPEG."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
