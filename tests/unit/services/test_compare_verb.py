"""Two models on pictures that neither has learnt from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unit.services.test_evaluation import CLASSES, NAMES, every, source
from vitrail.data import split_files
from vitrail.errors import DataError
from vitrail.services.evaluation import LabelledImages, drop_seen_images
from vitrail.train import dataset


def run_on(folder: Path, given, train: list[int], test: list[int]) -> Path:
    """A folder that says which pictures a run has learnt from."""
    folder.mkdir()
    splits = {"train": np.array(train, np.int64), "val": np.zeros(0, np.int64), "test": np.array(test, np.int64)}
    split_files.write_splits(folder / "splits.csv", given, splits)
    dataset.write_data_record(folder / "data.json", given)
    return folder


def test_pictures_that_the_other_run_has_learnt_from_are_left_out(tmp_path):
    given = source(CLASSES, NAMES)
    left = drop_seen_images(run_on(tmp_path / "run", given, [0, 1, 2, 3], list(range(4, 12))), every(given))
    assert left.rows.tolist() == list(range(4, 12))
    assert left.notes == (f"4 pictures that {tmp_path / 'run'} has learnt from are left out; 8 are new to both.",)


def test_nothing_is_left_out_where_nothing_was_learnt_from(tmp_path):
    given = source(CLASSES, NAMES)
    run = run_on(tmp_path / "run", given, [0, 1], list(range(2, 12)))
    asked = LabelledImages(given, np.arange(2, 12), "test")
    assert drop_seen_images(run, asked) == asked


def test_a_run_that_has_learnt_from_all_of_them_is_refused(tmp_path):
    given = source(CLASSES, NAMES)
    with pytest.raises(DataError, match=r"has learnt from these 12 pictures"):
        drop_seen_images(run_on(tmp_path / "run", given, list(range(12)), []), every(given))


def test_what_is_not_known_is_said(tmp_path):
    given = source(CLASSES, NAMES)
    assert "does not say which pictures" in drop_seen_images(tmp_path, every(given)).notes[0]
    run = run_on(tmp_path / "run", source(CLASSES, NAMES[:6]), [0, 1], [2, 3, 4, 5])
    found = drop_seen_images(run, every(given))
    assert "has learnt from other data" in found.notes[0] and len(found.rows) == 12
