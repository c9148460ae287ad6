"""Every figure of numbers against scikit-learn and scipy; what is unknown is left out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from unit.evaluate.test_regression_predictions import NAN, table
from vitrail.config import read
from vitrail.errors import DataError
from vitrail.evaluate.predictions import RegressionPredictions
from vitrail.evaluate.regression_metrics import RegressionMetrics, compute_regression_metrics


def drawn(n: int = 300, seed: int = 0) -> RegressionPredictions:
    generator = np.random.default_rng(seed)
    targets = generator.normal([40, 70], [10, 15], (n, 2)).round(0)  # with ties
    values = targets + generator.normal(0, [5, 30], (n, 2))
    targets[generator.random((n, 2)) < 0.2] = np.nan
    return table(targets, values)


def test_V1_every_figure_is_scikit_learns_or_scipys_over_the_known_pictures():
    given = drawn()
    found = compute_regression_metrics(given, (41.0, 69.0), samples=50)
    assert given.targets is not None
    for k, one in enumerate(found.per_column):
        known = ~np.isnan(given.targets[:, k])
        t, v = given.targets[known, k].astype(np.float64), given.values[known, k].astype(np.float64)
        always = np.full(len(t), (41.0, 69.0)[k])
        assert (one.name, one.n) == (given.columns[k], known.sum())
        assert one.mae == pytest.approx(sk.mean_absolute_error(t, v), abs=1e-12)
        assert one.rmse == pytest.approx(sk.root_mean_squared_error(t, v), abs=1e-12)
        assert one.r2 == pytest.approx(sk.r2_score(t, v), abs=1e-12)
        assert one.spearman == pytest.approx(stats.spearmanr(t, v).statistic, abs=1e-12)
        assert one.constant_mae == pytest.approx(sk.mean_absolute_error(t, always), abs=1e-12)
        assert one.constant_rmse == pytest.approx(sk.root_mean_squared_error(t, always), abs=1e-12)
        for figure, interval in (
            (one.mae, one.mae_interval), (one.rmse, one.rmse_interval), (one.r2, one.r2_interval),
            (one.spearman, one.spearman_interval),
        ):  # fmt: skip
            assert figure is not None and interval is not None and interval[0] < figure < interval[1]
    assert found.r2 == pytest.approx(np.mean([one.r2 for one in found.per_column]))


def test_differences_have_their_mean_and_limits_of_agreement():
    truth = np.arange(500.0)
    gaps = np.random.default_rng(0).normal(2.0, 3.0, 500).round(1)
    (one,) = compute_regression_metrics(table(truth, truth + gaps, ("age",)), samples=100).per_column
    assert one.bias == pytest.approx(gaps.mean(), abs=1e-4) and one.bias_interval[0] < 2 < one.bias_interval[1]
    assert one.agreement == pytest.approx(
        (gaps.mean() - 1.96 * gaps.std(ddof=1), gaps.mean() + 1.96 * gaps.std(ddof=1))
    )
    assert np.mean((gaps > one.agreement[0]) & (gaps < one.agreement[1])) == pytest.approx(0.95, abs=0.02)


def test_pictures_of_one_patient_make_wider_intervals():
    truth = np.random.default_rng(1).normal(size=200)
    given = table(truth.repeat(4), (truth + np.random.default_rng(2).normal(size=200)).repeat(4), ("age",))
    (naive,) = compute_regression_metrics(given, samples=300).per_column
    (grouped,) = compute_regression_metrics(given, None, np.arange(200).repeat(4), samples=300).per_column
    for name in ("mae", "rmse", "r2", "spearman", "bias"):
        (low, high), (wide_low, wide_high) = (getattr(one, f"{name}_interval") for one in (naive, grouped))
        assert 1.5 < (wide_high - wide_low) / (high - low) < 2.5


@pytest.mark.parametrize(("units", "shown", "sentence"), [
    (7, (), "no interval is known from 7 groups"),
    (8, ("mae", "spearman", "bias"), "no interval of RMSE, R2 and the limits is known from 8 groups"),
    (20, ("mae", "rmse", "r2", "spearman", "bias", "agreement"), ""),
])  # fmt: skip
def test_few_groups_have_no_interval_of_figures_that_one_error_may_decide(units, shown, sentence):
    truth, gaps = np.random.default_rng(1).normal(size=(2, 2 * units))
    found = compute_regression_metrics(table(truth, truth + gaps, ("age",)), None, np.arange(2 * units) // 2)
    (one,) = found.per_column
    names = ("mae", "rmse", "r2", "spearman", "bias")
    kept = [name for name in names if getattr(one, f"{name}_interval") is not None]
    assert (*kept, *(("agreement",) if one.agreement_intervals else ())) == shown
    assert sentence in found.table() and ("interval" in found.table()) == bool(sentence)


def test_intervals_of_normal_errors_are_those_of_the_books():
    """Student's t for a mean and chi-squared for a deviation, which are exact for normal errors."""
    n, truth = 2000, np.random.default_rng(0).normal(size=2000)
    gaps = np.random.default_rng(3).normal(1.0, 2.0, n)
    (one,) = compute_regression_metrics(table(truth, truth + gaps, ("age",))).per_column
    gaps = np.float32(truth + gaps).astype(float) - np.float32(truth)
    assert one.bias_interval == pytest.approx(stats.t.interval(0.95, n - 1, gaps.mean(), stats.sem(gaps)), abs=0.02)
    error = gaps.std(ddof=1) * (1 / n + 1.96**2 / (2 * (n - 1))) ** 0.5  # Bland and Altman 1999
    for limit, interval in zip(one.agreement, one.agreement_intervals, strict=True):
        assert interval == pytest.approx((limit - 1.96 * error, limit + 1.96 * error), abs=0.04)
    assert one.rmse_interval[1] / one.rmse_interval[0] == pytest.approx(1.057, abs=0.02)


