"""What a fast number format changes is counted, said in one sentence, and read back from a bundle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail import config
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.precision import COMPARISON_KEY, compare_precisions, largest_comparison, read_comparison
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from vitrail.runtime import parse_precision

SHARED = {"paths": ("",) * 3, "ids": ("a", "b", "c"), "split": "val", "targets": None, "skipped": ()}
CLASSES = ClassificationPredictions(
    classes=("cat", "dog"), probabilities=np.array([[0.9, 0.1], [0.501, 0.499], [0.3, 0.7]], np.float32), **SHARED
)
FAST = replace(
    CLASSES, probabilities=np.array([[0.89, 0.11], [0.499, 0.501], [0.3, 0.7]], np.float32),
    abstain_reasons=("", "unsure", ""),
)  # fmt: skip


def test_differences_decisions_and_abstentions_are_counted():
    found = compare_precisions(CLASSES, FAST, "bfloat16", "cpu", 1.25)
    assert (found.task, found.num_images, found.changed_decisions, found.changed_abstentions) == (
        "classification", 3, 1, 1,
    )  # fmt: skip
    assert found.difference == pytest.approx(0.01, abs=1e-6) and found.difference_99 <= found.difference
    assert str(found) == (
        "bfloat16 against float32 on 3 validation pictures: scores differ by up to 0.01, 99 % of them by at most 0.01; "
        "1 decision and 1 abstention changed; 1.2 times as fast (cpu)"
    )


def test_of_labels_every_crossed_threshold_counts():
    exact = MultilabelPredictions(classes=("bars", "spot"), probabilities=np.full((3, 2), 0.51, np.float32), **SHARED)
    fast = replace(exact, probabilities=np.array([[0.49, 0.49], [0.49, 0.51], [0.51, 0.51]], np.float32))
    found = compare_precisions(exact, fast, "float16", "cuda", 2)
    assert (found.changed_decisions, found.crossed_thresholds) == (2, 3)
    assert "2 decisions (3 labels) and 0 abstentions changed; 2 times as fast (cuda)" in str(found)


def test_numbers_differ_as_a_fraction_of_their_range():
    exact = RegressionPredictions(
        columns=("power", "same"), values=np.array([[100.0, 5], [200, 5], [300, 5]], np.float32), **SHARED
    )
    fast = replace(exact, values=exact.values + np.array([2, 0], np.float32))
    found = compare_precisions(exact, fast, "bfloat16", "cpu", 1.0)
    assert found.difference == pytest.approx(0.01) and found.changed_decisions == 0
    assert "numbers differ by up to 0.01 of their range" in str(found) and "decision" not in str(found)


def test_a_comparison_is_read_back_and_a_damaged_one_refused():
    found = compare_precisions(CLASSES, FAST, "bfloat16", "cpu", 1.25)
    assert read_comparison({COMPARISON_KEY: config.write(found)}, "a bundle") == found
    assert read_comparison({}, "a bundle") is None
    for wrong in ("fast", {"precision": "bfloat16"}):
        with pytest.raises(DamagedFileError, match="Use another copy"):
            read_comparison({COMPARISON_KEY: wrong}, "a bundle")


def test_of_several_models_the_one_that_differs_most_speaks_and_none_where_one_was_not_compared():
    small = compare_precisions(CLASSES, CLASSES, "bfloat16", "cpu", 1.25)
    large = compare_precisions(CLASSES, FAST, "bfloat16", "cpu", 1.25)
    assert largest_comparison([small, large, small]) == large
    assert largest_comparison([small, None]) is None and largest_comparison([]) is None


def test_a_number_format_has_a_long_and_a_short_name():
    assert [parse_precision(name) for name in ("float32", "bf16", "bfloat16", "fp16", "float16")] == [
        "float32", "bfloat16", "bfloat16", "float16", "float16",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"one of float32, bfloat16, bf16, float16, fp16\. Got 'half'"):
        parse_precision("half")
