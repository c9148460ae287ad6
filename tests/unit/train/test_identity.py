"""What a run knows of the data that it was begun with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.train.dataset import check_data_unchanged, write_data_record

WHOLE = Source(
    name="drawn",
    classes=("a", "b"),
    images=np.zeros((4, 2, 2), np.uint8),
    targets=np.arange(4) % 2,
    ids=tuple("wxyz"),
)


def test_the_same_data_says_nothing(tmp_path):
    write_data_record(tmp_path / "data.json", WHOLE)
    assert check_data_unchanged(tmp_path / "data.json", dataclasses.replace(WHOLE, notes=("read again",))) == ()


def test_other_pictures_are_told_and_other_tasks_and_classes_refused(tmp_path):
    path = tmp_path / "data.json"
    write_data_record(path, WHOLE)
    (told,) = check_data_unchanged(path, dataclasses.replace(WHOLE, images=np.ones((4, 2, 2), np.uint8)))
    assert told.startswith("The data of drawn has changed since the run began")
    with pytest.raises(DataError, match=r"They were 'a', 'b'; now they are 'b', 'a'\. Put the data back as it was"):
        check_data_unchanged(path, dataclasses.replace(WHOLE, classes=("b", "a")))
    with pytest.raises(DataError, match=r"begun with a classification source, and drawn is now a multilabel source\."):
        check_data_unchanged(
            path, dataclasses.replace(WHOLE, task="multilabel", targets=np.eye(2, dtype=np.float32)[WHOLE.targets])
        )


def test_a_run_of_an_older_version_says_that_nobody_knows(tmp_path):
    assert "older version" in check_data_unchanged(tmp_path / "data.json", WHOLE)[0]
