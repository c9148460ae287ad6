"""The HTML card of a run in notebooks."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..errors import DamagedFileError, UsageError
from ..formatting import format_count, format_duration
from ..report import page, provenance

MAX_CLASSES = 8
"""Most class names in a card."""
ACCENT_COLOR = "#2a8fb0"
"""Legible on white and on black."""
_TASK_NOUNS = {"multilabel": "labels", "regression": "numbers"}
"""What outputs are, where they are no classes."""
CARD_STYLE = (
    "font:14px/1.5 system-ui,sans-serif;display:inline-block;max-width:46em;margin:.5em 0;padding:.7em 1.1em;"
    f"border:1px solid #8884;border-left:4px solid {ACCENT_COLOR};border-radius:6px"
)


def render_run_card(run: Path) -> str:
    """A run's title, main metric, size, data and a link to its report; without a report its folder."""
    try:
        facts = provenance.read_facts(run)
    except (UsageError, DamagedFileError):
        return f'<div style="{CARD_STYLE}"><b>A run without a report</b><br><code>{escape(str(run))}</code></div>'
    metrics = facts.metrics_for_split(facts.held_out_split)
    names = ", ".join(facts.classes[:MAX_CLASSES]) + (
        f" and {len(facts.classes) - MAX_CLASSES} more" if facts.classes[MAX_CLASSES:] else ""
    )
    counts = ", ".join(f"{count.n:,} {count.split}" for count in facts.counts if count.n)
    report = escape((run / page.REPORT_FILE).resolve().as_uri())
    lines = [
        f'<span style="opacity:.75">{escape(facts.title)}</span>',
        "" if metrics is None else f"<b>{escape(metrics.headline())}</b>",
        (
            f"{facts.parameters:,} parameters, {format_count(facts.steps, 'step')} in "
            f"{format_duration(facts.seconds)}; pictures: {escape(counts)}"
        ),
        f"{_TASK_NOUNS.get(facts.task, 'classes')}: {escape(names)}",
        f'<a style="color:{ACCENT_COLOR}" href="{report}">report</a> in <code>{escape(str(run))}</code>',
    ]
    return f'<div style="{CARD_STYLE}">{"<br>".join(line for line in lines if line)}</div>'
