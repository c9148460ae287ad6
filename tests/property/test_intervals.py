"""Intervals are monotone: an error less never lowers a bound, whatever the groups."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluate.metrics import f1_interval
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
        each = [RocAuc(area, np.zeros(3), 5 + k, 50, (1 / 250, 0.1), None) for k, area in enumerate(areas)]
        return mean_roc_auc(each, exclusive=True).interval()

    better = list(values)
    better[place % len(values)] += by * (1 - better[place % len(values)])
    assert no_lower(mean(values), mean(better))
