"""Labels and settings that would make a training worthless are met before its first step (F8, F9)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.train import guards
from vitrail.train.plan import Recipe

ROWS = np.arange(64)
SORTED = ROWS // 32


def source(targets: np.ndarray, task: str) -> Source:
    return Source(
        name="drawn",
        task=task,
        classes=("a", "b"),
        images=np.zeros((len(targets), 4, 4, 1), np.uint8),
        targets=targets,
        ids=tuple(f"{row}.png" for row in range(len(targets))),
    )


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        ("classification", np.array([0, 1, 2])),
        ("classification", np.array([0, -1, 1])),
        ("multilabel", np.array([[0, 1], [2, 0]], np.float32)),
        ("regression", np.array([[0, 1], [np.inf, 0]], np.float32)),
    ],
)
def test_F8_labels_out_of_range_are_refused_by_name(task, targets):
    with pytest.raises(DataError, match=r"\.png|drawn"):
        source(targets, task)


def test_F8_batches_of_one_class_are_told_before_the_first_step():
    recipe = Recipe(batch_size=8)
    assert guards.warn_of_single_class_batches(SORTED, ROWS, recipe, 0, None) is None
    blocks = ROWS // 2  # shards of two pictures, all sorted by class, of which eight are mixed at a time
    assert guards.warn_of_single_class_batches(SORTED, ROWS, recipe, 0, blocks) is None
    few = np.repeat([0, 1], [62, 2])
    said = guards.warn_of_single_class_batches(few, ROWS, recipe, 0, None)
    assert said is not None and said.endswith(
        "batches show one class only, so little can be learnt from each; use a larger batch."
    )
    rows = np.arange(512)
    sorted_shards = guards.warn_of_single_class_batches(rows // 256, rows, recipe, 0, rows // 128)
    assert sorted_shards is None or "write them in a random order" in sorted_shards
    assert guards.warn_of_single_class_batches(few, ROWS, dataclasses.replace(recipe, batch_size=4), 0, None) is None
    assert guards.warn_of_single_class_batches(np.zeros((64, 2), np.float32), ROWS, recipe, 0, None) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lr": 0.0}, r"recipe\.lr must be above 0: with 0\.0 nothing would be learnt"),
        ({"muon_lr": 0.0}, r"recipe\.muon_lr must be above 0"),
        ({"weight_decay": 1.5}, r"recipe\.weight_decay must lie in 0\.\.1\. Got 1\.5"),
        ({"warmup": 1.0}, r"recipe\.warmup must lie in 0 <= fraction < 1\. Got 1\.0"),
    ],
)
def test_F9_rates_decay_and_warm_up_that_make_no_sense_are_refused_with_the_reason(fields, said):
    with pytest.raises(UsageError, match=said):
        Recipe(**fields)
