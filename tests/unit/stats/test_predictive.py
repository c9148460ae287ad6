"""What answers are worth at a prevalence: Bayes by hand, the ends of rates, and intervals that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import UsageError
from vitrail.stats.intervals import wilson_interval
from vitrail.stats.predictive import Rate, predictive_values


def rate(right: int, n: int) -> Rate:
    return Rate(right / n, wilson_interval(right, n))


def test_values_are_bayes_by_hand():
    found = predictive_values(rate(80, 100), rate(180, 200), 0.1)
    assert found.positive is not None and found.negative is not None
    assert found.positive.value == pytest.approx(0.8 * 0.1 / (0.8 * 0.1 + 0.1 * 0.9))
    assert found.negative.value == pytest.approx(0.9 * 0.9 / (0.9 * 0.9 + 0.2 * 0.1))


def test_at_their_own_prevalence_they_are_the_shares_of_right_answers():
    found = predictive_values(rate(30, 40), rate(150, 160), 40 / 200)
    assert found.positive is not None and found.positive.value == pytest.approx(30 / 40)
    assert found.negative is not None and found.negative.value == pytest.approx(150 / 160)


@pytest.mark.parametrize("positives", [5, 40])
@pytest.mark.parametrize("negatives", [5, 90])
def test_a_value_lies_in_its_interval_and_the_interval_in_0_to_1_also_at_the_ends(positives, negatives):
    for found in range(positives + 1):
        for left in range(0, negatives + 1, 5):
            both = predictive_values(rate(found, positives), rate(left, negatives), 0.3)
            for one in both:
                assert one is None or 0 <= one.interval.low <= one.value <= one.interval.high <= 1


def test_no_false_alarm_makes_positive_answers_right_and_still_not_certain():
    found = predictive_values(rate(45, 50), rate(100, 100), 0.05).positive
    assert found is not None and found.value == found.interval.high == 1
    assert 0.4 < found.interval.low < 0.8


def test_an_answer_that_is_never_given_is_worth_nothing_that_can_be_told():
    assert predictive_values(rate(0, 10), rate(20, 20), 0.5).positive is None
    assert predictive_values(rate(10, 10), rate(0, 20), 0.5).negative is None


@pytest.mark.parametrize(("sensitivity", "specificity", "n"), [(0.8, 0.9, 60), (0.95, 0.98, 200), (0.5, 0.7, 100)])
def test_intervals_hold_the_truth_in_about_95_of_100_samples(sensitivity, specificity, n):
    generator, prevalence, draws = np.random.default_rng(0), 0.2, 1500
    top, bottom = sensitivity * prevalence, (1 - specificity) * (1 - prevalence)
    truth = (top / (top + bottom), specificity * 0.8 / (specificity * 0.8 + (1 - sensitivity) * 0.2))
    held = np.zeros(2)
    for found, left in zip(
        generator.binomial(n, sensitivity, draws), generator.binomial(3 * n, specificity, draws), strict=True
    ):
        both = predictive_values(rate(int(found), n), rate(int(left), 3 * n), prevalence)
        pairs = zip(both, truth, strict=True)
        held += [one is not None and one.interval.low <= true <= one.interval.high for one, true in pairs]
    assert (held / draws >= 0.93).all() and (held / draws <= 0.98).all(), held / draws


@pytest.mark.parametrize("prevalence", [0.0, 1.0, 1.5, -0.1])
def test_a_prevalence_at_or_beyond_the_ends_is_refused(prevalence):
    with pytest.raises(UsageError, match=rf"between 0 and 1, for example 0\.05\. Got {prevalence}"):
        predictive_values(rate(1, 2), rate(1, 2), prevalence)
