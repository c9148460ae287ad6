"""Does a model read the border of a picture, where tags, rulers and frames are, instead of what is in the middle?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from .. import config
from ..errors import DataError
from .prediction_tables import TaskPredictions
from .predictions import UNKNOWN_CLASS, MultilabelPredictions, RegressionPredictions
from .primary_metric import compute_primary_metric, constant_baseline_errors

BORDER_FRACTION_INVERSE = 8
"""The border is the outer eighth of each side."""
MIN_SIGNAL = 0.1
"""The border tells something when its interval begins this share of the way from guessing to perfect."""
MIN_BORDER_SHARE = 0.25
"""Of what the model knows beyond guessing, the share that the border alone must keep for an alarm.

Ten small ViTs that had learnt planted pictures kept 60 to 94 % by a tag in the corner, beside what they knew of the
glyph, and ten at most 4 % without a tag (benchmarks/tag_alarm.py)."""
Span = tuple[float, float]
PixelMask = Bool[np.ndarray, "H W"]
"""Which pixels a model sees."""


def border_mask(height: int, width: int) -> PixelMask:
    """The outer eighth of each side, at least one pixel."""
    rows, columns = max(1, height // BORDER_FRACTION_INVERSE), max(1, width // BORDER_FRACTION_INVERSE)
    found = np.ones((height, width), bool)
    found[rows : height - rows, columns : width - columns] = False
    return found


class MaskedModel(nn.Module):
    """A model that sees only some of the pixels; the others have the mean that every picture has subtracted."""

    def __init__(self, model: nn.Module, inputs: PixelMask):
        super().__init__()
        self.model = model
        self.register_buffer("shown", torch.from_numpy(inputs.copy()), persistent=False)
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        assert isinstance(self.shown, Tensor)
        return self.model(torch.where(self.shown, images, 0.0))


@dataclass(frozen=True, kw_only=True)
class ShortcutReport:
    """What a model knows of whole pictures, of their border alone, and of their middle alone; intervals are 95 %."""

    figure: str
    """Accuracy, mean AUROC, or a mean absolute error."""
    split: str
    n: int
    guess: float
    """The same figure of always saying the most common class, 0.5 for an AUROC, or of the mean of the numbers."""
    whole: float
    whole_interval: Span | None = None
    border: float
    border_interval: Span | None = None
    centre: float
    centre_interval: Span | None = None
    kept_by_border: float | None = None
    """Share of what the model knows beyond guessing that the border alone keeps; None where it may know nothing."""
    kept_by_centre: float | None = None
    alarm: bool

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; what could not be measured is absent."""
        return config.write(self)

    def table(self) -> str:
        """Four lines and the verdict, for the terminal."""
        rows = (
            ("whole picture", self.whole, self.whole_interval, None),
            ("border only", self.border, self.border_interval, self.kept_by_border),
            ("centre only", self.centre, self.centre_interval, self.kept_by_centre),
            ("guessing", self.guess, None, None),
        )
        lines = [f"{self.figure} on {self.n:,} pictures ({self.split}); the border is the outer eighth of each side"]
        for name, value, span, kept in rows:
            interval = "" if span is None else f"  ({_format_number(span[0])} to {_format_number(span[1])})"
            share = "" if kept is None else f"  keeps {100 * kept:.0f} % of what the model knows beyond guessing"
            lines.append(f"{name:<13}  {_format_number(value)}{interval}{share}")
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """What follows, in a sentence or two."""
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
    """Compare answers to whole pictures, to their border, and to their centre, all in the same order.

    Alarm: with the border alone the figure's interval begins at least a tenth of the way from guessing to perfect, and
    the border alone keeps at least a quarter of what the model knows beyond guessing.

    Args:
        groups: of each picture, such as its patient.

    Raises:
        DataError: nothing can be measured on these pictures.

    Source: the question is that of DeGrave, Janizek and Lee 2021, "AI for radiographic COVID-19 detection selects
    shortcuts over signal"; the rule is ours.
    """
    first = compute_primary_metric(whole, groups=groups)
    figures = [
        first,
        *(
            compute_primary_metric(one, groups=groups, labels=first.labels or None)
            for one in (border_only, centre_only)
        ),
    ]
    values = [one.value for one in figures if one.value is not None]
    if len(values) < len(figures):
        raise DataError(
            f"Whether the border tells the answer shows on pictures whose answers are known; a label needs ten with it "
            f"and ten without. Got {first.n:,} pictures."
        )
    guess, perfect = _guess_and_perfect(whole)
    known, left, middle = (_relative_skill(value, guess, perfect) for value in values)
    knows = min(_relative_skill(bound, guess, perfect) for bound in first.interval or (values[0],)) > 0
    surely = min(_relative_skill(bound, guess, perfect) for bound in figures[1].interval or (values[1],))
    return ShortcutReport(
        figure=first.name,
        split=whole.split,
        n=first.n,
        guess=guess,
        whole=values[0],
        whole_interval=first.interval,
        border=values[1],
        border_interval=figures[1].interval,
        centre=values[2],
        centre_interval=figures[2].interval,
        kept_by_border=left / known if knows else None,
        kept_by_centre=middle / known if knows else None,
        alarm=bool(surely >= MIN_SIGNAL and left >= MIN_BORDER_SHARE * known),
    )


def _relative_skill(value: float, guess: float, perfect: float) -> float:
    """How far from guessing (0) to perfect (1) a figure is; 0 where guessing is always right."""
    return 0.0 if guess == perfect else (value - guess) / (perfect - guess)


def _guess_and_perfect(predictions: TaskPredictions) -> tuple[float, float]:
    """The figure of guessing, and of being always right."""
    if isinstance(predictions, MultilabelPredictions):
        return 0.5, 1.0
    if isinstance(predictions, RegressionPredictions):
        return float(np.nanmean(constant_baseline_errors(predictions))), 0.0
    targets = (
        np.zeros(0, np.int64)
        if predictions.targets is None
        else predictions.targets[predictions.targets != UNKNOWN_CLASS]
    )
    return float(np.bincount(targets).max() / len(targets)), 1.0


def _format_number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"
