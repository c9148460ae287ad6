"""The figures of any table of answers, by its task."""

from __future__ import annotations

from . import label_metrics, metrics, number_metrics
from .answers import Answers
from .label_metrics import LabelMetrics
from .label_predictions import LabelPredictions
from .metrics import Metrics
from .number_metrics import NumberMetrics
from .predictions import Predictions
from .scaling import Scaling

Figures = Metrics | LabelMetrics | NumberMetrics


def measured(answers: Answers, scaling: Scaling | None = None) -> Figures:
    """Every figure of one table.

    Args:
        scaling: of the task `number`, whose mean the answers are compared with.

    Raises:
        DataError: no picture has a known target.
    """
    if isinstance(answers, Predictions):
        return metrics.measure(answers)
    if isinstance(answers, LabelPredictions):
        return label_metrics.measure(answers)
    return number_metrics.measure(answers, None if scaling is None else scaling.mean)
