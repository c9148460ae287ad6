"""What is fitted on validation pictures, and that every answer follows it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from vitrail import config
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate import decisions
from vitrail.evaluate.decisions import Decisions, describe_limits, fit_decisions, predictions_from_outputs
from vitrail.evaluate.predictions import concat_predictions, read_predictions_csv
from vitrail.evaluate.thresholds import DecisionSettings

CLASSES = ("defect", "good")


def answered(n=600, seed=0, sharp=3.0):
    """Logits [n, 2] that are too sure of themselves by the factor `sharp`, and targets."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.2, (n, 2)).astype(np.float32)
    targets = (generator.random(n) < softmax(logits, axis=1)[:, 1]).astype(np.int64)
    return sharp * logits, targets


def table_of(decided, outputs, targets=None, distances=None, task="classification", names=CLASSES):
    rows = [(f"{row}.png", str(row)) for row in range(len(outputs))]
    return predictions_from_outputs(
        task, outputs, names, None, rows, "test", targets, decisions=decided, distances=distances
    )


def test_probabilities_are_calibrated_and_no_class_changes():
    outputs, targets = answered()
    decided = fit_decisions("classification", DecisionSettings(), CLASSES, outputs, targets)
    assert decided.temperature[0] == pytest.approx(3, rel=0.25)
    plain, table = table_of(None, outputs), table_of(decided, outputs)
    np.testing.assert_allclose(table.probabilities, softmax(outputs / decided.temperature[0], axis=1), rtol=1e-5)
    np.testing.assert_array_equal(plain.indices, table.indices)
    uncalibrated = fit_decisions("classification", DecisionSettings(calibrate=False), CLASSES, outputs, targets)
    assert uncalibrated.temperature == ()


def test_a_threshold_of_two_classes_decides_which_is_answered(tmp_path):
    outputs, targets = answered()
    asked = DecisionSettings(positive="defect", threshold_rule="sensitivity 0.95")
    decided = fit_decisions("classification", asked, CLASSES, outputs, targets)
    table = table_of(decided, outputs, targets)
    defects = table.probabilities[:, 0] >= decided.thresholds[0]
    np.testing.assert_array_equal(table.indices == 0, defects)
    assert defects[targets == 0].mean() >= 0.95
    assert (table.confidences[defects] == table.probabilities[defects, 0]).all()
    table.write_csv(tmp_path / "a.csv")
    again = read_predictions_csv(tmp_path / "a.csv", "classification")
    np.testing.assert_array_equal(again.indices, table.indices)
    assert again.csv_bytes() == table.csv_bytes()


def test_each_label_is_answered_from_its_own_threshold_on(tmp_path):
    generator = np.random.default_rng(1)
    outputs = generator.normal(-2, 1.5, (800, 2)).astype(np.float32)
    targets = (generator.random((800, 2)) < 1 / (1 + np.exp(-outputs))).astype(np.float32)
    targets[::7, 1] = np.nan
    decided = fit_decisions("multilabel", DecisionSettings(threshold_rule="youden"), ("a", "b"), outputs, targets)
    table = table_of(decided, outputs, targets, task="multilabel", names=("a", "b"))
    assert max(decided.thresholds) < 0.4
    np.testing.assert_array_equal(table.indicators, table.probabilities >= np.array(decided.thresholds))
    table.write_csv(tmp_path / "a.csv")
    assert read_predictions_csv(tmp_path / "a.csv", "multilabel").labels == table.labels


def test_the_least_sure_and_the_unlike_are_not_answered(tmp_path):
    outputs, targets = answered(n=1000)
    distances = np.random.default_rng(2).exponential(size=1000)
    decided = fit_decisions(
        "classification", DecisionSettings(abstain_fraction=0.2), CLASSES, outputs, targets, distances
    )
    table = table_of(decided, outputs, targets, distances)
    unlike = np.array([why == "unlike" for why in table.abstain_reasons])
    unsure = np.array([why == "unsure" for why in table.abstain_reasons])
    assert unlike.sum() == 9  # beyond the 991st of 1000
    assert unsure.sum() + (unlike & (table.confidences < decided.sure)).sum() == 200
    assert table.confidences[unsure].max() < decided.sure < table.confidences[~unsure & ~unlike].min()
    assert table.abstained.sum() == 209 - (unlike & (table.confidences < decided.sure)).sum()
    table.write_csv(tmp_path / "a.csv")
    again = read_predictions_csv(tmp_path / "a.csv", "classification")
    assert again.abstain_reasons == table.abstain_reasons
    assert {row["abstain"] for row in again.records()} == {"no", "unsure", "unlike"}


def test_where_everything_is_answered_nothing_is_stored_about_it():
    outputs, targets = answered(n=50)
    assert (
        table_of(
            fit_decisions("classification", DecisionSettings(), CLASSES, outputs, targets), outputs
        ).abstain_reasons
        == ()
    )


def test_too_few_pictures_leave_outputs_as_they_are():
    outputs, targets = answered(n=15)
    decided = fit_decisions("classification", DecisionSettings(), CLASSES, outputs, targets, np.arange(15.0))
    assert decided == Decisions()


def test_sets_and_ranges_come_with_enough_pictures():
    outputs, targets = answered(n=200)
    decided = fit_decisions("classification", DecisionSettings(conformal_alpha=0.1), CLASSES, outputs, targets)
    held = table_of(decided, outputs).probabilities >= decided.cuts
    assert held[np.arange(200), targets].mean() >= 0.9
    values = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    truth = values + np.array([0.5, 0.0], np.float32)
    assert fit_decisions("regression", DecisionSettings(), ("a", "b"), values, truth).reach == (
        pytest.approx(0.5, abs=1e-6),
        0,
    )
    truth[5:, 1] = np.nan
    assert fit_decisions("regression", DecisionSettings(), ("a", "b"), values, truth).reach == ()


