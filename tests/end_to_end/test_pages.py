"""A file of several pages stops with a choice, and the choice can be typed wherever pictures are read."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pages(tmp_path):
    """A TIFF of two pages, black and white."""
    black, white = (Image.fromarray(np.full((20, 24, 3), level, np.uint8)) for level in (0, 255))
    black.save(tmp_path / "pages.tif", save_all=True, append_images=[white])
    white.save(tmp_path / "white.png")
    return tmp_path / "pages.tif"


def test_predict_reads_the_page_that_was_chosen(vitrail, run_folder, pages):
    stopped = vitrail("predict", run_folder, pages)
    assert stopped.code == 3 and "--image.page N" in stopped.err
    second = vitrail("predict", run_folder, pages, "--image.page", "2")
    alone = vitrail("predict", run_folder, pages.with_name("white.png"))
    assert second.code == 0, second.err
    assert second.out.splitlines()[1].split(",")[4:] == alone.out.splitlines()[1].split(",")[4:]


def test_what_the_training_settled_cannot_be_said_again(vitrail, run_folder, pages):
    answer = vitrail("predict", run_folder, pages, "--image.low", "3")
    assert answer.code == 2
    assert "--image.low was settled when the model was trained. Only --image.page and --image.max_pixels" in answer.err


def test_evaluate_takes_the_page_as_well(vitrail, run_folder, flowers, pages):
    assert vitrail("evaluate", run_folder, flowers, "--image.page", "1").code == 0
    answer = vitrail("evaluate", run_folder, flowers, "--image.width", "8")
    assert answer.code == 2 and "--image.width was settled" in answer.err
