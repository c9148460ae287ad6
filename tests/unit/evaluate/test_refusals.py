"""What cannot be measured is refused in a sentence with its numbers, or absent: never a figure that means nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unit.evaluate.test_primary_metric import classes, labels, numbers
from unit.services.test_evaluation import CLASSES, NAMES, source
from vitrail.data.settings import DataSettings
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.calibration import risk_coverage_curve
from vitrail.evaluate.compare import compare_predictions
from vitrail.evaluate.decisions import Decisions, add_prediction_sets, require_sets_support
from vitrail.evaluate.primary_metric import compute_primary_metric
from vitrail.evaluate.task_metrics import compute_metrics
from vitrail.services.evaluation import load_other_source
from vitrail.stats.auc import roc_auc_with_influence


def test_a_fold_of_a_single_class_has_no_area_under_a_curve():
    table = classes(np.arange(30) < 20)
    figures = compute_metrics(table)
    assert figures.auroc is None and [one.auroc for one in figures.per_class] == [None, None]
    assert figures.accuracy == pytest.approx(2 / 3) and "auroc" not in figures.to_json()
    with pytest.raises(UsageError, match=r"needs pictures with and without the label\. Got 30 with it of 30\."):
        roc_auc_with_influence(np.ones(30, bool), table.probabilities[:, 0])


def test_a_label_that_every_picture_has_is_in_no_mean():
    truth = np.ones((40, 2), np.float32)
    truth[:15, 1] = 0
    figures = compute_metrics(labels(truth, np.random.default_rng(0).random((40, 2)).astype(np.float32)))
    assert (figures.counted, figures.rare) == (1, ("a",)) and figures.per_label[0].auroc is None
    assert figures.auroc == pytest.approx(figures.per_label[1].auroc)
    only = labels(np.ones((40, 1), np.float32), np.random.default_rng(0).random((40, 1)).astype(np.float32))
    assert compute_metrics(only).auroc is None and compute_primary_metric(only).value is None


def spoiled():
    """A table of every task with one answer that is no number."""
    chances, values = np.full((12, 2), 0.5, np.float32), np.zeros((12, 1), np.float32)
    chances[3, 0] = values[3, 0] = np.nan
    truth = np.tile(np.float32([[0, 1], [1, 0]]), (6, 1))
    yield replace(classes(np.ones(12, bool)), probabilities=chances), "1 of 24"
    yield labels(truth, chances), "1 of 24"
    yield numbers(np.ones((12, 1), np.float32), values), "1 of 12"


@pytest.mark.parametrize(("table", "count"), list(spoiled()), ids=["classification", "multilabel", "regression"])
def test_scores_that_are_nan_are_refused_with_their_number(table, count):
    with pytest.raises(DataError, match=rf"{count} answers are NaN or infinite, so they cannot be measured\."):
        compute_metrics(table)


def test_nan_never_reaches_a_test_or_an_order():
    table = next(spoiled())[0]
    with pytest.raises(UsageError, match=r"finite"):
        compare_predictions(table, classes(np.ones(12, bool)))
    with pytest.raises(UsageError, match=r"Scores must be finite numbers\. Got 1 that are not\."):
        roc_auc_with_influence(np.arange(12) < 5, table.probabilities[:, 0])
    with pytest.raises(UsageError, match="finite"):
        risk_coverage_curve(table.probabilities[:, 0], np.zeros(12))


def test_an_empty_split_is_refused_with_what_there_is():
    parted = {"train": np.arange(8), "val": np.zeros(0, np.int64), "test": np.arange(8, 12)}
    given = source(CLASSES, NAMES, splits=parted)
    with pytest.raises(UsageError, match=r"zoo has no pictures in its val split\. It has: train, test, all\."):
        load_other_source(given, "val", DataSettings())
    with pytest.raises(UsageError, match=r"must be one of train, val, test, all\. Got 'valid'\."):
        load_other_source(given, "valid", DataSettings())


@pytest.mark.parametrize(("miss", "floor", "share"), [(0.05, 19, "95%"), (0.01, 99, "99%"), (0.1, 9, "90%")])
def test_sets_and_ranges_of_too_few_pictures_are_refused_with_the_floor(miss, floor, share):
    nothing = Decisions(miss=miss)
    pattern = rf"hold the truth in {share} of all cases they are fitted on at least {floor} validation pictures"
    with pytest.raises(UsageError, match=f"no sets: to {pattern}"):
        add_prediction_sets(classes(np.ones(3, bool)), nothing)
    with pytest.raises(UsageError, match=f"no ranges: to {pattern}"):
        require_sets_support("regression", nothing)


def test_sets_of_labels_are_refused():
    table = labels(np.ones((3, 2), np.float32), np.ones((3, 2), np.float32))
    with pytest.raises(UsageError, match=r"answers each label by itself.*vitrail decide RUN --rule"):
        add_prediction_sets(table, Decisions(cuts=(0.5, 0.5)))
