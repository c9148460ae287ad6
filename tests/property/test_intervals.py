"""Intervals are monotone: an error less never lowers a bound, whatever the groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.evaluate.metrics import ClassificationMetrics, compute_classification_metrics, f1_interval
from vitrail.evaluate.multilabel_metrics import MultilabelMetrics, compute_multilabel_metrics
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions
from vitrail.stats.auc import RocAuc, mean_roc_auc, roc_auc_with_influence
from vitrail.stats.intervals import mean_of_rates_interval, proportion_interval

ROOM = 1e-9
images = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=60)


def no_lower(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether no bound of the second interval is lower."""
    return other[0] >= one[0] - ROOM and other[1] >= one[1] - ROOM


@given(rows=images, place=st.integers(0, 59), grouped=st.booleans())
def test_an_error_less_never_lowers_a_bound_of_a_proportion(rows, place, grouped):
    right = np.array([one for one, _ in rows])
    groups = np.array([group for _, group in rows]) if grouped else None
    better = right.copy()
    better[place % len(rows)] = True
    assert no_lower(proportion_interval(right, groups), proportion_interval(better, groups))


@given(cells=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), place=st.integers(0, 59))
def test_an_error_less_never_lowers_a_bound_of_f1(cells, place):
    present, predicted = (np.array(column) for column in zip(*cells, strict=True))
    better = predicted.copy()
    better[place % len(cells)] = present[place % len(cells)]
    before, after = f1_interval(present, predicted, None), f1_interval(present, better, None)
    if before is not None and after is not None:
        assert no_lower(before, after)


@given(
    counts=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=6),
    place=st.integers(0, 5),
)
def test_an_error_less_never_lowers_a_bound_of_a_mean_of_recalls(counts, place):
    def interval(errors: list[int]) -> tuple[float, float]:
        return mean_of_rates_interval([(1 - wrong / n, float(n)) for (n, _), wrong in zip(counts, errors, strict=True)])

    errors = [wrong % (n + 1) for n, wrong in counts]
    fewer = list(errors)
    fewer[place % len(counts)] = max(0, fewer[place % len(counts)] - 1)
    assert no_lower(interval(errors), interval(fewer))


@given(scores=st.lists(st.integers(0, 20), min_size=4, max_size=30), raised=st.integers(0, 29), by=st.integers(1, 20))
def test_a_better_ranking_never_lowers_a_bound_of_an_area(scores, raised, by):
    positive = np.arange(len(scores)) % 3 == 0
    values = np.array(scores, float)
    better = values.copy()
    better[3 * (raised % int(positive.sum()))] += by  # a positive image is ranked higher
    areas = [roc_auc_with_influence(positive, each) for each in (values, better)]
    assert areas[1].value >= areas[0].value and no_lower(*(one.interval() for one in areas))


@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=10), place=st.integers(0, 9), by=st.floats(0, 1))
def test_a_better_class_never_lowers_a_bound_of_the_mean_area_of_classes(values, place, by):
    def mean(areas: list[float]) -> tuple[float, float]:
        each = [RocAuc(area, np.zeros(3), np.ones(3), 5, 50, (1 / 250, 0.1)) for k, area in enumerate(areas)]
        return mean_roc_auc(each, exclusive=True).interval()

    better = list(values)
    better[place % len(values)] += by * (1 - better[place % len(values)])
    assert no_lower(mean(values), mean(better))


SAMPLES = 20
ERRORS_FALL = {"log_loss", "brier"}
NOT_OF_ERRORS = {"calibration_error", "calibration_in_the_large", "calibration_slope"}
"""Bounds that rise and fall with the confidence."""
NEARLY = {"kappa", "quadratic_kappa", "sensitivity_at_90"}
"""Their value may fall when an answer is put right (kappa below 0), or their interval moves with the threshold."""


def intervals_of(metrics: ClassificationMetrics | MultilabelMetrics) -> dict[str, tuple[float, float]]:
    """Every interval of the metrics and of each class or label by its name."""
    parts = [metrics, *(metrics.per_class if isinstance(metrics, ClassificationMetrics) else metrics.per_label)]
    return {
        f"{place} {name.removesuffix('_interval')}": interval
        for place, part in enumerate(parts)
        for name, interval in vars(part).items()
        if name.endswith("_interval") and interval is not None
    }


def assert_no_bound_is_worse(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> None:
    assert before
    for name in before.keys() & after.keys():
        metric = name.partition(" ")[2]
        if metric in ERRORS_FALL:
            assert no_lower(after[name], before[name]), name
        elif metric not in NOT_OF_ERRORS | NEARLY:
            assert no_lower(before[name], after[name]), (name, before[name], after[name])


def table_of(n: int, classes: int) -> dict:
    return {"paths": ("",) * n, "ids": tuple(map(str, range(n))), "split": "test", "classes": tuple("abcd"[:classes])}


@pytest.mark.parametrize("grouped", [False, True])
@given(seed=st.integers(0, 10_000), K=st.integers(2, 4), skill=st.sampled_from([1, 3, 5]))
@settings(deadline=None, max_examples=8)
def test_an_error_less_makes_no_bound_that_is_shown_of_classes_worse(grouped, seed, K, skill):
    generator = np.random.default_rng(seed)
    n = int(generator.integers(24, 60))
    targets, groups = generator.integers(0, K, n), generator.integers(0, 9, n) if grouped else None
    chances = np.exp(generator.normal(size=(n, K)) + skill * np.eye(K)[targets])
    chances /= chances.sum(1, keepdims=True)
    better, wrong = chances.copy(), np.flatnonzero(chances.argmax(1) != targets)
    for row in wrong[:1]:
        own, answered = targets[row], chances[row].argmax()
        better[row, [own, answered]] = chances[row, [answered, own]]
    tables = [
        ClassificationPredictions(**table_of(n, K), targets=targets, probabilities=each.astype(np.float32))
        for each in (chances, better)
    ]
    found = [compute_classification_metrics(one, groups, ordered=True, samples=SAMPLES) for one in tables]
    assert_no_bound_is_worse(*map(intervals_of, found))


@pytest.mark.parametrize("grouped", [False, True])
@given(seed=st.integers(0, 10_000), K=st.integers(1, 3), skill=st.sampled_from([1, 3, 6]))
@settings(deadline=None, max_examples=8)
def test_an_error_less_makes_no_bound_that_is_shown_of_labels_worse(grouped, seed, K, skill):
    generator = np.random.default_rng(seed)
    n = int(generator.integers(40, 70))
    present, groups = generator.random((n, K)) < 0.5, generator.integers(0, 9, n) if grouped else None
    present[:24] = np.arange(24)[:, None] % 2 == 0
    chances = 1 / (1 + np.exp(-generator.normal(size=(n, K)) - skill * (present - 0.5)))
    better = chances.copy()
    for place in map(tuple, np.argwhere((chances > 0.5) != present)[:1]):
        better[place] = 1 - chances[place]
    tables = [
        MultilabelPredictions(
            **table_of(n, K), targets=present.astype(np.float32), probabilities=each.astype(np.float32)
        )
        for each in (chances, better)
    ]
    assert_no_bound_is_worse(
        *(intervals_of(compute_multilabel_metrics(one, groups, samples=SAMPLES)) for one in tables)
    )
