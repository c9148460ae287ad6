"""What may stand for X."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from vitrail.errors import UsageError
from vitrail.estimators import as_image_list, clip_to_range, infer_row_shape, infer_value_range

PICTURE = np.zeros((4, 6), np.uint8)


@pytest.mark.parametrize(
    "pictures",
    [
        ["a.png", "b.png"],
        [Path("a.png"), Path("b.png")],
        [b"\x89PNG", b"\x89PNG"],
        [PICTURE, PICTURE],
        [torch.zeros(3, 4, 6), torch.zeros(3, 4, 6)],
        [Image.new("L", (6, 4)), Image.new("L", (6, 4))],
        np.array(["a.png", "b.png"]),
        pandas.Series(["a.png", "b.png"]),
        torch.zeros(2, 4, 6),
    ],
)
def test_lists_and_columns_of_pictures_are_lists(pictures):
    found = as_image_list(pictures)
    assert found is not None and len(found) == 2


def test_names_in_an_array_become_plain_texts():
    assert [type(name) for name in as_image_list(np.array(["a.png"])) or []] == [str]


@pytest.mark.parametrize(
    "rows",
    [np.zeros((2, 16)), np.zeros((2, 4, 4)), [[0.0, 1.0], [1.0, 0.0]], [[[0, 1], [1, 0]]], [1.0, 2.0], [],
     pandas.DataFrame({"a": [1], "b": [2]}), np.array([1.0, 2.0], dtype=object)],
)  # fmt: skip
def test_numbers_are_no_list_of_pictures(rows):
    assert as_image_list(rows) is None


@pytest.mark.parametrize(
    ("one", "said"), [("a.png", "'a.png'"), (b"\x89PNG", "PNG'"), (Image.new("L", (2, 2)), "one picture")]
)
def test_one_picture_is_not_taken_for_many(one, said):
    with pytest.raises(UsageError, match=rf"one for each row\. Got .*{said}; write it as a list"):
        as_image_list(one)


@pytest.mark.parametrize(
    ("features", "said", "shape"),
    [(64, None, (8, 8)), (1, None, (1, 1)), (60, (6, 10), (6, 10)), (64, 8, (8, 8)), (7, "row", (1, 7)),
     (60, "6x10", (6, 10))],
)  # fmt: skip
def test_rows_have_the_shape_that_is_said_or_are_square(features, said, shape):
    assert infer_row_shape(features, said) == shape


def test_rows_that_are_no_square_say_what_mends_it():
    with pytest.raises(ValueError, match=r"60 numbers are no square\. Say image_size=\(height, width\)"):
        infer_row_shape(60, None)
    with pytest.raises(ValueError, match=r"image_size says 6x11 pixels, which are 66 numbers .* X has 60 of them"):
        infer_row_shape(60, (6, 11))


@pytest.mark.parametrize(
    ("values", "span"),
    [([0, 16], (0, 16)), ([0.0, 0.4], (0, 1)), ([-2.0, 3.0], (-2, 3)), ([5.0, 9.0], (0, 9)),
     ([-3.0, -3.0], (-3, -2)), ([0, 0], (0, 1))],
)  # fmt: skip
def test_black_and_white_are_the_extremes_of_the_training_rows(values, span):
    assert infer_value_range(np.array([values])) == span


def test_later_values_beyond_them_are_brought_back():
    rows = np.array([[-1.0, 0.5, 9.0]])
    np.testing.assert_array_equal(clip_to_range(rows, 0, 1), [[0, 0.5, 1]])
    assert clip_to_range(rows, -1, 9) is rows
    stored = np.array([[0, 255]], np.uint8)
    assert clip_to_range(stored, 0, 1) is stored
