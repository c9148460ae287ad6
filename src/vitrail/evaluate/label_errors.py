"""Label errors: labels that out-of-fold predictions contradict, by confident learning or robust z-scores.

An out-of-fold prediction comes from a model that was not trained on the image: a probe of `probe.predict_out_of_fold`,
or one of several models that were each trained without one fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from .. import config
from ..argument_types import check_calls
from ..data.csv_injection import escape_cell, format_csv_lines
from ..data.source import Source, Task
from ..files.atomic import write_bytes
from ..formatting import format_count
from .predictions import LABEL_THRESHOLD
from .tables import format_float32, image_path

MIN_CONFIDENCE_GAP = 0.6
"""Lowest score of a flagged class or label: the other class is at least 20 percentage points more probable.

Confident learning alone flags half of all images of two classes that a model cannot separate. Measured on such a
model: of 630 flagged images 29 % were wrong; of the 157 with at least this score all were, which are 79 % of the wrong
ones."""
MIN_AGREEMENT = 0.75
"""Lowest share of given labels among the judgements of at least that score, for or against the given label.

Below it judges that have learnt too little, and not wrong labels, are the likelier reason of a contradiction. Measured
on handwritten digits without a wrong label: judges that are right in 37 % of all pictures contradict 21 % of them."""
ERRING_JUDGES = 2
"""So many times as many labels as are listed do judges contradict, sure or not, of whose list a warning is given.
Probes right in 80 % of the handwritten digits list 117 of 1,797, nearly all of which are right."""
MAX_ERROR_SCALE = 0.7
"""Largest robust deviation of the judges' errors, in robust deviations of the numbers: about half of the variance."""
MAX_ROBUST_Z = 3.5
"""Robust z-score above which a number is flagged (Iglewicz and Hoaglin 1993)."""
MAD_TO_STD = 1.4826
"""Standard deviation divided by median absolute deviation, of a normal distribution."""


@dataclass(frozen=True, eq=False)
class LabelErrorCandidates:
    """Every known cell with a prediction, by falling score; a cell is an image, or one label of an image."""

    rows: Int64[np.ndarray, " m"]
    """Row indices of the images in the input."""
    outputs: Int64[np.ndarray, " m"]
    """Output index for labels and numbers; 0 for classes."""
    given_label: Float64[np.ndarray, " m"]
    """The value of the cell: a class index, 1 or 0 for a label, or a number."""
    suggested_label: Float64[np.ndarray, " m"]
    """The value that the predictions suggest instead."""
    scores: Float64[np.ndarray, " m"]
    """0..1 for classes and labels, above 0.5 where the suggestion is more probable; robust z-scores for numbers."""
    flagged: Bool[np.ndarray, " m"]
    """Cells that are likely to be wrong."""
    probabilities: Float64[np.ndarray, "m 2"]
    """Probability of the given and of the suggested label; NaN for numbers."""

    def __len__(self) -> int:
        return len(self.rows)

    def sort_by_score(self) -> LabelErrorCandidates:
        """The cells by falling score; ties keep their order."""
        order = np.argsort(-self.scores, kind="stable")
        return LabelErrorCandidates(**{name: values[order] for name, values in vars(self).items()})


def find_label_errors(
    task: Task, predictions: Float[np.ndarray, "n K"], targets: Shaped[np.ndarray, " n *K"]
) -> LabelErrorCandidates:
    """Find label errors for any task.

    Args:
        predictions: out-of-fold probabilities, or numbers in the unit of the targets; NaN where there are none.
        targets: class indices [n], below 0 where unknown; labels 0..1 and numbers [n, K], NaN where unknown.
    """
    if task == "classification":
        return find_class_label_errors(predictions, targets.astype(np.int64))
    if task == "multilabel":
        return find_multilabel_errors(predictions, targets)
    return find_regression_label_errors(predictions, targets)


def find_class_label_errors(
    probabilities: Float[np.ndarray, "n K"], targets: Int64[np.ndarray, " n"]
) -> LabelErrorCandidates:
    """Confident learning (Northcutt et al. 2021): the threshold of a class is the mean probability on its own images.

    An image is flagged if its most probable class above threshold is not the given one and its score is at least
    MIN_CONFIDENCE_GAP. The score is (1 - margin) / 2; the margin is the probability of the given class minus that of
    the most probable other class.

    Source: Northcutt, Jiang and Chuang 2021, "Confident learning: estimating uncertainty in dataset labels",
    sections 3.1 and 3.3; the minimum score is ours.
    """
    rows = np.flatnonzero((targets >= 0) & ~np.isnan(probabilities).any(1))
    chances, given, every = probabilities[rows].astype(np.float64), targets[rows], np.arange(len(rows))
    own = chances[every, given]
    sums, counts = (np.bincount(given, weights, chances.shape[1]) for weights in (own, None))
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)  # an absent class is never confident
    confident = np.where(chances >= thresholds, chances, -1.0)
    best_confident = confident.argmax(1) if len(rows) else given
    others = chances.copy()
    others[every, given] = -1.0
    likeliest = others.argmax(1) if len(rows) else given
    scores = (1 - own + chances[every, likeliest]) / 2
    flagged = (confident.max(1, initial=-1.0) >= 0) & (best_confident != given) & (scores >= MIN_CONFIDENCE_GAP)
    suggested = np.where(flagged, best_confident, likeliest)
    return LabelErrorCandidates(
        rows=rows,
        outputs=np.zeros_like(rows),
        given_label=given.astype(np.float64),
        suggested_label=suggested.astype(np.float64),
        scores=scores,
        flagged=flagged,
        probabilities=np.stack([own, chances[every, suggested]], axis=1),
    ).sort_by_score()


