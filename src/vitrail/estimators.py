"""What the three estimators share: parameters, a training by `vitrail.fit`, pickles, and a card in notebooks."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

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
from .data.source import Task
from .data.sources.label_input import NamedLabels
from .errors import UsageError
from .evaluate.predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)
from .services.notebook import render_run_card
from .services.train_arguments import parse_image_size
from .train.custom_functions import CustomAugment, CustomLoss


class ViTEstimator(BaseEstimator):
    """A training as scikit-learn knows it; every parameter means what it means to `vitrail.fit`.

    Args:
        image_size: pixels that the model reads; where X has two axes, the shape of the image that each row is
            instead: (height, width), or "row" for a single row of pixels, which is not mirrored. None: rows are
            square.
        validation_fraction: the part of the images that does not teach: calibration and thresholds are fitted on it.
            There is no test split, because scikit-learn's users hold out images themselves.
        settings: fields of the plan by their dotted names, such as {"recipe.batch_size": 64}.
        out: the run folder; None makes a temporary one, which goes with the estimator.
        loss, augment: functions, as `vitrail.fit` takes them; those of a pickled estimator must be importable.
        verbose: show the training as `vitrail.fit` does.
    """

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
        """With the files of the run but its checkpoints, so that a fitted estimator answers wherever it is opened."""
        state = dict(super().__getstate__())
        run = state.pop("run_", None)
        state.pop("_folder", None)
        return state if run is None else {**state, "_files": pack_run_files(run.path)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        files = rest.pop("_files", None)
        super().__setstate__(rest)
        if files is not None:
            self._folder = unpack_run_files(files)
            self.run_ = api.Run(self._folder.path, device=self.device)

    def _html_repr(self) -> str:
        """What notebooks show: scikit-learn's own drawing, and once it is fitted, the run."""
        drawn: str = estimator_html_repr(self)
        return f"{drawn}\n{render_run_card(self.run_.path)}" if hasattr(self, "run_") else drawn

    def _require_targets(self, y: Any) -> Any:
        """The targets, which are there; the words are those that scikit-learn's checks look for."""
        if y is None:
            raise UsageError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        return y

    def _fit_run(self, images: EstimatorImages, labels: NamedLabels, task: Task) -> None:
        """A new run on these images; the one before is left, and if it was temporary, removed."""
        folder = EstimatorRunFolder(self.out)
        self.run_ = api.fit(
            (images, labels),
            model=self.model, weights=self.weights, minutes=self.minutes, epochs=self.epochs, steps=self.steps,
            out=folder.path, seed=self.seed, image_size=self._model_image_size(),
            channels=self.channels, device=self.device, task=task,
            loss=self.loss, augment=self.augment, settings=self._plan_settings(images), quiet=not self.verbose,
        )  # fmt: skip
        self._folder = folder

    def _model_image_size(self) -> tuple[int, int] | None:
        """The size that images are to be read at, if that was said; of rows `image_size` says how they lie."""
        return None if self._has_row_input or self.image_size is None else parse_image_size(self.image_size)

    def _plan_settings(self, images: EstimatorImages) -> dict[str, object]:
        """How scikit-learn's users part their images, what rows of numbers mean, and what was asked for by name."""
        own: dict[str, object] = {"data.val_fraction": self.validation_fraction, "data.test_fraction": 0.0}
        if self._has_row_input and isinstance(images, np.ndarray) and images.dtype != np.uint8:
            low, high = infer_value_range(images)
            own |= {"image.low": low, "image.high": high}
        if self._has_row_input and self.image_size == ROW_IMAGE_SIZE:
            own |= {"recipe.flip": "false", "recipe.tta_flip": "false"}
        return own | dict(self.settings or {})

    def _predict_images(self, X: Any) -> TaskPredictions:
        """The run's own answers to the images of X, in order."""
        check_is_fitted(self, "run_")
        answers: TaskPredictions = self.run_.predict(list(self._parse_images(X, fitting=False)))
        return answers

    def _parse_images(self, X: Any, fitting: bool) -> EstimatorImages:
        """X as images; `fitting` notes what later X must be like.

        Raises:
            UsageError, DataError, ValueError: no images; the message says why and how to give some.
        """
        found = as_image_list(X)
        axes = 1 if found is not None else count_axes(X)
        if fitting:
            self._has_row_input = axes == 2
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
        if found is not None:
            return found
        fewest = 2 if fitting else 1
        if axes == 2:
            return self._rows_to_images(validate_data(self, X, reset=fitting, ensure_min_samples=fewest), fitting)
        values: np.ndarray = check_array(X, allow_nd=True, ensure_min_samples=fewest, estimator=self, input_name="X")
        if fitting:
            self.n_features_in_ = int(np.prod(values.shape[1:]))
        return values

    def _rows_to_images(self, rows: np.ndarray, fitting: bool) -> np.ndarray:
        """Rows of numbers [n, F] as grey images [n, H, W], those of later X within the range of the first."""
        if not self._has_row_input:
            raise UsageError(
                f"{type(self).__name__} was fitted on pictures, and this X has two axes, {list(rows.shape)}. "
                "Give it as [n, height, width] or [n, height, width, channels]."
            )
        if not fitting:
            spec = self.run_.plan.image
            rows = clip_to_range(rows, spec.low, spec.high)
        return rows.reshape(len(rows), *infer_row_shape(rows.shape[1], self.image_size))


