"""A trained model's answers to labelled images that are disturbed on purpose, after they were made ready for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import split_files
from ..data.open import BUILT_IN, find_folder_reader
from ..data.preprocess import preprocess_image
from ..data.settings import DataSettings
from ..data.source import Source
from ..data.sources.class_folders import open_class_folders
from ..errors import DataError, UsageError
from ..evaluate.decisions import predictions_from_outputs
from ..evaluate.inference import sigmoid, softmax
from ..evaluate.label_errors import LabelErrorReport, list_label_errors
from ..evaluate.metrics import require_finite
from ..evaluate.ood import OodComparison, compare_ood
from ..evaluate.predictions import RegressionPredictions, TaskPredictions, concat_predictions
from ..evaluate.probe import NUM_FOLDS, predict_out_of_fold
from ..evaluate.quick_metrics import compute_quick_metrics
from ..evaluate.robustness import ProgressWrapper, RobustnessReport, corruption_kinds, measure_robustness
from ..evaluate.tables import image_path
from ..evaluate.tta import TtaViews
from ..model.vit import ViT
from ..predict.image_paths import expand_image_paths
from ..predict.predictor import Predictor, PredictorMember
from ..randomness import permutation
from ..spec import ImageSpec
from ..train import dataset
from ..train.dataset import class_indices
from ..train.run_folder import RunFolder
from .evaluation import (
    ALL_IMAGES,
    LabelledImages,
    ProgressCallback,
    explain_unreadable,
    find_predicted_rows,
    load_other_source,
    map_targets,
    match_source_to_model,
    predict_labelled_batches,
)

DEFAULT_NUM_IMAGES = 500
"""Images that are disturbed if nobody says how many: each of them 75 times."""


@dataclass(frozen=True)
class RobustnessResult:
    """How a model stands disturbance, and what could not be asked about."""

    robustness: RobustnessReport
    source: str
    skipped: tuple[tuple[str, str], ...]
    """(path or place, reason) of images that cannot be read."""


def evaluate_corruptions(
    predictor: Predictor,
    labelled: LabelledImages,
    suite: str,
    max_images: int = DEFAULT_NUM_IMAGES,
    skip_bad: bool = False,
    seed: int = 0,
    progress: ProgressWrapper | None = None,
) -> RobustnessResult:
    """Answer images as they are and in every disturbance of a suite.

    Args:
        suite: imagenet-c or films.
        max_images: of more images, so many are drawn, the same for the same seed.

    Raises:
        UsageError: no such suite, or `max_images` below 1.
        DataError: an image cannot be read (unless `skip_bad`) or all of them, the source does not fit the model, or
            nothing can be measured.
    """
    corruption_kinds(suite)
    predictor.single_member()
    if max_images < 1:
        raise UsageError(f"At least 1 picture must be disturbed. Got {max_images}.")
    numbers, source = match_source_to_model(predictor, labelled), labelled.source
    images, rows, skipped = _preprocess_rows(
        source, _sample_rows(labelled.rows, max_images, seed), predictor.spec, skip_bad
    )
    targets = map_targets(source, rows, numbers, len(predictor.classes))
    names = [("", source.ids[row]) for row in rows.tolist()]

    def answers(outputs: np.ndarray) -> TaskPredictions:
        return predictions_from_outputs(
            predictor.task, outputs, predictor.classes, predictor.scaling, names, labelled.split, targets,
            decisions=predictor.decisions,
        )  # fmt: skip

    groups = None if source.groups is None else source.groups[rows]
    found = measure_robustness(predictor.logits, answers, images, rows, suite, labelled.split, seed, groups, progress)
    return RobustnessResult(found, source.name, skipped)


def _sample_rows(rows: NDArray[np.int64], max_rows: int, seed: int) -> NDArray[np.int64]:
    """At most so many of the rows, in their order."""
    return np.sort(rows[permutation(seed, "disturbed", 0, len(rows))[:max_rows]])


def _preprocess_rows(
    source: Source, rows: NDArray[np.int64], spec: ImageSpec, skip_bad: bool
) -> tuple[UInt8[Tensor, "n C H W"], NDArray[np.int64], tuple[tuple[str, str], ...]]:
    """The images as the model reads them, the rows that could be read, and why others could not."""
    images, kept, skipped = [], [], []
    for row in rows.tolist():
        picture = source.images[row]
        try:
            images.append(preprocess_image(picture, spec))
        except DataError as why:
            if not skip_bad:
                raise explain_unreadable(why) from why
            skipped.append((image_path(picture) or source.ids[row], str(why)))
        else:
            kept.append(row)
    if not images:
        raise DataError(f"None of {len(rows):,} pictures of {source.name} can be read, so none can be disturbed.")
    return torch.stack(images), np.array(kept, np.int64), tuple(skipped)


# Labels of a source that what a model sees speaks against: a list that a person reviews and `--exclude` takes.

PROBE_METRICS = {"classes": "accuracy", "labels": "mean AUROC", "number": "R2"}


def find_label_errors(
    predictor: Predictor,
    labelled: LabelledImages,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
    seed: int = 0,
) -> LabelErrorReport:
    """Fit probes to what the model's head reads, fold by fold, and list what they contradict.

    The source may be of another task, or have other classes, than the model.

    Raises:
        UsageError: the model is not a ViT of ours.
        DataError: an image cannot be read (unless `skip_bad`), or there are too few to part into folds.
    """
    features, rows = extract_features(predictor, labelled, skip_bad, progress)
    source = labelled.source
    targets = class_indices(source, rows) if source.task == "classes" else source.targets[rows].astype(np.float32)
    groups = None if source.groups is None else source.groups[rows]
    outputs = predict_out_of_fold(features, targets, source.task, len(source.classes), NUM_FOLDS, groups, seed)
    answers, worth = _activate_outputs(source, outputs), _measure_probes(source, outputs, targets)
    return list_label_errors(source, rows, answers, targets, (NUM_FOLDS, "probes"), PROBE_METRICS[source.task], worth)


def keep_split_images(run: Path, labelled: LabelledImages) -> LabelledImages:
    """The same images without those that a run has left out, if its data is the same; other models change nothing.

    A note says from how many the model has learnt: what has fitted a wrong label sees the image as that label says.
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


