"""DICOM films: units, windows, white as zero, palettes, frames, and a sentence for what cannot be read."""

from __future__ import annotations

import builtins
import struct

import numpy as np
import pytest

from corpus.films import (
    BIG_ENDIAN,
    DEFLATED,
    JPEG,
    JPEG_2000,
    LOSSLESS_JPEG,
    RLE,
    Elements,
    elements_of,
    even,
    file,
    film,
    implicit,
    packed,
    short,
    text,
    written,
)
from corpus.writing import encoded, photo
from vitrail.data.decoding.decode import decode_image, parse_image, read_image
from vitrail.data.decoding.decoded_image import DecodedImage
from vitrail.data.decoding.dicom import has_window
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

pytest.importorskip("pydicom")
RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)
INTERPRETATION, FRAMES, SAMPLES, PLANAR = (0x28, 0x04), (0x28, 0x08), (0x28, 0x02), (0x28, 0x06)
INTERCEPT, SLOPE, CENTRE, WIDTH = (0x28, 0x1052), (0x28, 0x1053), (0x28, 0x1050), (0x28, 0x1051)
PIXELS = (0x7FE0, 0x10)


def opened(data: bytes, **settings: object) -> DecodedImage:
    return parse_image(data, ImageSpec(**settings))


def test_a_film_of_12_bits_keeps_its_numbers_and_its_name_says_nothing(tmp_path):
    (tmp_path / "IM000001").write_bytes(film(RAMP, bits=12))
    found = read_image(tmp_path / "IM000001", ImageSpec())
    assert found.kind == "DICOM"
    assert found.values.dtype == np.uint16
    assert np.array_equal(found.values, RAMP)
    assert found.remarks == ("uses 12 of 16 bits",)


def test_monochrome1_is_turned_round_over_its_stored_bits():
    white_is_zero = {INTERPRETATION: text("CS", "MONOCHROME1")}
    assert np.array_equal(opened(film(RAMP, bits=12, more=white_is_zero)).values, 4095 - RAMP)
    signed = RAMP.astype(np.int16) - 2048
    assert np.array_equal(opened(film(signed, bits=12, more=white_is_zero)).values, -1 - signed)


def test_slope_and_intercept_give_hounsfield_units():
    more = {SLOPE: text("DS", "2"), INTERCEPT: text("DS", "-1024")}
    found = opened(film(RAMP, more=more)).values
    assert found.dtype == np.float32
    assert np.array_equal(found, RAMP * 2.0 - 1024)


def test_signed_values_stay_signed():
    signed = RAMP.astype(np.int16) - 2048
    assert np.array_equal(opened(film(signed)).values, signed)


def test_the_films_own_window_makes_the_grey_scale():
    more = {CENTRE: text("DS", "2048\\9"), WIDTH: text("DS", "1001\\9")}
    found = opened(film(RAMP, more=more), window="file").values
    assert found.dtype == np.uint16
    expected = ((RAMP - 2047.5) / 1000 + 0.5).clip(0, 1) * 65535
    assert np.abs(found - expected).max() <= 1
    turned = opened(film(RAMP, more=more | {INTERPRETATION: text("CS", "MONOCHROME1")}), window="file").values
    assert np.abs(found.astype(int) + turned - 65535).max() <= 1
    assert np.array_equal(opened(film(RAMP, more=more)).values, RAMP)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("LINEAR_EXACT", ((RAMP - 2000.0) / 1000 + 0.5).clip(0, 1)),
        ("SIGMOID", 1 / (1 + np.exp(-4 * (RAMP - 2000.0) / 1000))),
    ],
)
def test_other_window_functions_follow_their_formula(function, expected):
    more = {CENTRE: text("DS", "2000"), WIDTH: text("DS", "1000"), (0x28, 0x1056): text("CS", function)}
    found = opened(film(RAMP, more=more), window="file").values
    assert np.abs(found - expected * 65535).max() <= 8


