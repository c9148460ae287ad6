"""A further column that every split and fold shows in proportion, beside what is learnt."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.data.splits import make_folds, make_splits, make_strata
from vitrail.errors import DataError, UsageError
from vitrail.train.dataset import open_dataset

KINDS = np.random.default_rng(1).permutation(np.repeat(["mono", "poly", ""], [150, 90, 60]))


def source(task: str = "classification", columns: int = 1) -> Source:
    draw = np.random.default_rng(0)
    targets = (
        draw.integers(0, 2, 300) if task == "classification" else draw.integers(0, 2, (300, columns)).astype(np.float32)
    )
    return Source(
        name="cells",
        task=task,
        classes=("good", "bad") if task == "classification" else tuple("abc"[:columns]),
        images=np.zeros((300, 2, 2), np.uint8),
        targets=targets,
        ids=tuple(map(str, range(300))),
        metadata={"kind": KINDS.tolist()},
    )


@pytest.mark.parametrize(
    ("task", "columns"), [("classification", 1), ("multilabel", 2), ("regression", 1), ("regression", 2)]
)
def test_folds_show_each_value_of_the_column_in_proportion(task, columns):
    for part in make_folds(source(task, columns), 5, 0, "kind"):
        counts = Counter(KINDS[part].tolist())
        assert [counts[kind] for kind in ("mono", "poly", "")] == pytest.approx([30, 18, 12], abs=1)


def test_folds_of_classes_show_each_pair_of_class_and_value_alike():
    whole = source()
    pairs = [
        Counter(zip(whole.targets[part].tolist(), KINDS[part], strict=True)) for part in make_folds(whole, 5, 0, "kind")
    ]
    for pair in set().union(*pairs):
        counts = [found[pair] for found in pairs]
        assert max(counts) - min(counts) <= 1


def test_splits_show_the_column_in_proportion_too():
    settings = DataSettings(val_fraction=0.2, test_fraction=0.2, strata="kind")
    for split, rows in make_splits(source(), settings, 0).items():
        share = 0.6 if split == "train" else 0.2
        assert Counter(KINDS[rows].tolist())["poly"] == pytest.approx(90 * share, abs=1)


def test_without_a_column_nothing_changes():
    whole = source()
    rows = np.arange(len(whole))
    assert np.array_equal(make_strata(whole, rows), whole.targets)


def manifest(folder: Path) -> Path:
    from PIL import Image

    lines = ["path,label,kind"]
    for number in range(20):
        Image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]},{'xy'[number // 2 % 2]}")
    (folder / "cells.csv").write_text("\n".join(lines) + "\n")
    return folder / "cells.csv"


def test_a_manifest_is_parted_by_its_column_and_others_are_refused(tmp_path):
    path = str(manifest(tmp_path))
    found = open_dataset(DataSettings(source=path, folds=5, fold=1, strata="kind"), 0)
    test = found.splits["test"]
    assert (
        len(test) == 4 and len({*zip(found.source.targets[test].tolist(), (test // 2 % 2).tolist(), strict=True)}) == 4
    )
    with pytest.raises(DataError, match=r"no column 'kinds'.*kind"):
        open_dataset(DataSettings(source=path, strata="kinds"), 0)
    with pytest.raises(UsageError, match=r"--data.strata label names a column.*further columns of cells: 'kind'"):
        open_dataset(DataSettings(source=path, strata="label", targets=("label",)), 0)
    with pytest.raises(UsageError, match=r"--data.strata kind .* further columns of digits: none"):
        open_dataset(DataSettings(source="digits", strata="kind"), 0)
