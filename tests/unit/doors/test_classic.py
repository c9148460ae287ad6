"""A classic figure of a model by its name: at any size, saved with its arrays, refused before it is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitrail.doors.classic import draw_classic
from vitrail.doors.models import find
from vitrail.errors import DataError, UsageError
from vitrail.explain.classic.shown import Choices
from vitrail.explain.picture import PANES

NAME = "explained_vit_patch20_60x100"


@pytest.mark.wide
def test_a_figure_of_a_picture_at_the_models_size_and_at_twice_that(tmp_path):
    found = find(NAME)
    for size, grid in ((None, [3, 5]), ((120, 200), [6, 10])):
        written = draw_classic(found, "attention-heads", [PANES], tmp_path / "heads.png", size, Choices(layer=0))
        assert [path.suffix for path in written] == [".png", ".npz", ".json"]
        facts = json.loads(written[2].read_text())
        assert facts["grid"] == grid and facts["layer"] == 0 and facts["pictures"][0]["name"] == PANES.name
        with np.load(written[1]) as arrays:
            assert arrays["attention"].shape == (found.config.heads, *grid)


def test_a_figure_of_the_model_alone_takes_no_picture(tmp_path):
    written = draw_classic(find(NAME), "patch-filters", [], tmp_path / "filters.png")
    assert all(path.stat().st_size > 100 for path in written)


def test_what_cannot_be_drawn_leaves_nothing(tmp_path):
    found = find(NAME)
    with pytest.raises(UsageError, match=r"The image height 61 is not a multiple of the patch height 20"):
        draw_classic(found, "pca", [PANES], tmp_path / "a.png", (61, 100))
    with pytest.raises(DataError, match=r"gone\.png"):
        draw_classic(found, "pca", [tmp_path / "gone.png"], tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"figure called 'fig6'"):
        draw_classic(found, "fig6", [PANES], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
