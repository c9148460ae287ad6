"""A slice of the table of coverage: the studies in which intervals once missed the true figure most often."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scripts import script
from vitrail.stats.intervals import proportion_interval

coverage = script("figure_coverage")
FAULT = {cell.name(): cell for cell in coverage.OF_FAULT}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("n 24, p .99, 3 classes", ("log_loss", "brier", "kappa", "accuracy")),
        pytest.param("n 100, p .99, 4 classes", ("log_loss", "brier"), marks=pytest.mark.wide),
        pytest.param("n 240, p .9, 3 classes, 12 groups", coverage.FIGURES[:9], marks=pytest.mark.wide),
        pytest.param(
            "n 359, p .9, classes .85 .10 .03 .02", ("balanced_accuracy", "macro_f1", "auroc"), marks=pytest.mark.wide
        ),
    ],
)
def test_intervals_hold_the_true_figure_where_they_once_did_not(name, least, monkeypatch):
    monkeypatch.setattr(coverage, "TRUE_IMAGES", 30_000)
    found = coverage.simulate(FAULT[name], 100)
    for figure in least:
        assert found[figure]["shown"] == 100 and found[figure]["coverage"] >= 0.9, figure  # 0.93, less luck of 100


@pytest.mark.parametrize(("n", "share"), [(1, 0.5), (8, 0.3), (8, 0.97)])
def test_exact_coverage_is_that_of_all_studies_one_by_one(n, share):
    inside = width = 0.0
    for hits in product((True, False), repeat=n):
        low, high = proportion_interval(np.array(hits))
        chance = share ** sum(hits) * (1 - share) ** (n - sum(hits))
        inside, width = inside + chance * (low <= share <= high), width + chance * (high - low)
    assert coverage.exact_coverage(n, share) == pytest.approx((inside, width), abs=1e-7)


def test_exact_coverage_of_a_recall_is_that_of_all_studies_one_by_one():
    part, share, totals = 0.4, 0.8, np.zeros(3)
    chances = {"hit": part * share, "miss": part * (1 - share), "other": 1 - part}
    for images in product(chances, repeat=6):
        hits = np.array([one == "hit" for one in images if one != "other"])
        if len(hits):
            low, high = proportion_interval(hits)
            totals += np.prod([chances[one] for one in images]) * np.array([low <= share <= high, high - low, 1.0])
    assert coverage.exact_coverage_of_part(6, part, share) == pytest.approx(totals[:2] / totals[2], abs=1e-7)


def test_every_cell_of_the_table_that_shows_an_interval_covers():
    rows = coverage.Results("figure-coverage").rows
    assert {row["cell"] for row in rows} == {cell.name() for cell in coverage.CELLS}
    low = []
    for row in rows:
        for name, one in coverage.shown_figures(row).items():
            deviation = (0.95 * 0.05 / one["shown"]) ** 0.5  # of what chance adds to this many studies
            if one["coverage"] < 0.93 - 2 * deviation:
                low.append((row["cell"], name, one["coverage"]))
    assert low == []
