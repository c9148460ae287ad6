"""scikit-learn estimators by `vitrail.fit`: `ViTClassifier`, `ViTMultiLabel`, `ViTRegressor`, `ViTAnomaly` and
`ViTSegmenter`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64, Integer, Shaped, UInt8
from PIL.Image import Image
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    OutlierMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    assert_all_finite,
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_X_y,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from . import api
from .argument_types import check_arguments
from .checkpoints.decision_versions import TRAINED
from .config import describe
from .config.keywords import explain_keyword, explain_keywords
from .config.schema import unknown_setting_message
from .data.decoding.decode import read_image
from .data.labels.defects import GOOD, MASK_COLUMN
from .data.labels.masks import UNKNOWN_VALUE, number_legend, read_mask_values, read_masks
from .data.labels.run_lengths import encode_class_map
from .data.open import open_source
from .data.preprocess import unfit_mask
from .data.settings import DataSettings
from .data.source import MAX_MASK_CLASSES, UNKNOWN_PIXEL, Source, Task
from .data.sources.in_memory import collect_images
from .data.sources.label_input import NamedLabels
from .errors import UsageError
from .evaluate.mask_overlap import count_areas
from .evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from .evaluate.segmentation_metrics import mean_iou
from .evaluate.thresholds import DEFAULT_THRESHOLD
from .formatting import format_count
from .services.notebook import render_run_card
from .services.train_arguments import parse_image_size
from .train.custom_functions import CustomAugment, CustomLoss
from .train.finetune.bank_store import STORE_FOLDER
from .train.plan import Plan

PredictionsT = TypeVar("PredictionsT", ClassificationPredictions, MultilabelPredictions, RegressionPredictions)


BUDGET_SENTENCE = (
    "A training has a budget of minutes, epochs or steps, at whose end its learning rate is 0, so it is not stopped "
    "early; validation_fraction of the pictures is held out to calibrate probabilities and thresholds."
)
SCIKIT_LEARN_WORDS = {
    **dict.fromkeys(("early_stopping", "n_iter_no_change", "tol"), BUDGET_SENTENCE),
    "warm_start": "A fitted estimator goes on by run_.extend(steps=...), and another training begins with its weights "
    "by weights=PATH.",
    "n_jobs": 'A training uses every core, or as many threads as settings={"compute.threads": ...} says.',
    "class_weight": "Only ViTClassifier has classes to weigh: sample_weight of fit weighs pictures, and "
    'settings={"recipe.max_pos_weight": ...} the positives of labels.',
}
"""Parameters of scikit-learn's estimators that these do not have, and what to do instead."""
SETTINGS_PREFIX = "settings__"
"""Begins the parameters that are fields of the plan, such as settings__recipe.lr."""


class ViTEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the estimators; parameters are those of `vitrail.fit` unless described here.

    There is no early stopping: the budget is spent, and the learning rate falls to 0 at its end.

    Args:
        image_size: pixels that the model reads; where X has two axes, the shape of the image that each row is
            instead: (height, width), or "row" for a single row of pixels, which is not mirrored. None: rows are
            square.
        validation_fraction: fraction of the images held out for calibration and thresholds. There is no test split,
            because scikit-learn's users hold out images themselves.
        random_state: the seed of the training, a number by default, so that a second fit gives the same; None or
            a RandomState draws one for each fit.
        settings: fields of the plan by their dotted names, such as {"recipe.lr": 0.001}. Each is a parameter too, for
            `set_params` and grid searches: {"settings__recipe.lr": [0.001, 0.002, None]}, where None leaves it to the
            planner.
        out: the run folder; None makes a temporary one, which is deleted with the estimator.
        precision: number format of predictions: "float32", or the faster "bf16" and "fp16", as `vitrail.open` takes it.
        loss, augment: functions, as `vitrail.fit` takes them; those of a pickled estimator must be importable.
        verbose: show the training as `vitrail.fit` does.
    """

    @explain_keywords(settings=Plan, hints=SCIKIT_LEARN_WORDS, check_types=False)
    def __init__(
        self,
        *,
        model: str | None = None,
        weights: str | Path | None = None,
        minutes: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        image_size: int | tuple[int, int] | str | None = None,
        channels: int | None = None,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        precision: str = "float32",
        loss: CustomLoss | None = None,
        augment: CustomAugment | None = None,
        settings: Mapping[str, object] | None = None,
        out: str | Path | None = None,
        verbose: bool = False,
    ):
        self.model = model
        self.weights = weights
        self.minutes = minutes
        self.epochs = epochs
        self.steps = steps
        self.image_size = image_size
        self.channels = channels
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.loss = loss
        self.augment = augment
        self.settings = settings
        self.out = out
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []  # features are float32 whatever X is
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; with `deep` each of the settings too, such as settings__recipe.lr."""
        params: dict[str, Any] = super().get_params(deep=deep)
        settings = params["settings"] if deep and isinstance(params["settings"], Mapping) else {}
        return params | {f"{SETTINGS_PREFIX}{name}": value for name, value in settings.items()}

    def set_params(self, **params: Any) -> ViTEstimator:
        """Set parameters; such as settings__recipe.lr set one field of the plan, and None leaves it to the planner.

        Raises:
            UsageError: an unknown name, with the nearest one.
        """
        fields = {name.removeprefix(SETTINGS_PREFIX): name for name in params if name.startswith(SETTINGS_PREFIX)}
        known, own = [each.name for each in describe(Plan) if "." in each.name], self.get_params(deep=False)
        for field in fields:
            if field not in known:
                raise UsageError(unknown_setting_message(field, known, type(self).__name__))
        for name in params:
            if name not in own and name not in fields.values():
                hint = explain_keyword(name, list(own), Plan, SCIKIT_LEARN_WORDS, f"{SETTINGS_PREFIX}{{}}")
                raise UsageError(f"{type(self).__name__} has no parameter {name!r}.{hint}")
        super().set_params(**{name: value for name, value in params.items() if name in own})
        if fields:
            settings = dict(self.settings or {}) | {field: params[name] for field, name in fields.items()}
            self.settings = {field: value for field, value in settings.items() if value is not None}
        return self

    @property
    def partial_fit(self) -> Any:
        """Raises AttributeError, so that scikit-learn does not find it."""
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit, because a training has a schedule with an end: fit it on all "
            "pictures, and go on by run_.extend(steps=...)."
        )

    def transform(self, X: Any) -> Float32[np.ndarray, "n D"]:
        """Features of images: the input of the model's head, as `Run.embed` gives it.

        Raises:
            as `predict`.
        """
        return self._open_run().embed(list(self._parse_images(X, fitting=False))).vectors

    @property
    def _n_features_out(self) -> int:
        """D, for the names of the features."""
        shape = self.run_.plan.model
        return shape.width if shape.pool == "patches" else shape.pooled_width

    def __getstate__(self) -> dict[str, Any]:
        """State with the run's files except checkpoints, so that an unpickled estimator can predict anywhere."""
        state = dict(super().__getstate__())
        run = state.pop("run_", None)
        state.pop("_folder", None)
        return state if run is None else {**state, "_files": pack_run_files(run.path)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        own = dict(state)
        files = own.pop("_files", None)
        super().__setstate__(own)
        if files is not None:
            self._folder = unpack_run_files(files)
            self.run_ = api.Run(self._folder.path, device=self.device)

    def _html_repr(self) -> str:
        """scikit-learn's HTML representation, and the run's card once fitted."""
        html: str = estimator_html_repr(self)
        return f"{html}\n{render_run_card(self.run_.path)}" if hasattr(self, "run_") else html

    def _require_targets(self, y: Any) -> Any:
        """The targets; raises UsageError for None, with the words that scikit-learn's estimator checks expect."""
        if y is None:
            raise UsageError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        return y

    def _fit_run(self, images: EstimatorImages, source: Source) -> None:
        """Train a new run on a source of these images; a previous temporary run is removed."""
        _, own = check_arguments(type(self).__init__, (), self.get_params(deep=False))
        folder = EstimatorRunFolder(self.out)
        size = None if self._has_row_input or self.image_size is None else parse_image_size(own["image_size"])
        seed = own["random_state"]
        if seed is None or isinstance(seed, np.random.RandomState):
            seed = int(check_random_state(seed).randint(np.iinfo(np.int32).max))
        self.run_ = api.fit(
            source,
            model=self.model, weights=self.weights, minutes=self.minutes, epochs=self.epochs, steps=self.steps,
            out=folder.path, seed=seed, image_size=size, channels=self.channels, device=self.device, task=source.task,
            loss=self.loss, augment=self.augment, settings=self._plan_settings(images), quiet=not self.verbose,
        )  # fmt: skip
        self._folder = folder

    def _plan_settings(self, images: EstimatorImages) -> dict[str, object]:
        """Plan fields: split fractions, the value range of rows, and the user's settings, which take precedence."""
        own: dict[str, object] = {"data.val_fraction": self.validation_fraction, "data.test_fraction": 0.0}
        if self._has_row_input and isinstance(images, np.ndarray) and images.dtype != np.uint8:
            low, high = infer_value_range(images)
            own |= {"image.low": low, "image.high": high}
        if self._has_row_input and self.image_size == ROW_IMAGE_SIZE:
            own |= {"recipe.flip": "false", "recipe.tta_flip": "false"}
        return own | dict(self.settings or {})

    def _predict_images(self, X: Any, kind: type[PredictionsT]) -> PredictionsT:
        """The run's predictions for the images of X, in order."""
        predictions = self._open_run().predict(list(self._parse_images(X, fitting=False)))
        assert isinstance(predictions, kind)
        return predictions

    @property
    def decision_(self) -> str:
        """The name of the decision in use: "training", or the one that `run_.decide` has put to use."""
        return self._open_run().predictor.decisions.version or TRAINED

    def _use_thresholds(self, thresholds: Mapping[str, Any]) -> None:
        """Put these thresholds of classes or labels to use, as a decision that is kept with the run."""
        for threshold in thresholds.values():
            if not (isinstance(threshold, float | int | np.floating) and 0 < threshold < 1):
                raise UsageError(f"threshold_ takes probabilities between 0 and 1. Got {threshold!r}.")
        run = self._open_run()
        kept = run.decide().kept
        name = next(name for name in (f"threshold-{number}" for number in itertools.count(1)) if name not in kept)
        run.decide(at=dict(thresholds), keep=name, use=name)

    def _open_run(self) -> api.Run:
        """The run, which answers in the number format of the estimator."""
        check_is_fitted(self, "run_")
        self.run_ = self.run_.with_precision(self.precision)
        return self.run_

    def _parse_images(self, X: Any, fitting: bool) -> EstimatorImages:
        """X as images; with `fitting` its kind is recorded for later X.

        Raises:
            UsageError, DataError, ValueError: no images; the message says why and how to give some.
        """
        images = as_image_list(X)
        axes = 1 if images is not None else int(X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim)
        if fitting:
            self._has_row_input = axes == 2
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
        if images is not None:
            return images
        fewest = 2 if fitting else 1
        if axes == 2:
            return self._rows_to_images(validate_data(self, X, reset=fitting, ensure_min_samples=fewest), fitting)
        values: np.ndarray = check_array(X, allow_nd=True, ensure_min_samples=fewest, estimator=self, input_name="X")
        if fitting:
            self.n_features_in_ = int(np.prod(values.shape[1:]))
        return values

    def _rows_to_images(self, rows: np.ndarray, fitting: bool) -> np.ndarray:
        """Rows of numbers [n, F] as grey images [n, H, W], clipped to the value range of the fitted X."""
        if not self._has_row_input:
            raise UsageError(
                f"{type(self).__name__} was fitted on pictures, and this X has two axes, {list(rows.shape)}. "
                "Give it as [n, height, width] or [n, height, width, channels]."
            )
        if not fitting:
            spec = self.run_.plan.image
            rows = clip_to_range(rows, spec.low, spec.high)
        return rows.reshape(len(rows), *infer_row_shape(rows.shape[1], self.image_size))


# -- Kinds of X: arrays and lists of images, file names, or rows of numbers (flattened images).

ROW_IMAGE_SIZE = "row"
"""As `image_size`: each row of X is an image of one pixel's height, such as a spectrum."""
EstimatorImages = np.ndarray | list[object]
"""An array [n, H, W] or [n, H, W, C], or a list of what `vitrail.fit` takes as an image."""


def as_image_list(X: object) -> list[object] | None:
    """The images of a list, or of a column of them; None for arrays and nested lists of numbers.

    Raises:
        UsageError: a single image instead of several.
    """
    if isinstance(X, str | bytes | Image):
        shown = repr(X[:80]) if isinstance(X, str | bytes) else "one picture"
        raise UsageError(f"X must hold several pictures, one for each row. Got {shown}; write it as a list.")
    if isinstance(X, Tensor):
        return None if X.ndim < 3 else list(X)
    cells = X.to_numpy() if hasattr(X, "to_numpy") and getattr(X, "ndim", 0) == 1 else X  # a Series of pandas
    if isinstance(cells, np.ndarray) and (cells.ndim != 1 or cells.dtype.kind not in "OSU"):
        return None
    if not isinstance(cells, Sequence | np.ndarray) or not len(cells) or not _is_image(cells[0]):
        return None
    return [str(cell) if isinstance(cell, np.str_) else cell for cell in cells]


def infer_row_shape(features: int, image_size: object) -> tuple[int, int]:
    """Height and width of the grey image in a row of X.

    Args:
        image_size: None for squares, "row" for one row of pixels, or the size itself.

    Raises:
        UsageError: the number of features does not match.
    """
    if image_size == ROW_IMAGE_SIZE:
        return 1, features
    if image_size is not None:
        height, width = parse_image_size(cast("Any", image_size))
        if height * width != features:
            raise UsageError(
                f"image_size says {height}x{width} pixels, which are {format_count(height * width, 'number')} in each "
                f"row of X. X has {features:,} of them."
            )
        return height, width
    side = math.isqrt(features)
    if side * side != features:
        raise UsageError(
            f"A row of X must be a square grey picture, and {format_count(features, 'number is', 'numbers are')} no "
            "square. Say image_size="
            '(height, width) if the pictures are not square, image_size="row" if each is one row of pixels, or give '
            "them as [n, height, width] or [n, height, width, channels]."
        )
    return side, side


def infer_value_range(rows: Shaped[np.ndarray, " n *F"]) -> tuple[float, float]:
    """Values of black and white for rows of numbers: min(0, smallest) and largest; (0, 1) for values in 0..1."""
    low, high = min(0.0, float(rows.min())), float(rows.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def clip_to_range(rows: Shaped[np.ndarray, "n F"], low: float, high: float) -> Shaped[np.ndarray, "n F"]:
    """Clip rows to the value range; uint8 rows are returned unchanged."""
    if rows.dtype == np.uint8 or not rows.size or (rows.min() >= low and rows.max() <= high):
        return rows
    return rows.clip(low, high)


# -- What is known of the images beside their labels: groups and weights.


@dataclasses.dataclass(frozen=True)
class Examples:
    """The images to learn from, without those of weight 0."""

    images: EstimatorImages
    labels: np.ndarray
    groups: np.ndarray | None
    weights: Float64[np.ndarray, " n"] | None

    def to_source(self, labels: NamedLabels, task: Task) -> Source:
        """The images with these labels as a data source."""
        source = open_source((self.images, labels), DataSettings(task=task))
        return dataclasses.replace(source, groups=self.groups, weights=self.weights)


def select_examples(
    images: EstimatorImages,
    labels: np.ndarray,
    groups: Any,
    sample_weight: Any,
    class_weight: Any = None,
) -> Examples:
    """Images and labels with their groups and weights; images of weight 0 are left out.

    Args:
        labels: one row per image.
        groups, sample_weight: of each image, or None.
        class_weight: of each class, as scikit-learn takes it; both weights are multiplied.

    Raises:
        UsageError, ValueError: groups or weights that are not one for each image, unknown groups, weights below 0 or
            not finite, or all 0.
    """
    names = None if groups is None else parse_groups(groups, len(labels))
    weights = parse_sample_weight(sample_weight, len(labels))
    is_balanced = isinstance(class_weight, str) and class_weight == "balanced"
    if not (class_weight is None or is_balanced or isinstance(class_weight, Mapping)):
        raise UsageError(
            f'class_weight must be "balanced" or a dictionary of classes and weights. Got {class_weight!r}.'
        )
    if class_weight is not None and weights.any():
        present = weights > 0
        weights[present] *= compute_sample_weight(class_weight, labels[present])
        if (weights < 0).any() or not np.isfinite(weights).all():
            raise UsageError(f"class_weight must give finite weights of 0 or more. Got {class_weight}.")
    kept = np.flatnonzero(weights)
    if not len(kept):
        raise UsageError(
            "The weight of every picture is zero, so nothing is left to learn from. Give some of them one."
        )
    if len(kept) < len(labels):
        images = images[kept] if isinstance(images, np.ndarray) else [images[row] for row in kept.tolist()]
        labels, weights, names = labels[kept], weights[kept], None if names is None else names[kept]
    is_plain = class_weight is None and (weights == weights[0]).all()  # then the planner may weigh rare classes
    return Examples(images, labels, names, None if is_plain else weights)


def parse_groups(groups: Any, count: int) -> Shaped[np.ndarray, " n"]:
    """The group of each image.

    Raises:
        UsageError: not one for each image, or a missing value.
    """
    names = np.asarray(groups)
    if names.shape != (count,):
        raise UsageError(
            f"groups must hold one group for each of {format_count(count, 'picture')}. Got shape {list(names.shape)}."
        )
    for row, name in enumerate(names.tolist()):
        if name is None or (not isinstance(name, str) and str(name) in ("nan", "NaT", "<NA>")):
            raise UsageError(f"groups must name the group of every picture. Got {name} in row {row}.")
    return names


def parse_sample_weight(sample_weight: Any, count: int) -> Float64[np.ndarray, " n"]:
    """The weight of each image; ones for None.

    Raises:
        UsageError, ValueError: not one for each image, below 0, or not finite.
    """
    if sample_weight is None:
        return np.ones(count)
    weights: np.ndarray = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, copy=True, input_name="sample_weight"
    )
    if weights.shape != (count,):
        raise UsageError(
            f"sample_weight must hold one number for each of {format_count(count, 'picture')}. Got shape "
            f"{list(weights.shape)}."
        )
    if (weights < 0).any():
        row = int((weights < 0).argmax())
        raise UsageError(f"sample_weight must be 0 or more. Got {weights[row]:g} in row {row}.")
    return weights


def _is_image(thing: object) -> bool:
    """Whether an element of a list is an image rather than a row of numbers."""
    if isinstance(thing, np.ndarray | Tensor):
        return thing.ndim > 1
    return isinstance(thing, str | bytes | Image | dict) or hasattr(thing, "__fspath__")


class ViTMultiLabel(ClassifierMixin, ViTEstimator):
    """Multi-label classification with a Vision Transformer; for scikit-learn.

    X and the parameters are as for `ViTClassifier`.

    After `fit`: `run_` is the run; `classes_` are the names of the labels, from a table's columns, else 0 to K - 1;
    `n_features_in_` as there. `score` is the fraction of images with all labels correct (subset accuracy).
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> ViTMultiLabel:
        """Train on images and their labels [n, K]: 1 for present, 0 for absent, NaN for unknown.

        Args:
            groups, sample_weight: as `ViTClassifier.fit`.

        Raises:
            as `ViTClassifier.fit`; y holds other values.
        """
        images = self._parse_images(X, fitting=True)
        table = parse_label_table(self._require_targets(y))
        check_consistent_length(images, table)
        examples = select_examples(images, table, groups, sample_weight)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else [f"{k}" for k in range(table.shape[1])]
        self._fit_run(examples.images, examples.to_source(NamedLabels(examples.labels, tuple(names)), "multilabel"))
        self.classes_ = np.array(names) if hasattr(y, "columns") else np.arange(table.shape[1])
        return self

    @property
    def threshold_(self) -> Float64[np.ndarray, " K"]:
        """The probability from which each label is answered, by the decision in use."""
        thresholds = self._open_run().predictor.decisions.thresholds
        return np.array(thresholds or (DEFAULT_THRESHOLD,) * len(self.classes_))

    @threshold_.setter
    def threshold_(self, value: Any) -> None:
        """One for all labels or one for each, from 0 to 1; kept with the run as a decision, which is put to use."""
        labels = self._open_run().predictor.classes
        try:
            thresholds = np.broadcast_to(np.asarray(value, np.float64), len(labels))
        except (TypeError, ValueError) as err:
            raise UsageError(f"threshold_ must be one number or {len(labels)}. Got {value!r}.") from err
        self._use_thresholds(dict(zip(labels, thresholds.tolist(), strict=True)))

    def predict(self, X: Any) -> Int64[np.ndarray, "n K"]:
        """1 for each predicted label, by the run's thresholds."""
        return self._predict_images(X, MultilabelPredictions).indicators.astype(np.int64)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The calibrated probability of each label."""
        return self._predict_images(X, MultilabelPredictions).probabilities

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The logarithm of `predict_proba`."""
        return compute_log(self.predict_proba(X))


def parse_label_table(y: Any) -> Float[np.ndarray, "n K"]:
    """Labels as float32: 1, 0, or NaN where unknown.

    Raises:
        UsageError: another shape, or another value; the message says where.
    """
    try:
        table = np.asarray(y, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"y must be zeros and ones [n, K], one column for each label. It could not be read: {error}."
        ) from error
    if table.ndim != 2 or not table.shape[1]:
        raise UsageError(
            f"y should be zeros and ones [n, K], one column for each label. Got the shape {list(table.shape)}; for one "
            "class a picture there is ViTClassifier."
        )
    wrong = ~(np.isnan(table) | (table == 0) | (table == 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise UsageError(
            f"y must hold 1, 0, or NaN where unknown. Got {table[row, column]:g} in row {row}, column {column}."
        )
    return table


class ViTClassifier(ClassifierMixin, ViTEstimator):
    """Classification with a Vision Transformer; for scikit-learn.

    X is an array of images [n, H, W] or [n, H, W, C], a list of images or of file names, or rows of numbers [n, F]
    that are square grey images (or as `image_size` says). Parameters are those of `ViTEstimator`.

    After `fit`: `run_` is the run, with its folder, plan and report; `classes_` are the labels in the order of
    `predict_proba`; `n_features_in_` counts the numbers of an image, where X was an array.

    Args:
        class_weight: weights of the classes in the loss, times `sample_weight`: a dictionary, 1 for classes that it
            lacks, or "balanced", images / (classes * images of the class). None leaves them to the plan, which weighs
            rare classes by the root of that where the commonest class has ten times their images.
    """

    @explain_keywords(settings=Plan, hints=SCIKIT_LEARN_WORDS, check_types=False)
    def __init__(
        self,
        *,
        model: str | None = None,
        weights: str | Path | None = None,
        minutes: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        image_size: int | tuple[int, int] | str | None = None,
        channels: int | None = None,
        validation_fraction: float = 0.1,
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        precision: str = "float32",
        loss: CustomLoss | None = None,
        augment: CustomAugment | None = None,
        settings: Mapping[str, object] | None = None,
        out: str | Path | None = None,
        verbose: bool = False,
    ):
        super().__init__(
            model=model, weights=weights, minutes=minutes, epochs=epochs, steps=steps, image_size=image_size,
            channels=channels, validation_fraction=validation_fraction, random_state=random_state, device=device,
            precision=precision, loss=loss, augment=augment, settings=settings, out=out, verbose=verbose,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> ViTClassifier:
        """Train on images and their labels [n], numbers or strings, which `predict` returns.

        Args:
            groups: what images belong together, such as a patient's: validation images are of other groups than the
                training images, and intervals of metrics are by group.
            sample_weight: weights of the images in the training loss, 0 or more; only their ratios count. An image of
                weight 2 counts as if it were there twice, one of weight 0 is left out. Held-out images calibrate
                without weights.

        Raises:
            UsageError, DataError, ValueError: X holds no images, y no classes, lengths differ, or a group or weight is
                missing or below 0.
            as `vitrail.fit`.
        """
        images = self._parse_images(X, fitting=True)
        labels = column_or_1d(self._require_targets(y), warn=True)
        check_consistent_length(images, labels)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        examples = select_examples(images, labels, groups, sample_weight, self.class_weight)
        classes, indices = np.unique(examples.labels, return_inverse=True)
        if len(classes) < 2:
            raise UsageError(
                f"A classifier needs pictures of at least two classes. All {len(indices):,} are of one class."
            )
        named = NamedLabels(indices.astype(np.int64), to_class_names(classes))
        self._fit_run(examples.images, examples.to_source(named, "classification"))
        self.classes_ = classes
        return self

    @property
    def threshold_(self) -> float | None:
        """The probability of `positive_` from which it is answered, by the decision in use; None: the likeliest class.

        Assigned, it is kept with the run as a decision, which is put to use, of the second class where `positive_` is
        None. See `run_.decide`.
        """
        decisions = self._open_run().predictor.decisions
        return decisions.thresholds[0] if decisions.positive and decisions.thresholds else None

    @threshold_.setter
    def threshold_(self, value: Any) -> None:
        predictor = self._open_run().predictor
        if len(predictor.classes) != 2:
            raise UsageError(
                f"threshold_ is for two classes, and there are {len(predictor.classes)}, of which the likeliest is "
                "answered. To set one class apart use run_.decide(positive=...)."
            )
        self._use_thresholds({predictor.decisions.positive or predictor.classes[1]: value})

    @property
    def positive_(self) -> Any:
        """The class that `threshold_` is for; None where the likeliest class is answered."""
        decisions = self._open_run().predictor.decisions
        if self.threshold_ is None:
            return None
        return self.classes_[self.run_.predictor.classes.index(decisions.positive)]

    def predict(self, X: Any) -> Shaped[np.ndarray, " n"]:
        """The predicted class of each image, by the run's threshold if it has one."""
        predictions = self._predict_images(X, ClassificationPredictions)  # first: checks that the estimator is fitted
        return np.asarray(self.classes_[predictions.indices])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The run's calibrated probabilities, in the order of `classes_`."""
        return self._predict_images(X, ClassificationPredictions).probabilities

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The logarithm of `predict_proba`."""
        return compute_log(self.predict_proba(X))


def compute_log(probabilities: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
    """The logarithm of probabilities, without a warning for the -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def to_class_names(classes: Shaped[np.ndarray, " K"]) -> tuple[str, ...]:
    """Class names of a run from labels; whole numbers without decimals.

    Raises:
        UsageError: two labels have the same name.
    """
    values = [value.item() if isinstance(value, np.generic) else value for value in classes]
    names = tuple(str(int(v) if isinstance(v, float) and v.is_integer() else v) for v in values)
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UsageError(f"y holds two classes that are both written as {twice!r}. Rename one of them.")
    return names


class ViTRegressor(RegressorMixin, ViTEstimator):
    """Regression with a Vision Transformer, of one or more numbers; for scikit-learn.

    X and the parameters are as for `ViTClassifier`. After `fit`: `run_` is the run, `n_features_in_` as there.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> ViTRegressor:
        """Train on images and their numbers, [n] or [n, K].

        Args:
            groups, sample_weight: as `ViTClassifier.fit`.

        Raises:
            as `ViTClassifier.fit`; y holds no finite numbers.
        """
        images = self._parse_images(X, fitting=True)
        _, numbers = check_X_y(np.zeros((len(images), 1)), self._require_targets(y), multi_output=True, y_numeric=True)
        table = numbers.astype(np.float32).reshape(len(numbers), -1)
        examples = select_examples(images, table, groups, sample_weight)
        named = NamedLabels(examples.labels, get_target_names(y, table.shape[1]))
        self._fit_run(examples.images, examples.to_source(named, "regression"))
        self._has_single_target = numbers.ndim == 1
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " n"] | Float[np.ndarray, "n K"]:
        """Predicted numbers in the units of y, [n] or [n, K] as y was."""
        values = self._predict_images(X, RegressionPredictions).values.astype(np.float64)
        return values[:, 0] if self._has_single_target else values


def get_target_names(y: Any, count: int) -> tuple[str, ...]:
    """Names of the targets: a table's columns or a column's name, else 0 to K - 1 or "value"."""
    if hasattr(y, "columns"):
        return tuple(str(name) for name in y.columns)
    if count > 1:
        return tuple(f"{k}" for k in range(count))
    return (str(y.name),) if getattr(y, "name", None) is not None else ("value",)


class ViTAnomaly(OutlierMixin, ViTEstimator):
    """What differs from good images, by a bank of their patches; for scikit-learn, with its outlier conventions.

    X is as for `ViTClassifier`, of good images alone. `weights` names the checkpoint whose features are compared; there
    are no steps, and minutes only choose the size of the images.

    After `fit`: `run_` is the run; `offset_` is what `score_samples` of a defect is below; `n_features_in_` as there.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> ViTAnomaly:
        """Fill the bank from good images.

        Args:
            y: not used.
            groups: what images belong together, such as a lot's: the promise is then of further lots.

        Raises:
            UsageError, DataError, ValueError: X holds no images, or fewer than two groups of them.
            as `vitrail.fit`.
        """
        images = self._parse_images(X, fitting=True)
        examples = select_examples(images, np.zeros(len(images), np.int64), groups, None)
        self._fit_run(examples.images, examples.to_source(NamedLabels(examples.labels, (GOOD,)), "anomaly"))
        return self

    @property
    def offset_(self) -> float:
        """What `score_samples` of a defect is below, by the bank in use."""
        return -self.run_.predictor.decisions.alarm_score

    def score_samples(self, X: Any) -> Float64[np.ndarray, " n"]:
        """The opposite of the score of each image: the lower, the less it looks like good ones."""
        scores = self._predict_images(X, ClassificationPredictions).scores
        assert scores is not None
        return -scores.astype(np.float64)

    def decision_function(self, X: Any) -> Float64[np.ndarray, " n"]:
        """`score_samples` less `offset_`: below 0 for a defect."""
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> Int64[np.ndarray, " n"]:
        """-1 for each defect and 1 for each good image, by the promise of the run."""
        return np.where(self._predict_images(X, ClassificationPredictions).indices == 1, -1, 1)


class ViTSegmenter(ViTEstimator):
    """The class of every pixel with a Vision Transformer; for scikit-learn.

    X and the parameters are as for `ViTClassifier`.

    After `fit`: `run_` is the run; `classes_` are the values of the masks, in order, without 255, which is unknown;
    `n_features_in_` as there. `score` is the mean IoU.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> ViTSegmenter:
        """Train on images and their masks: whole numbers [n, H, W], or a list of arrays [H, W] or of mask files.

        Args:
            groups: as `ViTClassifier.fit`.

        Raises:
            UsageError, DataError, ValueError: X holds no images, y no masks of two classes or more, or lengths or sizes
                differ.
            as `vitrail.fit`.
        """
        images, masks = self._parse_images(X, fitting=True), parse_masks(self._require_targets(y))
        check_consistent_length(images, masks)
        classes = np.unique(np.concatenate([np.unique(mask) for mask in masks]))
        classes = classes[classes != UNKNOWN_VALUE]
        if not 2 <= len(classes) <= MAX_MASK_CLASSES:
            raise UsageError(f"Masks have 2 to {MAX_MASK_CLASSES} classes. Those of y have {len(classes):,}.")
        examples = select_examples(images, np.zeros((len(masks), 1), np.float32), groups, None)
        source = examples.to_source(NamedLabels(examples.labels, (MASK_COLUMN,)), "regression")
        maps = [encode_class_map(index_classes(mask, classes)) for mask in masks]
        source = dataclasses.replace(
            source,
            task="segmentation",
            targets=examples.labels,
            metadata={MASK_COLUMN: maps},
            legend=number_legend(to_class_names(classes)),
        )
        self._fit_run(examples.images, read_masks(source, DataSettings(task="segmentation")))
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Shaped[np.ndarray, "n H W"] | list[np.ndarray]:
        """The class of every pixel, as in `classes_`: an array where X is one, else an array [H, W] for each image."""
        images = self._parse_images(X, fitting=False)
        predictions, spec = self._predict_images(X, RegressionPredictions), self.run_.predictor.spec
        assert predictions.masks is not None
        opened = images if isinstance(images, np.ndarray) else collect_images(images)[0]
        masks = []
        for image, mask in zip(opened, predictions.masks, strict=True):
            shape = image.shape if isinstance(image, np.ndarray) else read_image(image, spec).values.shape
            own = unfit_mask(mask, (shape[0], shape[1]), spec, UNKNOWN_PIXEL)
            seen = own != UNKNOWN_PIXEL  # all but what a plan that crops leaves out
            values = self.classes_[np.where(seen, own, 0)]
            masks.append(values if seen.all() else np.where(seen, values, UNKNOWN_VALUE))
        return np.stack(masks) if isinstance(images, np.ndarray) else masks

    def score(self, X: Any, y: Any) -> float:
        """The mean IoU of the classes that masks or answers have, every image counting alike; 255 is left out."""
        masks, classes = parse_masks(self._require_targets(y)), len(self.classes_) + 1
        answers = self.predict(X)
        check_consistent_length(answers, masks)
        counts = np.zeros((classes, 3))
        for answer, mask in zip(answers, masks, strict=True):
            if answer.shape != mask.shape:
                raise UsageError(f"A mask needs the size of its picture, {list(answer.shape)}. Got {list(mask.shape)}.")
            given, true = (index_classes(each, self.classes_) for each in (answer, mask))
            counts += count_areas(given, true, classes)
        return mean_iou(counts)


def parse_masks(y: Any) -> list[Integer[np.ndarray, "H W"] | Bool[np.ndarray, "H W"]]:
    """Masks of whole numbers, from an array [n, H, W] or a list of arrays or files.

    Raises:
        UsageError, DataError: other shapes or values, or a file that cannot be read.
    """
    masks = [
        read_mask_values(each).values if isinstance(each, str | Path) else np.asarray(each)
        for each in (y if isinstance(y, list | tuple) else np.asarray(y))
    ]
    for row, mask in enumerate(masks):
        if mask.ndim != 2 or mask.dtype.kind not in "biu" or (mask.dtype.kind == "i" and mask.min(initial=0) < 0):
            raise UsageError(
                f"y must hold a mask for each picture, whole numbers [H, W] of 0 or more. Got {mask.dtype} "
                f"{list(mask.shape)} in row {row}."
            )
    return masks


def index_classes(mask: Shaped[np.ndarray, "H W"], classes: Shaped[np.ndarray, " K"]) -> UInt8[np.ndarray, "H W"]:
    """The place of every pixel's value in the classes, K for values that are none, `UNKNOWN_PIXEL` for 255."""
    places = np.searchsorted(classes, mask).clip(max=len(classes) - 1)
    places = np.where(classes[places] == mask, places, len(classes))
    return np.where(mask == UNKNOWN_VALUE, UNKNOWN_PIXEL, places).astype(np.uint8)


# -- The run folder of an estimator.

UNPICKLED_FOLDERS = ("checkpoints", STORE_FOLDER)
"""Folders left out of pickles: predictions do not need them."""


class EstimatorRunFolder:
    """The folder of one run. A temporary one is deleted with this object, by the process that made it.

    Args:
        path: the user's folder, which is kept; None makes a temporary one.
    """

    def __init__(self, path: str | Path | None = None):
        if path is not None:
            self.path = Path(path)
            return
        parent = Path(tempfile.mkdtemp(prefix="vitrail-"))
        self.path = parent / "run"
        weakref.finalize(self, _remove_folder, parent, os.getpid())


def pack_run_files(run: Path) -> dict[str, bytes]:
    """Contents of a run folder for a pickle: relative path -> bytes."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink())
    names = {path: path.relative_to(run) for path in files}
    return {
        name.as_posix(): path.read_bytes() for path, name in names.items() if name.parts[0] not in UNPICKLED_FOLDERS
    }


def unpack_run_files(files: dict[str, bytes]) -> EstimatorRunFolder:
    """A temporary run folder with these files."""
    folder = EstimatorRunFolder()
    for name, data in files.items():
        path = folder.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def _remove_folder(folder: Path, owner: int) -> None:
    """Delete a folder, but not in a forked process: the folder belongs to its parent."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
