"""What a fast number format changes: scores, decisions and speed in bfloat16 or float16 beside float32.

Predictions are computed in float32 unless a person chooses otherwise: in bfloat16 they depend on the instructions of
the processor. So that the price of the choice is known, a training compares both and keeps the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt

from .. import config
from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from ..formatting import format_count
from .predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions, TaskPredictions

PRECISION_KEY, COMPARISON_KEY = "number_format", "fast_number_format"
"""Their keys in the notes of a bundle: what its stored metrics and decisions were computed in, and a comparison."""


@dataclass(frozen=True, kw_only=True)
class PrecisionComparison:
    """Predictions of a model in a fast number format beside those in float32, for the same validation images."""

    precision: str
    """The fast one: bfloat16 or float16."""
    device: str
    """Where both were computed."""
    task: Task
    num_images: int
    difference: float
    """Largest difference of two scores: probabilities, or numbers as a fraction of their range on these images."""
    difference_99: float
    """99 % of the differences are no larger."""
    changed_decisions: int
    """Images with another class, or with other labels."""
    changed_abstentions: int
    """Images that only one of the two answers."""
    crossed_thresholds: int
    """Labels that only one of the two predicts, counted one by one."""
    speedup: float
    """How many times as fast as float32, median of interleaved timings."""

    def __str__(self) -> str:
        regression = self.task == "regression"
        scores, form = ("numbers", "{:.2g} of their range") if regression else ("scores", "{:.2g}")
        largest, most = form.format(self.difference), form.format(self.difference_99)
        changes = [f"{format_count(self.changed_abstentions, 'abstention')}"]
        if not regression:
            crossings = f" ({format_count(self.crossed_thresholds, 'label')})" if self.task == "multilabel" else ""
            changes.insert(0, f"{format_count(self.changed_decisions, 'decision')}{crossings}")
        return (
            f"{self.precision} against float32 on {format_count(self.num_images, 'validation picture')}: {scores} "
            f"differ by up to {largest}, 99 % of them by at most {most}; {' and '.join(changes)} changed; "
            f"{self.speedup:.2g} times as fast ({self.device})"
        )


def compare_precisions(
    exact: TaskPredictions, fast: TaskPredictions, precision: str, device: str, speedup: float
) -> PrecisionComparison:
    """Compare the predictions of both number formats for the same images, at least one.

    Args:
        exact: in float32.
        fast: in `precision`.
    """
    expected = get_scores(exact).astype(np.float64)
    differences = np.abs(get_scores(fast) - expected)  # [n, K]
    task: Task = "classification"
    crossed = 0
    if isinstance(exact, RegressionPredictions):
        task, extent = "regression", np.ptp(expected, axis=0)
        differences = differences / np.where(extent > 0, extent, 1.0)
    elif isinstance(exact, MultilabelPredictions) and isinstance(fast, MultilabelPredictions):
        task, crossed = "multilabel", int((exact.indicators != fast.indicators).sum())
    return PrecisionComparison(
        precision=precision,
        device=device,
        task=task,
        num_images=len(exact),
        difference=float(differences.max()),
        difference_99=float(np.quantile(differences, 0.99)),
        changed_decisions=int(find_changed_labels(fast, exact).sum()),
        changed_abstentions=int(find_changed_abstentions(fast, exact).sum()),
        crossed_thresholds=crossed,
        speedup=speedup,
    )


def largest_comparison(comparisons: Sequence[PrecisionComparison | None]) -> PrecisionComparison | None:
    """The comparison with the largest difference, of an ensemble's models; None if one of them has none."""
    known = [each for each in comparisons if each is not None]
    return max(known, key=lambda each: each.difference) if known and len(known) == len(comparisons) else None


def read_comparison(info: Mapping[str, object], where: str) -> PrecisionComparison | None:
    """Read the comparison from the notes of a bundle; None where it has none.

    Raises:
        DamagedFileError: the note holds no comparison.
    """
    noted = info.get(COMPARISON_KEY)
    if noted is None:
        return None
    try:
        if not isinstance(noted, Mapping):
            raise UsageError(f"{where}: {COMPARISON_KEY} must be a table. Got {noted!r}.")
        return config.read(PrecisionComparison, noted, where)
    except UsageError as error:
        raise DamagedFileError(f"{error} Use another copy.") from error


# -- Differences between two tables of predictions for the same images.


def get_scores(predictions: TaskPredictions) -> np.ndarray:
    """Probabilities, or regression values, [n, K]; of anomaly the scores [n, 1]."""
    if isinstance(predictions, ClassificationPredictions) and predictions.scores is not None:
        return predictions.scores[:, None]
    return predictions.values if isinstance(predictions, RegressionPredictions) else predictions.probabilities


def find_changed_labels(actual: TaskPredictions, expected: TaskPredictions) -> np.ndarray:
    """Bool [n]: images of `actual` with another class, or other labels, than in the first n rows of `expected`."""
    n = len(actual)
    if isinstance(actual, ClassificationPredictions) and isinstance(expected, ClassificationPredictions):
        return np.asarray(actual.indices != expected.indices[:n])
    if isinstance(actual, MultilabelPredictions) and isinstance(expected, MultilabelPredictions):
        return np.asarray((actual.indicators != expected.indicators[:n]).any(1))
    return np.zeros(n, bool)


def find_changed_abstentions(actual: TaskPredictions, expected: TaskPredictions) -> np.ndarray:
    """Bool [n]: images of `actual` with another reason of abstention than in the first n rows of `expected`."""
    reasons = zip(actual.abstain_column(), expected.abstain_column()[: len(actual)], strict=True)
    return np.array([a != b for a, b in reasons], bool)


# -- Throughput.

NUM_ROUNDS = 5
RATE_BATCH_SIZE = 16
"""Batch size of the timing."""


def measure_rates(
    functions: Mapping[str, Callable[[np.ndarray], object]],
    images: UInt[np.ndarray, "n ..."],
    num_rounds: int = NUM_ROUNDS,
    batch_size: int = RATE_BATCH_SIZE,
) -> dict[str, float]:
    """Images per second of each function: the median of interleaved rounds after a warm-up.

    Args:
        images: at least one; repeated to a batch.
    """
    batch = np.resize(images, (batch_size, *images.shape[1:]))
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(num_rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function(batch)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: batch_size / statistics.median(times) for name, times in seconds.items()}
