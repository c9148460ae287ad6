"""Labels of a source that what a model sees speaks against: a list that a person reviews and `--exclude` takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..data import split_files
from ..data.source import Source
from ..evaluate.inference import sigmoid, softmax
from ..evaluate.label_errors import LabelErrorReport, list_label_errors
from ..evaluate.probe import NUM_FOLDS, predict_out_of_fold
from ..evaluate.quick_metrics import compute_quick_metrics
from ..predict.predictor import Predictor
from ..train import dataset
from ..train.dataset import class_indices
from ..train.run_folder import RunFolder
from .evaluation import Counter, Labelled
from .reading import features_of

FIGURES = {"classes": "accuracy", "labels": "mean AUROC", "number": "R2"}


def list_suspects(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None, seed: int = 0
) -> LabelErrorReport:
    """Fit probes to what the model's head reads, fold by fold, and list what they contradict.

    The source may be of another task, or have other classes, than the model.

    Raises:
        UsageError: the model is not a ViT of ours.
        DataError: a picture cannot be read (unless `skip_bad`), or there are too few to part into folds.
    """
    features, rows = features_of(predictor, labelled, skip_bad, counted)
    source = labelled.source
    targets = class_indices(source, rows) if source.task == "classes" else source.targets[rows].astype(np.float32)
    groups = None if source.groups is None else source.groups[rows]
    outputs = predict_out_of_fold(features, targets, source.task, len(source.classes), NUM_FOLDS, groups, seed)
    answers, worth = _answers(source, outputs), _worth(source, outputs, targets)
    return list_label_errors(source, rows, answers, targets, (NUM_FOLDS, "probes"), FIGURES[source.task], worth)


def parted_by(run: Path, labelled: Labelled) -> Labelled:
    """The same pictures without those that a run has left out, if its data is the same; other models change nothing.

    A note says from how many the model has learnt: what has fitted a wrong label sees the picture as that label says.
    """
    folder = RunFolder(run)
    if not folder.splits_file.is_file() or not dataset.is_same_data(folder.data_file, labelled.source):
        return labelled
    splits, _ = split_files.read_splits(folder.splits_file, labelled.source)
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
        seen = compute_quick_metrics(source.task, outputs[rows], targets[rows]) if rows.any() else None
    else:
        seen = compute_quick_metrics(source.task, outputs, np.where(there, targets, np.float32(np.nan)))
    return None if seen is None else seen.figure


def _answers(source: Source, outputs: np.ndarray) -> np.ndarray:
    if source.task == "number":
        return outputs
    return softmax(outputs) if source.task == "classes" else sigmoid(outputs)
