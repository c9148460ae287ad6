"""ROC, precision-recall, decision and cost curves, against scikit-learn or a slow formula; bands by simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import binomtest
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from scripts import script
from vitrail.evaluate import threshold_curves as curves
from vitrail.evaluate.calibration import calibration_intercept
from vitrail.evaluate.threshold_curves import CurveSample
from vitrail.stats.intervals import wilson_interval
from vitrail.stats.predictive import Rate, likelihood_ratios, predictive_values

coverage = script("curve_coverage")
CELL = coverage.Cell(200, 0.3, 1.5, "none")


def drawn(seed: int = 0, cell=CELL, digits: int = 9) -> CurveSample:
    sample = cell.draw(np.random.default_rng(seed))
    return replace(sample, scores=sample.scores.round(digits))


@pytest.mark.parametrize("digits", [9, 1])  # without ties and with many
def test_the_curve_is_that_of_scikit_learn(digits):
    sample = drawn(digits=digits)
    x, y, _ = roc_curve(sample.positive, sample.scores, drop_intermediate=False)
    tops = np.array([y[x == place].max() for place in x])
    assert curves.roc_band(sample, x).y == pytest.approx(tops, abs=1e-9)
    fine = np.linspace(0, 1, 20001)
    assert auc(fine, curves.roc_band(sample, fine).y) == pytest.approx(auc(x, y), abs=1e-4)


def test_a_curve_ends_at_its_corners_whichever_kind_has_the_lowest_score():
    for positive in ([True, False, False, True], [False, True, True, False]):
        sample = CurveSample(np.array(positive), np.array([0.1, 0.2, 0.3, 0.4]))
        assert curves.roc_band(sample, np.array([0.0, 1.0])).y.tolist() == [0.5 * positive[3], 1.0]


@pytest.mark.parametrize("digits", [9, 1])
def test_precision_at_each_recall_is_that_of_scikit_learn(digits):
    sample = drawn(digits=digits)
    precision, recall, _ = precision_recall_curve(sample.positive, sample.scores)
    places = np.unique(recall[recall > 0])
    best = [precision[recall == place].max() for place in places]
    assert curves.precision_recall_band(sample, places).y == pytest.approx(best, abs=1e-9)


def test_sensitivity_at_a_specificity_and_back_are_places_of_the_curve():
    sample = drawn()
    assert curves.sensitivity_at(sample, 0.9) == _rate_at(curves.roc_band(sample, np.array([1 - 0.9])))
    x, y, _ = roc_curve(sample.positive, sample.scores, drop_intermediate=False)
    assert curves.specificity_at(sample, y[40]).value == pytest.approx(1 - x[y == y[40]].min(), abs=1e-9)


def _rate_at(band) -> Rate:
    return Rate(band.y[0], curves.Interval(band.low[0], band.high[0]))


@pytest.mark.parametrize("grouping", ["none", "image", "group"])
def test_the_simultaneous_band_is_the_hull_of_the_rectangles_of_all_thresholds(grouping):
    sample = drawn(cell=CELL._replace(grouping=grouping))
    points, (positives, negatives, _) = sample.points(), sample.counts()
    boxes = [
        curves._joint_interval(*pair) for pair in ((1 - points.specificity, negatives), (points.sensitivity, positives))
    ]
    (f_low, f_high), (t_low, t_high) = boxes
    band = curves.roc_band(sample, coverage.GRID)
    for index, place in enumerate(coverage.GRID):
        fits = (f_low <= place) & (place <= f_high)
        assert (t_low[fits].min(), t_high[fits].max()) == pytest.approx((band.all_low[index], band.all_high[index]))
    inner = (coverage.GRID > 0.02) & (coverage.GRID < 0.98)
    assert (band.all_low <= band.y).all() and (band.y <= band.all_high).all()
    assert (band.all_low[inner] <= band.low[inner] + 0.02).all()


def test_intervals_of_many_shares_are_those_of_one():
    shares = np.arange(11) / 10
    low, high = curves._wilson(shares, 10)
    assert list(zip(low, high, strict=True)) == [pytest.approx(wilson_interval(k, 10)) for k in range(11)]
    low, high = curves._exact_interval(shares, 10, 0.05)
    exact = [binomtest(k, 10).proportion_ci(0.95, method="exact") for k in range(11)]
    assert list(zip(low, high, strict=True)) == [pytest.approx((one.low, one.high)) for one in exact]


def test_the_levels_of_the_simultaneous_band_are_those_that_a_simulation_gives():
    for n, level in curves.EQUAL_LEVELS[:4]:
        assert coverage.equal_levels(n, 6000) == pytest.approx(level, rel=0.2)


# -- Net benefit

# A hundred pictures of which twenty have the label. At a probability of 25 % or more, fifteen of these and ten of the
# others are acted on: 15/100 - 10/100 * 0.25/0.75 = 0.15 - 0.0333 = 0.1167. Acting on all: 0.20 - 0.80/3 = -0.0667.
WORKED = CurveSample(
    np.repeat([True, True, False, False], [15, 5, 10, 70]), np.repeat([0.6, 0.1, 0.4, 0.05], [15, 5, 10, 70])
)


def test_net_benefit_of_an_example_that_is_worked_by_hand():
    decided = curves.decision_curve(WORKED, [0.25])
    assert decided.model.y[0] == pytest.approx(0.15 - 0.1 / 3)
    assert decided.act_on_all[0] == pytest.approx(0.2 - 0.8 / 3)
    assert decided.gain.y[0] == pytest.approx(0.15 - 0.1 / 3 - (0.2 - 0.8 / 3))


def test_net_benefit_is_that_of_a_published_example():
    """The 750 patients of the tutorial of R's `dcurves` (Sjoberg, Vickers): 105 have cancer, 24 of them and 91 of the
    others a family history; its own figures of acting on a family history and of acting on all."""
    positive = np.repeat([True, True, False, False], [24, 81, 91, 554])
    family_history = np.repeat([1.0, 0.0, 1.0, 0.0], [24, 81, 91, 554])
    decided = curves.decision_curve(CurveSample(positive, family_history), [0.05, 0.1, 0.2, 0.3])
    assert decided.prevalence == 0.14
    published = [0.025614035087719297, 0.018518518518518517, 0.0016666666666666635, -0.02000000000000001]
    assert decided.model.y == pytest.approx(published, abs=1e-12)
    on_all = [0.09473684210526317, 0.04444444444444445, -0.07499999999999998, -0.2285714285714286]
    assert decided.act_on_all == pytest.approx(on_all, abs=1e-12)


def test_net_benefit_is_that_of_a_slow_loop():
    sample, n = drawn(), CELL.n
    decided = curves.decision_curve(sample)
    for index, threshold in enumerate(curves.DECISION_THRESHOLDS):
        hits = sum(bool(p >= threshold and y) for p, y in zip(sample.scores, sample.positive, strict=True))
        alarms = sum(bool(p >= threshold and not y) for p, y in zip(sample.scores, sample.positive, strict=True))
        assert decided.model.y[index] == pytest.approx(hits / n - alarms / n * threshold / (1 - threshold))
        on_all = sample.positive.mean() - (~sample.positive).mean() * threshold / (1 - threshold)
        assert decided.act_on_all[index] == pytest.approx(on_all)
        assert decided.gain.y[index] == pytest.approx(decided.model.y[index] - on_all)


def test_the_range_where_a_model_helps_is_where_it_beats_all_and_none():
    decided = curves.decision_curve(WORKED)
    # from 0.06 on the seventy are left alone; up to 0.59 the fifteen are worth more than the ten, beyond 0.6 none is
    assert decided.helpful_ranges() == [(0.06, 0.6)]
    more = CurveSample(WORKED.positive.repeat(20), WORKED.scores.repeat(20))
    (certain,) = curves.decision_curve(more).helpful_ranges(certain=True)
    assert 0.06 <= certain[0] < certain[1] <= 0.6


def test_a_model_of_noise_is_shown_to_help_nowhere():
    generator, found = np.random.default_rng(0), 0
    for _ in range(100):
        positive = generator.random(300) < 0.3
        found += bool(curves.decision_curve(CurveSample(positive, generator.random(300))).helpful_ranges(certain=True))
    assert found <= 5


# -- Cost, likelihood ratios, recalibration


def test_cost_is_the_weighted_error_of_the_threshold_that_the_other_images_choose():
    sample, basis = drawn(0), drawn(1)
    band = curves.cost_curve(sample, basis)

    def cost(one: CurveSample, threshold: float, x: float) -> float:
        called = one.scores >= threshold
        return float(x * (~called[one.positive]).mean() + (1 - x) * called[~one.positive].mean())

    for index in (4, 24, 40):
        x = band.x[index]
        cheapest = min(basis.points().thresholds, key=lambda value: cost(basis, value, x))
        tied = [v for v in basis.points().thresholds if cost(basis, v, x) <= cost(basis, cheapest, x) + 1e-9]
        assert band.y[index] in [pytest.approx(cost(sample, value, x)) for value in tied]
        assert band.low[index] <= band.y[index] <= band.high[index]


def test_likelihood_ratios_are_what_a_prediction_multiplies_the_odds_by():
    rates = [Rate(share, wilson_interval(round(share * n), n)) for share, n in ((0.8, 50), (0.9, 200))]
    ratios, values = likelihood_ratios(*rates), predictive_values(*rates, prevalence=0.2)
    assert ratios.positive.value == pytest.approx(0.8 / 0.1) and ratios.negative.value == pytest.approx(0.2 / 0.9)
    for pair in ((ratios.positive, values.positive), (ratios.negative, values.negative)):
        odds = [0.25 * share for share in (pair[0].value, *pair[0].interval)]
        after = [share / (1 - share) for share in (pair[1].value, *pair[1].interval)]
        if pair[1] is values.negative:
            after = [1 / after[0], 1 / after[2], 1 / after[1]]
        assert odds == pytest.approx(after)


def test_the_intercept_is_that_of_the_likeliest_shift_of_the_log_odds():
    sample = drawn()
    wrong = expit(logit(sample.scores) + 0.7)

    def loss(shift: np.ndarray) -> float:
        rates = expit(logit(wrong) + shift[0])
        return float(-np.log(np.where(sample.positive, rates, 1 - rates)).sum())

    found = calibration_intercept(wrong, sample.positive)
    assert found.value == pytest.approx(minimize(loss, [0.0]).x[0], abs=1e-4)
    assert found.interval.low < -0.7 < found.interval.high


# -- What cannot be drawn, and what the bands cover


def test_too_few_images_or_groups_get_a_sentence():
    sample = drawn()
    assert sample.unsupported_reason("rust") == ""
    none = replace(sample, positive=np.zeros(CELL.n, bool))
    assert "10 pictures with rust and 10 without it; there are 0 and 200" in none.unsupported_reason("rust")
    three = replace(sample, groups=np.arange(CELL.n) % 3)
    assert "rust come from 3 groups and those without it from 3" in three.unsupported_reason("rust")


@pytest.mark.parametrize("cell", [CELL._replace(n=50, prevalence=0.5), CELL._replace(grouping="image")])
def test_a_slice_of_the_simulation_covers(cell):
    found = coverage.simulate(cell, studies=60)
    rare = {name: 3 * (0.95 * 0.05 / one["shown"]) ** 0.5 for name, one in found.items()}  # by chance
    assert {name: one for name, one in found.items() if one["mean"] < 0.95 - rare[name]} == {}


def test_every_place_of_the_simulation_that_shows_an_interval_covers():
    rows, low = coverage.Results("curve-coverage").rows, []
    cells = {(row["part"], *(row[key] for key in coverage.Cell._fields)) for row in rows}
    assert cells == {(part, *cell) for part in coverage.PARTS for cell in coverage.CELLS}
    for row in rows:
        for name, one in coverage.shown_intervals(row["coverage"], row["studies"]).items():
            deviation = (0.95 * 0.05 / one["shown"]) ** 0.5  # of what chance adds to this many studies
            if one["worst"] < 0.93 - 2 * deviation:
                low.append((*(row[key] for key in coverage.Cell._fields), name, one["worst"]))
    assert low == []
