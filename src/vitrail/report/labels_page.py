"""What the page of a run says for the task `labels`: how well each is told, and where it is most wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from ..evaluate.multilabel_metrics import MIN_PER_SIDE, MultilabelMetrics
from ..evaluate.predictions import LABEL_THRESHOLD, MultilabelPredictions
from . import dots, thumbnails
from .choice import wrong_labels
from .shown import Line, Shown, shown
from .thumbnails import Kept

MOST_LINES = 3
"""Wrong labels that are written below a picture, the most confident first."""


def contents(
    metrics: MultilabelMetrics, answers: MultilabelPredictions, images: Sequence[Kept], indices: Int64[np.ndarray, " k"]
) -> dict[str, Any]:
    """What `labels.html.j2` needs beside what every page has.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    pictures, wrong = _pictures(answers, images, indices), np.asarray(wrong_labels(answers).any(1))
    ranked = [
        dots.Dot(one.name, one.auroc, one.auroc_interval) for one in metrics.per_label if one.auroc is not None
    ]  # fmt: skip
    ranked.sort(key=lambda dot: -dot.value)
    lowest = min([0.5, *(low for dot in ranked for low in (dot.value, *(dot.interval or ())))])
    span = (max(0.0, lowest - 0.05), 1.0)
    title = "AUROC of each label with its 95 % interval"
    return {
        "fewest": MIN_PER_SIDE,
        "dots": dots.draw(ranked, span, title, guide=0.5) if ranked else None,
        "mistakes": [picture for row, picture in pictures if wrong[row]][: thumbnails.MOST],
        "right": [picture for row, picture in pictures if not wrong[row]],
    }


def _pictures(
    answers: MultilabelPredictions, images: Sequence[Kept], indices: Int64[np.ndarray, " k"]
) -> list[tuple[int, Shown]]:
    """Thumbnails with their rows, in their stored order."""
    thumbnails.check_rows(indices, len(answers), answers.targets is not None)
    return [
        (row, shown(image, answers.paths[row] or answers.ids[row], _lines(answers, row)))
        for image, row in zip(images, indices.tolist(), strict=True)
    ]


def _lines(answers: MultilabelPredictions, row: int) -> tuple[Line, ...]:
    """The wrong labels of a picture, or those that it rightly has and those that nobody knows."""
    assert answers.targets is not None
    targets, chances = answers.targets[row], answers.probabilities[row]
    wrong = np.flatnonzero(wrong_labels(answers)[row])
    if len(wrong):
        order = wrong[np.argsort(-np.abs(chances[wrong] - (targets[wrong] >= LABEL_THRESHOLD)), kind="stable")][
            :MOST_LINES
        ]
        return tuple(
            Line("has" if targets[k] >= LABEL_THRESHOLD else "no", answers.classes[k], f", said {chances[k]:.0%}", True)
            for k in order.tolist()
        )
    there, known = np.flatnonzero(targets >= LABEL_THRESHOLD).tolist(), answers.known[row]
    lines = [Line("", answers.classes[k], f" {chances[k]:.0%}") for k in there]
    if not lines:
        of = "the labels" if known.all() else "the known labels"
        lines = [Line("none of", of, f", highest {chances[known].max():.0%}")]
    lines += [Line("not known:", answers.classes[k], f" {chances[k]:.0%}") for k in np.flatnonzero(~known).tolist()]
    return tuple(lines[:MOST_LINES])
