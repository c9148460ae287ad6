"""Page of a watched stream: its days, charts of what moved, and the images behind every alarm, as one HTML file."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import NamedTuple

from ..data.decoding.decode import decode_image, to_8_bits
from ..errors import DataError
from ..evaluate.drift import DriftAlarm, WatchReport, describe_move, format_evidence
from ..spec import ImageSpec
from .charts import ChartLine, axis_range, draw_line_chart
from .check_page import MAX_SHARP_SIDE, ImageTile, thumbnail_data_uri
from .page import render_template

MAX_SHOWN_ALARMS = 6
"""Alarms with their images on the page, the last ones; the JSON has all."""
LEAST_EVIDENCE = 1e-4
"""What is drawn of less evidence."""


class AlarmPanel(NamedTuple):
    """An alarm with its images."""

    date: str
    alarm: DriftAlarm
    tiles: list[ImageTile]


def render_watch_page(report: WatchReport, spec: ImageSpec) -> str:
    """The page as text; images that are still there are decoded by `spec`, of the others the name is shown."""
    alarms = report.alarms[-MAX_SHOWN_ALARMS:][::-1]
    context = {
        "report": report,
        "days": report.days[::-1],
        "pictures": sum(day.n for day in report.days),
        "alarms": [AlarmPanel(day, alarm, [_make_tile(name, spec) for name in alarm.images]) for day, alarm in alarms],
        "hidden_alarms": len(report.alarms) - len(alarms),
        "evidence": _draw_evidence(report),
        "unlike": _draw_shares(report, "Unlikeness of each day"),
        "describe_move": describe_move,
        "format_evidence": format_evidence,
    }
    return render_template("watch.html.j2", context)


def _make_tile(name: str, spec: ImageSpec) -> ImageTile:
    path = Path(name)
    if not path.is_file():  # a score log keeps no images
        return ImageTile("", name, "", False)
    try:
        values = to_8_bits(decode_image(path, spec))
    except DataError:
        return ImageTile("", path.name, "", False)
    return ImageTile(thumbnail_data_uri(values), path.name, "", max(values.shape[:2]) < MAX_SHARP_SIDE)


def _count_days(report: WatchReport) -> list[int]:
    """Days of each day from the first one."""
    dates = [date.fromisoformat(day.date) for day in report.days]
    return [(one - dates[0]).days for one in dates]


def _draw_evidence(report: WatchReport) -> str:
    places = _count_days(report)
    heights = [math.log10(max(day.evidence, LEAST_EVIDENCE)) for day in report.days]
    points, last = list(zip(map(float, places), heights, strict=True)), float(max(places[-1], 1))
    alarms = [point for point, day in zip(points, report.days, strict=True) if day.alarms]
    lines = [
        ChartLine(name="limit", points=[(0.0, 0.0), (last, 0.0)], style="guide"),
        ChartLine(name="evidence", points=points, dots=len(points) <= 60),
        *(ChartLine(name="alarm", points=[point], style="second") for point in alarms),
    ]
    y = axis_range([*heights, 0.0, -1.0])
    return draw_line_chart(
        lines, f"days since {report.days[0].date}", lambda power: f"{10**power:.3g}", (0.0, last), y,
        "Evidence for a change by day, as a fraction of the limit",
    )  # fmt: skip


def _draw_shares(report: WatchReport, title: str) -> str | None:
    """The chance by day that an image is less like the training than one of the reference; None without distances."""
    places = _count_days(report)
    points = [(float(x), day.unlike) for x, day in zip(places, report.days, strict=True) if day.unlike is not None]
    if not points:
        return None
    last = float(max(places[-1], 1))
    lines = [
        ChartLine(name="without change", points=[(0.0, 0.5), (last, 0.5)], style="guide"),
        ChartLine(name="unlike", points=points, dots=len(points) <= 60),
    ]
    y = axis_range([0.4, 0.6, *(value for _, value in points)], floor=0.0, ceiling=1.0)
    return draw_line_chart(lines, f"days since {report.days[0].date}", "{:g}".format, (0.0, last), y, title)
