"""What became of every tensor of a file: the load report that `vitrail inspect FILE` prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Action = Literal["loaded", "equal", "checked", "dropped"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tensor of the file."""

    theirs: str
    """Its name in the file."""
    shape: tuple[int, ...]
    """Its shape in the file."""
    action: Action
    """loaded: fills ours; equal: a second copy of a loaded one; checked: compared with ours; dropped: not needed."""
    ours: str
    """The parameter that it fills, or the reason why it fills none."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Every tensor of a file, in the file's order."""

    layout: str
    """Name of the layout whose table was used."""
    variant: str = ""
    """Which of the layouts of that name."""
    rows: tuple[Row, ...]
    """One row a tensor."""
    doubts: tuple[str, ...] = ()
    """What is wrong with the numbers, where the caller allowed it."""

    def table(self) -> str:
        """The report as text: a line a tensor, and the sums at the end."""
        lines = [("in the file", "shape", "", "in vitrail")]
        lines += [(row.theirs, "x".join(map(str, row.shape)) or "()", row.action, row.ours) for row in self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        text = ["  ".join([*(word.ljust(n) for word, n in zip(line, widths, strict=False)), line[3]]) for line in lines]
        return "\n".join([*text, self.summary()])

    def summary(self) -> str:
        """The sums on one line, such as `layout xray-rope: 88 tensors, 64 loaded, 24 checked`."""
        counts = Counter(row.action for row in self.rows)
        tensors = "1 tensor" if len(self.rows) == 1 else f"{len(self.rows)} tensors"
        variant = f" ({self.variant})" if self.variant else ""
        return f"layout {self.layout}{variant}: {tensors}" + "".join(f", {n} {action}" for action, n in counts.items())
