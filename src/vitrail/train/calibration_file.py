"""calibration.csv of an anomaly run: the score of every good image from a bank without its own patches."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from ..data.csv_injection import escape_cell, format_csv_lines
from ..errors import DamagedFileError
from ..files import atomic
from ..formatting import format_count

CALIBRATION_COLUMNS = ["id", "group", "score"]
FENCE = 3.0
"""Interquartile ranges above the third quartile from which a score stands out (Tukey 1977, "far out")."""
MAX_NAMED = 5


def write_calibration(path: Path, ids: Sequence[str], groups: Int64[np.ndarray, " n"], scores: np.ndarray) -> None:
    """Write the scores of the good images, the largest first: those at the top look least like the others."""
    order = np.argsort(-scores, kind="stable").tolist()
    rows = [[escape_cell(ids[i]), str(int(groups[i])), repr(float(scores[i]))] for i in order]
    lines = format_csv_lines([CALIBRATION_COLUMNS, *rows])
    atomic.write_bytes(path, "".join(lines).encode("utf-8", "surrogateescape"))


def read_calibration(path: Path) -> tuple[Float64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Scores and groups as `write_calibration` wrote them.

    Raises:
        DamagedFileError: there is no such file, or another one.
    """
    _, scores, groups = _read_columns(path)
    return scores, groups


def read_scores(path: Path) -> dict[str, float]:
    """The score of each good image by its id.

    Raises:
        DamagedFileError: as `read_calibration`.
    """
    ids, scores, _ = _read_columns(path)
    return dict(zip(ids, scores.tolist(), strict=True))


def find_odd_images(scores: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " k"]:
    """Rows of good images whose scores stand out from the others', the largest first."""
    lower, upper = np.quantile(scores, (0.25, 0.75))
    order = np.argsort(-scores, kind="stable")
    return order[scores[order] > upper + FENCE * (upper - lower)]


def describe_odd_images(path: Path) -> list[str]:
    """A sentence that names good images which may have a defect, and how to take them out; none if none stands out.

    Raises:
        DamagedFileError: as `read_calibration`.
    """
    ids, scores, _ = _read_columns(path)
    rows = find_odd_images(scores).tolist()
    if not rows:
        return []
    names = ", ".join(ids[row] for row in rows[:MAX_NAMED]) + ", ..." * (len(rows) > MAX_NAMED)
    differ = f"{format_count(len(rows), 'good picture')} of {len(ids):,} {'differs' if len(rows) == 1 else 'differ'}"
    text = (
        f"{differ} far more from the others than these among themselves: {names}. A bank calls the defects of its own "
        "pictures good. Their ids in a table take them out: vitrail teach RUN --forget LIST.csv"
    )
    return [text]


def _read_columns(path: Path) -> tuple[list[str], Float64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Ids, scores and groups."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            lines = list(csv.DictReader(file))
        scores = np.array([float(line["score"]) for line in lines], np.float64)
        return [line["id"] for line in lines], scores, np.array([int(line["group"]) for line in lines], np.int64)
    except (OSError, ValueError, KeyError) as error:
        raise DamagedFileError(
            f"{path} must hold the scores of the good pictures. It cannot be read: {error}. Begin a new run."
        ) from error
