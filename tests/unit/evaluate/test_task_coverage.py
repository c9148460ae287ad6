"""A slice of the coverage of numbers, labels and anomalies, where the percentile bootstrap missed the true figure."""

from __future__ import annotations

import pytest

from scripts import script

coverage = script("task_coverage")


@pytest.mark.parametrize(
    ("cell", "least"),
    [
        (coverage.Cell("numbers", "exponential", 50), ("rmse", "upper limit", "spearman")),
        (coverage.Cell("numbers", "growing", 200, True), ("mae", "rmse", "r2", "lower limit", "bias")),
        (coverage.Cell("labels", "weak", 200), ("mean average_precision", "mean f1", "average_precision of 0.1")),
        (coverage.Cell("anomalies", "0.05", 200, True), ("average_precision", "auroc", "false_alarms")),
    ],
)
def test_intervals_hold_the_true_figure_where_they_once_did_not(cell, least, monkeypatch):
    monkeypatch.setattr(coverage, "TRUE_IMAGES", 50_000)
    coverage.true_metrics.cache_clear()
    found = coverage.simulate(cell, 80)
    coverage.true_metrics.cache_clear()
    for figure in least:
        assert found[figure]["shown"] > 70 and found[figure]["coverage"] >= 0.88, figure  # 0.93, less luck of 80


def test_few_groups_show_no_root_of_a_mean_square():
    found = coverage.simulate(coverage.Cell("numbers", "normal", 50, True), 3)
    assert found["mae"]["shown"] == 3 and not {"rmse", "r2", "lower limit"} & found.keys()


def test_every_cell_of_the_table_that_shows_an_interval_covers():
    rows, low = coverage.Results("task-coverage").rows, []
    assert {tuple(row[key] for key in coverage.Cell._fields) for row in rows} == set(coverage.CELLS)
    for row in rows:
        for name, one in coverage.shown_figures(row).items():
            if one["coverage"] < 0.93:
                low.append((*(row[key] for key in coverage.Cell._fields), name, one["coverage"]))
    assert low == []
