"""A run in a few lines of HTML, as notebooks show it below a cell."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..errors import DamagedFileError, UsageError
from ..formatting import format_duration
from ..report import page, provenance

MAX_CLASSES = 8
"""Classes that are named."""
ACCENT_COLOR = "#2a8fb0"
"""Legible on white and on black."""
CARD_STYLE = (
    "font:14px/1.5 system-ui,sans-serif;display:inline-block;max-width:46em;margin:.5em 0;padding:.7em 1.1em;"
    f"border:1px solid #8884;border-left:4px solid {ACCENT_COLOR};border-radius:6px"
)


def render_run_card(run: Path) -> str:
    """What a run has learnt, on how much, how well, and where its report lies; of one without a report, its folder."""
    try:
        told = provenance.read_facts(run)
    except (UsageError, DamagedFileError):
        return f'<div style="{CARD_STYLE}"><b>A run without a report</b><br><code>{escape(str(run))}</code></div>'
    figures = told.metrics_for_split(told.held_out_split)
    names = ", ".join(told.classes[:MAX_CLASSES]) + (
        f" and {len(told.classes) - MAX_CLASSES} more" if told.classes[MAX_CLASSES:] else ""
    )
    counts = ", ".join(f"{count.n:,} {count.split}" for count in told.counts if count.n)
    report = escape((run / page.REPORT_FILE).resolve().as_uri())
    lines = [
        f'<span style="opacity:.75">{escape(told.title)}</span>',
        "" if figures is None else f"<b>{escape(figures.headline())}</b>",
        (
            f"{told.parameters:,} parameters, {told.steps:,} steps in {format_duration(told.seconds)}; pictures: "
            f"{escape(counts)}"
        ),
        f"{_TASK_NOUNS[told.task]}: {escape(names)}",
        f'<a style="color:{ACCENT_COLOR}" href="{report}">report</a> in <code>{escape(str(run))}</code>',
    ]
    return f'<div style="{CARD_STYLE}">{"<br>".join(line for line in lines if line)}</div>'


_TASK_NOUNS = {"classes": "classes", "labels": "labels", "number": "numbers"}
