"""History, thinning, smoothing, round ticks and the drawn charts."""

from __future__ import annotations

import math
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.report import charts


def test_history_sorts_steps_keeps_the_last_value_and_passes_over_torn_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 2, "loss": 1.0}\n{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 0.5}\n[1]\n{"loss": 9}\n'
        '{"step": 3, "loss": NaN, "note": "x", "val_accuracy": 0.5}\n{"step": 4, "lo'
    )
    assert charts.read_history(tmp_path / "metrics.jsonl") == {"loss": [(1, 3.0), (2, 0.5)], "val_accuracy": [(3, 0.5)]}
    assert charts.read_history(tmp_path / "missing.jsonl") == {}


def test_without_history_there_are_no_charts():
    assert [draw({}) for draw in (charts.draw_loss_chart, charts.draw_accuracy_chart, charts.draw_lr_chart)] == [
        None
    ] * 3


def test_charts_are_well_formed_and_say_what_they_show():
    figures = {
        "loss": [(float(s), 1 / (s + 1)) for s in range(500)],
        "val_loss": [(100.0, 0.5), (400.0, 0.1)],
        "val_accuracy": [(100.0, 0.91)],
        "lr": [(float(s), 0.0) for s in range(3)],
    }
    for draw in (charts.draw_loss_chart, charts.draw_accuracy_chart, charts.draw_lr_chart):
        root = xml.fromstring(draw(figures))
        assert root.get("role") == "img" and root.get("aria-label")
        for line in root.iter("polyline"):
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= charts.CHART_WIDTH and 0 <= y <= charts.CHART_HEIGHT
    assert charts.draw_accuracy_chart(figures).count("<circle") == 1


def test_thinning_keeps_the_mean_and_the_last_step():
    points = [(float(s), float(s % 7)) for s in range(1000)]
    thinned = charts.downsample_points(points)
    assert len(thinned) == charts.MAX_CURVE_POINTS
    assert thinned[-1][0] == 999
    assert np.mean([y for _, y in thinned]) == pytest.approx(np.mean([y for _, y in points]), abs=0.05)
    assert charts.downsample_points(points[:50]) == points[:50]


def test_smoothing_leaves_a_straight_middle_alone():
    points = [(float(s), 2.0 * s) for s in range(20)]
    assert charts.smooth_points(points)[4:-4] == points[4:-4]
    assert charts.smooth_points([(1.0, 5.0)]) == [(1.0, 5.0)]


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_ticks_are_round_and_inside(low, width):
    found = charts.axis_ticks((low, low + width), 5)
    assert 1 <= len(found) <= 12
    assert all(low - 1e-6 * width <= tick <= low + width + 1e-6 * width for tick in found)


def test_ticks_of_a_share():
    assert charts.axis_ticks((0.0, 1.0), 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert charts.axis_ticks((0.0, 2000.0), 5) == [0, 500, 1000, 1500, 2000]


def test_a_range_is_never_empty_and_stays_inside_its_bounds():
    assert charts.axis_range([]) == pytest.approx((-0.06, 1.06))
    low, high = charts.axis_range([0.5, 0.5])
    assert low < 0.5 < high
    assert charts.axis_range([0.0, 1.0, math.nan], floor=0.0, ceiling=1.0) == (0.0, 1.0)