def test_a_table_takes_the_place_of_a_window():
    numbers = np.linspace(0, 255, 4096).round().astype(np.uint16)
    table = {(0x28, 0x3002): short(4096, 0, 8), (0x28, 0x3006): short(*numbers.tolist())}
    found = opened(film(RAMP, more={(0x28, 0x3010): ("SQ", [table])}), window="file").values
    assert np.abs(found - numbers[RAMP] / 255 * 65535).max() <= 1


def test_a_film_without_a_window_is_refused_where_one_is_asked_for():
    with pytest.raises(DataError, match=r"carries no window.*--image\.window none.*--data\.range"):
        opened(film(RAMP), window="file")


def test_frames_want_a_choice():
    frames = np.stack([RAMP, RAMP[::-1], RAMP[:, ::-1]])
    data = film(frames, more={FRAMES: text("IS", "3")})
    with pytest.raises(DataError, match=r"^holds 3 frames; choose one with --image\.page N \(1 to 3\)"):
        opened(data)
    assert np.array_equal(opened(data, page=2).values, RAMP[::-1])
    with pytest.raises(DataError, match=r"^holds 3 frames, not the 4 that --image\.page asks for"):
        opened(data, page=4)


def test_colours_come_out_as_rgb():
    rgb = {INTERPRETATION: text("CS", "RGB"), PLANAR: short(0)}
    assert np.array_equal(opened(film(photo(), more=rgb)).values, photo())
    planes = np.moveaxis(photo(), -1, 0)
    more = rgb | {PLANAR: short(1), PIXELS: ("OB", planes.tobytes())}
    assert np.array_equal(opened(film(photo(), more=more)).values, photo())


