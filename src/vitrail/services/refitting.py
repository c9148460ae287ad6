"""Learning curve of a run on frozen features: what twice the training pictures are expected to bring.

The run's probe is fitted again to quarters, halves and all of the training images, each time as the training chose it,
and measured on the held-out ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64, Int64, Shaped

from ..data.source import Task
from ..errors import DataError, UsageError
from ..evaluate.learning_curve import LearningCurve
from ..evaluate.multilabel_metrics import MIN_PER_SIDE
from ..evaluate.predictions import LABEL_THRESHOLD
from ..evaluate.probe import assign_folds
from ..predict.predictor import Predictor
from ..stats.auc import mean_roc_auc, roc_auc_with_influence
from ..stats.doubling import PARTS, DoublingForecast, forecast_doubling
from ..train.dataset import class_indices
from ..train.finetune.linear_probe import FeatureSet, fit_probes
from ..train.run_folder import RunFolder
from .diagnostics import extract_features
from .evaluation import LabelledImages, ProgressCallback, get_groups, load_held_out

DOUBLING = "doubling"
"""The question of `vitrail evaluate RUN --plan-test`."""
NUM_DEALS = 2
"""How often the training images are dealt into quarters, and into halves."""
MIN_TRAIN, MIN_HELD_OUT = 40, 20
"""Images, or groups, without which no curve is drawn."""


def measure_learning_curve(
    run: Path, predictor: Predictor, source_object: object | None = None, progress: ProgressCallback | None = None
) -> LearningCurve:
    """Compute the features of the run's images once, fit probes to parts of them, and forecast the next doubling.

    Args:
        source_object: the object that the run was trained on, if it was one.

    Raises:
        UsageError: the run has tuned its features, or answers with neither classes nor labels.
        DataError: an image cannot be read, the data has changed, or there are too few images.
    """
    plan = RunFolder.open_existing(run).read_plan()
    task = predictor.task
    if task not in ("classification", "multilabel") or plan.model.is_dense:
        raise UsageError(f"A learning curve is drawn for classes and labels. {run} answers with {task}.")
    if not plan.finetune.weights or plan.finetune.method != "probe":
        raise UsageError(
            f"A learning curve is fitted to frozen features, and {run} has learnt its own from all of its pictures: on "
            "fewer it has to be trained again. List every second train picture of "
            f"{run / 'splits.csv'} in half.csv: vitrail train {plan.data.source} --exclude half.csv --out HALF, "
            f"then vitrail evaluate {run} --against HALF. Or ask a run on frozen features: vitrail train "
            f"{plan.data.source} --weights CHECKPOINT --finetune.method probe"
        )
    splits = [load_held_out(run, name, source_object) for name in ("train", "val", None)]
    train, valid, held_out = (_read_features(predictor, one, progress) for one in splits)
    for images, least, what in ((train, MIN_TRAIN, "training"), (held_out, MIN_HELD_OUT, "held-out")):
        if images.units < least:
            kind = "pictures" if images.groups is None else "groups of pictures"
            raise DataError(f"A learning curve takes {least} {what} {kind}. {run} has {images.units}.")
    forecast = fit_learning_curve(train, valid, held_out, task, len(predictor.classes), plan.seed)
    count = len(train.targets)
    return LearningCurve(
        figure="accuracy" if task == "classification" else "mean AUROC",
        split=splits[-1].split,
        held_out=len(held_out.targets),
        images=tuple(round(count / parts) for parts in PARTS),
        values=forecast.values,
        gain=forecast.gain,
        gain_interval=forecast.interval,
    )


@dataclass(frozen=True)
class LabelledFeatures:
    """Frozen features of the images of a split."""

    features: Float32[np.ndarray, "n P"]
    targets: Shaped[np.ndarray, " n *K"]
    """Class indices, or labels 0..1 with NaN where unknown."""
    groups: Shaped[np.ndarray, " n"] | None = None

    def take(self, rows: Int64[np.ndarray, " m"]) -> LabelledFeatures:
        """Some of the images."""
        groups = None if self.groups is None else self.groups[rows]
        return LabelledFeatures(self.features[rows], self.targets[rows], groups)

    @property
    def units(self) -> int:
        """Number of independent images, or groups."""
        return len(self.targets) if self.groups is None else len(np.unique(self.groups))


def _read_features(
    predictor: Predictor, labelled: LabelledImages, progress: ProgressCallback | None
) -> LabelledFeatures:
    features, rows = extract_features(predictor, labelled, progress=progress, whole=True)
    source = labelled.source
    targets = class_indices(source, rows) if source.task == "classification" else source.targets[rows]
    return LabelledFeatures(features, targets, get_groups(source, rows))


def fit_learning_curve(
    train: LabelledFeatures, valid: LabelledFeatures, held_out: LabelledFeatures, task: Task, outputs: int, seed: int
) -> DoublingForecast:
    """Fit a probe to each part of the training images, and forecast the next doubling from the held-out ones.

    Args:
        valid: images on which the regularisation of each probe is chosen.
    """
    contributions, parts = [], []
    for count in PARTS:
        for deal in range(NUM_DEALS if count > 1 else 1):
            folds = assign_folds(train.targets, task, count, train.groups, seed + deal)
            for part in range(count):
                chosen = train.take(np.flatnonzero(folds == part))
                contributions.append(fit_contributions(chosen, valid, held_out, task, outputs, seed))
                parts.append(count)
    return forecast_doubling(np.stack(contributions), np.array(parts), held_out.groups, seed)


def fit_contributions(
    train: LabelledFeatures, valid: LabelledFeatures, held_out: LabelledFeatures, task: Task, outputs: int, seed: int
) -> Float64[np.ndarray, " n"]:
    """Of each held-out image what it adds to the figure of a probe, which is their mean."""
    learnt, chosen_by = (FeatureSet(one.features, one.targets) for one in (train, valid))
    columns = {"all": np.arange(train.features.shape[1])}
    probe = fit_probes(learnt, chosen_by, task, outputs, columns, seed).best
    return _contributions(task, probe.predict_outputs(held_out.features), held_out.targets)


def _contributions(
    task: Task, answers: Float32[np.ndarray, "n K"], targets: Shaped[np.ndarray, " n *K"]
) -> Float64[np.ndarray, " n"]:
    """A hit or none, or the area under the ROC curve and the influence on it."""
    if task == "classification":
        return (answers.argmax(1) == targets).astype(np.float64)
    known, present = ~np.isnan(targets), targets >= LABEL_THRESHOLD
    areas = [
        roc_auc_with_influence(present[:, k], answers[:, k], known[:, k])
        for k in range(targets.shape[1])
        if min((known & present)[:, k].sum(), (known & ~present)[:, k].sum()) >= MIN_PER_SIDE
    ]
    if not areas:
        raise DataError(f"An area under the ROC curve takes {MIN_PER_SIDE} held-out pictures with a label and as many "
                        "without it. No label has them.")  # fmt: skip
    mean = mean_roc_auc(areas)
    return mean.value + len(targets) * mean.influence
