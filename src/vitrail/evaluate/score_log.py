"""Score log: a line of JSON for each answered image, with its scores and without the image, for `vitrail watch`.

    {"time": "2026-11-28T10:12:00", "image": "a.png", "unlike": 3.1, "scores": {"cat": 0.9, "dog": 0.1}, "abstain": "",
     "decision": ""}

`unlike` is the distance of the features from those of the training, null where the model has none. The server appends
to such a file on request, and a run keeps one so that no image is computed twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .drift import SCORE, ScoredImages
from .predictions import ClassificationPredictions, RegressionPredictions, TaskPredictions, output_names


def score_names(predictions: TaskPredictions) -> tuple[str, ...]:
    """The names of the scores: classes, labels or columns, or the one score of an anomaly model."""
    is_anomaly = isinstance(predictions, ClassificationPredictions) and predictions.scores is not None
    return (SCORE,) if is_anomaly else output_names(predictions)


def format_score_lines(predictions: TaskPredictions, images: Sequence[str], time: str) -> Iterator[str]:
    """The line of each image.

    Args:
        images: what the log calls each image.
        time: when they were answered, in ISO form.
    """
    names = score_names(predictions)
    if isinstance(predictions, RegressionPredictions):
        scores = predictions.values
    else:
        scores = predictions.probabilities
        if isinstance(predictions, ClassificationPredictions) and predictions.scores is not None:
            scores = predictions.scores[:, None]
    reasons = predictions.abstain_reasons or ("",) * len(predictions)
    distances = [None] * len(predictions) if predictions.distances is None else predictions.distances.tolist()
    for image, unlike, row, reason in zip(images, distances, scores.tolist(), reasons, strict=True):
        facts = {"time": time, "image": image, "unlike": unlike, "scores": dict(zip(names, row, strict=True))}
        yield json.dumps({**facts, "abstain": reason, "decision": predictions.decision}, ensure_ascii=False)


def is_score_log(path: Path) -> bool:
    """Whether a file begins as a score log does."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(1000).startswith(b'{"time": ')


def read_score_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a score log; a last line that a crash has cut short is left out.

    Raises:
        DataError: the file cannot be read, or a line is none of a score log.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The score log {path} cannot be read: {error}.") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            _check_row(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                break
            raise DataError(
                f"{path}, line {number}: a score log has a time, an image, unlike, scores, abstain and decision in "
                "each line, and numbers that are finite. Take that line out."
            ) from error
        rows.append(row)
    return rows


def _check_row(row: Any) -> None:
    """Raises ValueError, TypeError, KeyError or AttributeError where a row is none of a score log."""
    datetime.fromisoformat(row["time"])
    texts = (row["image"], row["abstain"], row["decision"])
    numbers = [*row["scores"].values(), *([] if row["unlike"] is None else [row["unlike"]])]
    if not all(isinstance(text, str) for text in texts) or not all(math.isfinite(number) for number in numbers):
        raise ValueError("not a row of a score log")


def build_scored_images(
    rows: Sequence[dict[str, Any]], names: Sequence[str], ids: Sequence[str], times: Sequence[datetime],
    groups: np.ndarray | None = None,
) -> ScoredImages:  # fmt: skip
    """The rows of a log as arrays.

    Args:
        names: of the scores.
        ids, times: what each image is called, and when it was made.
        groups: of each image, if there are groups.

    Raises:
        DataError: a row has other scores than these, as that of another model has.
    """
    for row in rows:
        if tuple(row["scores"]) != tuple(names):
            raise DataError(
                f"The scores of {row['image']} are of {', '.join(list(row['scores'])[:8])}, and the run answers with "
                f"{', '.join(names[:8])}. The log is of another model; name the run that was served."
            )
    has_distances = bool(rows) and all(row["unlike"] is not None for row in rows)
    return ScoredImages(
        ids=tuple(ids),
        times=np.array([time.replace(tzinfo=None) for time in times], "datetime64[s]"),
        groups=groups,
        distances=np.array([row["unlike"] for row in rows], np.float64) if has_distances else None,
        scores=np.array([list(row["scores"].values()) for row in rows], np.float64).reshape(len(rows), len(names)),
        abstained=np.array([bool(row["abstain"]) for row in rows], bool),
    )
