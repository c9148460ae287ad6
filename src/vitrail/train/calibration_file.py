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

CALIBRATION_COLUMNS = ["id", "group", "score"]


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
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            lines = list(csv.DictReader(file))
        scores = np.array([float(line["score"]) for line in lines], np.float64)
        return scores, np.array([int(line["group"]) for line in lines], np.int64)
    except (OSError, ValueError, KeyError) as error:
        raise DamagedFileError(
            f"{path} must hold the scores of the good pictures. It cannot be read: {error}. Begin a new run."
        ) from error
