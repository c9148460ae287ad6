"""`ViTClassifier`: one of K classes for each picture, as scikit-learn's classifiers say it."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_consistent_length, column_or_1d

from ..data.sources.label_input import NamedLabels
from ..errors import UsageError
from ..evaluate.predictions import ClassificationPredictions
from .estimator import Estimator


class ViTClassifier(ClassifierMixin, Estimator):
    """A Vision Transformer that gives each picture one of K classes; what `vitrail.fit` trains, for scikit-learn.

    X is an array of pictures [n, H, W] or [n, H, W, C], a list of pictures or of their files' names, or rows of
    numbers [n, F] that are square grey pictures (or as `image_size` says). Parameters are those of `Estimator`.

    After `fit`: `run_` is the run, with its folder, plan and report; `classes_` are the labels in the order of
    `predict_proba`; `n_features_in_` counts the numbers of a picture, where X was an array.
    """

    def fit(self, X: Any, y: Any) -> ViTClassifier:
        """Train on pictures and their labels [n]; what they are, numbers or texts, is what `predict` answers with.

        Raises:
            UsageError, DataError, ValueError: X holds no pictures, y no classes, or they do not belong together.
            as `vitrail.fit`.
        """
        pictures = self._pictures(X, fitting=True)
        given = column_or_1d(self._needed(y), warn=True)
        check_consistent_length(pictures, given)
        assert_all_finite(given, input_name="y")
        check_classification_targets(given)
        classes, numbers = np.unique(given, return_inverse=True)
        if len(classes) < 2:
            raise UsageError(
                f"A classifier needs pictures of at least two classes. All {len(given):,} are of one class."
            )
        self._train(pictures, NamedLabels(numbers.astype(np.int64), names_of(classes)), "classes")
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Shaped[np.ndarray, " n"]:
        """The answered class of each picture, by the run's own threshold where it has one."""
        numbers = self._told(X).labels
        return np.asarray(self.classes_[numbers])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """The run's calibrated probabilities, in the order of `classes_`."""
        return self._told(X).probabilities

    def _told(self, X: Any) -> ClassificationPredictions:
        answers = self._answers(X)
        assert isinstance(answers, ClassificationPredictions)
        return answers


def names_of(classes: Shaped[np.ndarray, " K"]) -> tuple[str, ...]:
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