# What may stand for X: arrays and lists of images, names of files, or rows of numbers, images laid flat.

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
        said = repr(X[:80]) if isinstance(X, str | bytes) else "one picture"
        raise UsageError(f"X must hold several pictures, one for each row. Got {said}; write it as a list.")
    if isinstance(X, Tensor):
        return None if X.ndim < 3 else list(X)
    cells = X.to_numpy() if hasattr(X, "to_numpy") and getattr(X, "ndim", 0) == 1 else X  # a Series of pandas
    if isinstance(cells, np.ndarray) and (cells.ndim != 1 or cells.dtype.kind not in "OSU"):
        return None
    if not isinstance(cells, Sequence | np.ndarray) or not len(cells) or not _is_image(cells[0]):
        return None
    return [str(cell) if isinstance(cell, np.str_) else cell for cell in cells]


def count_axes(X: Any) -> int:
    """How many axes something like an array has."""
    return int(X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim)


def infer_row_shape(features: int, image_size: object) -> tuple[int, int]:
    """Height and width of the grey image that a row of X is.

    Args:
        image_size: None for squares, "row" for one row of pixels, or the size itself.

    Raises:
        UsageError: so many numbers are no such image.
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
    """What is black and white in rows of numbers: the smallest or 0, and the largest; 1 for fractions of 0..1."""
    low, high = min(0.0, float(rows.min())), float(rows.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def clip_to_range(rows: Shaped[np.ndarray, "n F"], low: float, high: float) -> Shaped[np.ndarray, "n F"]:
    """Rows with values beyond black and white brought to these; bytes, which are never beyond 0..255, as they are."""
    if rows.dtype == np.uint8 or not rows.size or (rows.min() >= low and rows.max() <= high):
        return rows
    return rows.clip(low, high)


def _is_image(thing: object) -> bool:
    """Whether an element of a list is an image rather than a row of numbers."""
    if isinstance(thing, np.ndarray | Tensor):
        return thing.ndim > 1
    return isinstance(thing, str | bytes | Image | dict) or hasattr(thing, "__fspath__")


# `ViTMultiLabel`: any of K labels for each image, each known to be there, known to be absent, or not known.


class ViTMultiLabel(ClassifierMixin, ViTEstimator):
    """A Vision Transformer that says of each of K labels whether an image has it; for scikit-learn.

    X and the parameters are as `ViTClassifier` takes them.

    After `fit`: `run_` is the run; `classes_` are the names of the labels, by a table's columns, else 0 to K - 1;
    `n_features_in_` as there. `score` is the fraction of images whose labels are all answered right.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def fit(self, X: Any, y: Any) -> ViTMultiLabel:
        """Train on images and their labels [n, K]: 1 for there, 0 for absent, NaN where nobody knows.

        Raises:
            UsageError, DataError, ValueError: X holds no images, y other values, or they do not belong together.
            as `vitrail.fit`.
        """
        pictures = self._parse_images(X, fitting=True)
        table = parse_label_table(self._require_targets(y))
        check_consistent_length(pictures, table)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else [f"{k}" for k in range(table.shape[1])]
        self._fit_run(pictures, NamedLabels(table, tuple(names)), "labels")
        self.classes_ = np.array(names) if hasattr(y, "columns") else np.arange(table.shape[1])
        return self

    def predict(self, X: Any) -> Int64[np.ndarray, "n K"]:
        """1 for each label that an image is said to have, by the run's own thresholds."""
        return self._predict_labels(X).labels.astype(np.int64)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The calibrated probability of each label for itself."""
        return self._predict_labels(X).probabilities

    def _predict_labels(self, X: Any) -> MultilabelPredictions:
        answers = self._predict_images(X)
        assert isinstance(answers, MultilabelPredictions)
        return answers


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


# `ViTClassifier`: one of K classes for each image, as scikit-learn's classifiers say it.


class ViTClassifier(ClassifierMixin, ViTEstimator):
    """A Vision Transformer that gives each image one of K classes; what `vitrail.fit` trains, for scikit-learn.

    X is an array of images [n, H, W] or [n, H, W, C], a list of images or of their files' names, or rows of
    numbers [n, F] that are square grey images (or as `image_size` says). Parameters are those of `Estimator`.

    After `fit`: `run_` is the run, with its folder, plan and report; `classes_` are the labels in the order of
    `predict_proba`; `n_features_in_` counts the numbers of an image, where X was an array.
    """

    def fit(self, X: Any, y: Any) -> ViTClassifier:
        """Train on images and their labels [n]; what they are, numbers or texts, is what `predict` answers with.

        Raises:
            UsageError, DataError, ValueError: X holds no images, y no classes, or they do not belong together.
            as `vitrail.fit`.
        """
        pictures = self._parse_images(X, fitting=True)
        given = column_or_1d(self._require_targets(y), warn=True)
        check_consistent_length(pictures, given)
        assert_all_finite(given, input_name="y")
        check_classification_targets(given)
        classes, numbers = np.unique(given, return_inverse=True)
        if len(classes) < 2:
            raise UsageError(
                f"A classifier needs pictures of at least two classes. All {len(given):,} are of one class."
            )
        self._fit_run(pictures, NamedLabels(numbers.astype(np.int64), to_class_names(classes)), "classes")
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Shaped[np.ndarray, " n"]:
        """The answered class of each image, by the run's own threshold where it has one."""
        numbers = self._predict_classes(X).labels
        return np.asarray(self.classes_[numbers])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The run's calibrated probabilities, in the order of `classes_`."""
        return self._predict_classes(X).probabilities

    def _predict_classes(self, X: Any) -> ClassificationPredictions:
        answers = self._predict_images(X)
        assert isinstance(answers, ClassificationPredictions)
        return answers


