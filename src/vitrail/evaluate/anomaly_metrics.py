"""Metrics of an anomaly model from stored predictions, with 95 % intervals: AUROC, average precision, false alarms.

Image metrics can be recomputed from `predictions/test.csv` alone. Those of pixels need the maps and masks, see
`pixel_metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..data.labels.defects import DEFECT
from ..formatting import format_count
from ..stats import auc
from ..stats.intervals import proportion_interval
from .conformal import Promise
from .metrics import (
    auc_fields,
    average_precision_fields,
    describe_images,
    f1_interval,
    metric_fields,
    no_targets_error,
    rate_interval,
    require_finite,
)
from .predictions import UNKNOWN_CLASS, ClassificationPredictions

Span = tuple[float, float]
MIN_P_VALUE = 0.01
"""Below this chance of as many false alarms the promise is doubted."""


@dataclass(frozen=True, kw_only=True)
class DefectTypeMetrics:
    """Metrics of one type of defect; None where the split cannot show them."""

    name: str
    n: int
    """Images with this defect."""
    recall: float
    """Fraction of them that are called defects."""
    recall_interval: Span
    auroc: float | None = None
    """Probability that one of them has a larger score than a good image."""
    auroc_interval: Span | None = None


@dataclass(frozen=True, kw_only=True)
class AnomalyMetrics:
    """All metrics of one split; intervals are 95 %. None where the split has no good images, or no defects.

    Intervals are as in `ClassificationMetrics`; that of average precision counts as many images as there are defects.
    """

    split: str
    n: int
    groups: int | None = None
    """Number of groups, such as lots, if there are groups."""
    good: int
    """Images without a defect."""
    defects: int
    """Images with a defect."""
    alpha: float | None = None
    """The promise: the fraction of good images that may be called defects."""
    false_alarms: float | None = None
    """The fraction of good images that are called defects."""
    false_alarms_interval: Span | None = None
    false_alarms_p_value: float | None = None
    """Chance of as many false alarms or more if these good images are as those of the calibration (beta-binomial)."""
    recall: float | None = None
    """Fraction of the defects that are found."""
    recall_interval: Span | None = None
    f1: float | None = None
    """Harmonic mean of recall and precision, of defects."""
    f1_interval: Span | None = None
    auroc: float | None = None
    """Probability that a defect has a larger score than a good image."""
    auroc_interval: Span | None = None
    average_precision: float | None = None
    """Area under the curve of precision by recall, of defects."""
    average_precision_interval: Span | None = None
    pixel_auroc: float | None = None
    """Probability that a pixel of a defect lies in a patch of larger distance than another pixel."""
    pixel_auroc_interval: Span | None = None
    aupro: float | None = None
    """Mean over the defects of their fraction that is found, over false alarms of pixels up to 30 % (AUPRO)."""
    aupro_interval: Span | None = None
    per_type: tuple[DefectTypeMetrics, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as in report.json; unmeasured values are absent."""
        return config.write(self)

    def headline(self) -> str:
        """The primary metric in a sentence without its full stop."""
        if self.split == "train" and self.alpha is not None:
            judged = f"by {format_count(self.good, 'good picture')}, each judged by a bank without it"
            return f"At most {self.alpha:.1%} of good pictures are called defects, {judged}"
        where = f"on {describe_images(self.n, self.split)}"
        parts = []
        if self.auroc is not None and self.auroc_interval is not None:
            low, high = self.auroc_interval
            parts.append(f"AUROC {where}: {self.auroc:.3f} (95 % interval {low:.3f} to {high:.3f})")
        if self.false_alarms is not None:
            promised = "" if self.alpha is None else f", {self.alpha:.1%} promised"
            parts.append(f"false alarms {self.false_alarms:.1%} of {self.good:,} good ones{promised}")
        if self.recall is not None:
            parts.append(f"found {self.recall:.1%} of {format_count(self.defects, 'defect')}")
        text = "; ".join(parts)
        return text if self.auroc is not None else f"{text[:1].upper()}{text[1:]}, {where}"

    def describe_doubt(self) -> str:
        """A sentence if there are more false alarms than the promise explains, else empty."""
        if self.false_alarms_p_value is None or self.false_alarms_p_value >= MIN_P_VALUE or self.alpha is None:
            return ""
        return (
            f"{self.false_alarms:.1%} of the good pictures are called defects, where {self.alpha:.1%} were promised: "
            f"the chance of so many is {self.false_alarms_p_value:.2g}. These pictures are not like the good ones of "
            "the training; something has changed, or some of them have a defect."
        )

    def judge_promise(self, alpha: float) -> str:
        """Whether the interval of the false alarms contradicts a promise: kept, not contradicted or contradicted."""
        low, high = self.false_alarms_interval or (0.0, 1.0)
        return "kept" if high <= alpha else "contradicted" if low > alpha else "not contradicted"

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The metrics, and one line per type of defect, for the terminal."""
        count = f"n = {self.n:,}: {self.good:,} good, {format_count(self.defects, 'defect')}"
        lines = [count + ("" if self.groups is None else f", in {format_count(self.groups, 'group')}")]
        rows = (
            ("AUROC", self.auroc, self.auroc_interval),
            ("average precision", self.average_precision, self.average_precision_interval),
            ("F1 of defects", self.f1, self.f1_interval),
            ("defects found", self.recall, self.recall_interval),
            ("false alarms", self.false_alarms, self.false_alarms_interval),
            ("pixel AUROC", self.pixel_auroc, self.pixel_auroc_interval),
            ("AUPRO (30 %)", self.aupro, self.aupro_interval),
        )
        for name, value, span in rows:
            if value is not None:
                interval = "" if span is None else f"  (95 % interval {span[0]:.4f} to {span[1]:.4f})"
                promised = f", promised {self.alpha:.4g}" if name == "false alarms" and self.alpha is not None else ""
                lines.append(f"{name:<17} {value:6.4f}{interval}{promised}")
        doubt = self.describe_doubt()
        lines += [doubt] if doubt else []
        if self.per_type:
            width = max(4, *(len(one.name) for one in self.per_type))
            lines += ["", f"{'type':<{width}}  {'n':>6}   found   AUROC"]
            for one in self.per_type:
                area = "     -" if one.auroc is None else f"{one.auroc:6.4f}"
                lines.append(f"{one.name:<{width}}  {one.n:>6}  {one.recall:6.4f}  {area}")
        return "\n".join(lines)


def compute_anomaly_metrics(
    predictions: ClassificationPredictions,
    groups: np.ndarray | None = None,
    promise: Promise | None = None,
) -> AnomalyMetrics:
    """Compute every metric of one table; images of which nothing is known are left out.

    Args:
        groups: of each image, such as its lot.
        promise: the rate of false alarms, and what it rests on.

    Raises:
        DataError: no image has a known target, or a score is not finite.
    """
    assert predictions.scores is not None
    known = np.zeros(len(predictions), bool) if predictions.targets is None else predictions.targets != UNKNOWN_CLASS
    if predictions.targets is None or not known.any():
        raise no_targets_error(len(predictions), "class")
    scores, is_defect = predictions.scores[known].astype(np.float64), predictions.targets[known] == 1
    require_finite(scores)
    called = predictions.indices[known] == 1
    own = None if groups is None else groups[known]
    fields = _rate_fields(is_defect, called, own)
    good = int((~is_defect).sum())
    if good and promise is not None:
        groups_of_good = None if own is None else own[~is_defect]
        fields["false_alarms_p_value"] = promise.chance_of_alarms(called[~is_defect], groups_of_good)
    if 0 < good < len(scores):
        fields |= auc_fields(auc.roc_auc_with_influence(is_defect, scores, groups=own))
        fields |= average_precision_fields(is_defect, scores, own)
    return AnomalyMetrics(
        split=predictions.split,
        n=len(scores),
        groups=None if own is None else len(np.unique(own)),
        good=good,
        defects=len(scores) - good,
        alpha=None if promise is None else promise.alpha,
        per_type=_compute_per_type(predictions, known, groups),
        **fields,
    )


def _rate_fields(is_defect: np.ndarray, called: np.ndarray, groups: np.ndarray | None) -> dict[str, Any]:
    """Recall, false alarms and F1, as far as there are defects and good images."""
    fields: dict[str, Any] = {}
    for name, rows in (("recall", is_defect), ("false_alarms", ~is_defect)):
        if rows.any():
            fields |= metric_fields(name, float(called[rows].mean()), rate_interval(called, groups, rows))
    if len(fields) == 4:
        f1 = 2 * float((called & is_defect).sum()) / float(called.sum() + is_defect.sum())
        fields |= metric_fields("f1", f1, f1_interval(is_defect, called, groups))
    return fields


def _compute_per_type(
    predictions: ClassificationPredictions, known: np.ndarray, groups: np.ndarray | None
) -> tuple[DefectTypeMetrics, ...]:
    """Recall and AUROC against all good images of each type of defect, in the order of their names."""
    assert predictions.targets is not None and predictions.scores is not None
    is_defect = known & (predictions.targets == 1)
    names = np.array(predictions.target_names, object)
    per_type = []
    for name in sorted(set(names[is_defect].tolist())):
        of_type = is_defect & (names == name)
        called = predictions.indices[of_type] == 1
        own = None if groups is None else groups[of_type]
        rows = of_type | (known & (predictions.targets == 0))
        fields: dict[str, Any] = {}
        if of_type.sum() < rows.sum():
            of_rows = None if groups is None else groups[rows]
            fields = auc_fields(auc.roc_auc_with_influence(of_type[rows], predictions.scores[rows], groups=of_rows))
        per_type.append(
            DefectTypeMetrics(
                name=name or DEFECT,
                n=int(of_type.sum()),
                recall=float(called.mean()),
                recall_interval=proportion_interval(called, own),
                **fields,
            )
        )
    return tuple(per_type)
