"""Labels of a source that what a model sees speaks against: a list that a person reviews and `--exclude` takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import config
from ..data import kept_splits
from ..data.formulas import guarded, lines
from ..data.source import Source
from ..errors import UsageError
from ..evaluate import suspects
from ..evaluate.answers import join
from ..evaluate.collect import chances_of, probabilities_of
from ..evaluate.finite import refuse_not_finite
from ..evaluate.glance import glance
from ..evaluate.number_predictions import NumberPredictions
from ..evaluate.out_of_fold import FOLDS, out_of_fold
from ..evaluate.suspects import Suspects
from ..evaluate.table import digits, path_of
from ..files.atomic import write_bytes
from ..model.vit import ViT
from ..predict.member import Member
from ..predict.predictor import Predictor
from ..train.dataset import class_of
from ..train.keeping import identity
from ..train.run import RunFolder
from .evaluation import Counter, Labelled, answered_parts, rows_of

COLUMNS = ("id", "path", "given", "suggested", "score", "reason")
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One line of the list: a label of a picture that is likely to be wrong."""

    id: str
    path: str
    given: str
    suggested: str
    score: float
    """Of classes and labels 0..1, of numbers deviations; the list falls."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What was looked at, and the list."""

    source: str
    pictures: int
    cells: int
    """Known labels or numbers that could be judged; of classes one a picture."""
    figure: str
    """Accuracy, AUROC or R2 of the probes against the labels as they are given."""
    worth: float | None = None
    """That figure: probes that know nothing suspect at random."""
    suspects: tuple[Suspect, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def table(self, where: Path) -> str:
        """Counts and the ten worst, for the terminal."""
        worth = "cannot be told" if self.worth is None else f"is {self.worth:.4f}"
        share = len(self.suspects) / max(1, self.cells)
        judged = f"{self.cells:,} labels of {self.pictures:,} pictures judged by {FOLDS} probes"
        found = f"{len(self.suspects):,} labels ({share:.1%}) are likely to be wrong"
        head = [
            f"{self.source}: {judged}, each on what it has not seen; their {self.figure} {worth}.",
            f"{found}. They are in {where}.",
        ]
        if not self.suspects:
            return "\n".join(head)
        rows = [("score", "given", "suggested", "id")]
        rows += [(f"{one.score:.3f}", one.given, one.suggested, one.id) for one in self.suspects[:SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        tail = "Look at them, delete the lines of those to keep, and train with --exclude FILE."
        return "\n".join([*head, "", *shown, "", tail])

    def write_csv(self, path: Path) -> None:
        """Replace a CSV with one line per suspect, the worst first, as `vitrail train --exclude` takes it."""
        cells = (
            [guarded(text) for text in (one.id, one.path, one.given, one.suggested)]
            + [digits(one.score), guarded(one.reason)]
            for one in self.suspects
        )
        write_bytes(path, "".join(lines([COLUMNS, *cells])).encode("utf-8", "surrogateescape"))


def list_suspects(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None, seed: int = 0
) -> Listed:
    """Fit probes to what the model's head reads, fold by fold, and list what they contradict.

    The source may be of another task, or have other classes, than the model.

    Raises:
        UsageError: the model is not a ViT of ours.
        DataError: a picture cannot be read (unless `skip_bad`), or there are too few to part into folds.
    """
    features, rows = features_of(predictor, labelled, skip_bad, counted)
    source = labelled.source
    targets = class_of(source, rows) if source.task == "classes" else source.targets[rows].astype(np.float32)
    groups = None if source.groups is None else source.groups[rows]
    outputs = out_of_fold(features, targets, source.task, len(source.classes), FOLDS, groups, seed)
    found = suspects.suspects(source.task, _answers(source, outputs), targets)
    flagged = np.flatnonzero(found.flagged)
    return Listed(
        source=source.name,
        pictures=len(rows),
        cells=len(found),
        figure={"classes": "accuracy", "labels": "mean AUROC", "number": "R2"}[source.task],
        worth=_worth(source, outputs, targets),
        suspects=tuple(_suspect(source, rows, found, place) for place in flagged.tolist()),
    )


def features_of(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> tuple[Float32[np.ndarray, "n D"], NDArray[np.int64]]:
    """What the model's head reads of each picture, and the rows of those that could be read.

    Raises:
        as `list_suspects`.
    """
    member = predictor.alone()
    if not isinstance(member.model, ViT):
        raise UsageError("Suspects are found by what a Vision Transformer's head reads. This model is none.")
    names = tuple(map(str, range(member.model.config.width)))
    own = Member(
        model=Read(member.model), spec=member.spec, classes=names, task="number", number_format=member.number_format
    )
    reader = Predictor([own], predictor.device)
    reader.spec = predictor.spec
    parts = (part for _, part in answered_parts(reader, labelled, skip_bad))
    read = join(list(counted(parts, len(labelled.rows)) if counted else parts))
    assert isinstance(read, NumberPredictions)
    refuse_not_finite(read.values)
    return read.values, rows_of(labelled, read)


class Read(nn.Module):
    """A model that answers with what its head reads of the last block."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.model.features(images, keep=("pooled",))["pooled"][..., -self.model.config.width :]


def parted_by(run: Path, labelled: Labelled) -> Labelled:
    """The same pictures without those that a run has left out, if its data is the same; other models change nothing.

    A note says from how many the model has learnt: what has fitted a wrong label sees the picture as that label says.
    """
    folder = RunFolder(run)
    if not folder.splits_file.is_file() or not identity.same(folder.data_file, labelled.source):
        return labelled
    splits, _ = kept_splits.read(folder.splits_file, labelled.source)
    rows = np.intersect1d(labelled.rows, np.concatenate(list(splits.values())))
    learnt = len(np.intersect1d(splits["train"], rows))
    note = (
        f"{run} has learnt from {learnt:,} of these {len(rows):,} pictures. Where it has learnt a wrong label by "
        "heart, fewer are found than among the others."
    )
    return replace(labelled, rows=rows, notes=(*labelled.notes, *([note] if learnt else [])))


def _worth(source: Source, outputs: np.ndarray, targets: np.ndarray) -> float | None:
    """How well the probes tell what is given, where they answer."""
    there = ~np.isnan(outputs)
    if source.task == "classes":
        rows = there.all(1)
        seen = glance(source.task, outputs[rows], targets[rows]) if rows.any() else None
    else:
        seen = glance(source.task, outputs, np.where(there, targets, np.float32(np.nan)))
    return None if seen is None else seen.figure


def _answers(source: Source, outputs: np.ndarray) -> np.ndarray:
    if source.task == "number":
        return outputs
    return probabilities_of(outputs) if source.task == "classes" else chances_of(outputs)


def _suspect(source: Source, rows: np.ndarray, found: Suspects, place: int) -> Suspect:
    row, output = int(rows[found.rows[place]]), int(found.outputs[place])
    given, suggested = (_said(source, output, float(cell[place])) for cell in (found.given, found.suggested))
    return Suspect(
        id=source.ids[row],
        path=path_of(source.pictures[row]),
        given=given,
        suggested=suggested,
        score=float(found.scores[place]),
        reason=_reason(source, found, place, given, suggested),
    )


def _said(source: Source, output: int, cell: float) -> str:
    """A class by its name, a label as "with" or "without" it, a number with its column."""
    if source.task == "classes":
        return source.classes[int(cell)]
    name = source.classes[output]
    if source.task == "labels":
        return f"with {name}" if cell else f"without {name}"
    return f"{name} {cell:.6g}"


def _reason(source: Source, found: Suspects, place: int, given: str, suggested: str) -> str:
    if source.task == "number":
        return f"{found.scores[place]:.1f} robust deviations from what probes expect that have not seen it"
    own, other = found.chances[place].tolist()
    return f"probes that have not seen it give {given} {own:.0%}, {suggested} {other:.0%}"
