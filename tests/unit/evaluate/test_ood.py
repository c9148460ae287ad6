"""Two sources by the scores of one model: areas, intervals and cut against their own definitions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from unit.evaluate.test_unfamiliar import features
from vitrail import config
from vitrail.evaluate.ood import OodComparison, compare_ood, fit_feature_stats, fit_ood_threshold
from vitrail.stats.auc import roc_auc_with_influence
from vitrail.stats.intervals import wilson_interval

NAMES = ("digits", "test", "cells")


def found(shift: float = 0.0, cut: bool = True, **given: object) -> tuple[OodComparison, np.ndarray, np.ndarray]:
    known = fit_feature_stats(*features(0))
    own, others = features(1, n=200)[0], features(2, n=90)[0] * np.float32([1 + shift] + [1] * 11) - np.float32(shift)
    limit = fit_ood_threshold(known.mahalanobis_distances(features(3, n=400)[0])) if cut else None
    return (
        compare_ood(known, limit, own, others, NAMES, **given),
        known.mahalanobis_distances(own),
        known.mahalanobis_distances(others),
    )


def test_areas_are_those_of_both_scores_and_shares_those_beyond_the_cut():
    told, own, others = found(2.0)
    truth = np.repeat([0, 1], [200, 90])
    distance, neighbour = told.scores
    assert distance.auroc == pytest.approx(roc_auc_score(truth, np.concatenate([own, others])))
    assert distance.auroc_interval == roc_auc_with_influence(truth == 1, np.concatenate([own, others])).interval()
    assert 0.5 < neighbour.auroc_interval[0] < neighbour.auroc
    beyond = int((others > told.cut).sum())
    assert told.unlike.share == beyond / 90 and told.unlike.interval == wilson_interval(beyond, 90)
    assert told.held_out.share == (own > told.cut).mean() < 0.05
    assert (told.n, told.others, told.source, told.other, told.split) == (200, 90, "digits", "cells", "test")


def test_pictures_of_the_same_kind_are_not_told_apart():
    told, *_ = found()
    for one in told.scores:
        assert one.auroc_interval[0] < 0.5 < one.auroc_interval[1]


def test_groups_widen_the_intervals_and_none_is_shared():
    alone, *_ = found(0.4)
    together, *_ = found(0.4, groups=(np.arange(200) // 20, None))
    widths = [one.scores[0].auroc_interval[1] - one.scores[0].auroc_interval[0] for one in (alone, together)]
    assert together.scores[0].auroc == alone.scores[0].auroc and widths[0] != widths[1]
    both, *_ = found(0.4, groups=(np.arange(200), np.arange(90)))
    assert both.scores[0].auroc_interval == pytest.approx(alone.scores[0].auroc_interval)


def test_shares_beyond_the_cut_count_groups():
    alone, *_ = found(2.0)
    together, *_ = found(2.0, groups=(np.arange(200) // 20, np.arange(90) // 10))
    assert together.held_out.interval == pytest.approx(wilson_interval(0, 10)) or together.held_out.share > 0
    widths = [one.unlike.interval[1] - one.unlike.interval[0] for one in (alone, together)]
    assert together.unlike.share == alone.unlike.share and widths[1] > 1.5 * widths[0]


def test_a_person_reads_two_scores_and_what_the_cut_does():
    told, *_ = found(2.0)
    lines = told.table().splitlines()
    assert lines[0] == "200 held-out pictures of digits (test) beside 90 of cells" and len(lines) == 5
    assert lines[2].startswith(f"Mahalanobis distance    {told.scores[0].auroc:.4f}")
    assert f"{100 * told.unlike.share:.2f} % (" in lines[4] and "of the held-out pictures." in lines[4]
    assert config.read(OodComparison, told.to_json(), "json") == told
    without, *_ = found(2.0, cut=False)
    assert "takes at least 99 validation pictures" in without.table() and "unlike" not in without.to_json()
