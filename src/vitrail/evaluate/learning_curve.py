"""The figure of a run by the number of its training images, and what twice as many are expected to bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import config

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """The figure by the number of training images, and what twice as many are expected to bring."""

    figure: str
    """accuracy, or mean AUROC."""
    split: str
    held_out: int
    """Held-out images."""
    images: tuple[int, ...]
    """Training images of each point: a quarter, a half, all of them."""
    values: tuple[float, ...]
    """The mean figure of the fits to so many."""
    gain: float
    """Expected change with twice the images."""
    gain_interval: Span
    """95 % interval of the change that a training on twice as many would show on as many held-out images."""

    def points(self) -> list[tuple[int, float]]:
        """Each number of training images with its figure."""
        return list(zip(self.images, self.values, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """A few lines for the terminal."""
        low, high = (100 * end for end in self.gain_interval)
        lines = [f"{'training pictures':<19}{self.figure}, {self.held_out:,} held-out pictures ({self.split})"]
        lines += [f"{count:<19,}{value:.4f}" for count, value in self.points()]
        more = f"expected: {100 * self.gain:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"
        return "\n".join([*lines, f"{2 * self.images[-1]:<19,}{self.values[-1] + self.gain:.4f}  {more}"])
