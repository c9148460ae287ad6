"""Which labels may be wrong: those that answers out of fold contradict most.

An answer is out of fold when whoever gave it had not been shown the picture: by the probes of `out_of_fold`, or by
models of which each was trained without one fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from .. import config
from ..data.csv_injection import escape_cell, format_csv_lines
from ..data.source import Source, Task
from ..files.atomic import write_bytes
from .predictions import LABEL_THRESHOLD
from .tables import format_float32, image_path

MIN_CONFIDENCE_GAP = 0.6
"""The score from which on a class or label is flagged: another one has at least 20 points of probability more.

Between two classes that a model cannot tell apart confident learning flags half of all pictures: of 630 that it flagged
for such a model 29 % were wrong; of the 157 from this score on all were, and these are 79 % of the wrong ones."""
MAX_ROBUST_Z = 3.5
"""Robust deviations from which on a number is flagged (Iglewicz and Hoaglin 1993)."""
MAD_TO_STD = 1.4826
"""Standard deviations in a median absolute deviation, of normal numbers."""


@dataclass(frozen=True, eq=False)
class LabelErrorCandidates:
    """Every known cell that was answered, the most suspect first; a cell is a picture, or one label of a picture."""

    rows: Int64[np.ndarray, " m"]
    """Places of the pictures in what was given."""
    outputs: Int64[np.ndarray, " m"]
    """Of labels and numbers the column; 0 for classes."""
    given_label: Float64[np.ndarray, " m"]
    """What the cell says: a class number, 1 or 0 for with and without the label, or a number."""
    suggested_label: Float64[np.ndarray, " m"]
    """What the answers say instead."""
    scores: Float64[np.ndarray, " m"]
    """Of classes and labels 0..1, above one half where the suggestion is likelier; of numbers robust deviations."""
    flagged: Bool[np.ndarray, " m"]
    """Which cells are likely to be wrong."""
    probabilities: Float64[np.ndarray, "m 2"]
    """Probability of what is given and of what is suggested; NaN for numbers."""

    def __len__(self) -> int:
        return len(self.rows)


def find_label_errors(
    task: Task, predictions: Float[np.ndarray, "n K"], targets: Shaped[np.ndarray, " n *K"]
) -> LabelErrorCandidates:
    """The suspects of any task.

    Args:
        predictions: out of fold: probabilities, or numbers in the unit of the targets; NaN where there is none.
        targets: class numbers [n], below 0 where unknown; labels 0..1 and numbers [n, K], NaN where unknown.
    """
    if task == "classes":
        return find_class_label_errors(predictions, targets.astype(np.int64))
    return (
        find_multilabel_errors(predictions, targets)
        if task == "labels"
        else find_regression_label_errors(predictions, targets)
    )


def find_class_label_errors(
    probabilities: Float[np.ndarray, "n K"], targets: Int64[np.ndarray, " n"]
) -> LabelErrorCandidates:
    """Confident learning: a class counts as confident from the mean probability on that its own pictures get.

    A picture is flagged whose likeliest confident class is another than the given one, if its score is clear. The score
    is half of one less the margin, the probability of the given class less that of the likeliest other one.

    Source: Northcutt, Jiang and Chuang 2021, "Confident learning: estimating uncertainty in dataset labels",
    sections 3.1 and 3.3; that the score must be clear is ours.
    """
    rows = np.flatnonzero((targets >= 0) & ~np.isnan(probabilities).any(1))
    chances, given, every = probabilities[rows].astype(np.float64), targets[rows], np.arange(len(rows))
    own = chances[every, given]
    sums, counts = (np.bincount(given, weights, chances.shape[1]) for weights in (own, None))
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)  # of a class nobody has, none is confident
    confident = np.where(chances >= thresholds, chances, -1.0)
    told = confident.argmax(1) if len(rows) else given
    others = chances.copy()
    others[every, given] = -1.0
    likeliest = others.argmax(1) if len(rows) else given
    scores = (1 - own + chances[every, likeliest]) / 2
    flagged = (confident.max(1, initial=-1.0) >= 0) & (told != given) & (scores >= MIN_CONFIDENCE_GAP)
    suggested = np.where(flagged, told, likeliest)
    return _sort_candidates(
        rows, np.zeros_like(rows), given, suggested, scores, flagged,
        np.stack([own, chances[every, suggested]], axis=1),
    )  # fmt: skip


def find_multilabel_errors(
    probabilities: Float[np.ndarray, "n K"], targets: Float[np.ndarray, "n K"]
) -> LabelErrorCandidates:
    """The same of every label by itself, whose two classes are with and without it; all cells in one order."""
    found = []
    for k in range(targets.shape[1]):
        present = np.where(np.isnan(targets[:, k]), -1, targets[:, k] >= LABEL_THRESHOLD).astype(np.int64)
        both = np.stack([1 - probabilities[:, k], probabilities[:, k]], axis=1)
        found.append(find_class_label_errors(both, present))
    columns = np.repeat(np.arange(len(found)), [len(one) for one in found])
    return _sort_candidates(
        np.concatenate([one.rows for one in found]),
        columns,
        np.concatenate([one.given_label for one in found]),
        np.concatenate([one.suggested_label for one in found]),
        np.concatenate([one.scores for one in found]),
        np.concatenate([one.flagged for one in found]),
        np.concatenate([one.probabilities for one in found]),
    )


def find_regression_label_errors(
    values: Float[np.ndarray, "n K"], targets: Float[np.ndarray, "n K"]
) -> LabelErrorCandidates:
    """Each number by how far its error lies from the median error of its column, in robust deviations.

    Source: Iglewicz and Hoaglin 1993, "How to detect and handle outliers": flagged beyond 3.5.
    """
    errors = targets.astype(np.float64) - values
    rows, columns = np.nonzero(~np.isnan(errors))
    scores = np.zeros(errors.shape)
    for k in range(errors.shape[1]):
        there = ~np.isnan(errors[:, k])
        if there.any():
            scores[there, k] = _robust_z_scores(errors[there, k])
    cells = scores[rows, columns]
    unknown = np.full((len(rows), 2), np.nan)
    return _sort_candidates(
        rows, columns, targets[rows, columns], values[rows, columns], cells, cells > MAX_ROBUST_Z, unknown
    )


def _robust_z_scores(errors: np.ndarray) -> np.ndarray:
    """How far each lies from the median; by the plain deviation where more than half of them are equal."""
    apart = np.abs(errors - np.median(errors))
    scale = MAD_TO_STD * float(np.median(apart)) or float(errors.std())
    return apart / scale if scale else apart


def _sort_candidates(
    rows: np.ndarray,
    outputs: np.ndarray,
    given_labels: np.ndarray,
    suggested: np.ndarray,
    scores: np.ndarray,
    flagged: np.ndarray,
    probabilities: np.ndarray,
) -> LabelErrorCandidates:
    """By falling score; of equals the earlier one."""
    order = np.argsort(-scores, kind="stable")
    return LabelErrorCandidates(
        rows=rows[order].astype(np.int64),
        outputs=outputs[order].astype(np.int64),
        given_label=given_labels[order].astype(np.float64),
        suggested_label=suggested[order].astype(np.float64),
        scores=scores[order].astype(np.float64),
        flagged=flagged[order],
        probabilities=probabilities[order].astype(np.float64),
    )


# The list of labels that are likely to be wrong: in words, as a table, and as a file that `--exclude` takes.

SUSPECT_COLUMNS = ("id", "path", "given", "suggested", "score", "reason")
MAX_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class LabelError:
    """One line of the list: a label of a picture that is likely to be wrong."""

    id: str
    path: str
    given: str
    suggested: str
    score: float
    """Of classes and labels 0..1, of numbers deviations; the list falls."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class LabelErrorReport:
    """What was looked at, and the list."""

    source: str
    pictures: int
    cells: int
    """Known labels or numbers that could be judged; of classes one a picture."""
    judges: str
    """Who has judged, each what it has not seen, such as "5 probes"."""
    figure: str
    """A figure of the judges against the labels as they are given."""
    worth: float | None = None
    """That figure: judges that know nothing suspect at random."""
    suspects: tuple[LabelError, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def summary(self, where: Path) -> str:
        """How many of how many labels are listed, by whose judgement, and in which file."""
        worth = "cannot be told" if self.worth is None else f"is {self.worth:.4f}"
        share = len(self.suspects) / max(1, self.cells)
        judged = f"{self.cells:,} labels of {self.pictures:,} pictures judged by {self.judges}"
        found = f"{len(self.suspects):,} labels ({share:.1%}) are likely to be wrong"
        return (
            f"{self.source}: {judged}, each on what it has not seen; their {self.figure} {worth}.\n"
            f"{found}. They are in {where}."
        )

    def table(self, where: Path) -> str:
        """Counts and the ten worst, for the terminal."""
        if not self.suspects:
            return self.summary(where)
        rows = [("score", "given", "suggested", "id")]
        rows += [(f"{one.score:.3f}", one.given, one.suggested, one.id) for one in self.suspects[:MAX_SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.summary(where), "", *shown, "", label_error_advice(where)])

    def write_csv(self, path: Path) -> None:
        """Replace a CSV with one line per suspect, the worst first, as `vitrail train --exclude` takes it."""
        cells = (
            [escape_cell(text) for text in (one.id, one.path, one.given, one.suggested)]
            + [format_float32(one.score), escape_cell(one.reason)]
            for one in self.suspects
        )
        write_bytes(path, "".join(format_csv_lines([SUSPECT_COLUMNS, *cells])).encode("utf-8", "surrogateescape"))


def label_error_advice(where: Path) -> str:
    """What to do with the list."""
    return f"Look at them, delete the lines of those to keep, and train with --exclude {where}."


def list_label_errors(
    source: Source,
    rows: Int64[np.ndarray, " n"],
    predictions: Float[np.ndarray, "n K"],
    targets: Shaped[np.ndarray, " n *K"],
    judges: tuple[int, str],
    figure: str,
    worth: float | None,
) -> LabelErrorReport:
    """The list of what answers out of fold contradict, with the names of a source.

    Args:
        rows: of the source, one for each answer.
        predictions, targets: as `suspects` takes them.
        judges: how many there are, and what they are called, such as (5, "probes").
        figure, worth: what these are worth against the labels as they are given.
    """
    found = find_label_errors(source.task, predictions, targets)
    flagged = np.flatnonzero(found.flagged)
    return LabelErrorReport(
        source=source.name,
        pictures=len(rows),
        cells=len(found),
        judges=f"{judges[0]} {judges[1]}",
        figure=figure,
        worth=worth,
        suspects=tuple(_make_label_error(source, rows, found, place, judges[1]) for place in flagged.tolist()),
    )


def _make_label_error(
    source: Source, rows: np.ndarray, found: LabelErrorCandidates, place: int, judges: str
) -> LabelError:
    row, output = int(rows[found.rows[place]]), int(found.outputs[place])
    given, suggested = (
        _describe_label(source, output, float(cell[place])) for cell in (found.given_label, found.suggested_label)
    )
    return LabelError(
        id=source.ids[row],
        path=image_path(source.images[row]),
        given=given,
        suggested=suggested,
        score=float(found.scores[place]),
        reason=_describe_reason(source, found, place, given, suggested, judges),
    )


def _describe_label(source: Source, output: int, cell: float) -> str:
    """A class by its name, a label as "with" or "without" it, a number with its column."""
    if source.task == "classes":
        return source.classes[int(cell)]
    name = source.classes[output]
    if source.task == "labels":
        return f"with {name}" if cell else f"without {name}"
    return f"{name} {cell:.6g}"


def _describe_reason(
    source: Source, candidates: LabelErrorCandidates, index: int, given: str, suggested: str, judges: str
) -> str:
    if source.task == "number":
        return f"{candidates.scores[index]:.1f} robust deviations from what {judges} expect that have not seen it"
    own, other = candidates.probabilities[index].tolist()
    return f"{judges} that have not seen it give {given} {own:.0%}, {suggested} {other:.0%}"
