"""What a plan must know of the training pictures: size, channels, and which stored values are black and white."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.decoding import dicom
from vitrail.data.preprocess import preprocess_stack
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.spec import ImageSpec
from vitrail.train.planning import fingerprint as looking
from vitrail.train.planning.fingerprint import measure_fingerprint


def source(pictures: Sequence[object] | np.ndarray) -> Source:
    n = len(pictures)
    return Source(
        name="films", classes=("a", "b"), images=pictures, targets=np.arange(n) % 2, ids=tuple(map(str, range(n)))
    )


def found(pictures: Sequence[object] | np.ndarray, **how: object):
    return measure_fingerprint(source(pictures), np.arange(len(pictures)), 0, **how)


def test_size_is_the_median_and_channels_are_the_most():
    pictures = [np.zeros((10, 20), np.uint8), np.zeros((30, 40, 3), np.uint8), np.zeros((50, 60), np.uint8)]
    seen = found(pictures)
    assert (seen.height, seen.width, seen.channels, seen.num_images, seen.num_classes) == (30, 40, 3, 3, 2)
    assert (seen.low, seen.high, seen.range_reason) == (0.0, 255.0, "8-bit pictures")


def test_a_few_other_shapes_among_strips_do_not_hide_that_the_rest_are_strips():
    strips, squares = [np.zeros((10, 40), np.uint8)] * 38, [np.zeros((10, 10), np.uint8)] * 2
    assert found(strips + squares[:1]).aspects == (4.0, 4.0)
    assert found(strips[:20] + squares).aspects[0] < 2
    assert found([np.zeros((30, 10), np.uint8)] * 4).aspects == pytest.approx((1 / 3, 1 / 3))


def test_C34_the_depth_that_the_pictures_use_becomes_the_range():
    films = np.array([[[0, 3000]], [[7, 4090]]], np.uint16)
    seen = found(films)
    assert (seen.low, seen.high) == (0.0, 4095.0)
    assert seen.range_reason == "12 bits: the pictures looked at store 0 to 4090 in 2 deeper than 8 bits"
    assert found(films * 16).high == 65535.0
    fractions = found(np.array([[[0.0, 1.0]], [[0.5, 0.25]]], np.float32))
    assert (fractions.low, fractions.high) == (0.0, 1.0)
    assert fractions.range_reason.startswith("fractions: ")
    hounsfield = found(np.array([[[-1024.0, 3000.0]]]))
    assert (hounsfield.low, hounsfield.high) == (-1024.0, 4095.0)
    assert found(np.array([[[0.0, 1e6]]])).range_reason.startswith("the largest value: ")


@pytest.mark.parametrize(
    ("low", "high", "range_"),
    [
        (-1.7, 2.1, (-1.7, 2.1)),
        (0.0, 255.4, (0, 255.4)),
        (0.0, 4.095, (0, 4.095)),
        (0.2, 0.9, (0, 1)),
        (-1, 1, (-1, 1)),
    ],
)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_fractions_are_never_rounded_up_to_a_count_of_bits(low, high, range_, kind):
    pictures = np.linspace(low, high, 4 * 900).reshape(4, 30, 30).astype(kind)
    seen = found(pictures)
    assert (seen.low, seen.high) == pytest.approx(range_)
    expected = "fractions: " if range_ == (0, 1) else "fractions, of which the largest is white: "
    assert seen.range_reason.startswith(f"{expected}the pictures looked at store {low:g} to {high:g} in 4")
    prepared = preprocess_stack(pictures, ImageSpec(height=30, width=30, channels=1, low=seen.low, high=seen.high))
    assert len(prepared.unique()) > 150, "the grey scale is used"


def test_one_fraction_among_whole_numbers_is_enough_to_know_no_bits():
    films = np.zeros((3, 2, 2), np.float32)
    films[0], films[1] = 3000, 700
    assert found(films).high == 4095.0, "whole numbers may lie in floats"
    films[2] = 0.5
    assert found(films).high == 3000.0
    assert found(np.full((2, 3, 3), -2.5)).high == 0.0


def test_8_bit_masks_of_0_and_1_are_refused_because_no_stretch_would_follow():
    masks = np.tile(np.array([[0, 1], [1, 0]], np.uint8), (3, 5, 5))
    with pytest.raises(DataError, match=r"hardly more than the values 0 and 1 in 8 bits.*Multiply the values by 255"):
        found(masks, policy="percentile")
    assert found(masks * 9, policy="percentile").high == 9.0
    deep = found(masks.astype(np.uint16), policy="percentile")
    levels = preprocess_stack(masks.astype(np.uint16), ImageSpec(height=10, width=10, low=deep.low, high=deep.high))
    assert levels.unique().tolist() == [0, 255]


def test_a_number_of_bits_is_taken_as_said():
    for bits, white in (("8", 255.0), ("12", 4095.0), ("16", 65535.0)):
        seen = found(np.full((2, 2, 2), 90, np.uint16), policy=bits)
        assert (seen.low, seen.high, seen.range_reason) == (0.0, white, f"asked for: {bits} bits")


def test_percentiles_leave_single_bright_values_out():
    films = np.tile(np.arange(10_000, dtype=np.uint16).reshape(100, 100), (4, 1, 1))
    films[:, 0, 0] = 60_000
    seen = found(films, policy="percentile")
    assert (seen.low, seen.high) == pytest.approx((50, 9950), abs=60)
    assert seen.range_reason.startswith("asked for: 0.5th and 99.5th percentile of 4 pictures")


def test_percentiles_are_widened_for_pictures_that_are_all_bright():
    films = np.full((300, 10, 10), 1000, np.uint16)
    films[:, ::2] = 10
    films[7] = 5000
    seen = found(films, policy="percentile")
    assert (seen.low, seen.high) == (10, 5000), "no more than 5 % of any picture may lie beyond"
    with pytest.raises(DataError, match=r"Nearly all values of the 2 training pictures looked at are 9, so"):
        found(np.full((2, 4, 4), 9, np.uint16), policy="percentile")


def test_what_cannot_be_read_is_passed_over_and_named_if_it_is_all(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    assert found([tmp_path / "bad.png", np.zeros((5, 5), np.uint8)]).height == 5
    with pytest.raises(DataError, match=r"None of 1 training picture of films can be read\. The first: .*bad\.png"):
        found([tmp_path / "bad.png"])


class Film:
    """Stands for a DICOM file; its bytes say whether it carries a window."""

    def __init__(self, window: bool):
        self.window, self.name, self.stamp = window, "film", "film"

    def fetch(self) -> bytes:
        return b"film with window" if self.window else b"film"


@pytest.fixture
def films_are_read(monkeypatch) -> None:
    """A film through its window is bright; its stored values are 12 bits deep."""

    def read(picture: Film, spec: ImageSpec):
        from vitrail.data.decoding.decoded_image import DecodedImage

        top = 65535 if spec.window == "file" else 4000
        return DecodedImage(np.array([[0, top]], np.uint16), kind="DICOM")

    monkeypatch.setattr(looking, "read_image", read)
    monkeypatch.setattr(dicom, "has_window", lambda data, page: b"window" in data)


def test_films_are_windowed_if_each_one_carries_its_window(films_are_read):
    every = found([Film(True), Film(True)])
    assert (every.window, every.low, every.high) == ("file", 0.0, 65535.0)
    assert every.window_reason == "each of 2 films looked at carries its window"
    assert every.range_reason == "each film's own window ends there"


def test_films_are_compared_by_stored_values_if_one_lacks_its_window(films_are_read):
    some = found([Film(True), Film(False)])
    assert (some.window, some.high) == ("none", 4095.0)
    assert some.window_reason.startswith("1 of 2 films looked at carry a window")


def test_a_window_that_was_asked_for_is_not_weighed(films_are_read):
    asked = found([Film(True), Film(False)], spec=ImageSpec(window="file"), choose_window=False)
    assert (asked.window, asked.window_reason) == ("file", "")


def test_pictures_that_are_no_films_have_no_window(tmp_path: Path):
    assert found(np.zeros((2, 3, 3), np.uint8)).window_reason == ""


def faint(low: int = 29_950, high: int = 30_150) -> np.ndarray:
    """Films uint16 of whole values low..high, all of which occur."""
    return np.random.default_rng(0).integers(low, high + 1, (20, 30, 30), dtype=np.uint16)


def test_16_bits_are_kept_where_8_would_merge_values_and_the_plan_says_how_many():
    films = np.random.default_rng(0).integers(0, 4096, (20, 30, 30), dtype=np.uint16)
    seen = found(films)
    assert seen.bit_depth == 16
    levels = len(np.unique(films))
    assert seen.depth_reason == (
        f"16 bits are kept: of the {levels:,} levels of 20 pictures deeper than 8 bits, 8 bits would tell 256 apart"
    )
    assert found(films - 1024.5).bit_depth == 16
    assert found((films / 4095).astype(np.float32)).bit_depth == 16


def test_8_bits_are_enough_where_deeper_types_hold_no_more():
    grey = np.random.default_rng(0).integers(0, 256, (20, 30, 30))
    assert found(grey.astype(np.uint8)).depth_reason == ""
    for same in (grey.astype(np.uint16) * 257, grey.astype(np.float32) / 255, grey.astype(np.int64), grey % 17):
        seen = found(same)
        assert seen.bit_depth == 8 and seen.depth_reason.startswith("8 bits keep "), same.dtype


def test_the_depth_is_chosen_for_the_range_that_was_asked_for():
    grey = np.random.default_rng(0).integers(0, 256, (20, 30, 30)).astype(np.uint16)
    assert found(grey).bit_depth == 8
    assert found(grey, explicit_ends={"high": 65535.0}).bit_depth == 16


def test_films_that_use_a_small_part_of_their_range_get_that_part_with_room():
    seen = found(faint())
    assert (seen.low, seen.high, seen.bit_depth) == (29_650.0, 30_450.0, 16)
    assert seen.range_reason == (
        "the pictures looked at store 29950 to 30150 in 20 deeper than 8 bits, a small part of 0 to 65535: that part, "
        "with room on both sides"
    )
    assert (found(faint(20_000, 30_000)).low, found(faint(), policy="16").low) == (0.0, 0.0)
    assert found([*faint(), np.zeros((30, 30), np.uint8)]).low == 0.0
    assert found(faint(), policy="16").bit_depth == 16