def test_the_interval_of_a_rank_correlation_is_the_jackknifes():
    generator, z = np.random.default_rng(2), np.arctanh
    x = generator.normal(size=300).round(1)  # with ties
    y = (x + generator.normal(size=300)).round(1)
    found = np.tanh(np.array(z(stats.spearmanr(x, y).statistic)))
    left_out = [z(stats.spearmanr(np.delete(x, k), np.delete(y, k)).statistic) for k in range(300)]
    error = np.std(left_out) * 299 / 300**0.5
    (one,) = compute_regression_metrics(table(x, y, ("a",)), samples=5).per_column
    reach = stats.t.ppf(0.975, 299) * (1 + 4 / 300) * error
    assert one.spearman_interval == pytest.approx((np.tanh(z(found) - reach), np.tanh(z(found) + reach)), abs=0.01)


def test_what_has_no_variance_has_no_r2_and_equal_answers_no_rank_correlation():
    (one,) = compute_regression_metrics(table([5, 5, 5], [4, 5, 6], ("a",)), samples=5).per_column
    assert (one.mae, one.r2, one.r2_interval, one.spearman) == (pytest.approx(2 / 3), None, None, None)
    (one,) = compute_regression_metrics(table([4, 5, 6], [5, 5, 5], ("a",)), samples=5).per_column
    assert one.spearman is None and one.r2 == pytest.approx(0)


def test_a_column_of_which_nothing_is_known_has_no_figures():
    found = compute_regression_metrics(table([[1, NAN], [2, NAN]], [[1, 1], [2, 2]]), (0.0, 0.0), samples=5)
    assert (found.per_column[1].n, found.per_column[1].mae) == (0, None) and found.r2 == 1
    assert "weight, kg -" in found.headline()


def test_the_headline_names_the_error_its_interval_and_the_constant():
    found = compute_regression_metrics(table([1, 2, 3, 4] * 5, [1, 2, 3, 5] * 5, ("age",)), (2.5,), samples=50)
    low, high = found.per_column[0].mae_interval
    assert found.headline() == (
        f"Mean absolute error of age on 20 held-out pictures (test): 0.25 (95 % interval {low:.4g} to {high:.4g}, "
        "always saying 2.5 gives 1); R2 0.800"
    )
    few = compute_regression_metrics(table([1, 2, 3, 4], [1, 2, 3, 5], ("age",)), (2.5,))
    assert few.headline().endswith(": 0.25 (no interval, always saying 2.5 gives 1); R2 0.800")
    several = compute_regression_metrics(drawn(), samples=5).headline()
    assert several.startswith("R2 ") and "(mean of 2 columns) on 300 held-out" not in several
    assert "mean absolute errors: age " in several


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(DataError, match=r"known number\. Got 1 picture, none with a target"):
        compute_regression_metrics(table(None, [[1, 2]]))
    with pytest.raises(DataError, match=r"1 of 2 answers are NaN or infinite"):
        compute_regression_metrics(table([[1, 1]], [[np.inf, 2]]))


def test_figures_survive_json_and_the_table_has_three_lines_a_column():
    found = compute_regression_metrics(drawn(), samples=5)
    assert read(RegressionMetrics, found.to_json(), "report.json") == found
    assert len(found.table().splitlines()) == 1 + 3 * 2
    with_constant = compute_regression_metrics(drawn(), (40.0, 70.0), samples=5)
    assert len(with_constant.table().splitlines()) == 1 + 4 * 2 and "(always 40)" in with_constant.table()