def test_decisions_survive_json():
    outputs, targets = answered()
    decided = fit_decisions(
        "classification", DecisionSettings(positive="good"), CLASSES, outputs, targets, np.arange(600.0)
    )
    assert (
        decisions.read_decisions(
            {decisions.DECISIONS_KEY: config.write(decided)}, "classification", CLASSES, "config.json"
        )
        == decided
    )
    assert decisions.read_decisions({}, "classification", CLASSES, "config.json") == Decisions()


@pytest.mark.parametrize(
    "noted",
    [
        {"sure": "high"}, {"threshold": [0.5]}, [1], {"temperature": [1.0, 2.0]}, {"temperature": [-1.0]},
        {"cuts": [0.1]}, {"positive": "bad"}, {"thresholds": [0.1, 0.2], "positive": "good"}, {"chosen": [True]},
    ],
)  # fmt: skip
def test_what_are_no_decisions_about_these_classes_is_refused(noted):
    with pytest.raises(DamagedFileError, match=r"Use another copy\."):
        decisions.read_decisions({decisions.DECISIONS_KEY: noted}, "classification", CLASSES, "config.json")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"threshold_rule": "best"}, "A rule for thresholds"),
        ({"abstain_fraction": 1.0}, r"decisions\.abstain_fraction must lie in 0\.\.1\. Got 1\.0"),
        ({"conformal_alpha": 0.0}, r"miss must lie between 0 and 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields, match):
    with pytest.raises(UsageError, match=match):
        DecisionSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "task", "match"),
    [
        ({"positive": "defect"}, "multilabel", r"names one of two classes\. Got 'defect' for multilabel"),
        ({"positive": "bad"}, "classification", r"Got 'bad' for classification: defect, good"),
        ({"positive": "good", "abstain_fraction": 0.1}, "classification", r"Give one of them"),
        ({"threshold_rule": "youden"}, "classification", r"thresholds of labels, or of one of two classes"),
        ({"threshold_rule": "half"}, "regression", r"The task is regression"),
        ({"abstain_fraction": 0.1}, "multilabel", r"decisions\.abstain_fraction is for classification"),
        ({"ordered": True}, "regression", r"decisions\.ordered is for classification"),
    ],
)
def test_settings_that_a_task_cannot_follow_are_refused(fields, task, match):
    with pytest.raises(UsageError, match=match):
        DecisionSettings(**fields).check_task(task, CLASSES)


def test_settings_that_fit_are_taken():
    DecisionSettings(positive="defect", threshold_rule="cost 20", ordered=True).check_task("classification", CLASSES)
    DecisionSettings(abstain_fraction=0.1).check_task("classification", ("a", "b", "c"))
    DecisionSettings(threshold_rule="youden").check_task("multilabel", ("a",))


def test_unknown_is_not_no(tmp_path):
    outputs, targets = answered(n=150)
    few = fit_decisions("classification", DecisionSettings(), CLASSES, outputs[:19], targets[:19], np.ones(19))
    assert few.unlike is None
    table = table_of(few, outputs, targets, np.ones(150))
    assert set(table.abstain_column()) == {"unknown"} and not table.abstained.any()
    table.write_csv(tmp_path / "a.csv")
    again = read_predictions_csv(tmp_path / "a.csv", "classification")
    assert again.csv_bytes() == table.csv_bytes() and not again.abstained.any()
    assert {row["abstain"] for row in again.records()} == {"unknown"} and next(iter(again)).abstain_reason == ""
    known = table_of(Decisions(unlike=3.0), outputs, targets, np.ones(150))
    assert set(known.abstain_column()) == {"no"}
    assert set(concat_predictions([known, table]).abstain_column()) == {"unknown"}
    assert set(decisions.average_predictions([known, table], Decisions()).abstain_column()) == {"unknown"}
    assert set(table_of(Decisions(unlike=3.0), outputs).abstain_column()) == {"unknown"}, "no distance was computed"


def test_a_model_that_cannot_tell_unlike_pictures_can_be_unsure():
    outputs, _ = answered(n=150)
    table = table_of(Decisions(sure=0.9), outputs)
    assert set(table.abstain_column()) == {"unknown", "unsure"}


def test_what_too_few_validation_pictures_leave_undecided_is_said_with_their_number():
    assert describe_limits("classification", [Decisions(temperature=(1.0,), unlike=2.0)], 200) == []
    uncalibrated, unlike = describe_limits("classification", [Decisions()], 19)
    assert uncalibrated.startswith("Probabilities are not calibrated, which takes 100 validation pictures and had 19: ")
    assert unlike.endswith("is unknown, which takes 99 validation pictures and had 19: abstain says unknown.")
    assert describe_limits("regression", [Decisions()], 19) == [unlike]
    assert len(describe_limits("multilabel", [Decisions()], 19)) == 2
    assert describe_limits("multilabel", [Decisions(unlike=1.0)]) == [], "each label may have kept the temperature 1"
    assert describe_limits("classification", [Decisions(unlike=1.0)], 500) == [
        "Probabilities are not calibrated: treat them as a ranking, not as percentages."
    ]
    both = [Decisions(temperature=(1.0,), unlike=2.0), Decisions()]
    assert len(describe_limits("classification", both)) == 2, "one of two models is enough"
