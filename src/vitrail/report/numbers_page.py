"""What the page of a run says for the task `number`: answers against the truth, and the largest errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from ..evaluate.predictions import RegressionPredictions
from ..evaluate.regression_metrics import RegressionMetrics
from . import chart, thumbnails
from .shown import Line, shown
from .thumbnails import Kept

MOST_POINTS = 1000
"""Pictures in one scatter, evenly taken from the table: more make the page large and the picture no clearer."""
MOST_COLUMNS = 8
"""Columns that have a scatter."""
MOST_LINES = 3


def contents(
    metrics: RegressionMetrics, answers: RegressionPredictions, images: Sequence[Kept], indices: Int64[np.ndarray, " k"]
) -> dict[str, Any]:
    """What `number.html.j2` needs beside what every page has.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    thumbnails.check_rows(indices, len(answers), answers.targets is not None)
    worst = len(indices) - len(indices) // 2  # `choice.of_numbers` gives as many of both, or all that there are
    pictures = [
        shown(image, answers.paths[row] or answers.ids[row], _lines(answers, row))
        for image, row in zip(images, indices.tolist(), strict=True)
    ]
    rising = sorted(range(worst, len(indices)), key=lambda place: _truth(answers, int(indices[place])))
    return {
        "scatters": [
            (name, scatter(answers, k)) for k, name in enumerate(answers.columns[:MOST_COLUMNS]) if _known(answers, k)
        ],
        "points": MOST_POINTS,
        "mistakes": pictures[:worst],
        "others": [pictures[place] for place in rising],
    }


def scatter(answers: RegressionPredictions, column: int) -> str:
    """Answers by true values as an SVG element; on the dashed line they are equal."""
    assert answers.targets is not None
    rows = np.flatnonzero(answers.known[:, column])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(MOST_POINTS, len(rows))).astype(np.int64))]
    pairs = list(zip(answers.targets[rows, column].tolist(), answers.values[rows, column].tolist(), strict=True))
    span = chart.spread([number for pair in pairs for number in pair])
    lines = [
        chart.Line(name="equal", points=[(span[0], span[0]), (span[1], span[1])], style="guide"),
        chart.Line(name="pictures", points=pairs, style="points", dots=True),
    ]
    name = answers.columns[column]
    return chart.draw(lines, f"true {name}", "{:.6g}".format, span, span, f"Answered {name} by true {name}")


def _known(answers: RegressionPredictions, column: int) -> bool:
    return bool(answers.known[:, column].any())


def _truth(answers: RegressionPredictions, row: int) -> float:
    """The first known number of a picture."""
    assert answers.targets is not None
    return float(answers.targets[row][answers.known[row]][0])


def _lines(answers: RegressionPredictions, row: int) -> tuple[Line, ...]:
    """One line per known column."""
    assert answers.targets is not None
    several = len(answers.columns) > 1
    return tuple(
        Line(
            f"{answers.columns[k]} is" if several else "is",
            f"{answers.targets[row, k]:.4g}",
            f", said {answers.values[row, k]:.4g}",
        )
        for k in np.flatnonzero(answers.known[row]).tolist()[:MOST_LINES]
    )
