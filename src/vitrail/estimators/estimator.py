"""What the three estimators share: parameters, a training by `vitrail.fit`, pickles, and a card in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from .. import api
from ..data.source import Task
from ..data.sources.label_input import NamedLabels
from ..errors import UsageError
from ..evaluate.prediction_tables import TaskPredictions
from ..services.notebook import render_run_card
from ..services.train_arguments import parse_image_size
from ..train.custom_functions import CustomAugment, CustomLoss
from .keeping import Folder, carried, unpacked
from .pictures import ROW, Pictures, axes_of, listed, shape_of, value_range, within


class Estimator(BaseEstimator):
    """A training as scikit-learn knows it; every parameter means what it means to `vitrail.fit`.

    Args:
        image_size: pixels that the model reads; where X has two axes, the shape of the picture that each row is
            instead: (height, width), or "row" for a single row of pixels, which is not mirrored. None: rows are
            square.
        validation_fraction: the part of the pictures that does not teach: calibration and thresholds are fitted on it.
            There is no test split, because scikit-learn's users hold out pictures themselves.
        settings: fields of the plan by their dotted names, such as {"recipe.batch": 64}.
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
        return state if run is None else {**state, "_files": carried(run.path)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        files = rest.pop("_files", None)
        super().__setstate__(rest)
        if files is not None:
            self._folder = unpacked(files)
            self.run_ = api.Run(self._folder.path, device=self.device)

    def _html_repr(self) -> str:
        """What notebooks show: scikit-learn's own drawing, and once it is fitted, the run."""
        drawn: str = estimator_html_repr(self)
        return f"{drawn}\n{render_run_card(self.run_.path)}" if hasattr(self, "run_") else drawn

    def _needed(self, y: Any) -> Any:
        """The targets, which are there; the words are those that scikit-learn's checks look for."""
        if y is None:
            raise UsageError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        return y

    def _train(self, pictures: Pictures, labels: NamedLabels, task: Task) -> None:
        """A new run on these pictures; the one before is left, and if it was temporary, removed."""
        folder = Folder(self.out)
        self.run_ = api.fit(
            (pictures, labels),
            model=self.model, weights=self.weights, minutes=self.minutes, epochs=self.epochs, steps=self.steps,
            out=folder.path, seed=self.seed, image_size=self._read_at(),
            channels=self.channels, device=self.device, task=task,
            loss=self.loss, augment=self.augment, settings=self._plan_settings(pictures), quiet=not self.verbose,
        )  # fmt: skip
        self._folder = folder

    def _read_at(self) -> tuple[int, int] | None:
        """The size that pictures are to be read at, if that was said; of rows `image_size` says how they lie."""
        return None if self._rows or self.image_size is None else parse_image_size(self.image_size)

    def _plan_settings(self, pictures: Pictures) -> dict[str, object]:
        """How scikit-learn's users part their pictures, what rows of numbers mean, and what was asked for by name."""
        own: dict[str, object] = {"data.val_fraction": self.validation_fraction, "data.test_fraction": 0.0}
        if self._rows and isinstance(pictures, np.ndarray) and pictures.dtype != np.uint8:
            low, high = value_range(pictures)
            own |= {"image.low": low, "image.high": high}
        if self._rows and self.image_size == ROW:
            own |= {"recipe.flip": "false", "recipe.mirror": "false"}
        return own | dict(self.settings or {})

    def _answers(self, X: Any) -> TaskPredictions:
        """The run's own answers to the pictures of X, in order."""
        check_is_fitted(self, "run_")
        answers: TaskPredictions = self.run_.predict(list(self._pictures(X, fitting=False)))
        return answers

    def _pictures(self, X: Any, fitting: bool) -> Pictures:
        """X as pictures; `fitting` notes what later X must be like.

        Raises:
            UsageError, DataError, ValueError: no pictures; the message says why and how to give some.
        """
        found = listed(X)
        axes = 1 if found is not None else axes_of(X)
        if fitting:
            self._rows = axes == 2
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
        if found is not None:
            return found
        fewest = 2 if fitting else 1
        if axes == 2:
            return self._from_rows(validate_data(self, X, reset=fitting, ensure_min_samples=fewest), fitting)
        values: np.ndarray = check_array(X, allow_nd=True, ensure_min_samples=fewest, estimator=self, input_name="X")
        if fitting:
            self.n_features_in_ = int(np.prod(values.shape[1:]))
        return values

    def _from_rows(self, rows: np.ndarray, fitting: bool) -> np.ndarray:
        """Rows of numbers [n, F] as grey pictures [n, H, W], those of later X within the range of the first."""
        if not self._rows:
            raise UsageError(
                f"{type(self).__name__} was fitted on pictures, and this X has two axes, {list(rows.shape)}. "
                "Give it as [n, height, width] or [n, height, width, channels]."
            )
        if not fitting:
            spec = self.run_.plan.image
            rows = within(rows, spec.low, spec.high)
        return rows.reshape(len(rows), *shape_of(rows.shape[1], self.image_size))
