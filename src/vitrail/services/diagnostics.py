"""Diagnostics of a trained model: robustness to corruptions, label errors, and out-of-distribution detection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Integer
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
from ..evaluate.label_errors import LabelErrorReport, find_regression_label_errors, list_label_errors
from ..evaluate.metrics import require_finite
from ..evaluate.ood import OodComparison, compare_ood
from ..evaluate.predictions import RegressionPredictions, TaskPredictions, concat_predictions
from ..evaluate.probabilities import sigmoid, softmax
from ..evaluate.probe import NUM_FOLDS, predict_out_of_fold
from ..evaluate.quick_metrics import compute_quick_metrics
from ..evaluate.robustness import ProgressWrapper, RobustnessReport, corruption_kinds, measure_robustness
from ..evaluate.tables import image_path
from ..evaluate.tta import TtaViews
from ..formatting import format_count, format_some
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
    get_groups,
    load_other_source,
    map_targets,
    match_source_to_model,
    predict_labelled_batches,
    require_picture_answers,
)

DEFAULT_NUM_IMAGES = 500
"""Default number of images to corrupt; each is corrupted in up to 75 ways."""


@dataclass(frozen=True)
class RobustnessResult:
    """Robustness of a model, and the images that could not be read."""

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
    progress: ProgressWrapper | None = None,
) -> RobustnessResult:
    """Predict images as they are and with every corruption of a suite; corruptions act on preprocessed images.

    Args:
        suite: imagenet-c or films.
        max_images: most images, a random sample.

    Raises:
        UsageError: no such suite, or `max_images` below 1.
        DataError: an image cannot be read (unless `skip_bad`) or all of them, the source does not fit the model, or
            nothing can be measured.
    """
    corruption_kinds(suite)
    require_picture_answers(predictor.task, "The test of corruptions")
    predictor.single_member()
    if max_images < 1:
        raise UsageError(f"At least 1 picture must be disturbed. Got {max_images}.")
    output_indices, source = match_source_to_model(predictor, labelled), labelled.source
    sample = np.sort(labelled.rows[permutation(0, "disturbed", 0, len(labelled.rows))[:max_images]])
    images, rows, skipped = _preprocess_rows(source, sample, predictor.spec, skip_bad)
    targets = map_targets(source, rows, output_indices, len(predictor.classes))
    names = [("", source.ids[row]) for row in rows.tolist()]

    def to_predictions(outputs: np.ndarray) -> TaskPredictions:
        return predictions_from_outputs(
            predictor.task, outputs, predictor.classes, predictor.scaling, names, labelled.split, targets,
            decisions=predictor.decisions,
        )  # fmt: skip

    report = measure_robustness(
        predictor.logits, to_predictions, images, rows, suite, labelled.split, 0, get_groups(source, rows), progress
    )
    return RobustnessResult(report, source.name, skipped)


def _preprocess_rows(
    source: Source, rows: NDArray[np.int64], spec: ImageSpec, skip_bad: bool
) -> tuple[Integer[Tensor, "n C H W"], NDArray[np.int64], tuple[tuple[str, str], ...]]:
    """Preprocessed images, the rows that could be read, and (path, reason) of the others."""
    images, kept, skipped = [], [], []
    for row in rows.tolist():
        image = source.images[row]
        try:
            images.append(preprocess_image(image, spec))
        except DataError as why:
            if not skip_bad:
                raise explain_unreadable(why) from why
            skipped.append((image_path(image) or source.ids[row], str(why)))
        else:
            kept.append(row)
    if not images:
        count = format_count(len(rows), "picture")
        raise DataError(f"None of {count} of {source.name} can be read, so none can be disturbed.")
    return torch.stack(images), np.array(kept, np.int64), tuple(skipped)


# -- Label errors.


def find_label_errors(
    predictor: Predictor,
    labelled: LabelledImages,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> LabelErrorReport:
    """Fit linear probes to the model's pooled features, out of fold, and list the labels that they contradict.

    Numbers that they contradict do not teach: the probes that judge are fitted again without them.

    The source may have another task or other classes than the model. `LabelErrorReport.write_csv` writes a list for
    review, which `--exclude` takes.

    Raises:
        UsageError: the model is not a ViT of ours.
        DataError: an image cannot be read (unless `skip_bad`), or there are too few to part into folds.
    """
    if labelled.source.task == "anomaly":
        raise UsageError(
            "An anomaly model has learnt no label. calibration.csv of its run lists the good pictures that look least "
            "like the others first; look at those."
        )
    require_picture_answers(labelled.source.task, "The search for wrong labels")
    features, rows = extract_features(predictor, labelled, skip_bad, progress)
    source = labelled.source
    targets = class_indices(source, rows) if source.task == "classification" else source.targets[rows]
    groups = get_groups(source, rows)
    outputs = predict_out_of_fold(features, targets, source.task, len(source.classes), NUM_FOLDS, groups, 0)
    if source.task == "regression":  # probes minimise squared errors: one very wrong number bends them all
        contradicted = find_regression_label_errors(outputs, targets)
        others = targets.copy()
        others[contradicted.rows[contradicted.flagged], contradicted.outputs[contradicted.flagged]] = np.nan
        outputs = predict_out_of_fold(features, others, source.task, len(source.classes), NUM_FOLDS, groups, 0)
    predictions = outputs
    if source.task != "regression":
        predictions = softmax(outputs) if source.task == "classification" else sigmoid(outputs)
    metric = _measure_probes(source, outputs, targets)
    name = {"classification": "accuracy", "multilabel": "mean AUROC", "regression": "R2"}[source.task]
    return list_label_errors(source, rows, predictions, targets, (NUM_FOLDS, "probes"), name, metric)


def keep_split_images(run: Path, labelled: LabelledImages) -> LabelledImages:
    """Keep only images that are in a run's splits, if its data is the same; other models change nothing.

    A note gives the number of training images: a model that has memorised a wrong label agrees with it.
    """
    folder = RunFolder(run)
    labelled = replace(labelled, warning="") if labelled.warning else labelled  # labels are judged, not the model
    if not folder.splits_file.is_file() or not dataset.is_same_data(folder.data_file, labelled.source):
        return labelled
    splits, _ = split_files.read_splits(folder.splits_file, labelled.source)
    rows = np.intersect1d(labelled.rows, np.concatenate(list(splits.values())))
    num_trained = len(np.intersect1d(splits["train"], rows))
    note = (
        f"{run} has learnt from {format_some(num_trained, len(rows), 'picture')}. Where it has learnt a wrong label by "
        "heart, fewer are found than among the others."
    )
    return replace(labelled, rows=rows, notes=(*labelled.notes, *([note] if num_trained else [])))


def _measure_probes(source: Source, outputs: np.ndarray, targets: np.ndarray) -> float | None:
    """The quick metric of the probes on rows with an out-of-fold prediction."""
    known = ~np.isnan(outputs)
    if source.task == "classification":
        rows = known.all(1)
        metric = compute_quick_metrics(source.task, outputs[rows], targets[rows]) if rows.any() else None
    else:
        metric = compute_quick_metrics(source.task, outputs, np.where(known, targets, np.float32(np.nan)))
    return None if metric is None else metric.value


# -- Out-of-distribution detection.


def evaluate_ood(
    predictor: Predictor,
    own: LabelledImages,
    other: LabelledImages,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> OodComparison:
    """Compare the feature distances of held-out and of other images from the training images.

    Raises:
        UsageError: an ensemble, or a model without feature statistics.
        DataError: an image cannot be read, unless `skip_bad`.
    """
    require_picture_answers(predictor.task, "The search for unlike pictures")
    member = predictor.single_member()
    if member.feature_stats is None:
        raise UsageError(
            "Only a bundle that a training has made knows what familiar pictures look like (familiar.safetensors). "
            "This model does not; train one with vitrail train."
        )
    own_features, own_rows = extract_features(predictor, own, skip_bad, progress)
    other_features, other_rows = extract_features(predictor, other, skip_bad, progress)
    groups = get_groups(own.source, own_rows), get_groups(other.source, other_rows)
    return compare_ood(
        member.feature_stats, member.decisions.unlike, own_features, other_features,
        (own.source.name, own.split, other.source.name), groups,
    )  # fmt: skip


def load_ood_source(other: object, settings: DataSettings | None = None) -> LabelledImages:
    """The images of another source, or its official test split; labels do not matter.

    Args:
        other: as `open_source`; of a folder of images, with or without class folders, every image is taken.
        settings: how the source is read.

    Raises:
        DataError: the source is empty or cannot be read.
        UsageError: settings for a folder of which every image is taken.
    """
    settings = settings or DataSettings()
    folder = Path(other).expanduser() if isinstance(other, str | Path) and other not in BUILT_IN else None
    if folder is None or not folder.is_dir() or find_folder_reader(folder) is not open_class_folders:
        return load_other_source(other, None, settings)
    if settings != DataSettings(source=settings.source, data_root=settings.data_root):
        raise UsageError(
            f"Every picture of the folder {other} is looked at, whatever it shows, so nothing can be said of how it is "
            "read. Leave --data.* out."
        )
    paths = expand_image_paths([str(folder)])
    source = Source(
        name=folder.name,
        classes=("picture",),
        images=tuple(paths),
        targets=np.zeros(len(paths), np.int64),
        ids=tuple(path.relative_to(folder).as_posix() for path in paths),
    )
    return LabelledImages(source, np.arange(len(source)), ALL_IMAGES)


# -- Pooled features of a source, for label errors and out-of-distribution detection.


def extract_features(
    predictor: Predictor,
    labelled: LabelledImages,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
    whole: bool = False,
) -> tuple[Float32[np.ndarray, "n P"], NDArray[np.int64]]:
    """Pooled features of each image, and the rows that could be read.

    The source may have another task or other classes than the model.

    Args:
        whole: all that the head reads, instead of one pooling of the last block.

    Raises:
        UsageError: the model is no `ViT`, or an ensemble.
        DataError: an image cannot be read, unless `skip_bad`.
    """
    member = predictor.single_member()
    if not isinstance(member.model, ViT):
        raise UsageError("Features are what a Vision Transformer's head reads. This model is none.")
    width = member.model.config.pooled_width if whole else member.model.config.width
    extractor = Predictor(
        [
            PredictorMember(
                model=PooledFeatureModel(member.model, width),
                spec=member.spec,
                classes=tuple(map(str, range(width))),
                task="regression",
                settings=replace(member.settings, views=TtaViews()),
            )
        ]
    )
    extractor.spec = predictor.spec
    batches = (batch for _, batch in predict_labelled_batches(extractor, labelled, skip_bad))
    features = concat_predictions(list(progress(batches, len(labelled.rows)) if progress else batches))
    assert isinstance(features, RegressionPredictions)
    require_finite(features.values)
    return features.values, find_predicted_rows(labelled, features)


class PooledFeatureModel(nn.Module):
    """A ViT whose outputs are the last `width` of its pooled features."""

    def __init__(self, model: ViT, width: int):
        super().__init__()
        self.model, self.width = model, width
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.model.features(images, keep=("pooled",))["pooled"][..., -self.width :]
