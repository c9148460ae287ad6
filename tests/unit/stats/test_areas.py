"""Areas under the ROC curve: against the quadratic definition, against groups drawn whole, and in simulations."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from vitrail.errors import UsageError
from vitrail.stats.auc import RocAuc, mean_roc_auc, roc_auc_difference, roc_auc_with_influence


def drawn(seed, n=60, scores=1, values=None):
    """Pictures with scores, tied ones if only a few values are allowed."""
    generator = np.random.default_rng(seed)
    positive = generator.random(n) < 0.4
    positive[:4] = [True, False, True, False]
    found = generator.normal(positive * 0.8, 1, (scores, n))
    return positive, found if values is None else np.round(found * values) / values


def by_pairs(positive, scores):
    """DeLong's areas and covariance from all pairs of a positive and a negative, as their paper writes them."""
    wins = []
    for row in scores:
        ups, downs = row[positive][:, None], row[~positive]
        wins.append((ups > downs) + 0.5 * (ups == downs))
    P, N = wins[0].shape
    first = np.cov([each.mean(1) for each in wins]) / P
    second = np.cov([each.mean(0) for each in wins]) / N
    return np.array([each.mean() for each in wins]), np.atleast_2d(first + second)


def variance(one: RocAuc) -> float:
    return float(np.square(one.influence).sum())


@given(seed=st.integers(0, 10_000), values=st.sampled_from([None, 1, 3]))
@settings(deadline=None)
def test_areas_and_covariance_are_those_of_all_pairs(seed, values):
    positive, scores = drawn(seed, scores=3, values=values)
    expected, covariance = by_pairs(positive, scores)
    ours = [roc_auc_with_influence(positive, row) for row in scores]
    np.testing.assert_allclose([one.value for one in ours], expected, atol=1e-12)
    products = [[float(one.influence @ other.influence) for other in ours] for one in ours]
    np.testing.assert_allclose(products, covariance, atol=1e-10)
    np.testing.assert_allclose(expected, [roc_auc_score(positive, row) for row in scores], atol=1e-12)
    assert variance(mean_roc_auc(ours)) == pytest.approx(covariance.mean(), abs=1e-10)


def test_pictures_that_are_not_known_count_for_nothing():
    positive, (scores,) = drawn(2, n=90)
    known = np.random.default_rng(0).random(90) < 0.7
    whole, part = (
        roc_auc_with_influence(positive, scores, known),
        roc_auc_with_influence(positive[known], scores[known]),
    )
    assert whole.value == pytest.approx(part.value)
    assert variance(whole) == pytest.approx(variance(part))
    assert not whole.influence[~known].any()


def test_a_group_for_each_picture_changes_nothing():
    positive, (scores,) = drawn(3)
    alone, grouped = (
        roc_auc_with_influence(positive, scores),
        roc_auc_with_influence(positive, scores, groups=np.arange(len(positive))),
    )
    np.testing.assert_allclose(grouped.influence, alone.influence, atol=1e-15)
    assert grouped.interval() == alone.interval()


def test_every_picture_three_times_tells_no_more_than_once():
    positive, (scores,) = drawn(4, n=200)
    once, names = roc_auc_with_influence(positive, scores), np.tile(np.arange(200).astype(str), 3)
    thrice = roc_auc_with_influence(np.tile(positive, 3), np.tile(scores, 3), groups=names)
    naive = roc_auc_with_influence(np.tile(positive, 3), np.tile(scores, 3))
    assert variance(thrice) == pytest.approx(variance(once))
    assert variance(naive) < 0.36 * variance(once)


@pytest.mark.wide
@pytest.mark.parametrize("hard", [0.0, 0.2])
def test_groups_that_hold_both_kinds_are_covered(hard):
    def drawn_groups(seed: int, people: int) -> RocAuc:
        generator = np.random.default_rng(seed)
        groups = np.repeat(np.arange(people), 4)
        person, poor = generator.normal(0, 1, people)[groups], (generator.random(people) < hard)[groups]
        positive = generator.random(len(groups)) < 0.35
        scores = np.where(poor, 0, 1.5 * positive) + person + generator.normal(0, 0.7, len(groups))
        return roc_auc_with_influence(positive, scores, groups=groups)

    truth = drawn_groups(10_000, 40_000).value
    intervals = [drawn_groups(seed, 60).interval() for seed in range(150)]
    assert np.mean([low <= truth <= high for low, high in intervals]) >= 0.95


