"""P-values of anomaly scores: their promise on drawn images, with and without groups, and the decisions from them."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.conformal import conformal_p_values, smallest_p_value
from vitrail.evaluate.decisions import Decisions, fit_anomaly_decisions, predictions_from_outputs, read_decisions
from vitrail.evaluate.thresholds import DecisionSettings


def test_a_p_value_counts_the_good_images_with_a_score_as_large():
    calibration = (0.1, 0.2, 0.2, 0.4)
    scores = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert conformal_p_values(scores, calibration).tolist() == [1.0, 1.0, 0.8, 0.4, 0.4, 0.2]
    assert smallest_p_value(calibration) == 0.2


def test_with_groups_each_counts_once():
    weights = (0.5, 0.5, 1.0)  # two images of one group, one of another
    assert conformal_p_values(np.array([0.05, 0.15, 0.25, 0.9]), (0.1, 0.2, 0.3), weights).tolist() == pytest.approx(
        [1.0, 2.5 / 3, 2 / 3, 1 / 3]
    )
    assert smallest_p_value((0.1, 0.2, 0.3), weights) == pytest.approx(1 / 3)


@pytest.mark.parametrize("n", [10, 30, 100])
def test_the_false_alarm_rate_is_at_most_alpha(n: int):
    generator = np.random.default_rng(n)
    rates = []
    for _ in range(3000):
        rules = fit_anomaly_decisions(DecisionSettings(alpha=0.1), generator.lognormal(size=n))
        rates.append(rules.find_defects(rules.p_values(generator.lognormal(size=200))).mean())
    assert np.mean(rates) <= 0.1 + np.std(rates) / 3000**0.5
    assert np.mean(rates) > 0.085


def test_the_promise_holds_for_groups_that_differ():
    generator, rates, naive = np.random.default_rng(0), [], []
    for _ in range(200):
        level = generator.normal(size=(21, 1))  # of each group: twenty are calibrated on, one is new
        scores = level + 0.1 * generator.normal(size=(21, 5))
        groups = np.repeat(np.arange(20), 5)
        rules = fit_anomaly_decisions(DecisionSettings(alpha=0.1), scores[:20].ravel(), groups)
        rates.append(rules.find_defects(rules.p_values(scores[20])).mean())
        alone = fit_anomaly_decisions(DecisionSettings(alpha=0.01), scores[:20].ravel())
        naive.append(alone.find_defects(alone.p_values(scores[20])).mean())
    assert np.mean(rates) <= 0.1 + np.std(rates) / 200**0.5
    assert np.mean(naive) > 0.02  # images of one group are not exchangeable


def test_alpha_is_never_below_what_the_images_allow():
    assert fit_anomaly_decisions(DecisionSettings(), np.arange(10.0)).alpha == pytest.approx(1 / 11)
    assert fit_anomaly_decisions(DecisionSettings(), np.arange(99.0)).alpha == 0.01
    groups = np.repeat(np.arange(5), 20)
    assert fit_anomaly_decisions(DecisionSettings(), np.arange(100.0), groups).alpha == pytest.approx(1 / 6)


@pytest.mark.parametrize("n", [3, 10, 99, 250])
def test_what_is_above_the_alarm_score_is_a_defect_and_nothing_else(n: int):
    rules = fit_anomaly_decisions(DecisionSettings(alpha=0.05), np.random.default_rng(n).normal(size=n))
    alarm = rules.alarm_score
    around = np.array([alarm, np.nextafter(alarm, np.inf)])
    assert rules.find_defects(rules.p_values(around)).tolist() == [False, True]


def test_predictions_have_score_p_value_and_label():
    rules = fit_anomaly_decisions(DecisionSettings(alpha=0.2), np.array([0.3, 0.1, 0.2, 0.4]))
    table = predictions_from_outputs(
        "anomaly", np.array([[0.15], [0.9]], np.float32), ("good", "defect"), None, [("a.png", "a"), ("b.png", "b")],
        decisions=rules,
    )  # fmt: skip
    assert table.labels == ("good", "defect")
    assert table.csv_bytes().decode().splitlines() == [
        "path,id,split,target,label,score,p_value,abstain",
        "a.png,a,,,good,0.150000006,0.8,no",
        "b.png,b,,,defect,0.899999976,0.2,no",
    ]
    assert [row.p_value for row in table] == [0.8, 0.2] and "p 0.2, score 0.9" in repr(table)
    assert table.records()[1] | {"score": 0.9} == {
        "path": "b.png", "id": "b", "split": "", "target": None, "label": "defect", "score": 0.9, "p_value": 0.2,
        "abstain": "no",
    }  # fmt: skip


def test_a_bundle_without_calibration_is_damaged():
    note = {"decisions": {"alpha": 0.1}}
    with pytest.raises(DamagedFileError, match="decisions must be about anomaly of good, defect"):
        read_decisions(note, "anomaly", ("good", "defect"), "config.json")
    for calibration in ([0.2, 0.1], []):
        with pytest.raises(DamagedFileError):
            read_decisions({"decisions": {"calibration": calibration}}, "anomaly", ("good", "defect"), "here")
    kept = read_decisions({"decisions": {"calibration": [0.1, 0.2]}}, "anomaly", ("good", "defect"), "here")
    assert kept == Decisions(calibration=(0.1, 0.2))


def test_alpha_is_for_anomaly_alone():
    with pytest.raises(UsageError, match=r"decisions.alpha is for anomaly. The task is classification"):
        DecisionSettings(alpha=0.2).check_task("classification", ("a", "b"))
    with pytest.raises(UsageError, match=r"between 0 and 1, for example 0.01. Got 1.5"):
        DecisionSettings(alpha=1.5)
