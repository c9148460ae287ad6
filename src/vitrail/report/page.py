"""The report page: stored facts, predictions, curves and thumbnails in, one self-contained HTML file out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UsageError
from ..evaluate.metrics import Metrics, measure
from ..evaluate.predictions import Predictions, read_csv
from ..files import atomic
from . import curves, facts, thumbnails
from .facts import ReportFacts

NAME = "report.html"
MOST_CLASSES = 24
"""A larger confusion matrix does not fit a page; its largest confusions are listed instead."""


class Thumbnail(NamedTuple):
    """One picture on the page."""

    uri: str
    target: str
    answer: str
    confidence: float
    path: str
    small: bool
    """Drawn with sharp pixels."""


class Confusion(NamedTuple):
    """Pictures of one class that were taken for another."""

    target: str
    answer: str
    n: int
    share: float
    """Of the pictures of that class."""


def build(run_folder: Path) -> Path:
    """Write report.html of a run folder in one step, from report.json, predictions/*.csv, metrics.jsonl and thumbnails.

    Raises:
        UsageError: no report.json, or no predictions of its held-out split.
        DataError, DamagedFileError: a stored file that cannot be read, by name.
    """
    folder = Path(run_folder)
    known = facts.read(folder)
    stored = folder / "predictions" / f"{known.held_out}.csv"
    if not stored.exists():
        raise UsageError(f"The report speaks of the {known.held_out} split and needs {stored}. There is no such file.")
    path = folder / NAME
    text = render(known, read_csv(stored), folder)
    atomic.write_bytes(path, text.encode("utf-8", "replace"))  # a path may hold bytes that are not UTF-8
    return path


def render(known: ReportFacts, predictions: Predictions, folder: Path) -> str:
    """The page as text. `folder` holds metrics.jsonl and thumbnails.npz, both of which may be missing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    room = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    room.filters.update(percent=percent, duration=duration, count="{:,}".format)
    page = room.get_template("template.html.j2")
    return page.render(**_contents(known, predictions, folder))


def _contents(known: ReportFacts, predictions: Predictions, folder: Path) -> dict[str, Any]:
    metrics = known.measured(known.held_out) or measure(predictions)
    figures = curves.history(folder / "metrics.jsonl")
    shown = pictures(predictions, *thumbnails.load(folder))
    return {
        "facts": known,
        "metrics": metrics,
        "others": [other for other in known.metrics if other.split != metrics.split],
        "charts": {
            "loss": curves.loss_chart(figures),
            "accuracy": curves.accuracy_chart(figures),
            "rate": curves.rate_chart(figures),
            "reliability": curves.reliability_chart(predictions),
        },
        "matrix": _shaded(metrics) if len(metrics.confusion) <= MOST_CLASSES else None,
        "confusions": largest_confusions(metrics, 8),
        "mistakes": [picture for picture in shown if picture.target != picture.answer],
        "right": [picture for picture in shown if picture.target == picture.answer],
    }


def pictures(predictions: Predictions, images: np.ndarray, indices: np.ndarray) -> list[Thumbnail]:
    """Thumbnails with what the table says of them, in their stored order.

    Raises:
        UsageError: an index beyond the table, as when thumbnails and predictions come from different runs.
    """
    targets, labels = predictions.targets, predictions.labels
    if not len(indices):
        return []
    if indices.max() >= len(predictions) or targets is None:
        raise UsageError(
            f"Thumbnail indices must lie below the {len(predictions)} rows of predictions with targets. "
            f"Got {indices.max()}; are thumbnails and predictions of one run?"
        )
    found = []
    for image, i in zip(images, indices, strict=True):
        target, answer = int(targets[i]), int(labels[i])
        found.append(
            Thumbnail(
                uri=thumbnails.data_uri(image),
                target=predictions.classes[target],
                answer=predictions.classes[answer],
                confidence=float(predictions.confidences[i]),
                path=predictions.paths[i] or predictions.ids[i],
                small=max(image.shape[:2]) < 64,
            )
        )
    return found


def largest_confusions(metrics: Metrics, most: int) -> list[Confusion]:
    """The most frequent mistakes, largest first."""
    matrix = np.array(metrics.confusion)
    sums = matrix.sum(1)
    np.fill_diagonal(matrix, 0)
    places = np.argsort(-matrix, axis=None, kind="stable")[:most]
    names = [one.name for one in metrics.per_class]
    pairs = [divmod(int(place), len(names)) for place in places]
    return [Confusion(names[t], names[a], int(matrix[t, a]), matrix[t, a] / sums[t]) for t, a in pairs if matrix[t, a]]


def _shaded(metrics: Metrics) -> list[dict[str, Any]]:
    """Rows of the confusion matrix; a cell's shade in per cent grows with its share, five times faster if wrong."""
    rows = []
    for k, (one, row) in enumerate(zip(metrics.per_class, metrics.confusion, strict=True)):
        shares = [n / max(1, one.n) for n in row]
        shades = [8 + 62 * (share if k == j else min(1, 5 * share)) for j, share in enumerate(shares)]
        cells = [
            {"n": n, "share": share, "shade": round(shade), "right": k == j}
            for j, (n, share, shade) in enumerate(zip(row, shares, shades, strict=True))
        ]
        rows.append({"name": one.name, "cells": cells})
    return rows


def percent(share: float | None, digits: int = 1) -> str:
    """A fraction as per cent with a thin no-break space, or a dash where nothing was measured."""
    return "–" if share is None else f"{100 * share:.{digits}f}\u202f%"


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 9 min 58 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if whole < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