def test_the_mean_area_of_labels_is_no_surer_for_one_error():
    present = np.random.default_rng(3).random((200, 4)) < 0.3
    scores = present + 0.001 * np.arange(200)[:, None]
    worse = scores.copy()
    worse[np.flatnonzero(present[:, 0])[0], 0] = 0.1
    none, one = (
        mean_roc_auc([roc_auc_with_influence(present[:, k], each[:, k]) for k in range(4)]) for each in (scores, worse)
    )
    assert one.value < none.value == 1 and one.interval().low < none.interval().low
    apart = [np.arange(200) // 50 == k for k in range(4)]  # labels without a common image: surer than one alone
    mean = mean_roc_auc([roc_auc_with_influence(own, own.astype(float)) for own in apart]).interval()
    assert mean.low > roc_auc_with_influence(apart[0], apart[0].astype(float)).interval().low


@pytest.mark.wide
@pytest.mark.parametrize("shift", [0.3, 1.2])
def test_V2_intervals_cover_the_true_area(shift):
    truth, covered, sets = NormalDist().cdf(shift / np.sqrt(2)), 0, 2000
    for seed in range(sets):
        positive = np.arange(120) < 40
        low, high = roc_auc_with_influence(positive, np.random.default_rng(seed).normal(positive * shift, 1)).interval()
        covered += low <= truth <= high
    assert 0.935 <= covered / sets <= 0.965


@pytest.mark.wide
def test_V2_intervals_by_groups_cover_where_naive_ones_do_not():
    truth, sets = NormalDist().cdf(1 / np.sqrt(2)), 2000
    covered = {"grouped": 0, "naive": 0}
    for seed in range(sets):
        generator = np.random.default_rng(seed)
        positive = np.repeat(generator.random(80) < 0.4, 5)
        scores = positive + np.repeat(generator.normal(0, 0.9, 80), 5) + generator.normal(0, np.sqrt(0.19), 400)
        for name, groups in (("grouped", np.repeat(np.arange(80), 5)), ("naive", None)):
            low, high = roc_auc_with_influence(positive, scores, groups=groups).interval()
            covered[name] += low <= truth <= high
    assert 0.935 <= covered["grouped"] / sets <= 0.98  # images of a group count as if they were wholly alike
    assert covered["naive"] / sets < 0.75


@pytest.mark.wide
def test_V13_two_equal_models_are_told_apart_in_five_of_a_hundred_cases():
    sets, told = 4000, 0
    for seed in range(sets):
        generator = np.random.default_rng(seed)
        positive = np.arange(150) < 60
        shared = positive + generator.normal(0, 0.7, 150)
        first, second = (roc_auc_with_influence(positive, shared + generator.normal(0, 0.7, 150)) for _ in range(2))
        told += roc_auc_difference(first, second)[2] < 0.05
    assert 0.04 <= told / sets <= 0.06


def test_the_difference_of_a_model_to_itself_is_nothing():
    positive, (scores,) = drawn(5)
    one = roc_auc_with_influence(positive, scores)
    assert roc_auc_difference(one, one) == (0.0, (0.0, 0.0), 1.0)


def test_perfect_and_hopeless_scores_still_have_an_interval():
    positive = np.arange(30) < 10
    perfect, hopeless = (
        roc_auc_with_influence(positive, positive.astype(float)).interval(),
        roc_auc_with_influence(positive, -1.0 * positive).interval(),
    )
    assert perfect.high == 1.0
    assert 0.8 < perfect.low < 0.95
    assert hopeless == pytest.approx((0.0, 1 - perfect.low))
    wide = roc_auc_with_influence(np.arange(3) < 1, np.array([2.0, 1.0, 3.0])).interval()
    assert wide.low < 0.1 and wide.high > 0.9


def test_scores_that_are_all_equal_are_worth_a_guess():
    found = roc_auc_with_influence(np.arange(20) < 8, np.ones(20))
    assert found.value == 0.5 and found.interval().low < 0.35 < 0.65 < found.interval().high


def test_a_mean_with_an_area_of_one_picture_is_as_uncertain_as_the_others():
    positive, scores = drawn(6, n=300, scores=2)
    lone = roc_auc_with_influence(np.arange(300) == 7, scores[0])
    both = mean_roc_auc([roc_auc_with_influence(positive, scores[0]), lone])
    assert both.value == pytest.approx((roc_auc_with_influence(positive, scores[0]).value + lone.value) / 2)
    assert variance(both) == pytest.approx(variance(roc_auc_with_influence(positive, scores[0])))


def test_one_kind_and_nan_are_refused():
    with pytest.raises(UsageError, match=r"Got 4 with it of 4\."):
        roc_auc_with_influence(np.ones(4, bool), np.zeros(4))
    with pytest.raises(UsageError, match=r"Got 1 that are not\."):
        roc_auc_with_influence(np.arange(3) < 1, np.array([1.0, np.nan, 0.0]))


def test_few_positives_are_covered():
    covered, sets = 0, 400
    truth = NormalDist().cdf(1.8 / np.sqrt(2))
    for seed in range(sets):
        positive = np.arange(108) < 8
        low, high = roc_auc_with_influence(positive, np.random.default_rng(seed).normal(1.8 * positive, 1)).interval()
        covered += low <= truth <= high
    assert 0.93 <= covered / sets <= 0.99  # DeLong's on the logit scale: 0.89


def test_the_mean_of_ten_perfect_classes_is_surer_than_the_rarest_of_them():
    positive = [np.arange(359) % 40 == 0, *(np.arange(359) % 9 == k for k in range(9))]
    areas = [roc_auc_with_influence(one, one.astype(float)) for one in positive]
    rarest, mean = areas[0].interval(), mean_roc_auc(areas, exclusive=True).interval()
    assert mean.high == 1.0 and rarest.low < 0.9 < 0.98 < mean.low
    two = mean_roc_auc([areas[0], areas[0]], exclusive=True)  # of two classes both areas are the same
    assert two.interval() == pytest.approx(rarest)


@pytest.mark.first(1)
@pytest.mark.parametrize("spread", [1.0, 2.5])
def test_the_mean_area_of_classes_is_covered(spread):
    K, n, covered, sets = 10, 359, 0, 100

    def drawn_classes(seed: int, n: int) -> RocAuc:
        generator = np.random.default_rng(seed)
        targets = generator.integers(0, K, n)
        scores = generator.normal(0, 1, (n, K)) + spread * np.eye(K)[targets]
        scores = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        return mean_roc_auc([roc_auc_with_influence(targets == k, scores[:, k]) for k in range(K)], exclusive=True)

    truth = drawn_classes(10_000, 20_000).value
    for seed in range(sets):
        low, high = drawn_classes(seed, n).interval()
        covered += low <= truth <= high
    assert covered / sets >= 0.93
