"""The figures of any table of answers, by its task."""

from __future__ import annotations

import numpy as np

from . import label_metrics, metrics, number_metrics
from .answers import Answers
from .label_metrics import LabelMetrics
from .label_predictions import LabelPredictions
from .metrics import Metrics
from .number_metrics import NumberMetrics
from .predictions import Predictions
from .scaling import Scaling

Figures = Metrics | LabelMetrics | NumberMetrics


def measured(
    answers: Answers, scaling: Scaling | None = None, groups: np.ndarray | None = None, ordered: bool = False
) -> Figures:
    """Every figure of one table.

    Args:
        scaling: of the task `number`, whose mean the answers are compared with.
        groups: of each picture, such as its patient, where pictures of one group may be alike.
        ordered: of the task `classes`, whether they stand in an order, such as grades.

    Raises:
        DataError: no picture has a known target, or an answer is no number.
    """
    if isinstance(answers, Predictions):
        return metrics.measure(answers, groups, ordered)
    if isinstance(answers, LabelPredictions):
        return label_metrics.measure(answers, groups)
    return number_metrics.measure(answers, None if scaling is None else scaling.mean, groups)