def find_multilabel_errors(
    probabilities: Float[np.ndarray, "n K"], targets: Float[np.ndarray, "n K"]
) -> LabelErrorCandidates:
    """Confident learning for each label as a problem of two classes; all cells in one list."""
    per_label = []
    for k in range(targets.shape[1]):
        present = np.where(np.isnan(targets[:, k]), -1, targets[:, k] >= LABEL_THRESHOLD).astype(np.int64)
        both = np.stack([1 - probabilities[:, k], probabilities[:, k]], axis=1)
        per_label.append(find_class_label_errors(both, present))
    joined = {name: np.concatenate([vars(one)[name] for one in per_label]) for name in vars(per_label[0])}
    joined["outputs"] = np.repeat(np.arange(len(per_label)), [len(one) for one in per_label])
    return LabelErrorCandidates(**joined).sort_by_score()


def find_regression_label_errors(
    values: Float[np.ndarray, "n K"], targets: Float[np.ndarray, "n K"]
) -> LabelErrorCandidates:
    """Modified z-score of each error within its column: distance from the median error in robust deviations.

    Source: Iglewicz and Hoaglin 1993, "How to detect and handle outliers": flagged beyond 3.5.
    """
    errors = targets.astype(np.float64) - values
    rows, columns = np.nonzero(~np.isnan(errors))
    scores = np.zeros(errors.shape)
    for k in range(errors.shape[1]):
        there = ~np.isnan(errors[:, k])
        if there.any():
            apart = np.abs(errors[there, k] - np.median(errors[there, k]))
            scale = _robust_scale(errors[there, k])
            scores[there, k] = apart / scale if scale else apart
    cells = scores[rows, columns]
    return LabelErrorCandidates(
        rows=rows,
        outputs=columns,
        given_label=targets[rows, columns].astype(np.float64),
        suggested_label=values[rows, columns].astype(np.float64),
        scores=cells,
        flagged=cells > MAX_ROBUST_Z,
        probabilities=np.full((len(rows), 2), np.nan),
    ).sort_by_score()


# -- Judges that are good enough


def find_poor_judges(task: Task, candidates: LabelErrorCandidates) -> dict[int, float]:
    """Outputs whose judges are too poor to contradict a label: their agreement, or for numbers their error scale.

    The score is symmetric: 1 minus a score is the score that the opposite judgement would have.
    """
    poor: dict[int, float] = {}
    for output in np.unique(candidates.outputs).tolist():
        cells = candidates.outputs == output
        if task == "regression":
            given, suggested = candidates.given_label[cells], candidates.suggested_label[cells]
            scale = _robust_scale(given - suggested) / (_robust_scale(given) or np.inf)
            if scale > MAX_ERROR_SCALE:
                poor[output] = scale
            continue
        scores = candidates.scores[cells]
        against, agreeing = (scores >= MIN_CONFIDENCE_GAP).sum(), (scores <= 1 - MIN_CONFIDENCE_GAP).sum()
        if against and agreeing < MIN_AGREEMENT * (against + agreeing):
            poor[output] = float(agreeing / (against + agreeing))
    return poor


def _robust_scale(values: Float64[np.ndarray, " n"]) -> float:
    """Standard deviation by the median absolute deviation; the plain one where more than half are equal."""
    return MAD_TO_STD * float(np.median(np.abs(values - np.median(values)))) or float(values.std())


# -- The report: a sentence, a table, and a CSV file that `vitrail train --exclude` takes

