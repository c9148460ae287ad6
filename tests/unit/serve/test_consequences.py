"""What the page counts is what `vitrail decide` counts: the scores that it is sent, and their order."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from stored_runs import store_run
from vitrail.predict.kept_decisions import read_kept_decisions
from vitrail.serve.consequences import describe_decisions, load_validation_scores
from vitrail.services.deciding import DecisionRequest, decide


def floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_scores_below_and_above_a_threshold_are_the_misses_and_false_alarms(tmp_path, task):
    run = store_run(tmp_path / "run", task)
    request = {"at": {"defect": 0.2}} if task == "classification" else {"rule": "sensitivity 0.9"}
    result = decide(run, DecisionRequest(**request), keep="clinic", by="A. Meier")
    told = {one["name"]: one for one in load_validation_scores(run)["scores"]}
    for label in result.splits["val"].new.labels:
        if label.threshold is None:
            continue
        there, without = floats(told[label.name]["with"]), floats(told[label.name]["without"])
        assert (np.diff(there) >= 0).all() and len(there) == label.positives and len(without) == label.negatives
        assert (there < label.threshold).sum() == label.misses
        assert (without >= label.threshold).sum() == label.false_alarms
    training, clinic = describe_decisions(read_kept_decisions(run / "model"))
    assert (training["name"], clinic["by"]) == ("training", "A. Meier") and training["request"] == {}
    assert clinic["request"] == request
    assert clinic["thresholds"] == [label.threshold for label in result.splits["val"].new.labels if label.threshold]


def test_of_many_classes_the_likeliest_is_right_or_wrong(tmp_path):
    run = store_run(tmp_path / "run", K=4)
    (one,) = load_validation_scores(run)["scores"]
    right, wrong = floats(one["with"]), floats(one["without"])
    figures = decide(run, DecisionRequest(abstain=0.2)).splits["val"]
    assert len(right) / (len(right) + len(wrong)) == figures.new.accuracy.value
    assert one["name"] == "" and right.min() > 0.25


def test_numbers_and_runs_without_predictions_say_why_there_are_none(tmp_path):
    assert "ranges" in load_validation_scores(store_run(tmp_path / "run", "regression"))["why"]
    run = store_run(tmp_path / "other")
    (run / "predictions" / "val.csv").unlink()
    assert "Train with validation pictures" in load_validation_scores(run)["why"]
