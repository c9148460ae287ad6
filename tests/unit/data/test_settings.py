"""What cannot be meant is refused before a picture is read."""

from __future__ import annotations

import pytest

from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError


def test_one_fold_is_no_part():
    for folds in (1, -2):
        with pytest.raises(UsageError, match=rf"data\.folds must be 0, or at least 2\. Got {folds}\."):
            DataSettings(folds=folds)


def test_the_fold_must_be_one_of_them():
    assert DataSettings(folds=5, fold=4).fold == 4
    with pytest.raises(UsageError, match=r"data\.fold must lie in 0\.\.4\. Got 5\."):
        DataSettings(folds=5, fold=5)
    with pytest.raises(UsageError, match=r"data\.fold must lie in 0\.\.0\. Got 1\."):
        DataSettings(fold=1)
