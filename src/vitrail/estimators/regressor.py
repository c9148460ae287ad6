"""`ViTRegressor`: one or more numbers for each picture, in the units of y."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_X_y

from ..data.sources.label_input import NamedLabels
from ..evaluate.predictions import RegressionPredictions
from .estimator import Estimator


class ViTRegressor(RegressorMixin, Estimator):
    """A Vision Transformer that gives each picture a number, or several; for scikit-learn.

    X and the parameters are as `ViTClassifier` takes them. After `fit`: `run_` is the run, `n_features_in_` as there.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> ViTRegressor:
        """Train on pictures and their numbers, [n] or [n, K].

        Raises:
            UsageError, DataError, ValueError: X holds no pictures, y no finite numbers, or they do not belong together.
            as `vitrail.fit`.
        """
        pictures = self._pictures(X, fitting=True)
        _, numbers = check_X_y(np.zeros((len(pictures), 1)), self._needed(y), multi_output=True, y_numeric=True)
        table = numbers.astype(np.float32).reshape(len(numbers), -1)
        self._train(pictures, NamedLabels(table, names_of(y, table.shape[1])), "number")
        self._flat = numbers.ndim == 1
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " n"] | Float[np.ndarray, "n K"]:
        """The answer to each picture, [n] or [n, K] as y was."""
        answers = self._answers(X)
        assert isinstance(answers, RegressionPredictions)
        values = answers.values.astype(np.float64)
        return values[:, 0] if self._flat else values


def names_of(y: Any, count: int) -> tuple[str, ...]:
    """What the numbers are called: as a table's columns, or as a column itself, if they have names."""
    if hasattr(y, "columns"):
        return tuple(str(name) for name in y.columns)
    if count > 1:
        return tuple(f"{k}" for k in range(count))
    return (str(y.name),) if getattr(y, "name", None) is not None else ("value",)
