"""A classic figure of a model by its name: at any size, saved with its arrays, refused before it is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitrail.errors import DataError, UsageError
from vitrail.explain.figures import SAMPLE_IMAGE
from vitrail.explain.paper_figures.plots import FigureOptions
from vitrail.services.explanation import draw_paper_figure
from vitrail.services.open_model import find_model

NAME = "explained_vit_patch20_60x100"


@pytest.mark.wide
def test_a_figure_of_a_picture_at_the_models_size_and_at_twice_that(tmp_path):
    found = find_model(NAME)
    for size, grid in ((None, [3, 5]), ((120, 200), [6, 10])):
        written = draw_paper_figure(
            found, "attention-heads", [SAMPLE_IMAGE], tmp_path / "heads.png", size, FigureOptions(layer=0)
        )
        assert [path.suffix for path in written] == [".png", ".npz", ".json"]
        facts = json.loads(written[2].read_text())
        assert facts["grid"] == grid and facts["layer"] == 0 and facts["pictures"][0]["name"] == SAMPLE_IMAGE.name
        with np.load(written[1]) as arrays:
            assert arrays["attention"].shape == (found.config.heads, *grid)


def test_a_figure_of_the_model_alone_takes_no_picture(tmp_path):
    written = draw_paper_figure(find_model(NAME), "patch-filters", [], tmp_path / "filters.png")
    assert all(path.stat().st_size > 100 for path in written)


def test_what_cannot_be_drawn_leaves_nothing(tmp_path):
    found = find_model(NAME)
    with pytest.raises(UsageError, match=r"The image height 61 is not a multiple of the patch height 20"):
        draw_paper_figure(found, "pca", [SAMPLE_IMAGE], tmp_path / "a.png", (61, 100))
    with pytest.raises(DataError, match=r"gone\.png"):
        draw_paper_figure(found, "pca", [tmp_path / "gone.png"], tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"figure called 'fig6'"):
        draw_paper_figure(found, "fig6", [SAMPLE_IMAGE], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
