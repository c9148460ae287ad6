"""Thresholds: every rule against trying all of them, and what is written down beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_curve

from vitrail.errors import UsageError
from vitrail.evaluate.thresholds import ThresholdRule, choose_threshold, compute_roc_points, evaluate_threshold


def labelled(seed, n=120, steps=None):
    generator = np.random.default_rng(seed)
    positive = generator.random(n) < 0.3
    positive[:24] = np.arange(24) < 12
    chances = generator.beta(2 + 2 * positive, 4)
    return positive, (chances if steps is None else np.round(chances * steps) / steps).astype(np.float32)


def rates(positive, chances, value):
    answered = chances >= value
    return (answered & positive).sum() / positive.sum(), (~answered & ~positive).sum() / (~positive).sum()


@pytest.mark.wide
@given(seed=st.integers(0, 5000), steps=st.sampled_from([None, 7]))
@settings(deadline=None, max_examples=50)
def test_every_rule_is_as_good_as_the_best_of_all_thresholds(seed, steps):
    positive, chances = labelled(seed, steps=steps)
    everything = np.concatenate([np.unique(chances), [1.1]])
    f1 = max(f1_score(positive, chances >= value, zero_division=0) for value in everything)
    both = [rates(positive, chances, value) for value in everything]
    value = choose_threshold(ThresholdRule("f1"), positive, chances).value
    assert f1_score(positive, chances >= value) == pytest.approx(f1)
    assert sum(
        rates(positive, chances, choose_threshold(ThresholdRule("youden"), positive, chances).value)
    ) == pytest.approx(max(map(sum, both)))
    found, left = rates(positive, chances, choose_threshold(ThresholdRule("sensitivity", 0.9), positive, chances).value)
    assert found >= 0.9
    assert left == pytest.approx(max(r for s, r in both if s >= 0.9))
    found, left = rates(positive, chances, choose_threshold(ThresholdRule("specificity", 0.9), positive, chances).value)
    assert left >= 0.9
    assert found == pytest.approx(max(s for s, r in both if r >= 0.9))

    def cost(value):
        answered = chances >= value
        return 5 * (~answered & positive).sum() + (answered & ~positive).sum()

    assert cost(choose_threshold(ThresholdRule("cost", 5), positive, chances).value) == min(map(cost, everything))


def test_the_points_are_those_of_the_roc_curve():
    positive, chances = labelled(1, steps=5)
    points = compute_roc_points(positive, chances)
    false, true, _ = roc_curve(positive, chances, drop_intermediate=False)
    np.testing.assert_allclose(points.sensitivity, true)
    np.testing.assert_allclose(1 - points.specificity, false)


def test_no_picture_lies_so_near_a_threshold_that_rounding_could_move_it():
    positive, chances = labelled(2)
    value = choose_threshold(ThresholdRule("youden"), positive, chances).value
    assert np.abs(chances - value).min() > 1e-7
    assert value not in chances


def test_a_label_with_few_pictures_is_answered_from_one_half_on_and_says_so():
    positive = np.arange(100) < 9
    found = choose_threshold(ThresholdRule("f1"), positive, np.linspace(0.4, 0, 100))
    assert (found.value, found.is_fitted) == (0.5, False)
    assert choose_threshold(ThresholdRule("half"), np.arange(100) < 50, np.linspace(0.4, 0, 100)).value == 0.5


def test_what_a_threshold_gives_is_told_with_intervals():
    found = evaluate_threshold(0.5, np.array([True, True, False, False]), np.array([0.9, 0.2, 0.5, 0.1]))
    assert (found.sensitivity, found.specificity) == (0.5, 0.5)
    assert found.sensitivity_interval.low < 0.5 < found.sensitivity_interval.high
    assert evaluate_threshold(0.5, np.zeros(3, bool), np.zeros(3)).sensitivity is None


@pytest.mark.parametrize("text", ["half", "f1", "youden", "sensitivity 0.95", "specificity 0.9", "cost 10"])
def test_rules_are_read_as_they_are_written(text):
    assert str(ThresholdRule.parse(text)) == text


def test_scores_of_exactly_one_can_be_left_unanswered():
    positive, chances = np.arange(40) < 20, np.ones(40)
    found = choose_threshold(ThresholdRule("specificity", 0.9), positive, chances)
    assert found.specificity == 1.0 and found.value > 1


@pytest.mark.parametrize(
    "text", ["", "best", "f1 0.5", "sensitivity", "sensitivity 95", "cost 0", "cost x", "cost nan"]
)
def test_other_rules_are_refused(text):
    with pytest.raises(UsageError, match="A rule for thresholds must be"):
        ThresholdRule.parse(text)
