"""Every figure of labels against scikit-learn or by hand; what is unknown or rare is left out and said."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from sklearn import metrics as sk

from unit.evaluate.test_multilabel_predictions import table
from vitrail.config import read
from vitrail.errors import DataError
from vitrail.evaluate.multilabel_metrics import (
    MIN_PER_SIDE,
    MultilabelMetrics,
    compute_multilabel_metrics,
)
from vitrail.evaluate.predictions import MultilabelPredictions
from vitrail.stats.auc import roc_auc_with_influence
from vitrail.stats.intervals import wilson_interval

NAMES = ("mass", "oedema", "rare")


def drawn(n: int = 400, seed: int = 0) -> MultilabelPredictions:
    """Three labels of different frequency, a fifth of the cells unknown, scores with ties."""
    generator = np.random.default_rng(seed)
    targets = (generator.random((n, 3)) < [0.3, 0.5, 0.01]).astype(np.float32)
    logits = generator.normal(size=(n, 3)) + 2 * targets - 1
    chances = np.round(1 / (1 + np.exp(-logits)), 2)
    targets[generator.random((n, 3)) < 0.2] = np.nan
    return table(targets, chances, NAMES)


def test_V1_every_figure_is_scikit_learns_over_the_known_pictures():
    given = drawn()
    found = compute_multilabel_metrics(given, samples=20)
    assert given.targets is not None
    for k, one in enumerate(found.per_label):
        known = ~np.isnan(given.targets[:, k])
        targets, chances = given.targets[known, k] == 1, given.probabilities[known, k].astype(np.float64)
        answers = chances >= 0.5
        assert (one.name, one.n, one.positives) == (NAMES[k], known.sum(), targets.sum())
        assert one.prevalence == pytest.approx(targets.mean())
        assert one.auroc == pytest.approx(sk.roc_auc_score(targets, chances), abs=1e-12)
        assert one.average_precision == pytest.approx(sk.average_precision_score(targets, chances), abs=1e-12)
        assert one.f1 == pytest.approx(sk.f1_score(targets, answers), abs=1e-12)
        assert one.sensitivity == pytest.approx(sk.recall_score(targets, answers), abs=1e-12)
        assert one.specificity == pytest.approx(sk.recall_score(~targets, ~answers), abs=1e-12)
        false, true, _ = sk.roc_curve(targets, chances, drop_intermediate=False)
        assert one.sensitivity_at_90 == pytest.approx(true[false <= 0.1 + 1e-9].max(), abs=1e-12)
        assert one.sensitivity_interval == wilson_interval(int((answers & targets).sum()), int(targets.sum()))
        assert one.specificity_interval == wilson_interval(int((~answers & ~targets).sum()), int((~targets).sum()))


def test_rare_labels_are_flagged_and_in_no_mean():
    found = compute_multilabel_metrics(drawn(), samples=50)
    assert found.rare == ("rare",) and found.counted == 2
    assert found.per_label[2].auroc is not None and found.per_label[2].auroc_interval is None
    for mean, name in ((found.auroc, "auroc"), (found.average_precision, "average_precision"), (found.f1, "f1")):
        assert mean == pytest.approx(np.mean([getattr(one, name) for one in found.per_label[:2]]))
    assert "fewer than 10 known pictures with or without it, so not in the mean: rare" in found.headline()
    assert found.describe_rare_labels() in found.table()


@pytest.mark.parametrize(("count", "rare"), [(MIN_PER_SIDE - 1, True), (MIN_PER_SIDE, False)])
def test_ten_of_either_kind_are_enough(count, rare):
    targets = np.r_[np.ones(count), np.zeros(50)]
    chances = np.linspace(0, 1, len(targets))
    assert compute_multilabel_metrics(table(targets, chances, ("a",)), samples=5).per_label[0].rare is rare
    assert compute_multilabel_metrics(table(1 - targets, chances, ("a",)), samples=5).per_label[0].rare is rare


def test_the_log_loss_is_the_binary_cross_entropy_of_known_cells():
    given = drawn()
    assert given.targets is not None
    t, p = given.targets.astype(np.float64).ravel(), given.probabilities.astype(np.float64).ravel()
    known = ~np.isnan(t)
    losses = -t[known] * np.log(p[known]) - (1 - t[known]) * np.log(1 - p[known])
    found = compute_multilabel_metrics(given, samples=50)
    assert found.log_loss == pytest.approx(losses.mean())
    assert found.log_loss_interval[0] < found.log_loss < found.log_loss_interval[1]


def test_intervals_hold_their_figures_and_areas_have_delongs():
    given = drawn()
    found = compute_multilabel_metrics(given, samples=200)
    one = found.per_label[0]
    assert given.targets is not None
    known = ~np.isnan(given.targets[:, 0])
    alone = roc_auc_with_influence(given.targets[known, 0] == 1, given.probabilities[known, 0])
    assert one.auroc_interval == pytest.approx(alone.interval(), abs=1e-12)
    for figures, names in (
        (one, ("auroc", "average_precision", "f1", "sensitivity", "specificity", "sensitivity_at_90")),
        (found, ("auroc", "average_precision", "f1", "log_loss")),
    ):
        for name in names:
            low, high = getattr(figures, f"{name}_interval")
            assert low < getattr(figures, name) < high


def test_pictures_of_one_patient_make_wider_intervals():
    given = drawn(200)
    many = dataclasses.replace(
        given, ids=tuple(f"{id}-{k}" for id in given.ids for k in range(4)), paths=given.paths * 4,
        targets=given.targets.repeat(4, 0), probabilities=given.probabilities.repeat(4, 0),
    )  # fmt: skip
    naive, grouped = (
        compute_multilabel_metrics(many, samples=200),
        compute_multilabel_metrics(many, np.arange(200).repeat(4), samples=200),
    )
    known = int((~np.isnan(given.targets)).any(1).sum())
    assert (grouped.groups, grouped.auroc) == (known, naive.auroc)
    for name in ("auroc_interval", "average_precision_interval", "f1_interval", "log_loss_interval"):
        (low, high), (wide_low, wide_high) = getattr(naive, name), getattr(grouped, name)
        assert 1.6 < (wide_high - wide_low) / (high - low) < 2.5  # the root of four, and a group that was not seen
    ratio = [np.diff(one.per_label[0].sensitivity_interval)[0] for one in (grouped, naive)]
    assert 1.6 < ratio[0] / ratio[1] < 2.4


def test_an_unknown_cell_without_a_number_is_not_in_the_loss():
    found = compute_multilabel_metrics(table([[1, np.nan], [0, 1]], [[0.9, np.nan], [0.2, 0.8]]), samples=5)
    assert found.log_loss == pytest.approx(-np.log([0.9, 0.8, 0.8]).mean())


def test_shares_from_one_half_on_count_as_present():
    found = compute_multilabel_metrics(table([[0.5], [0.4]], [[0.9], [0.2]], ("a",)), samples=5)
    assert (found.per_label[0].positives, found.per_label[0].auroc) == (1, 1.0)


def test_a_label_of_one_kind_has_no_area_and_the_headline_says_what_can_be_said():
    found = compute_multilabel_metrics(table([[1, np.nan], [1, np.nan]], [[0.9, 0.2], [0.2, 0.2]]), samples=5)
    assert (found.n, found.counted, found.auroc, found.auroc_interval) == (2, 0, None, None)
    assert (found.per_label[1].n, found.per_label[1].prevalence, found.per_label[1].sensitivity) == (0, None, None)
    assert found.headline().startswith("Log loss on 2 held-out pictures (test): ") and "oedema" in found.headline()
    assert found.table().startswith("AUROC                  -  (no label can be ranked, n = 2)")


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(DataError, match=r"known label\. Got 1 picture, none with a target"):
        compute_multilabel_metrics(table(None, [[0.1, 0.2]]))
    with pytest.raises(DataError, match=r"1 of 2 answers are NaN or infinite"):
        compute_multilabel_metrics(table([[1, 0]], [[np.nan, 0.2]]))


def test_figures_survive_json_and_the_table_lines_up():
    found = compute_multilabel_metrics(drawn(), samples=5)
    assert read(MultilabelMetrics, found.to_json(), "report.json") == found
    lines = found.table().splitlines()
    assert len({len(line) for line in lines[5:9]}) == 1 and lines[6].startswith("mass ")
    single = compute_multilabel_metrics(dataclasses.replace(drawn(), classes=("a", "b", "c")), samples=5)
    assert "mean of 2 labels, 95 % interval" in single.headline()


def test_ten_thousand_pictures_of_fourteen_labels_take_seconds():
    generator = np.random.default_rng(0)
    targets = (generator.random((10_000, 14)) < 0.1).astype(np.float32)
    given = table(targets, generator.random((10_000, 14)), tuple(f"l{k}" for k in range(14)))
    began = time.perf_counter()
    compute_multilabel_metrics(given, samples=20)  # a fiftieth of the usual number
    assert time.perf_counter() - began < 5
