"""A slice of the table of coverage: the studies in which intervals once missed the true figure most often."""

from __future__ import annotations

import pytest

from scripts import script

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