SUSPECT_COLUMNS = ("id", "path", "given", "suggested", "score", "reason")
MAX_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class LabelError:
    """One line of the report: a label of an image that is likely to be wrong."""

    id: str
    path: str
    given: str
    suggested: str
    score: float
    """0..1 for classes and labels, robust deviations for numbers; the list is sorted by it, falling."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class LabelErrorReport:
    """The label errors of a source, with what they were judged by."""

    source: str
    pictures: int
    cells: int
    """Known labels or numbers that could be judged; one per image for classes."""
    judges: str
    """The models that gave the out-of-fold predictions, such as "5 probes"."""
    figure: str
    """Name of a metric of these predictions against the given labels."""
    worth: float | None = None
    """Its value; with a value at chance level the list is random."""
    withheld: str = ""
    """Why no label, or none of some columns, is listed: their judges are too poor."""
    inconclusive: bool = False
    """Whether that holds for all, so that there is no list: an empty one would say that every label is right."""
    suspects: tuple[LabelError, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def summary(self, where: Path) -> str:
        """Counts of judged and listed labels, the judges, and the file."""
        worth = "cannot be told" if self.worth is None else f"is {self.worth:.4f}"
        share = len(self.suspects) / max(1, self.cells)
        judged = (
            f"{format_count(self.cells, 'label')} of {format_count(self.pictures, 'picture')} judged by {self.judges}"
        )
        count = len(self.suspects)
        found = f"{format_count(count, 'label')} ({share:.1%}) {'is' if count == 1 else 'are'} likely to be wrong"
        lines = [f"{self.source}: {judged}, each on what it has not seen; their {self.figure} {worth}."]
        lines += [self.withheld] if self.withheld else []
        lines += [] if self.inconclusive else [f"{found}. They are in {where}."]
        wrong = 1 - self.worth if self.worth is not None and self.figure == "accuracy" else 0.0
        if self.suspects and wrong > ERRING_JUDGES * share:
            often = f"The judges contradict {wrong:.0%} of all labels: they err often"
            lines.append(f"{often}, and many listed labels may be right.")
        return "\n".join(lines)

    def table(self, where: Path) -> str:
        """Counts and the ten worst, for the terminal."""
        if not self.suspects:
            return self.summary(where)
        rows = [("score", "given", "suggested", "id")]
        rows += [(f"{one.score:.3f}", one.given, one.suggested, one.id) for one in self.suspects[:MAX_SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.summary(where), "", *shown, "", label_error_advice(where)])

    @check_calls
    def write_csv(self, path: str | Path) -> None:
        """Write the CSV that `vitrail train --exclude` takes, one line per label error, the worst first."""
        cells = (
            [escape_cell(text) for text in (one.id, one.path, one.given, one.suggested)]
            + [format_float32(one.score), escape_cell(one.reason)]
            for one in self.suspects
        )
        write_bytes(Path(path), "".join(format_csv_lines([SUSPECT_COLUMNS, *cells])).encode("utf-8", "surrogateescape"))


def label_error_advice(where: Path) -> str:
    """A sentence on how to use the list."""
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
    """Find label errors and describe them with the ids and names of a source.

    Args:
        rows: index in the source of each prediction.
        predictions, targets: as in `find_label_errors`.
        judges: number and name of the models, such as (5, "probes").
        figure, worth: name and value of their metric against the given labels.
    """
    candidates = find_label_errors(source.task, predictions, targets)
    poor = find_poor_judges(source.task, candidates)
    label_errors = []
    for index in np.flatnonzero(candidates.flagged & ~np.isin(candidates.outputs, list(poor))).tolist():
        row, output = int(rows[candidates.rows[index]]), int(candidates.outputs[index])
        given = _describe_label(source, output, float(candidates.given_label[index]))
        suggested = _describe_label(source, output, float(candidates.suggested_label[index]))
        score, (own, other) = float(candidates.scores[index]), candidates.probabilities[index].tolist()
        if source.task == "regression":
            reason = f"{score:.1f} robust deviations from what {judges[1]} expect that have not seen it"
        else:
            reason = f"{judges[1]} that have not seen it give {given} {own:.0%}, {suggested} {other:.0%}"
        label_errors.append(
            LabelError(
                id=source.ids[row],
                path=image_path(source.images[row]),
                given=given,
                suggested=suggested,
                score=score,
                reason=reason,
            )
        )
    return LabelErrorReport(
        source=source.name,
        pictures=len(rows),
        cells=len(candidates),
        judges=f"{judges[0]} {judges[1]}",
        figure=figure,
        worth=worth,
        withheld=_describe_poor_judges(source, poor),
        inconclusive=bool(poor) and len(poor) == len(np.unique(candidates.outputs)),
        suspects=tuple(label_errors),
    )


def _describe_poor_judges(source: Source, poor: dict[int, float]) -> str:
    """A sentence on the outputs whose labels are not contradicted; empty without any."""
    if not poor:
        return ""
    if source.task == "classification":
        (agreement,) = poor.values()
        return (
            f"No label is listed: where the judges are sure they agree with the given label in only {agreement:.0%}, "
            f"and below {MIN_AGREEMENT:.0%} they know too little to contradict one. Train longer, or take a better "
            "model."
        )
    names = ", ".join(source.classes[output] for output in list(poor)[:5]) + (", ..." if len(poor) > 5 else "")
    reason = f"where its judges are sure they agree with it in less than {MIN_AGREEMENT:.0%}"
    if source.task == "regression":
        reason = "its judges explain less than half of how its numbers differ"
    return f"Nothing is listed of {names}: {reason}, too little to contradict one."


def _describe_label(source: Source, output: int, cell: float) -> str:
    """The name of a class, "with" or "without" a label, or a number with its column."""
    if source.task == "classification":
        return source.classes[int(cell)]
    name = source.classes[output]
    if source.task == "multilabel":
        return f"with {name}" if cell else f"without {name}"
    return f"{name} {cell:.6g}"
