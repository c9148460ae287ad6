"""Run lengths: a class map as text, COCO's runs and their letters, Label Studio's brush; and shapes that are filled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path as Outline

from vitrail.data.labels.mask_shapes import box_corners, fill_ellipse, fill_polygon
from vitrail.data.labels.run_lengths import (
    compress_counts,
    decode_brush,
    decode_class_map,
    decode_coco_counts,
    decompress_counts,
    encode_class_map,
    encode_coco_counts,
)
from vitrail.errors import DataError


def draw_mask(seed: int, size: tuple[int, int], share: float = 0.4) -> np.ndarray:
    return np.random.default_rng(seed).random(size) < share


@given(seed=st.integers(0, 10_000), height=st.integers(1, 9), width=st.integers(1, 9))
def test_a_class_map_is_its_text(seed: int, height: int, width: int):
    classes = np.random.default_rng(seed).integers(0, 3, (height, width)).astype(np.uint8)
    np.testing.assert_array_equal(decode_class_map(encode_class_map(classes)), classes)


def test_the_text_of_a_class_map_names_runs_of_rows():
    assert encode_class_map(np.array([[0, 0, 2], [2, 1, 1]], np.uint8)) == "runs:2x3:0*2,2*2,1*2"


@given(seed=st.integers(0, 10_000), height=st.integers(1, 12), width=st.integers(1, 12), share=st.floats(0, 1))
def test_runs_of_coco_and_their_letters_are_the_mask(seed: int, height: int, width: int, share: float):
    mask = draw_mask(seed, (height, width), share)
    counts = encode_coco_counts(mask)
    columns = [value for column in mask.T.tolist() for value in column]  # pixel by pixel, column by column
    assert [place % 2 == 1 for place, count in enumerate(counts) for _ in range(count)] == columns
    assert decompress_counts(compress_counts(counts), "here") == counts
    for written in (counts, compress_counts(counts)):
        np.testing.assert_array_equal(decode_coco_counts(written, mask.shape, "here"), mask)


@pytest.mark.parametrize(
    ("counts", "letters"),
    [
        ([100], "T3"),
        ([0, 100], "0T3"),
        ([5, 40, 55], "5X1g1"),
        ([1, 2, 3, 40], "123V1"),
        ([50, 3, 47, 1, 2], "b13_1NcN"),
    ],
)
def test_letters_are_groups_of_five_bits(counts: list[int], letters: str):
    """By hand: 100 is 00100 and 00011, so 4 + 32 + 48 = T and 3 + 48 = 3; from the fourth on less the one before the
    last: 1 - 3 = -2, which is 11110, so N."""
    assert compress_counts(counts) == letters and decompress_counts(letters, "here") == counts


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([5, 2], "must add up to the pixels of its picture, 2 x 4. They are 7"),
        ([-1, 9], "must add up"),
        ("T", "end too early"),
        ("5~", "the letter '~', which has no meaning"),
    ],
)
def test_wrong_runs_are_refused(counts: list[int] | str, message: str):
    with pytest.raises(DataError, match=f"x.json: .*{message}"):
        decode_coco_counts(counts, (2, 4), "x.json")


def encode_brush(mask: np.ndarray, literal: bool) -> list[int]:
    """A brush as Label Studio writes it: runs of equal words, or all words as they are."""
    words = np.repeat(np.where(mask, 255, 0).ravel(), 4).tolist()
    sizes = (3, 4, 8, 16)
    bits = f"{len(words):032b}{8 - 1:05b}" + "".join(f"{size - 1:04b}" for size in sizes)
    place = 0
    while place < len(words):
        end = place + 1
        while end < len(words) and end - place < 2**16 and (literal or words[end] == words[place]):
            end += 1
        kind = next(k for k, size in enumerate(sizes) if end - place - 1 < 2**size)
        bits += f"{0 if literal else 1}{kind:02b}{end - place - 1:0{sizes[kind]}b}"
        bits += "".join(f"{word:08b}" for word in words[place : end if literal else place + 1])
        place = end
    bits += "0" * (-len(bits) % 8)
    return [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]


@pytest.mark.parametrize("literal", [False, True])
def test_a_brush_is_its_opacity(literal: bool):
    mask = draw_mask(0, (11, 7))
    mask[4:] = True
    written = encode_brush(mask, literal)
    np.testing.assert_array_equal(decode_brush(written, (11, 7), "here"), mask)
    with pytest.raises(DataError, match=r"are of 77 pixels, and its picture has 7 x 12"):
        decode_brush(written, (7, 12), "here")
    with pytest.raises(DataError, match="end too early"):
        decode_brush(written[:-3], (11, 7), "here")
    with pytest.raises(DataError, match="must be bytes"):
        decode_brush([300, 1], (1, 1), "here")


# -- Shapes


def centres_inside(points: Sequence[Sequence[float]], size: tuple[int, int]) -> np.ndarray:
    rows, columns = np.mgrid[: size[0], : size[1]]
    centres = np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], axis=1)
    return Outline(points).contains_points(centres).reshape(size)


@pytest.mark.parametrize("seed", range(5))
def test_a_polygon_holds_the_pixels_whose_centres_lie_inside(seed: int):
    generator = np.random.default_rng(seed)
    angles = np.sort(generator.uniform(0, 2 * np.pi, 9))
    reach = generator.uniform(4, 16, 9)
    points = np.stack([20 + reach * np.cos(angles), 13 + reach * np.sin(angles)], axis=1).tolist()  # partly outside
    filled = fill_polygon(points, (24, 33))
    np.testing.assert_array_equal(filled, centres_inside(points, (24, 33)))
    assert 0.05 < filled.mean() < 0.9


def test_neighbours_share_no_pixel_and_leave_none_out():
    left, right = ([(2, 1), (5.5, 1), (5.5, 9), (2, 9)], [(5.5, 1), (8, 1), (8, 9), (5.5, 9)])
    together = fill_polygon(left, (10, 10)).astype(int) + fill_polygon(right, (10, 10))
    expected = np.zeros((10, 10), int)
    expected[1:9, 2:8] = 1
    np.testing.assert_array_equal(together, expected)


def test_an_ellipse_and_a_turned_box():
    rows, columns = np.mgrid[:20, :30] + 0.5
    plain = fill_ellipse((12, 9), (8, 4), 0, (20, 30))
    np.testing.assert_array_equal(plain, ((columns - 12) / 8) ** 2 + ((rows - 9) / 4) ** 2 <= 1)
    np.testing.assert_array_equal(
        fill_ellipse((10, 9), (4, 8), 90, (20, 20)), fill_ellipse((10, 9), (8, 4), 0, (20, 20))
    )
    assert box_corners(2, 3, 4, 5) == [(2, 3), (6, 3), (6, 8), (2, 8)]
    np.testing.assert_allclose(box_corners(2, 3, 4, 6, 90), [(2, 3), (2, 7), (-4, 7), (-4, 3)], atol=1e-9)
    np.testing.assert_allclose(box_corners(2, 3, 4, 6, 180, 0.5), [(6, 9), (2, 9), (2, 3), (6, 3)], atol=1e-9)
