"""Columns of a source beside the answers of a model."""

from __future__ import annotations

import numpy as np
import pytest

from unit.services.test_evaluation import CLASSES, NAMES, PICTURES, every, predictor, source
from vitrail.errors import UsageError
from vitrail.services.evaluation import LabelledImages, evaluate_model, evaluate_subgroups, select_columns

__all__ = ["predictor"]
VIEWS = ["PA", "AP", "AP"] * 4
COLUMNS = {"view": VIEWS, "age, years": [str(30 + k % 5) for k in range(12)]}


def test_columns_are_chosen_by_name_or_all_together():
    given = source(CLASSES, NAMES, metadata={**COLUMNS, "sex": ["F"] * 12})
    assert select_columns(given, "all") == ["view", "age, years", "sex"]
    assert select_columns(given, "sex, view") == ["sex", "view"] and select_columns(given, "age, years") == [
        "age, years"
    ]
    with pytest.raises(UsageError, match=r"no further column 'site'.*It has 'view', 'age, years', 'sex'"):
        select_columns(given, "view,site")
    with pytest.raises(UsageError, match=r"no further column 'all'.*It has none"):
        select_columns(source(CLASSES, NAMES), "all")


def test_every_picture_has_its_own_cell_also_where_some_are_left_out(predictor):
    pictures = [*PICTURES[:1], np.full((4, 4, 3), np.nan), *PICTURES[2:12]]
    given = source(CLASSES, NAMES, images=pictures, metadata=COLUMNS)
    asked = LabelledImages(given, np.arange(11, -1, -1), "all")
    measured = evaluate_model(predictor, asked, skip_bad=True)
    found = evaluate_subgroups(asked, measured.predictions, "view")
    right = {id: said == truth for id, said, truth in zip(
        measured.predictions.ids, measured.predictions.indices, measured.predictions.targets, strict=True
    )}  # fmt: skip
    for one in found.columns[0].slices:
        mine = [right[given.ids[row]] for row in range(12) if VIEWS[row] == one.value and row != 1]
        assert (one.n, one.figure) == (len(mine), pytest.approx(np.mean(mine)))


def test_all_pictures_are_the_yardstick(predictor):
    asked = every(source(CLASSES, NAMES, metadata=COLUMNS))
    measured = evaluate_model(predictor, asked)
    assert evaluate_subgroups(asked, measured.predictions, "all").overall == measured.metrics.accuracy
