"""Intervals against hand values, scipy and each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binom, binomtest, t

from vitrail.errors import UsageError
from vitrail.stats.intervals import (
    RARE_COUNT,
    bootstrap_counts,
    bootstrap_interval,
    bootstrap_samples,
    bounded_mean_intervals,
    effective_count,
    mean_of_rates_interval,
    proportion_interval,
    student_intervals,
    wilson_interval,
)


@given(n=st.integers(1, 3000), share=st.floats(0, 1), level=st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_is_scipys_score_interval(n, share, level):
    successes = round(share * n)
    raised = float(2 * ndtr(ndtri((1 + level) / 2) * (1 + 1 / n)) - 1)
    theirs, ours = binomtest(successes, n).proportion_ci(raised, method="wilson"), wilson_interval(successes, n, level)
    if min(successes, n - successes) > RARE_COUNT:
        assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.low <= theirs.low + 1e-9 and ours.high >= theirs.high - 1e-9


def test_wilson_gives_nearly_the_textbook_value():
    assert wilson_interval(600, 1000) == pytest.approx((0.5693, 0.6299), abs=2e-4)


@given(n=st.integers(1, 400), place=st.floats(0.0, 1.0))
def test_an_interval_holds_the_true_rate_in_93_of_100_studies(n, place):
    rate, counts = 0.5 * 1e-4 ** (1 - place), np.arange(n + 1)
    inside = np.array([low <= rate <= high for low, high in (wilson_interval(int(count), n) for count in counts)])
    assert binom.pmf(counts, n, rate)[inside].sum() > 0.925


def test_of_losses_of_0_and_1_the_interval_of_a_mean_is_clopper_and_pearsons():
    hits = (np.arange(60) < 4).astype(float)[:, None]
    theirs = binomtest(4, 60).proportion_ci(method="exact")
    (ours,) = bounded_mean_intervals(hits, [1.0], seed=0, samples=20_000)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.003)
    (grouped,) = bounded_mean_intervals(
        hits.repeat(4, 0), [1.0], seed=0, samples=20_000, groups=np.arange(60).repeat(4)
    )
    assert grouped == pytest.approx(ours, abs=1e-12)


def test_bootstrap_counts_are_those_of_drawn_rows_or_groups():
    cells, groups = np.array([0, 1, 1, 2, 2, 2]), np.array([0, 0, 1, 1, 2, 2])
    counts = bootstrap_counts(cells, 4, seed=1, samples=4000)
    assert (counts.sum(1) == 6).all() and counts.mean(0) == pytest.approx([1, 2, 3, 0], abs=0.05)
    grouped = bootstrap_counts(cells, 4, seed=1, samples=4000, groups=groups)
    assert grouped.mean(0) == pytest.approx([1, 2, 3, 0], abs=0.05)
    own = np.array([np.bincount(cells[groups == one], minlength=4) for one in range(3)])
    sums = {tuple((own[[a, b, c]].sum(0)).tolist()) for a in range(3) for b in range(3) for c in range(3)}
    assert {tuple(row) for row in grouped.tolist()} == sums


def test_wilson_ends_are_exact_and_no_pictures_mean_no_knowledge():
    assert wilson_interval(0, 50).low == 0.0
    assert wilson_interval(50, 50).high == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_wilson_names_the_two_numbers_that_do_not_fit():
    with pytest.raises(UsageError, match=r"Got successes=11, n=10\."):
        wilson_interval(11, 10)
    with pytest.raises(UsageError, match=r"Got 95"):
        wilson_interval(1, 10, level=95.0)


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(values, lambda v: float(v.mean()), seed=1, n=2000)
    reach = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.03)


def test_bootstrap_of_a_proportion_agrees_with_wilson():
    hits = np.repeat([True, False], [850, 150])
    assert bootstrap_interval(hits, lambda v: float(v.mean()), seed=3, n=2000) == pytest.approx(
        wilson_interval(850, 1000), abs=0.004
    )


def test_bootstrap_repeats_with_the_seed_and_moves_without_it():
    values = np.arange(30.0)
    once, again, other = (bootstrap_interval(values, lambda v: float(v.mean()), seed=s, n=50) for s in (5, 5, 6))
    assert once == again != other


def test_bootstrap_draws_whole_rows():
    rows = np.stack([np.arange(20), np.arange(20)], 1)
    assert bootstrap_interval(rows, lambda v: float((v[:, 0] - v[:, 1]).any()), seed=0, n=20) == (0.0, 0.0)


def test_bootstrap_leaves_out_samples_without_an_answer_and_refuses_when_none_has_one():
    rows = np.array([1.0, np.nan])
    assert bootstrap_interval(rows, lambda v: float(v.mean()), seed=0, n=40) == (1.0, 1.0)
    with pytest.raises(UsageError, match=r"not on any of 7\."):
        bootstrap_interval(rows, lambda v: float("nan"), seed=0, n=7)
    with pytest.raises(UsageError, match=r"Got 0 rows and n=1000\."):
        bootstrap_interval(np.zeros(0), lambda v: 0.0, seed=0)


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("people", [15, 50])
def test_V2_bootstrap_by_groups_covers_where_the_naive_one_fails(people):
    covered, sets = {"grouped": 0, "naive": 0}, {"grouped": 2000, "naive": 200}
    for seed in range(sets["grouped"]):
        generator = np.random.default_rng(seed)
        groups = np.repeat(np.arange(people), generator.integers(2, 7, people))
        values = generator.normal(0, 1, people)[groups] + generator.normal(0, 0.5, len(groups))
        for name, own in (("grouped", groups), ("naive", None)):
            if seed < sets[name]:
                low, high = bootstrap_interval(values, lambda v: float(v.mean()), seed, 300, groups=own)
                covered[name] += low <= 0 <= high
    assert 0.935 <= covered["grouped"] / sets["grouped"] <= 0.965
    assert covered["naive"] / sets["naive"] < 0.8


@pytest.mark.wide
def test_V2_bootstrap_of_few_numbers_covers_as_often_as_of_many():
    sets, covered = 2000, 0
    for seed in range(sets):
        values = np.random.default_rng(seed).normal(0, 1, 12)
        low, high = bootstrap_interval(values, lambda v: float(v.mean()), seed, 300)
        covered += low <= 0 <= high
    assert 0.935 <= covered / sets <= 0.965


def test_the_widened_bootstrap_is_the_t_interval_of_a_mean():
    values = np.random.default_rng(0).normal(3.0, 2.0, 14)
    low, high = bootstrap_interval(values, lambda v: float(v.mean()), seed=1, n=40_000)
    expected = t.interval(0.95, 13, values.mean(), values.std(ddof=1) / np.sqrt(14))
    assert (low, high) == pytest.approx(expected, abs=0.08)
    assert bootstrap_interval(np.ones(1), lambda v: float(v.mean()), seed=0, n=5) == (1.0, 1.0)


def test_bootstrap_draws_whole_groups_whatever_their_names():
    values = np.array([1.0, 2.0, 1.0, 2.0, 5.0])
    groups = np.array(["b", "a", "b", "a", "c"])
    seen = []
    bootstrap_interval(values, lambda v: seen.append(v) or 0.0, 0, 50, groups=groups)
    for drawn in seen:
        assert (drawn == 1).sum() % 2 == (drawn == 2).sum() % 2 == 0


def test_bootstrap_asks_for_a_group_of_every_row():
    with pytest.raises(UsageError, match=r"Got 3 rows and 2 groups\."):
        bootstrap_interval(np.arange(3), lambda v: 0.0, 0, 5, groups=np.arange(2))


def test_groups_count_as_images_if_all_of_a_group_are_alike():
    right = np.arange(60) >= 6
    assert proportion_interval(right) == wilson_interval(54, 60)
    assert proportion_interval(right, np.arange(60)) == wilson_interval(54, 60)
    assert proportion_interval(right.repeat(4), np.arange(60).repeat(4)) == pytest.approx(wilson_interval(54, 60))
    assert effective_count(np.repeat(np.arange(12), 80)) == pytest.approx(12)
    assert effective_count(np.array([0] * 30 + list(range(1, 31)))) == pytest.approx(60**2 / (30**2 + 30))
    assert proportion_interval(np.zeros(0, bool)) == (0.0, 1.0)


def test_one_error_in_many_pictures_of_few_groups_is_no_surer_than_none():
    groups, right = np.repeat(np.arange(12), 80), np.ones(960, bool)
    none = proportion_interval(right, groups)
    right[5] = False
    one = proportion_interval(right, groups)
    assert none == pytest.approx((0.727, 1.0), abs=1e-3) and one.low < none.low and one.high < 1


@pytest.mark.parametrize(("people", "size"), [(12, 20), (80, 5)])
@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_proportions_by_groups_cover_however_alike_the_images_of_a_group_are(people, size, alike):
    generator, covered, sets = np.random.default_rng(0), 0, 400
    for _ in range(sets):
        own = generator.random((people, size)) < 0.9
        shared = generator.random((people, 1)) < 0.9
        right = np.where(generator.random((people, size)) < np.sqrt(alike), shared, own)  # correlation `alike`
        low, high = proportion_interval(right.ravel(), np.repeat(np.arange(people), size))
        covered += low <= 0.9 <= high
    assert covered / sets >= 0.93


@pytest.mark.parametrize(
    ("counts", "rates"),
    [
        ((80, 15, 5), (0.9, 0.9, 0.9)),
        ((80, 15, 5), (0.97, 0.9, 0.6)),
        ((305, 36, 11, 7), (0.9, 0.9, 0.9, 0.9)),
        ((305, 36, 11, 7), (0.99, 0.99, 0.99, 0.7)),
        ((36,) * 10, (0.99,) * 10),
        ((12,) * 3, (0.99,) * 3),
    ],
)
def test_means_of_rates_cover_with_rare_classes_and_few_errors(counts, rates):
    generator, covered, sets = np.random.default_rng(1), 0, 600
    for _ in range(sets):
        found = [float(generator.binomial(n, rate) / n) for n, rate in zip(counts, rates, strict=True)]
        low, high = mean_of_rates_interval([(rate, float(n)) for rate, n in zip(found, counts, strict=True)])
        covered += low <= np.mean(rates) <= high
    assert covered / sets >= 0.93


def test_the_mean_of_equal_classes_is_as_sure_as_the_rate_of_all():
    low, high = mean_of_rates_interval([(1.0, 36.0)] * 9 + [(35 / 36, 36.0)])
    assert (low, high) == pytest.approx(wilson_interval(359, 360), abs=0.003)


def test_the_deviation_of_bootstrap_samples_and_student_s_t_are_the_interval_of_a_mean():
    values = np.random.default_rng(0).normal(3, 1, 8)
    samples = bootstrap_samples(values, lambda rows: np.array([rows.mean()]), 0, 20_000)
    (span,) = student_intervals(values.mean()[None], samples, np.array([7.0]), np.array([False]))
    expected = t.interval(0.95, 7, values.mean(), values.std(ddof=1) / np.sqrt(8))
    assert span == pytest.approx(expected, rel=0.01)


def test_shares_stay_between_0_and_1_and_what_nothing_tells_of_has_no_interval():
    values = np.array([0.0, 1.0, 0.98, 0.5, np.nan, 0.5])
    samples = np.tile(values, (4, 1))
    samples[:, 2], samples[0, 3] = [0.8, 1.0, 0.9, 1.0], np.nan
    freedom = np.array([4.0, 4.0, 1.0, 4.0, 4.0, 0.0])
    found = student_intervals(values, samples, freedom, np.ones(6, bool))
    assert found[:2] == [(0, 0), (1, 1)] and found[4:] == [None, None]
    assert found[2] is not None and 0 <= found[2].low < 0.3 and found[2].high == 1
    assert found[3] == pytest.approx((0.5, 0.5))
