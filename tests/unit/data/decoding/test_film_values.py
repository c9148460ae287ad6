"""What the numbers of a grey film mean: windows that are none, padding, and units that differ from frame to frame."""

from __future__ import annotations

import numpy as np
import pytest

from corpus.films import Elements, film, short, text
from vitrail.data.decoding.decode import parse_image
from vitrail.data.decoding.dicom import has_window
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

pytest.importorskip("pydicom")
RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)
INTERPRETATION, FRAMES, PADDING, LIMIT = (0x28, 0x04), (0x28, 0x08), (0x28, 0x120), (0x28, 0x121)
INTERCEPT, SLOPE, CENTRE, WIDTH, FUNCTION = (
    (0x28, 0x1052),
    (0x28, 0x1053),
    (0x28, 0x1050),
    (0x28, 0x1051),
    (0x28, 0x1056),
)
SHARED, PER_FRAME, UNITS, VOI = (0x5200, 0x9229), (0x5200, 0x9230), (0x28, 0x9145), (0x28, 0x9132)
WHITE_IS_ZERO: Elements = {INTERPRETATION: text("CS", "MONOCHROME1")}


def window(centre: str, width: str, function: str = "LINEAR") -> Elements:
    return {CENTRE: text("DS", centre), WIDTH: text("DS", width), FUNCTION: text("CS", function)}


def values(data: bytes, **settings: object) -> np.ndarray:
    return parse_image(data, ImageSpec(**settings)).values


@pytest.mark.parametrize(
    ("width", "function"),
    [("0", "LINEAR"), ("-5", "LINEAR"), ("0.5", "LINEAR"), ("0", "LINEAR_EXACT"), ("0", "SIGMOID"), ("-1", "SIGMOID")],
)
def test_a_window_that_nothing_can_be_seen_through_is_no_window(width, function):
    data = film(RAMP, more=window("2048", width, function))
    assert not has_window(data)
    with pytest.raises(DataError, match=r"^carries no window"):
        values(data, window="file")
    assert np.array_equal(values(data), RAMP)


def test_the_narrowest_windows_are_a_threshold_and_a_steep_curve():
    data = film(RAMP, more=window("2048", "1"))
    assert has_window(data)
    assert np.array_equal(values(data, window="file"), np.where(RAMP > 2047.5, 65535, 0))
    for function in ("LINEAR_EXACT", "SIGMOID"):
        steep = values(film(RAMP, more=window("2048", "0.001", function)), window="file")
        assert np.array_equal(steep[RAMP != 2048], np.where(RAMP > 2048, 65535, 0)[RAMP != 2048])


def test_a_window_of_nonsense_is_none_and_a_table_of_no_bits_is_damage():
    assert not has_window(film(RAMP, more=window("2048", "wide")))
    table: Elements = {(0x28, 0x3002): short(4, 0, 0), (0x28, 0x3006): short(0, 1, 2, 3)}
    with pytest.raises(DataError, match=r"its VOI table has entries of 0 bits"):
        values(film(RAMP, more={(0x28, 0x3010): ("SQ", [table])}), window="file")


def padded(kind: type[np.integer], padding: int) -> np.ndarray:
    """A ramp from 100 upwards with padding in its upper half."""
    stored = (np.arange(64 * 64).reshape(64, 64) // 2 + 100).astype(kind)
    stored[:32] = padding
    return stored


@pytest.mark.parametrize("written", [short(-2000, kind="SS"), short(63536)])
def test_padding_becomes_the_darkest_value_of_the_rest_and_so_takes_no_part_in_the_range(written):
    stored = padded(np.int16, -2000)
    found = values(film(stored, more={PADDING: written, SLOPE: text("DS", "1"), INTERCEPT: text("DS", "-1024")}))
    assert (found[:32] == found[32:].min()).all()
    assert np.array_equal(found[32:], stored[32:] - 1024.0)
    assert found.min() == stored[32:].min() - 1024


def test_padding_of_a_film_whose_white_is_zero_comes_out_dark():
    stored = padded(np.uint16, 0)
    assert (values(film(stored, bits=12, more=WHITE_IS_ZERO))[:32] == 4095).all()
    more = WHITE_IS_ZERO | {PADDING: short(0)}
    found = values(film(stored, bits=12, more=more))
    assert np.array_equal(found[32:], 4095 - stored[32:])
    assert (found[:32] == found[32:].min()).all()
    shown = values(film(stored, bits=12, more=more | window("2000", "2000")), window="file")
    assert (shown[:32] == shown[32:].min()).all() and shown.max() > 50_000


def test_padding_may_be_a_range_and_nothing_but_padding_is_no_picture():
    stored = padded(np.uint16, 0)
    stored[:10], stored[10:20] = 5, 3
    found = values(film(stored, more={PADDING: short(0), LIMIT: short(5)}))
    assert (found[:32] == stored[32:].min()).all()
    assert np.array_equal(found[32:], stored[32:])
    assert np.array_equal(values(film(RAMP + 7, more={PADDING: short(3)})), RAMP + 7)
    with pytest.raises(
        DataError, match=r"^holds nothing but padding, pixels that are marked as missing; leave it out\.$"
    ):
        values(film(np.zeros_like(RAMP), more={PADDING: short(0)}))


def enhanced(shared: Elements, *frames: Elements) -> bytes:
    """Three frames of a CT, whose groups say what their numbers mean."""
    stack = np.stack([RAMP, RAMP[::-1], RAMP[:, ::-1]])
    groups: Elements = {FRAMES: text("IS", "3"), SHARED: ("SQ", [shared])}
    return film(stack, more=groups | ({PER_FRAME: ("SQ", list(frames))} if frames else {}))


def units(slope: str, intercept: str) -> Elements:
    return {UNITS: ("SQ", [{SLOPE: text("DS", slope), INTERCEPT: text("DS", intercept)}])}


def test_units_of_an_enhanced_film_are_those_of_its_frame_or_those_that_all_share():
    every = enhanced(units("1", "-1024"))
    assert np.array_equal(values(every, page=2), RAMP[::-1] - 1024.0)
    data = enhanced(units("1", "-1024"), units("2", "0"), {}, units("3", "5"))
    assert np.array_equal(values(data, page=1), RAMP * 2.0)
    assert np.array_equal(values(data, page=2), RAMP[::-1] - 1024.0)
    assert np.array_equal(values(data, page=3), RAMP[:, ::-1] * 3.0 + 5)
    with pytest.raises(DataError, match=r"damaged DICOM file \(it describes 2 frames and holds more\)"):
        values(enhanced({}, units("1", "0"), units("2", "0")), page=3)


def test_windows_of_an_enhanced_film_are_those_of_its_frame_or_those_that_all_share():
    data = enhanced({VOI: ("SQ", [window("2048", "1001")])}, {VOI: ("SQ", [window("1000", "101")])}, {}, {})
    for page, centre, width in ((1, 1000, 101), (2, 2048, 1001)):
        assert has_window(data, page)
        stored = RAMP if page == 1 else RAMP[::-1]
        expected = ((stored - (centre - 0.5)) / (width - 1) + 0.5).clip(0, 1) * 65535
        assert np.abs(values(data, window="file", page=page) - expected).max() <= 1
    only = enhanced({}, {VOI: ("SQ", [window("1000", "101")])}, {}, {})
    assert has_window(only, 1) and not has_window(only, 2)
