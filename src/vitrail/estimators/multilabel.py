"""`ViTMultiLabel`: any of K labels for each picture, each known to be there, known to be absent, or not known."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_consistent_length

from ..data.sources.label_input import NamedLabels
from ..errors import UsageError
from ..evaluate.predictions import MultilabelPredictions
from .estimator import Estimator


class ViTMultiLabel(ClassifierMixin, Estimator):
    """A Vision Transformer that says of each of K labels whether a picture has it; for scikit-learn.

    X and the parameters are as `ViTClassifier` takes them.

    After `fit`: `run_` is the run; `classes_` are the names of the labels, by a table's columns, else 0 to K - 1;
    `n_features_in_` as there. `score` is the share of pictures whose labels are all answered right.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def fit(self, X: Any, y: Any) -> ViTMultiLabel:
        """Train on pictures and their labels [n, K]: 1 for there, 0 for absent, NaN where nobody knows.

        Raises:
            UsageError, DataError, ValueError: X holds no pictures, y other values, or they do not belong together.
            as `vitrail.fit`.
        """
        pictures = self._pictures(X, fitting=True)
        table = table_of(self._needed(y))
        check_consistent_length(pictures, table)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else [f"{k}" for k in range(table.shape[1])]
        self._train(pictures, NamedLabels(table, tuple(names)), "labels")
        self.classes_ = np.array(names) if hasattr(y, "columns") else np.arange(table.shape[1])
        return self

    def predict(self, X: Any) -> Int64[np.ndarray, "n K"]:
        """1 for each label that a picture is said to have, by the run's own thresholds."""
        return self._told(X).labels.astype(np.int64)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The calibrated probability of each label for itself."""
        return self._told(X).probabilities

    def _told(self, X: Any) -> MultilabelPredictions:
        answers = self._answers(X)
        assert isinstance(answers, MultilabelPredictions)
        return answers


def table_of(y: Any) -> Float[np.ndarray, "n K"]:
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
