"""Columns of a source beside the answers of a model."""

from __future__ import annotations

import numpy as np
import pytest

from unit.doors.test_evaluation import CLASSES, NAMES, PICTURES, every, predictor, source
from vitrail.doors.evaluation import Labelled, evaluate
from vitrail.doors.slicing import by_columns, chosen
from vitrail.errors import UsageError

__all__ = ["predictor"]
VIEWS = ["PA", "AP", "AP"] * 4
COLUMNS = {"view": VIEWS, "age, years": [str(30 + k % 5) for k in range(12)]}


def test_columns_are_chosen_by_name_or_all_together():
    given = source(CLASSES, NAMES, metadata={**COLUMNS, "sex": ["F"] * 12})
    assert chosen(given, "all") == ["view", "age, years", "sex"]
    assert chosen(given, "sex, view") == ["sex", "view"] and chosen(given, "age, years") == ["age, years"]
    with pytest.raises(UsageError, match=r"no further column 'site'.*It has 'view', 'age, years', 'sex'"):
        chosen(given, "view,site")
    with pytest.raises(UsageError, match=r"no further column 'all'.*It has none"):
        chosen(source(CLASSES, NAMES), "all")


def test_every_picture_has_its_own_cell_also_where_some_are_left_out(predictor):
    pictures = [*PICTURES[:1], np.full((4, 4, 3), np.nan), *PICTURES[2:12]]
    given = source(CLASSES, NAMES, pictures=pictures, metadata=COLUMNS)
    asked = Labelled(given, np.arange(11, -1, -1), "all")
    measured = evaluate(predictor, asked, skip_bad=True)
    found = by_columns(asked, measured.predictions, "view")
    right = {id: said == truth for id, said, truth in zip(
        measured.predictions.ids, measured.predictions.labels, measured.predictions.targets, strict=True
    )}  # fmt: skip
    for one in found.columns[0].slices:
        mine = [right[given.ids[row]] for row in range(12) if VIEWS[row] == one.value and row != 1]
        assert (one.n, one.figure) == (len(mine), pytest.approx(np.mean(mine)))


def test_all_pictures_are_the_yardstick(predictor):
    asked = every(source(CLASSES, NAMES, metadata=COLUMNS))
    measured = evaluate(predictor, asked)
    assert by_columns(asked, measured.predictions, "all").overall == measured.metrics.accuracy