def test_ybr_comes_out_as_rgb():
    red, green, blue = np.moveaxis(photo().astype(float), -1, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    ybr = np.stack([luma, (blue - luma) * 0.5 / 0.886 + 128, (red - luma) * 0.5 / 0.701 + 128], -1)
    more = {INTERPRETATION: text("CS", "YBR_FULL"), PLANAR: short(0)}
    found = opened(film(np.rint(ybr).clip(0, 255).astype(np.uint8), more=more)).values
    assert np.abs(found.astype(int) - photo()).max() <= 2


def test_a_palette_comes_out_as_rgb():
    numbers = np.arange(64, dtype=np.uint8).reshape(8, 8)
    colours = {(0x28, 0x1101 + i): short(64, 0, 16) for i in range(3)} | {
        (0x28, 0x1201 + i): ("OW", (np.arange(64) * (i + 1) * 257).astype("<u2").tobytes()) for i in range(3)
    }
    found = opened(film(numbers, more={INTERPRETATION: text("CS", "PALETTE COLOR")} | colours)).values
    assert found.dtype == np.uint8
    assert np.array_equal(found, numbers[:, :, None] * np.array([1, 2, 3], np.uint8))


def test_jpeg_inside_is_decoded():
    data = film(photo()[:, :, 0], syntax=JPEG, more={PIXELS: packed([encoded(photo()[:, :, 0], "JPEG", quality=100)])})
    assert np.abs(opened(data).values.astype(int) - photo()[:, :, 0]).max() <= 3


def test_jpeg_2000_inside_is_decoded_and_its_own_size_is_checked():
    grey = photo()[:, :, 0]
    stream = encoded(grey, "JPEG2000", no_jp2=True)
    assert np.array_equal(opened(film(grey, syntax=JPEG_2000, more={PIXELS: packed([stream])})).values, grey)
    place = stream.index(b"\xff\x4f\xff\x51") + 8
    huge = stream[:place] + struct.pack(">II", 60_000, 60_000) + stream[place + 8 :]
    with pytest.raises(DataError, match=r"^image is 3,600 Mpx"):
        opened(film(grey, syntax=JPEG_2000, more={PIXELS: packed([huge])}))


def test_a_missing_decoder_is_one_sentence():
    data = film(RAMP, syntax=LOSSLESS_JPEG, more={PIXELS: packed([b"\xff\xd8\xff\xd9"])})
    with pytest.raises(DataError, match=r"^is compressed as JPEG Lossless.*pip install 'vitrail\[medical\]'"):
        opened(data)


def test_compressed_pixels_that_no_decoder_reads_are_one_sentence():
    grey = photo()[:, :, 0]
    stream = bytearray(encoded(grey, "JPEG2000", no_jp2=True))
    stream[60:] = bytes(len(stream) - 60)
    with pytest.raises(DataError, match=r"^holds pixels compressed as JPEG 2000 .* no decoder here can read"):
        opened(film(grey, syntax=JPEG_2000, more={PIXELS: packed([bytes(stream)])}))


def test_without_pydicom_the_sentence_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name.startswith("pydicom"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DataError, match=r"^DICOM files need pydicom: pip install 'vitrail\[medical\]'\.$"):
        opened(film(RAMP))


def test_files_without_pixels_and_deflated_ones_are_refused():
    with pytest.raises(DataError, match=r"^is a DICOM file without pixels"):
        opened(file({(0x10, 0x10): text("PN", "Nobody")}))
    with pytest.raises(DataError, match=r"^is a DICOM file that is deflated"):
        opened(film(RAMP, syntax=DEFLATED))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_cut_film_is_truncated(share):
    data = film(RAMP)
    with pytest.raises(DataError, match=r"^truncated"):
        opened(data[: int(len(data) * share)])


def test_size_is_checked_from_the_header():
    with pytest.raises(DataError, match=r"^image is 4,295 Mpx \(65,535 x 65,535\)"):
        opened(film(RAMP, more={(0x28, 0x10): short(65_535), (0x28, 0x11): short(65_535)}))
    with pytest.raises(DataError, match=r"^image has no pixels \(0 x 64\)"):
        opened(film(RAMP, more={(0x28, 0x10): short(0)}))


def test_a_film_goes_through_the_one_decoder():
    white_is_zero = {INTERPRETATION: text("CS", "MONOCHROME1")}
    data = film(RAMP, bits=12, more=white_is_zero)
    levels = decode_image(data, ImageSpec(low=0, high=4095))
    assert np.array_equal(levels[:, :, 0], np.rint((4095 - RAMP) * (255 / 4095)).astype(np.uint8))


def test_whether_a_film_carries_a_window_is_known_without_its_pixels():
    window = {CENTRE: text("DS", "2048"), WIDTH: text("DS", "1001")}
    assert has_window(film(RAMP, more=window))
    assert not has_window(film(RAMP))
    assert not has_window(film(RAMP, more={CENTRE: text("DS", "2048")}))
    assert has_window(film(photo(), more={INTERPRETATION: text("CS", "RGB"), PLANAR: short(0)}))
    assert not has_window(b"no film")


# -- Films with pieces missing, and odd ones: read where only one meaning is possible, else refused by their name.

PLAIN = elements_of(RAMP)
GREY_8 = (RAMP % 256).astype(np.uint8)
MARK = bytes(128) + b"DICM"
CHARACTERS = {(8, 5): text("CS", "ISO_IR 100")}
"""What a film without a meta group begins with."""


def without(*tags: tuple[int, int], values: np.ndarray = RAMP, more: Elements | None = None) -> bytes:
    """A film that lacks elements."""
    return file({tag: each for tag, each in (elements_of(values) | (more or {})).items() if tag not in tags})


def palette(entries: int, bits: int, tables: list[bytes], first: int = 0) -> Elements:
    """The elements of a film in colours of a palette."""
    return (
        {INTERPRETATION: text("CS", "PALETTE COLOR")}
        | {(0x28, 0x1101 + i): short(entries, first, bits) for i in range(3)}
        | {(0x28, 0x1201 + i): ("OW", even(tables[i])) for i in range(3)}
    )


LEVELS = [np.arange(256) * factor % 256 for factor in (1, 3, 5)]
COLOURS = np.stack([level[GREY_8] for level in LEVELS], -1)
BYTES = [level.astype(np.uint8).tobytes() for level in LEVELS]
ONE_BIT: Elements = {(0x28, 0x100): short(1), (0x28, 0x101): short(1), (0x28, 0x102): short(0)}
INTEGER_ONLY = (PIXELS, (0x28, 0x101), (0x28, 0x102), (0x28, 0x103))
RAMP_IN_SEGMENTS = ("OW", np.array([0, 1, 0, 1, 255, 65_280], "<u2").tobytes())  # one entry 0, then a line to 65,280
SEGMENTS = (
    {INTERPRETATION: text("CS", "PALETTE COLOR")}
    | {(0x28, 0x1101 + i): short(256, 0, 16) for i in range(3)}
    | {(0x28, 0x1221 + i): RAMP_IN_SEGMENTS for i in range(3)}
)
READ_FILMS = {
    "no preamble": (film(RAMP)[132:], RAMP),
    "no preamble and no meta group": (written(CHARACTERS | PLAIN), RAMP),
    "the same with types left out": (implicit(CHARACTERS | PLAIN), RAMP),
    "no transfer syntax": (MARK + written(CHARACTERS | PLAIN), RAMP),
    "the same, types left out": (MARK + implicit(CHARACTERS | PLAIN), RAMP),
    "a group length first": (implicit({(8, 0): ("UL", struct.pack("<I", 18))} | CHARACTERS | PLAIN), RAMP),
    "no samples per pixel": (without(SAMPLES), RAMP),
    "no high bit": (without((0x28, 0x102)), RAMP),
    "no frames": (film(RAMP[None], more={FRAMES: text("IS", "0")}), RAMP),
    "slope without intercept": (film(RAMP, more={SLOPE: text("DS", "2")}), RAMP * 2.0),
    "an empty slope": (film(RAMP, more={SLOPE: text("DS", "")}), RAMP),
    "big end first": (file(PLAIN, BIG_ENDIAN), RAMP),
    "32 bits": (film(RAMP.astype(np.uint32) * 70_001), RAMP.astype(np.uint32) * 70_001),
    "floats": (
        without(*INTEGER_ONLY, more={(0x28, 0x100): short(32), (0x7FE0, 8): ("OF", RAMP.astype("<f4").tobytes())}),
        RAMP,
    ),
    "doubles": (
        without(*INTEGER_ONLY, more={(0x28, 0x100): short(64), (0x7FE0, 9): ("OD", RAMP.astype("<f8").tobytes())}),
        RAMP,
    ),
    "two levels": (
        film(GREY_8 % 2, more=ONE_BIT | {PIXELS: ("OB", np.packbits(RAMP % 2, bitorder="little").tobytes())}),
        GREY_8 % 2 * 255,
    ),
    "an overlay in free bits": (film(RAMP | 0xA000, bits=12), RAMP),
    "bits filled from the top": (film(RAMP << 4, bits=12, more={(0x28, 0x102): short(15)}), RAMP),
    "signed from the top": (
        film((RAMP.astype(np.int16) - 2048) << 4, bits=12, more={(0x28, 0x102): short(15)}),
        RAMP.astype(int) - 2048,
    ),
    "an odd number of bytes": (film(GREY_8[:63, :63]), GREY_8[:63, :63]),
    "a palette of 8 bits": (film(GREY_8, more=palette(256, 8, BYTES)), COLOURS),
    "a palette of an odd number of entries": (
        film(GREY_8 % 255, more=palette(255, 8, [each[:255] for each in BYTES])),
        np.stack([level[GREY_8 % 255] for level in LEVELS], -1),
    ),
    "a palette of 4,096 entries of 8 bits": (
        film(RAMP, bits=12, more=palette(4096, 8, [each * 16 for each in BYTES])),
        COLOURS,
    ),
    "a palette of 16 bits that holds 8": (
        film(GREY_8, more=palette(256, 16, [level.astype("<u2").tobytes() for level in LEVELS])),
        COLOURS,
    ),
    "a palette from 100 on": (
        film(GREY_8, more=palette(156, 8, [each[100:] for each in BYTES], 100)),
        np.stack([level[GREY_8.clip(100)] for level in LEVELS], -1),
    ),
    "a palette in segments": (film(GREY_8, more=SEGMENTS), np.stack([GREY_8] * 3, -1)),
}
REFUSED_FILMS = {
    "PhotometricInterpretation": (without(INTERPRETATION), "does not say PhotometricInterpretation, so .*dcmodify"),
    "Rows": (without((0x28, 0x10)), "does not say Rows, "),
    "Columns": (without((0x28, 0x11)), "does not say Columns, "),
    "BitsAllocated": (without((0x28, 0x100)), "does not say BitsAllocated, "),
    "BitsStored and sign": (without((0x28, 0x101), (0x28, 0x103)), "does not say BitsStored, PixelRepresentation, "),
    "PlanarConfiguration": (
        without(PLANAR, values=photo(), more={INTERPRETATION: text("CS", "RGB")}),
        "does not say PlanarConfiguration, ",
    ),
    "TransferSyntaxUID": (
        MARK + written(CHARACTERS | PLAIN | {PIXELS: packed([bytes(64)])}, compressed=True),
        "does not say TransferSyntaxUID, ",
    ),
    "unknown colours": (
        film(RAMP, more={INTERPRETATION: text("CS", "HSV")}),
        r"in colours that Vitrail does not know \(HSV\)",
    ),
}


@pytest.mark.parametrize(("data", "expected"), READ_FILMS.values(), ids=READ_FILMS)
def test_films_with_one_possible_meaning_are_read_exactly(data, expected):
    assert np.array_equal(opened(data).values, expected)


@pytest.mark.parametrize(("data", "says"), REFUSED_FILMS.values(), ids=REFUSED_FILMS)
def test_what_a_film_does_not_say_is_named(data, says):
    with pytest.raises(DataError, match=rf"^is a DICOM file (that )?{says}"):
        opened(data)


@pytest.mark.parametrize(
    ("syntax", "says"),
    [
        ("1.2.840.10008.1.2.4.80", r"^is compressed as JPEG-LS .* no decoder here: pip install 'vitrail\[medical\]'"),
        (
            "1.2.840.10008.1.2.4.100",
            r"^is compressed as MPEG2 .*, which pydicom does not read; save it uncompressed\.$",
        ),
        (
            "1.2.840.10008.1.2.4.110",
            r"^is compressed as 1\.2\.840.*, which pydicom does not read; save it uncompressed",
        ),
        (RLE, r"^damaged DICOM file|^holds pixels compressed as RLE Lossless that no decoder here can read"),
    ],
)
def test_compressed_films_without_a_decoder_are_named(syntax, says):
    with pytest.raises(DataError, match=says):
        opened(film(RAMP, syntax=syntax, more={PIXELS: packed([bytes(64)])}))


def test_frames_that_the_file_does_not_count_are_counted_by_their_bytes():
    data = film(RAMP, more={PIXELS: ("OW", RAMP.tobytes() + RAMP[::-1].tobytes())})
    with pytest.raises(DataError, match=r"^holds 2 frames; choose one with --image\.page N \(1 to 2\)"):
        opened(data)
    assert np.array_equal(opened(data, page=2).values, RAMP[::-1])


def test_a_slope_of_zero_is_named():
    with pytest.raises(DataError, match=r"^has a RescaleSlope of 0, by which all its pixels would be equal"):
        opened(film(RAMP, more={SLOPE: text("DS", "0")}))


def test_a_palette_without_its_tables_is_damage():
    with pytest.raises(DataError, match=r"^damaged DICOM file \(it is in colours of a palette and has no red table\)"):
        opened(film(GREY_8, more={INTERPRETATION: text("CS", "PALETTE COLOR")}))
