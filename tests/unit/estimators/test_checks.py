"""scikit-learn's own checks of an estimator, on rows of numbers that are read as pictures of one pixel's height.

Every check of `check_estimator`; those that fit several times are slow, and run with --all.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import vitrail
from quick_fits import LEARNING, QUICK, threads_kept  # noqa: F401 - a fixture


class Binary(vitrail.ViTMultiLabel):
    """The checks hand over class numbers where this estimator wants zeros and ones: the last class is the label."""

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Binary:
        cells = np.asarray(y)
        if y is not None and cells.ndim == 2 and cells.shape[1] == 1 and cells.dtype.kind in "iu":
            y = (cells == cells.max(initial=0)).astype(np.int64)
        super().fit(X, y, groups, sample_weight)
        return self


ANY_VALUE = "check_do_not_raise_errors_in_init_or_set_params"
OF_TYPES = "these tests check the types of all arguments; the test below runs it as users have it"
OF_BATCHES = (
    "a step sees a part of the pictures, drawn by their place, so a weight is so many copies in expectation alone; "
    "test_groups_and_weights.py has it with steps that see all"
)
ONE_CLASS = "the check wants one class a picture in one column, and labels have a column each"
OF_LABELS = {
    "check_classifiers_train": ONE_CLASS,
    "check_classifiers_classes": "labels are zeros and ones in columns with names, never texts",
    "check_transformer_general": ONE_CLASS,
    "check_transformer_data_not_an_array": ONE_CLASS,
    "check_classifiers_regression_target": "fractions are refused as labels that are neither 0 nor 1, in our own words",
    "check_classifier_not_supporting_multiclass": "several labels are no several classes; there is ViTClassifier",
}
FEW_FITS = {
    "check_estimator_cloneable", "check_estimator_repr", "check_no_attributes_set_in_init", "check_fit_score_takes_y",
    "check_dont_overwrite_parameters", "check_estimators_unfitted", "check_complex_data", "check_dict_unchanged",
    ANY_VALUE, "check_mixin_order", "check_estimators_empty_data_messages",
    "check_parameters_default_constructible", "check_fit2d_1sample", "check_fit1d", "check_requires_y_none",
    "check_supervised_y_no_nan", "check_get_params_invariance", "check_set_params", "check_valid_tag_types",
    "check_n_features_in_after_fitting", "check_estimator_tags_renamed", "check_all_zero_sample_weights_error",
    "check_sample_weights_list", "check_transformers_unfitted", "check_transformer_n_iter",
    "check_classifiers_one_label_sample_weights",
}  # fmt: skip
TRAININGS: dict[str, dict[str, Any]] = {
    "check_classifiers_train": LEARNING,
    "check_class_weight_classifiers": LEARNING,
    "check_regressors_train": {
        **LEARNING, "steps": 300, "settings": {**LEARNING["settings"], "recipe.mixup": 0.0, "recipe.lr": 0.004}
    },
}  # fmt: skip
ESTIMATORS = [
    kind(image_size="row", validation_fraction=0.0, **QUICK)
    for kind in (vitrail.ViTClassifier, Binary, vitrail.ViTRegressor)
]


def expected(estimator: Any) -> dict[str, str]:
    """Checks that fail by design, with the reason."""
    checked = os.environ.get("VITRAIL_SHAPES") != "0"
    of_all = {"check_sample_weight_equivalence_on_dense_data": OF_BATCHES, **({ANY_VALUE: OF_TYPES} if checked else {})}
    return of_all | (OF_LABELS if isinstance(estimator, Binary) else {})


def name_of(check: Any) -> str:
    return str((check.func if isinstance(check, functools.partial) else check).__name__)


def cases() -> Iterator[Any]:
    """Every estimator with every check, as scikit-learn marks them."""
    for case in parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected).args[1]:
        (estimator, check), marks = (case.values, case.marks) if hasattr(case, "marks") else (case, ())
        several = (pytest.mark.wide,) if name_of(check) == "check_fit_score_takes_y" else ()
        slow = several if name_of(check) in FEW_FITS else (pytest.mark.slow,)
        words = check.keywords if isinstance(check, functools.partial) else {}
        said = "-".join([type(estimator).__name__, name_of(check), *map(str, words.values())])
        yield pytest.param(estimator, check, marks=(*marks, *slow), id=said)


@pytest.mark.parametrize(("estimator", "check"), list(cases()))
def test_scikit_learn_s_checks_pass(estimator: Any, check: Callable[[Any], None], threads_kept):  # noqa: F811
    if name_of(check) in TRAININGS:  # those that ask for a good model
        estimator.set_params(**TRAININGS[name_of(check)])
    check(estimator)


@pytest.mark.wide
def test_constructors_take_any_value_and_leave_judging_to_fit():
    script = f"""
import vitrail
from sklearn.utils.estimator_checks import {ANY_VALUE} as check
for kind in (vitrail.ViTClassifier, vitrail.ViTMultiLabel, vitrail.ViTRegressor):
    check(kind.__name__, kind())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
