"""Shortcut test: the primary metric from the border of the images alone, where tags, rulers and frames are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from .. import config
from ..errors import DataError
from ..formatting import format_count
from .predictions import UNKNOWN_CLASS, MultilabelPredictions, RegressionPredictions, TaskPredictions
from .primary_metric import compute_primary_metric, constant_baseline_errors

BORDER_FRACTION_INVERSE = 8
"""The border is the outer eighth of each side."""
MIN_SIGNAL = 0.1
"""Relative skill (0 guessing, 1 perfect) that the lower bound of the border-only interval must reach for an alarm."""
MIN_BORDER_SHARE = 0.25
"""Fraction of the model's skill beyond guessing that the border alone must keep for an alarm.

Ten small ViTs trained on synthetic images with a tag in the corner kept 60 to 94 %, and ten without a tag at most 4 %
(benchmarks/tag_alarm.py)."""
Span = tuple[float, float]
PixelMask = Bool[np.ndarray, "H W"]
"""Pixels that a model sees."""


def border_mask(height: int, width: int) -> PixelMask:
    """The outer eighth of each side, at least one pixel."""
    rows, columns = max(1, height // BORDER_FRACTION_INVERSE), max(1, width // BORDER_FRACTION_INVERSE)
    mask = np.ones((height, width), bool)
    mask[rows : height - rows, columns : width - columns] = False
    return mask


@dataclass(frozen=True, kw_only=True)
class ShortcutReport:
    """The primary metric on whole images, on their border alone and on their centre alone; intervals are 95 %."""

    figure: str
    """Accuracy, mean AUROC, or a mean absolute error."""
    split: str
    n: int
    guess: float
    """The metric of guessing: the most common class, 0.5 for an AUROC, or the mean number."""
    whole: float
    whole_interval: Span | None = None
    border: float
    border_interval: Span | None = None
    centre: float
    centre_interval: Span | None = None
    kept_by_border: float | None = None
    """Fraction of the skill beyond guessing that the border alone keeps; None where the model may have no skill."""
    kept_by_centre: float | None = None
    alarm: bool

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; unmeasured values are absent."""
        return config.write(self)

    def table(self) -> str:
        """Four lines and the verdict, for the terminal."""
        rows = (
            ("whole picture", self.whole, self.whole_interval, None),
            ("border only", self.border, self.border_interval, self.kept_by_border),
            ("centre only", self.centre, self.centre_interval, self.kept_by_centre),
            ("guessing", self.guess, None, None),
        )
        pictures = format_count(self.n, "picture")
        lines = [f"{self.figure} on {pictures} ({self.split}); the border is the outer eighth of each side"]
        for name, value, span, kept in rows:
            interval = "" if span is None else f"  ({_format_number(span[0])} to {_format_number(span[1])})"
            share = "" if kept is None else f"  keeps {100 * kept:.0f} % of what the model knows beyond guessing"
            lines.append(f"{name:<13}  {_format_number(value)}{interval}{share}")
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """The conclusion, in a sentence or two."""
        if self.alarm:
            return (
                "ALARM: the border alone tells much of what the model knows. Is there a tag, a ruler, a frame or the "
                "edge of a collimator that comes with the answer? Look at some pictures; cover or crop the border, and "
                "train again."
            )
        if self.kept_by_border is None:
            return "On whole pictures the model is not surely better than guessing, so there is nothing to lose."
        return "No alarm: by the border alone the model knows little."


def compare_regions(
    whole: TaskPredictions,
    border_only: TaskPredictions,
    centre_only: TaskPredictions,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> ShortcutReport:
    """Compare predictions for whole images, their border, and their centre, all in the same order.

    Alarm: the lower bound of the border-only relative skill is at least MIN_SIGNAL, and the border alone keeps at least
    MIN_BORDER_SHARE of the skill on whole images.

    Args:
        groups: of each image, such as its patient.

    Raises:
        DataError: nothing can be measured on these images.

    Source: the question is that of DeGrave, Janizek and Lee 2021, "AI for radiographic COVID-19 detection selects
    shortcuts over signal"; the rule is ours.
    """
    first = compute_primary_metric(whole, groups=groups)
    labels = first.labels or None
    parts = [compute_primary_metric(one, groups=groups, labels=labels) for one in (border_only, centre_only)]
    metrics = [first, *parts]
    values = [one.value for one in metrics if one.value is not None]
    if len(values) < len(metrics):
        raise DataError(
            "Whether the border tells the answer shows on pictures whose answers are known; a label needs ten with it "
            f"and ten without. Got {format_count(first.n, 'picture')}."
        )
    guess, perfect = _guess_and_perfect(whole)
    known, left, middle = (_relative_skill(value, guess, perfect) for value in values)
    knows = min(_relative_skill(bound, guess, perfect) for bound in first.interval or (values[0],)) > 0
    surely = min(_relative_skill(bound, guess, perfect) for bound in metrics[1].interval or (values[1],))
    return ShortcutReport(
        figure=first.name,
        split=whole.split,
        n=first.n,
        guess=guess,
        whole=values[0],
        whole_interval=first.interval,
        border=values[1],
        border_interval=metrics[1].interval,
        centre=values[2],
        centre_interval=metrics[2].interval,
        kept_by_border=left / known if knows else None,
        kept_by_centre=middle / known if knows else None,
        alarm=bool(surely >= MIN_SIGNAL and left >= MIN_BORDER_SHARE * known),
    )


def _relative_skill(value: float, guess: float, perfect: float) -> float:
    """Position of a metric between guessing (0) and perfect (1); 0 where guessing is always right."""
    return 0.0 if guess == perfect else (value - guess) / (perfect - guess)


def _guess_and_perfect(predictions: TaskPredictions) -> tuple[float, float]:
    """The metric of guessing, and of perfect predictions."""
    if isinstance(predictions, MultilabelPredictions):
        return 0.5, 1.0
    if isinstance(predictions, RegressionPredictions):
        return float(np.nanmean(constant_baseline_errors(predictions))), 0.0
    assert predictions.targets is not None  # something was measured
    targets = predictions.targets[predictions.targets != UNKNOWN_CLASS]
    return float(np.bincount(targets).max() / len(targets)), 1.0


def _format_number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"