def _measure_probes(source: Source, outputs: np.ndarray, targets: np.ndarray) -> float | None:
    """How well the probes tell what is given, where they answer."""
    there = ~np.isnan(outputs)
    if source.task == "classes":
        rows = there.all(1)
        seen = compute_quick_metrics(source.task, outputs[rows], targets[rows]) if rows.any() else None
    else:
        seen = compute_quick_metrics(source.task, outputs, np.where(there, targets, np.float32(np.nan)))
    return None if seen is None else seen.value


def _activate_outputs(source: Source, outputs: np.ndarray) -> np.ndarray:
    if source.task == "number":
        return outputs
    return softmax(outputs) if source.task == "classes" else sigmoid(outputs)


# Another source beside a run's held-out images: does the model notice that it has never seen such images?


def evaluate_ood(
    predictor: Predictor,
    own: LabelledImages,
    other: LabelledImages,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> OodComparison:
    """Let the model look at both, and compare how far they lie from its training images.

    Raises:
        UsageError: an ensemble, or a model that does not know what its training images look like.
        DataError: an image cannot be read, unless `skip_bad`.
    """
    member = predictor.single_member()
    if member.feature_stats is None:
        raise UsageError(
            "Only a bundle that a training has made knows what familiar pictures look like (familiar.safetensors). "
            "This model does not; train one with vitrail train."
        )
    features, rows = extract_features(predictor, own, skip_bad, progress)
    others, theirs = extract_features(predictor, other, skip_bad, progress)
    groups = tuple(
        None if one.source.groups is None else one.source.groups[kept] for one, kept in ((own, rows), (other, theirs))
    )
    names = (own.source.name, own.split, other.source.name)
    return compare_ood(member.feature_stats, member.decisions.unlike, features, others, names, (groups[0], groups[1]))


def load_ood_source(other: object, settings: DataSettings | None = None) -> LabelledImages:
    """All images of another source, or those of its published test; what they show does not matter.

    Args:
        other: as `open_source` takes it; of a folder of images, with or without class folders, every image.
        settings: how it is to be read.

    Raises:
        DataError: there is nothing, or it cannot be read.
        UsageError: something is said of a folder whose images are all looked at.
    """
    settings = settings or DataSettings()
    if not (isinstance(other, str | Path) and _is_plain_image_folder(other)):
        return load_other_source(other, None, settings)
    if settings != DataSettings(source=settings.source, data_root=settings.data_root):
        raise UsageError(
            f"Every picture of the folder {other} is looked at, whatever it shows, so nothing can be said of how it is "
            "read. Leave --data.* out."
        )
    found = _source_from_folder(Path(other).expanduser())
    return LabelledImages(found, np.arange(len(found)), ALL_IMAGES)


def _is_plain_image_folder(other: str | Path) -> bool:
    """Whether it is a folder that holds images and nothing that says how to read them."""
    path = Path(other).expanduser()
    return other not in BUILT_IN and path.is_dir() and find_folder_reader(path) is open_class_folders


def _source_from_folder(folder: Path) -> Source:
    found = expand_image_paths([str(folder)])
    return Source(
        name=folder.name,
        classes=("picture",),
        images=tuple(found),
        targets=np.zeros(len(found), np.int64),
        ids=tuple(path.relative_to(folder).as_posix() for path in found),
    )


# What a model's head reads of every image of a source: the features behind suspects and unlike images.


def extract_features(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False, progress: ProgressCallback | None = None
) -> tuple[Float32[np.ndarray, "n D"], NDArray[np.int64]]:
    """What the model's head reads of each image, and the rows of those that could be read.

    The source may be of another task, or have other classes, than the model.

    Raises:
        UsageError: the model is not a ViT of ours, or there are several.
        DataError: an image cannot be read, unless `skip_bad`.
    """
    member = predictor.single_member()
    if not isinstance(member.model, ViT):
        raise UsageError("Features are what a Vision Transformer's head reads. This model is none.")
    names = tuple(map(str, range(member.model.config.width)))
    own = PredictorMember(
        model=PooledFeatureModel(member.model),
        spec=member.spec,
        classes=names,
        task="number",
        settings=replace(member.settings, views=TtaViews()),
    )
    reader = Predictor([own])
    reader.spec = predictor.spec
    parts = (part for _, part in predict_labelled_batches(reader, labelled, skip_bad))
    read = concat_predictions(list(progress(parts, len(labelled.rows)) if progress else parts))
    assert isinstance(read, RegressionPredictions)
    require_finite(read.values)
    return read.values, find_predicted_rows(labelled, read)


class PooledFeatureModel(nn.Module):
    """A model that answers with what its head reads of the last block."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.model.features(images, keep=("pooled",))["pooled"][..., -self.model.config.width :]
