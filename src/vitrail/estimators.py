"""scikit-learn estimators: `ViTClassifier`, `ViTMultiLabel` and `ViTRegressor`, trained by `vitrail.fit`."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Float, Int64, Shaped
from PIL.Image import Image
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import estimator_html_repr
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
from .config.keywords import explain_keywords
from .data.source import Task
from .data.sources.label_input import NamedLabels
from .errors import UsageError
from .evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from .services.notebook import render_run_card
from .services.train_arguments import parse_image_size
from .train.custom_functions import CustomAugment, CustomLoss
from .train.plan import Plan

PredictionsT = TypeVar("PredictionsT", ClassificationPredictions, MultilabelPredictions, RegressionPredictions)


class ViTEstimator(BaseEstimator):
    """Base of the estimators; parameters are those of `vitrail.fit` unless described here.

    Args:
        image_size: pixels that the model reads; where X has two axes, the shape of the image that each row is
            instead: (height, width), or "row" for a single row of pixels, which is not mirrored. None: rows are
            square.
        validation_fraction: fraction of the images held out for calibration and thresholds. There is no test split,
            because scikit-learn's users hold out images themselves.
        settings: fields of the plan by their dotted names, such as {"recipe.batch_size": 64}.
        out: the run folder; None makes a temporary one, which is deleted with the estimator.
        precision: number format of predictions: "float32", or the faster "bf16" and "fp16", as `vitrail.open` takes it.
        loss, augment: functions, as `vitrail.fit` takes them; those of a pickled estimator must be importable.
        verbose: show the training as `vitrail.fit` does.
    """

    @explain_keywords(settings=Plan)
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
        seed: int = 0,
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
        self.seed = seed
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
        return tags

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

    def _fit_run(self, images: EstimatorImages, labels: NamedLabels, task: Task) -> None:
        """Train a new run on these images; a previous temporary run is removed."""
        folder = EstimatorRunFolder(self.out)
        size = None if self._has_row_input or self.image_size is None else parse_image_size(self.image_size)
        self.run_ = api.fit(
            (images, labels),
            model=self.model, weights=self.weights, minutes=self.minutes, epochs=self.epochs, steps=self.steps,
            out=folder.path, seed=self.seed, image_size=size, channels=self.channels, device=self.device, task=task,
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
        check_is_fitted(self, "run_")
        self.run_ = self.run_.with_precision(self.precision)
        predictions = self.run_.predict(list(self._parse_images(X, fitting=False)))
        assert isinstance(predictions, kind)
        return predictions

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
                f"image_size says {height}x{width} pixels, which are {height * width:,} numbers in each row of X. "
                f"X has {features:,} of them."
            )
        return height, width
    side = math.isqrt(features)
    if side * side != features:
        raise UsageError(
            f"A row of X must be a square grey picture, and {features:,} numbers are no square. Say image_size="
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

    def fit(self, X: Any, y: Any) -> ViTMultiLabel:
        """Train on images and their labels [n, K]: 1 for present, 0 for absent, NaN for unknown.

        Raises:
            UsageError, DataError, ValueError: X holds no images, y other values, or their lengths differ.
            as `vitrail.fit`.
        """
        images = self._parse_images(X, fitting=True)
        table = parse_label_table(self._require_targets(y))
        check_consistent_length(images, table)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else [f"{k}" for k in range(table.shape[1])]
        self._fit_run(images, NamedLabels(table, tuple(names)), "multilabel")
        self.classes_ = np.array(names) if hasattr(y, "columns") else np.arange(table.shape[1])
        return self

    def predict(self, X: Any) -> Int64[np.ndarray, "n K"]:
        """1 for each predicted label, by the run's thresholds."""
        return self._predict_images(X, MultilabelPredictions).indicators.astype(np.int64)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The calibrated probability of each label."""
        return self._predict_images(X, MultilabelPredictions).probabilities


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
    """

    def fit(self, X: Any, y: Any) -> ViTClassifier:
        """Train on images and their labels [n], numbers or strings, which `predict` returns.

        Raises:
            UsageError, DataError, ValueError: X holds no images, y no classes, or their lengths differ.
            as `vitrail.fit`.
        """
        images = self._parse_images(X, fitting=True)
        labels = column_or_1d(self._require_targets(y), warn=True)
        check_consistent_length(images, labels)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        classes, indices = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise UsageError(
                f"A classifier needs pictures of at least two classes. All {len(labels):,} are of one class."
            )
        self._fit_run(images, NamedLabels(indices.astype(np.int64), to_class_names(classes)), "classification")
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Shaped[np.ndarray, " n"]:
        """The predicted class of each image, by the run's threshold if it has one."""
        predictions = self._predict_images(X, ClassificationPredictions)  # first: checks that the estimator is fitted
        return np.asarray(self.classes_[predictions.indices])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The run's calibrated probabilities, in the order of `classes_`."""
        return self._predict_images(X, ClassificationPredictions).probabilities


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

    def fit(self, X: Any, y: Any) -> ViTRegressor:
        """Train on images and their numbers, [n] or [n, K].

        Raises:
            UsageError, DataError, ValueError: X holds no images, y no finite numbers, or their lengths differ.
            as `vitrail.fit`.
        """
        images = self._parse_images(X, fitting=True)
        _, numbers = check_X_y(np.zeros((len(images), 1)), self._require_targets(y), multi_output=True, y_numeric=True)
        table = numbers.astype(np.float32).reshape(len(numbers), -1)
        self._fit_run(images, NamedLabels(table, get_target_names(y, table.shape[1])), "regression")
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


# -- The run folder of an estimator.

UNPICKLED_FOLDER = "checkpoints"
"""A folder left out of pickles: predictions do not need it."""


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
    return {name.as_posix(): path.read_bytes() for path, name in names.items() if name.parts[0] != UNPICKLED_FOLDER}


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
