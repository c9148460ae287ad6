"""Sets and ranges beside answers: kept as promised, the same in every form, and read back."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from unit.evaluate.test_conformal import answered
from unit.evaluate.test_primary_metric import named, numbers
from vitrail.errors import DataError
from vitrail.evaluate import conformal, predictions
from vitrail.evaluate.decisions import Decisions, add_prediction_sets
from vitrail.evaluate.predictions import ClassificationPredictions

NAMES = ("fine", "a|b", "(odd", "=1+1")


def table(n: int = 300) -> tuple[ClassificationPredictions, Decisions]:
    """Answers of a poor model to fresh pictures, and what others say that sets must hold."""
    probabilities, targets = answered(0, n=n + 1000)
    cuts = (conformal.fit_set_threshold(probabilities[:1000], targets[:1000], 0.1),) * len(NAMES)
    fresh = ClassificationPredictions(
        **named(n), targets=targets[1000:], probabilities=probabilities[1000:], classes=NAMES
    )
    return fresh, Decisions(miss=0.1, cuts=cuts)


def test_sets_hold_the_truth_as_often_as_promised_and_change_no_answer():
    plain, decided = table(3000)
    found = add_prediction_sets(plain, decided)
    assert found.sets[np.arange(3000), plain.targets].mean() == pytest.approx(0.9, abs=0.03)
    np.testing.assert_array_equal(found.sets, plain.probabilities.astype(float) >= np.array(decided.cuts))
    np.testing.assert_array_equal(found.indices, plain.indices)


def test_a_set_is_one_column_before_abstain_and_comes_back(tmp_path):
    plain, decided = table()
    found = add_prediction_sets(plain, decided)
    found.write_csv(tmp_path / "answers.csv")
    with (tmp_path / "answers.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    plain.write_csv(tmp_path / "plain.csv")
    usual = (tmp_path / "plain.csv").read_text().splitlines()[0].split(",")
    assert header == [*usual[:-1], "set", "abstain"]
    assert {"fine|a\\|b", "(none)"} & {row[-2] for row in rows} and any("\\(odd" in row[-2] for row in rows)
    assert all(not row[-2].startswith("=") for row in rows)
    again = predictions.read_predictions_csv(tmp_path / "answers.csv", "classification")
    np.testing.assert_array_equal(again.sets, found.sets)
    assert predictions.read_predictions_csv(tmp_path / "plain.csv", "classification").sets is None
    told = found.records()
    assert [one["set"] for one in told] == [[n for n, m in zip(NAMES, row, strict=True) if m] for row in found.sets]
    assert "set" not in plain.records()[0] and list(told[0])[-2:] == ["set", "abstain"]


def test_a_set_of_another_class_is_refused_by_its_line(tmp_path):
    found = add_prediction_sets(*table(2))
    path = tmp_path / "answers.csv"
    found.write_csv(path)
    path.write_text(path.read_text().replace(",no\n", "|cow,no\n", 1))
    with pytest.raises(DataError, match=r"line 2: set must hold labels among fine.*Got 'cow'"):
        predictions.read_predictions_csv(path, "classification")


def test_ranges_lie_around_their_number_and_come_back(tmp_path):
    values = np.random.default_rng(0).normal(50, 9, (20, 2)).astype(np.float32)
    plain = numbers(values + 1, values)
    found = add_prediction_sets(plain, Decisions(reach=(2.5, 40.0)))
    np.testing.assert_allclose(found.ranges[:, :, 1] - values, np.broadcast_to([2.5, 40], (20, 2)), rtol=1e-5)
    np.testing.assert_allclose(values - found.ranges[:, :, 0], np.broadcast_to([2.5, 40], (20, 2)), rtol=1e-5)
    path = tmp_path / "answers.csv"
    found.write_csv(path)
    header = path.read_text().splitlines()[0].split(",")
    assert header[-5:] == ["low_age", "high_age", "low_height", "high_height", "abstain"]
    again = predictions.read_predictions_csv(path, "regression")
    np.testing.assert_array_equal(again.ranges, found.ranges)
    np.testing.assert_array_equal(again.values, values)
    assert list(found.records()[0])[-5:] == header[-5:]
    assert found.records()[3]["high_age"] == pytest.approx(values[3, 0] + 2.5, rel=1e-5)
    plain.write_csv(path)
    assert predictions.read_predictions_csv(path, "regression").ranges is None


def test_joined_and_reordered_answers_keep_their_sets_and_ranges():
    plain, decided = table()
    found = add_prediction_sets(plain, decided)
    both = predictions.concat_predictions([found, found])
    np.testing.assert_array_equal(both.sets, np.concatenate([found.sets, found.sets]))
    assert predictions.concat_predictions([found, plain]).sets is None
    turned = predictions.reorder_outputs(found, NAMES[::-1])
    np.testing.assert_array_equal(turned.sets, found.sets[:, ::-1])
    values = np.ones((3, 2), np.float32)
    ranged = add_prediction_sets(numbers(values, values), Decisions(reach=(1.0, 2.0)))
    assert predictions.reorder_outputs(ranged, ("height", "age")).ranges[0].tolist() == [[-1, 3], [0, 2]]
    assert predictions.concat_predictions([ranged, ranged]).ranges.shape == (6, 2, 2)
    nobody = add_prediction_sets(
        numbers(np.ones((0, 2), np.float32), np.ones((0, 2), np.float32)), Decisions(reach=(1.0, 2.0))
    )
    assert nobody.records() == [] and b"low_age" in nobody.csv_bytes()
