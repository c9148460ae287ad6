"""What a page says of trust: every number against the answers that it comes from."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from dataclasses import replace

import numpy as np
import pytest

from unit.evaluate import test_multilabel_metrics, test_regression_predictions
from unit.evaluate.test_decisions import answered, table_of
from unit.report.report_sample import predictions_of
from vitrail.evaluate.calibration import debiased_calibration_error
from vitrail.evaluate.decisions import Decisions, fit_decisions
from vitrail.evaluate.thresholds import DecisionSettings
from vitrail.report import uncertainty

CLASSES = ("defect", "good")


def test_a_few_pictures_show_no_charts():
    found = uncertainty.uncertainty_context(predictions_of(n=60), Decisions())
    assert found["calibration"] is found["selective_risk"] is found["set_coverage"] is found["abstained"] is None


def test_calibration_is_shown_before_and_after():
    outputs, targets = answered(n=2000)
    decided = fit_decisions("classification", DecisionSettings(), CLASSES, outputs, targets)
    found = uncertainty.uncertainty_context(table_of(decided, outputs, targets), decided)["calibration"]
    assert found.error_before > 5 * found.error and found.temperature == decided.temperature[0]
    root = xml.fromstring(found.chart)
    assert len(list(root.iter("circle"))) == 20 and found.chart.count('class="bar second"') == 10
    plain = uncertainty.uncertainty_context(table_of(None, outputs, targets), Decisions())["calibration"]
    assert plain.error_before is None and plain.error == pytest.approx(found.error_before, abs=1e-4)


def test_every_label_shows_how_often_it_is_there_by_its_probability_and_a_rare_one_does_not():
    given = test_multilabel_metrics.drawn(800)
    logits = np.log(given.probabilities.clip(0.01, 0.99) / (1 - given.probabilities.clip(0.01, 0.99)))
    mild = replace(given, probabilities=(1 / (1 + np.exp(-logits / 3))).astype(np.float32))
    found = {
        one.name: one
        for one in uncertainty.uncertainty_context(mild, Decisions(temperature=(3.0, 1.0, 1.0)))["label_calibration"]
    }
    assert set(found) == {"mass", "oedema"} and [one.error for one in found.values()] == sorted(
        (one.error for one in found.values()), reverse=True
    )
    known = given.known_mask[:, 0]
    chances, there = given.probabilities[known, 0].clip(0.01, 0.99).astype(np.float64), given.targets[known, 0] == 1
    assert found["mass"].error_before == pytest.approx(debiased_calibration_error(chances, there), abs=0.005)
    assert found["mass"].error > 0.05 and found["oedema"].error_before is found["oedema"].temperature is None
    assert len(list(xml.fromstring(found["mass"].chart).iter("circle"))) == 20


def test_errors_fall_where_the_least_sure_are_left_out():
    outputs, targets = answered(n=2000)
    found = uncertainty.uncertainty_context(table_of(None, outputs, targets), Decisions())["selective_risk"]
    table = table_of(None, outputs, targets)
    wrong = table.indices != targets
    assert found.rows[0][1].value == pytest.approx(wrong.mean())
    order = np.argsort(-table.confidences, kind="stable")[:1000]
    assert dict(found.rows)[0.5].value == pytest.approx(wrong[order].mean(), abs=0.002)
    xml.fromstring(found.chart)


def test_sets_and_the_threshold_of_two_classes_are_measured_on_these_pictures():
    outputs, targets = answered(n=1000)
    decided = fit_decisions(
        "classification", DecisionSettings(positive="defect", threshold_rule="youden"), CLASSES, outputs, targets
    )
    assert uncertainty.uncertainty_context(table_of(decided, outputs, targets), decided)["selective_risk"] is None
    fresh, truth = answered(n=1000, seed=9)
    found = uncertainty.uncertainty_context(table_of(decided, fresh, truth), decided)
    sets = found["set_coverage"]
    assert sets.nominal_coverage == 0.95 and sets.coverage.value == pytest.approx(0.95, abs=0.03)
    assert sum(share for _, share in sets.sizes) == pytest.approx(1)
    (cut,) = found["thresholds"]
    said = table_of(decided, fresh).indices == 0
    assert cut.sensitivity.value == pytest.approx(said[truth == 0].mean())
    assert cut.precision.value == pytest.approx((truth == 0)[said].mean())


def test_every_label_has_its_cut_and_unlike_pictures_are_counted():
    given = test_multilabel_metrics.drawn()
    given = replace(given, abstain_reasons=("unlike",) * 4 + ("",) * 396)
    found = uncertainty.uncertainty_context(given, Decisions(thresholds=(0.2, 0.5, 0.9), unlike=3.0))
    assert [(cut.name, cut.threshold) for cut in found["thresholds"]] == [("mass", 0.2), ("oedema", 0.5), ("rare", 0.9)]
    assert found["abstained"].value == 0.01


def test_numbers_have_ranges_and_their_differences_drawn():
    truth = np.arange(200.0)
    given = test_regression_predictions.table(truth, truth + np.random.default_rng(0).normal(0, 3, 200), ("age",))
    found = uncertainty.uncertainty_context(given, Decisions(reach=(6.0,)))
    ((name, reach, promised, kept),) = found["ranges"]
    assert (name, reach, promised) == ("age", 6.0, 0.95) and kept.value == pytest.approx(0.95, abs=0.03)
    ((_, drawing),) = found["agreement"]
    assert xml.fromstring(drawing).get("aria-label") == "Answer less truth of age by their mean"


def test_thresholds_and_sets_have_wider_intervals_where_pictures_of_a_group_are_alike():
    outputs, targets = answered(n=1000)
    decided = fit_decisions(
        "classification", DecisionSettings(positive="defect", threshold_rule="youden"), CLASSES, outputs, targets
    )
    table = table_of(decided, outputs, targets)
    groups = np.argsort(np.argsort(table.probabilities[:, 0])) // 8
    alone, together = (uncertainty.uncertainty_context(table, decided, by) for by in (None, groups))
    for one, other in zip(alone["thresholds"], together["thresholds"], strict=True):
        for share, wider in ((one.sensitivity, other.sensitivity), (one.specificity, other.specificity)):
            assert share.value == wider.value
            assert wider.interval.high - wider.interval.low > 1.5 * (share.interval.high - share.interval.low)
    assert together["set_coverage"].coverage.value == alone["set_coverage"].coverage.value


def test_groups_widen_selective_risk_and_reliability_bins():
    outputs, targets = answered(n=1000)
    table = table_of(None, outputs, targets)
    groups = np.argsort(np.argsort(table.confidences)) // 8
    alone, together = (uncertainty.uncertainty_context(table, Decisions(), by) for by in (None, groups))
    rows = zip(alone["selective_risk"].rows, together["selective_risk"].rows, strict=True)
    for (_, share), (_, wider) in rows:
        assert wider.value == share.value
        assert wider.interval.high - wider.interval.low > 1.5 * (share.interval.high - share.interval.low)
    low, high = alone["calibration"].interval
    wide_low, wide_high = together["calibration"].interval
    assert wide_high - wide_low > 1.3 * (high - low) and together["calibration"].chart != alone["calibration"].chart