def to_class_names(classes: Shaped[np.ndarray, " K"]) -> tuple[str, ...]:
    """The labels as texts, which a run calls its classes by; whole numbers without decimals.

    Raises:
        UsageError: two labels look alike as texts.
    """
    values = [value.item() if isinstance(value, np.generic) else value for value in classes]
    names = tuple(str(int(v) if isinstance(v, float) and v.is_integer() else v) for v in values)
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UsageError(f"y holds two classes that are both written as {twice!r}. Rename one of them.")
    return names


# `ViTRegressor`: one or more numbers for each image, in the units of y.


class ViTRegressor(RegressorMixin, ViTEstimator):
    """A Vision Transformer that gives each image a number, or several; for scikit-learn.

    X and the parameters are as `ViTClassifier` takes them. After `fit`: `run_` is the run, `n_features_in_` as there.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> ViTRegressor:
        """Train on images and their numbers, [n] or [n, K].

        Raises:
            UsageError, DataError, ValueError: X holds no images, y no finite numbers, or they do not belong together.
            as `vitrail.fit`.
        """
        pictures = self._parse_images(X, fitting=True)
        _, numbers = check_X_y(
            np.zeros((len(pictures), 1)), self._require_targets(y), multi_output=True, y_numeric=True
        )
        table = numbers.astype(np.float32).reshape(len(numbers), -1)
        self._fit_run(pictures, NamedLabels(table, get_target_names(y, table.shape[1])), "number")
        self._has_single_target = numbers.ndim == 1
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " n"] | Float[np.ndarray, "n K"]:
        """The answer to each image, [n] or [n, K] as y was."""
        answers = self._predict_images(X)
        assert isinstance(answers, RegressionPredictions)
        values = answers.values.astype(np.float64)
        return values[:, 0] if self._has_single_target else values


def get_target_names(y: Any, count: int) -> tuple[str, ...]:
    """What the numbers are called: as a table's columns, or as a column itself, if they have names."""
    if hasattr(y, "columns"):
        return tuple(str(name) for name in y.columns)
    if count > 1:
        return tuple(f"{k}" for k in range(count))
    return (str(y.name),) if getattr(y, "name", None) is not None else ("value",)


# Where an estimator's run lies: in the user's folder, or in a temporary one that goes when the estimator goes.

UNPICKLED_FOLDER = "checkpoints"
"""A folder that no pickle carries: it continues a training, and answers need none of it."""


class EstimatorRunFolder:
    """A place for one run. A temporary one is removed with this object, by the process that made it.

    Args:
        path: the user's own folder, which stays; None makes a temporary one.
    """

    def __init__(self, path: str | Path | None = None):
        if path is not None:
            self.path = Path(path)
            return
        above = Path(tempfile.mkdtemp(prefix="vitrail-"))
        self.path = above / "run"
        weakref.finalize(self, _remove_folder, above, os.getpid())


def pack_run_files(run: Path) -> dict[str, bytes]:
    """The files of a run folder that a pickle takes along, by their names in it."""
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
    """What a process inherited by forking belongs to its parent, which may still answer with it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
