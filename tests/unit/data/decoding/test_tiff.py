"""TIFF files of every depth, byte order, page and number of bands: read exactly, or refused by their name."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from corpus.writing import encoded, grey, photo, plain_tiff, shorts, tiff
from vitrail.data.decoding.decode import decode_image, parse_image
from vitrail.data.decoding.decoded_image import DecodedImage
from vitrail.data.decoding.tiff import read_tiff_pages
from vitrail.errors import DataError, TooLargeError
from vitrail.spec import ImageSpec

RAMP = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)


def opened(data: bytes, **settings: object) -> DecodedImage:
    return parse_image(data, ImageSpec(**settings))


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_whole_numbers_keep_their_sign_and_size(bits, form, order):
    kind = np.dtype(f"{'u' if form == 1 else 'i'}{bits // 8}")
    info = np.iinfo(kind)
    values = np.linspace(info.min, info.max, 64).astype(np.int64).clip(info.min, info.max).astype(kind).reshape(8, 8)
    found = opened(plain_tiff(values, form, order)).values
    assert np.array_equal(found.astype(np.int64), values.astype(np.int64))


def test_16_bit_films_whose_white_is_zero_are_turned_round():
    assert np.array_equal(opened(plain_tiff(RAMP, order="<", photometric=0)).values, 65535 - RAMP)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.int16, np.int32])
@pytest.mark.parametrize("order", ["<", ">"])
def test_floats_and_signed_numbers_whose_white_is_zero_are_refused(kind, order):
    values = np.array([[0, 1], [2, 3]], kind)
    form = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    with pytest.raises(
        DataError, match=r"^is a TIFF file with 1 band of .* whose white is zero, so black is undefined"
    ):
        opened(plain_tiff(values, form, order, photometric=0))


def test_pages_are_chosen_and_thumbnails_are_no_pages():
    first, second = Image.fromarray(grey()), Image.fromarray(255 - grey())
    data = encoded(first, "TIFF", save_all=True, append_images=[second])
    assert np.array_equal(opened(data, page=1).values, grey())
    assert np.array_equal(opened(data, page=2).values, 255 - grey())
    with pytest.raises(DataError, match=r"^holds 2 pages, not the 3 that --image\.page asks for"):
        opened(data, page=3)
    with_thumbnail = encoded(first, "TIFF", save_all=True, append_images=[marked(second)])
    assert np.array_equal(opened(with_thumbnail).values, grey())


def marked(image: Image.Image) -> Image.Image:
    """The picture as a thumbnail in a TIFF."""
    image.encoderinfo = {"tiffinfo": {254: 1}}
    return image


def test_pages_that_lead_in_a_circle_end():
    data = bytearray(plain_tiff(grey()))
    (start,) = struct.unpack_from(">I", data, 4)
    (count,) = struct.unpack_from(">H", data, start)
    struct.pack_into(">I", data, start + 2 + 12 * count, start)
    assert np.array_equal(opened(bytes(data)).values, grey())


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_compressed_pictures_are_read(compression):
    found = opened(encoded(photo(), "TIFF", compression=compression)).values
    assert np.abs(found.astype(int) - photo()).max() <= (8 if compression == "jpeg" else 0)


def test_big_tiffs_are_read():
    assert np.array_equal(opened(encoded(photo(), "TIFF", big_tiff=True)).values, photo())


def test_opacity_of_16_bits_beside_grey_is_opacity():
    found = opened(plain_tiff(np.stack([RAMP, RAMP[::-1]], -1)))
    assert np.array_equal(found.values, RAMP)
    assert np.array_equal(found.alpha, RAMP[::-1])


def test_tags_that_lie_beyond_the_file_are_truncation():
    tags = {256: shorts(4), 257: shorts(4), 258: (3, 3, bytes(6)), 262: shorts(1)}
    data = tiff(tags, bytes(16))
    with pytest.raises(DataError, match=r"^truncated \([\d,]+ of [\d,]+ bytes\)"):
        opened(data[:-3])


def test_tiles_larger_than_any_picture_are_refused():
    sides = {322: shorts(60_000), 323: shorts(60_000), 324: (4, 1, struct.pack(">I", 8)), 325: shorts(16)}
    tags = {256: shorts(4), 257: shorts(4), 258: shorts(8), 262: shorts(1)} | sides
    with pytest.raises(DataError, match=r"^image has tiles of 3,600 Mpx, limit 50 Mpx"):
        opened(tiff(tags, bytes(16)))


def test_strips_that_do_not_cover_the_picture_are_damage():
    data = plain_tiff(grey()).replace(struct.pack(">HHIH", 257, 3, 1, 36), struct.pack(">HHIH", 257, 3, 1, 100))
    with pytest.raises(DataError, match=r"^damaged TIFF file \(it is cut into 3 strips or tiles and holds 1 of them\)"):
        opened(data)


def test_a_width_of_several_numbers_is_damage():
    tags = {256: shorts(4, 4), 257: shorts(4), 258: shorts(8), 262: shorts(1), 278: shorts(4)}
    with pytest.raises(DataError, match=r"^damaged TIFF file \(its tag 256 holds 2 numbers instead of one\)"):
        opened(tiff(tags, bytes(16)))


# -- Every kind of TIFF, each from bytes made here or by tifffile.

H, W = 18, 23
BANDS = (np.arange(H * W * 5).reshape(H, W, 5) * 37 % 251).astype(np.uint8)
"""Five bands, of which no two are alike."""


def packed_bits(values: np.ndarray, bits: int) -> bytes:
    """Rows of numbers of so many bits, side by side, the highest bit first, every row filled up to a byte."""
    places = np.arange(bits - 1, -1, -1)
    digits = (values.reshape(len(values), -1, 1).astype(np.int64) >> places & 1).astype(np.uint8)
    return np.packbits(digits.reshape(len(values), -1), axis=1).tobytes()


def page(values: np.ndarray, bits: int = 8, photometric: int = 1, order: str = ">", **tags: object) -> bytes:
    """One page of whole numbers packed closely; `tags` are called t338 and so on, None leaves one out."""
    samples = values.shape[2] if values.ndim == 3 else 1
    basic = {256: values.shape[1], 257: values.shape[0], 262: photometric, 277: samples, 278: values.shape[0]}
    entries = {tag: shorts(number, order=order) for tag, number in basic.items()}
    entries[258] = shorts(*[bits] * samples, order=order)
    given = {int(name[1:]): value for name, value in tags.items()}
    entries |= {
        tag: each if isinstance(each, tuple) else None if each is None else shorts(each, order=order)
        for tag, each in given.items()
    }
    return tiff({tag: each for tag, each in entries.items() if each}, packed_bits(values, bits), order)


def written(values: np.ndarray, **options: object) -> bytes:
    """A file by tifffile, without its own descriptions."""
    tifffile = pytest.importorskip("tifffile")
    out = io.BytesIO()
    tifffile.imwrite(out, values, metadata=None, **options)
    return out.getvalue()


def test_bands_are_kept_and_only_what_the_file_calls_opacity_is_opacity():
    four = BANDS[..., :4]
    for extra in ({}, {"t338": 0}):
        found = opened(page(four, photometric=2, **extra))
        assert np.array_equal(found.values, four)
        assert found.alpha is None
    for said in (2, 999):
        found = opened(page(four, photometric=2, t338=said))
        assert np.array_equal(found.values, four[..., :3])
        assert np.array_equal(found.alpha, four[..., 3])
    found = opened(page(BANDS, photometric=2, t338=shorts(0, 2)))
    assert np.array_equal(found.values, four)
    assert np.array_equal(found.alpha, BANDS[..., 4])
    assert np.array_equal(opened(page(BANDS, photometric=2, t338=shorts(2, 0))).alpha, four[..., 3])
    assert np.array_equal(opened(page(BANDS[..., :3], photometric=2, t338=2)).values, four[..., :3])  # one too many


@pytest.mark.parametrize("bands", [2, 4, 5])
def test_a_model_of_as_many_channels_takes_all_bands_and_others_say_so(bands):
    photometric = 1 if bands == 2 else 2
    data = page(BANDS[..., :bands], photometric=photometric)
    assert np.array_equal(decode_image(data, ImageSpec(channels=bands)), BANDS[..., :bands])
    with pytest.raises(DataError, match=rf"^The model reads 3 channels, the picture has {bands}\."):
        decode_image(data, ImageSpec())


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cut", [{}, {"rowsperstrip": 7}, {"tile": (16, 16)}], ids=["whole", "strips", "tiles"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("u1", {}),
        ("u1", {"compression": "zlib", "predictor": 2}),
        ("u2", {"compression": "zlib", "predictor": 2, "byteorder": ">"}),
        ("u1", {"compression": "zlib", "bigtiff": True, "byteorder": ">"}),
        ("u4", {"bigtiff": True, "byteorder": ">"}),
        ("i2", {"compression": "zlib", "byteorder": ">"}),
        ("i8", {"bigtiff": True}),
        ("f2", {"compression": "zlib"}),
        ("f4", {"compression": "lzma"}),
        ("f8", {"byteorder": ">"}),
    ],
    ids=str,
)
def test_all_bands_of_every_depth_cut_and_packing_are_read_exactly(kind, options, cut, bands):
    values = BANDS[..., :bands].astype(kind) * np.array(3, kind)
    contiguous = values[..., 0] if bands == 1 else values
    given = {"photometric": "minisblack"} | options | cut
    if bands == 1:
        assert np.array_equal(opened(written(contiguous, **given)).values, contiguous)
        return
    side_by_side = opened(written(values, planarconfig="contig", **given))
    planes = opened(written(np.ascontiguousarray(np.moveaxis(values, -1, 0)), planarconfig="separate", **given))
    for found in (side_by_side, planes):
        assert found.values.dtype == values.dtype
        assert np.array_equal(found.values, values)
        assert found.alpha is None


def float_differences(values: np.ndarray) -> bytes:
    """Rows of floats [H, W, C] as predictor 3 stores them: the highest bytes first, as differences."""
    rows = values.reshape(len(values), -1).astype(values.dtype.newbyteorder(">"))
    shuffled = rows.view(np.uint8).reshape(*rows.shape, -1).swapaxes(1, 2).reshape(len(rows), -1, values.shape[2])
    return np.concatenate([shuffled[:, :1], np.diff(shuffled, axis=1)], axis=1).tobytes()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_floats_stored_as_differences_of_bytes_are_read_exactly(kind, order):
    values = np.random.default_rng(0).normal(size=(H, W, 3)).astype(kind)
    tags = {"t259": 8, "t317": 3, "t339": shorts(3, 3, 3, order=order)}
    data = page(np.zeros((H, W, 3), np.uint8), values.dtype.itemsize * 8, 2, order, **tags)
    pixels = zlib.compress(float_differences(values))
    entries = {int(tag): entry for tag, entry in entries_of(data, order).items() if tag not in (273, 279)}
    assert np.array_equal(opened(tiff(entries, pixels, order)).values, values)


def entries_of(data: bytes, order: str) -> dict[int, tuple[int, int, bytes]]:
    """The entries of a page made by `tiff`."""
    (found,) = read_tiff_pages(data)
    return {tag: (entry.kind, entry.num_values, found.entry_bytes(entry)) for tag, entry in found.entries.items()}


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 7])
def test_grey_and_bands_of_few_bits_are_stretched_to_white(bits):
    numbers = BANDS[..., :3] % 2**bits
    stretched = np.rint(numbers * (255 / (2**bits - 1))).astype(np.uint8)
    assert np.array_equal(opened(page(numbers[..., 0], bits)).values, stretched[..., 0])
    assert np.array_equal(opened(page(numbers[..., 0], bits, photometric=0)).values, 255 - stretched[..., 0])
    assert np.array_equal(opened(page(numbers, bits, photometric=2)).values, stretched)


@pytest.mark.parametrize("bits", [9, 10, 12, 14, 15])
def test_odd_depths_keep_their_numbers(bits):
    numbers = BANDS[..., :3].astype(np.uint16) * 131 % 2**bits
    assert np.array_equal(opened(page(numbers[..., 0], bits)).values, numbers[..., 0])
    assert np.array_equal(opened(page(numbers, bits, photometric=2)).values, numbers)
    assert np.array_equal(opened(page(numbers[..., 0], bits, photometric=0)).values, 2**bits - 1 - numbers[..., 0])


@pytest.mark.parametrize("order", ["<", ">"])
def test_numbers_of_24_bits_are_read_in_the_order_of_the_file(order):
    numbers = BANDS[..., 0].astype(np.uint32) * 65_521 % 2**24
    stored = numbers.astype(f"{order}u4")[..., None].view(np.uint8)
    three = stored[..., 1:] if order == ">" else stored[..., :3]
    entries = entries_of(page(np.zeros((H, W), np.uint8), 24, 1, order), order)
    entries = {tag: entry for tag, entry in entries.items() if tag not in (273, 279)}
    assert np.array_equal(opened(tiff(entries, three.tobytes(), order)).values, numbers)


def test_bits_filled_from_the_lowest_are_turned():
    reversed_bits = np.packbits(np.unpackbits(BANDS[..., :1], axis=2)[..., ::-1], axis=2)[..., 0]
    assert np.array_equal(opened(page(reversed_bits, t266=2)).values, BANDS[..., 0])


COLOURS = np.arange(3 * 16).reshape(3, 16) * 1_300
MAP = (3, 48, COLOURS.astype(">u2").tobytes())
LOW_MAP = (3, 48, (COLOURS >> 8).astype(">u2").tobytes())


@pytest.mark.parametrize("colours", [MAP, LOW_MAP], ids=["16 bits", "8 bits by mistake"])
def test_palettes_become_their_colours(colours):
    numbers = BANDS[..., :2] % 16
    expected = (COLOURS.T >> 8).astype(np.uint8)[numbers[..., 0]]
    assert np.array_equal(opened(page(numbers[..., 0], 4, 3, t320=colours)).values, expected)
    with_opacity = opened(page(numbers, 4, 3, t320=colours, t338=2))
    assert np.array_equal(with_opacity.values, expected)
    assert np.array_equal(with_opacity.alpha, np.rint(numbers[..., 1] * (65535 / 15)))


def test_inks_of_8_and_16_bits_become_light():
    inks = BANDS[..., :4]
    light = (255 - inks[..., :3].astype(int)) * (255 - inks[..., 3:].astype(int)) / 255
    assert np.array_equal(opened(page(inks, photometric=5)).values, np.rint(light))
    deep = opened(page(inks.astype(np.uint16) * 257, 16, 5)).values
    assert deep.dtype == np.uint16
    assert np.abs(deep / 257 - light).max() < 0.01


def test_lab_counts_its_colours_from_the_middle_or_with_a_sign():
    signed = BANDS[..., :3]
    assert np.array_equal(
        opened(page(signed, photometric=8)).values, opened(page(signed ^ [0, 128, 128], photometric=9)).values
    )


@pytest.mark.parametrize("compression", [1, 8])
def test_subsampled_ycbcr_becomes_rgb(compression):
    units = np.full((H // 2, 26 // 2, 6), [76, 76, 76, 76, 85, 255], np.uint8).tobytes()  # two by two pixels of red
    tags = {tag: shorts(number) for tag, number in ((256, 26), (257, H), (259, compression), (262, 6), (277, 3))}
    tags |= {258: shorts(8, 8, 8), 530: shorts(2, 2)}
    found = opened(tiff(tags, units if compression == 1 else zlib.compress(units))).values
    assert found.shape == (H, 26, 3)
    assert np.abs(found.astype(int) - [255, 0, 0]).max() <= 1


def test_jpeg_keeps_every_band():
    smooth = np.add.outer(np.arange(48), np.arange(64)).astype(np.uint8)
    two = np.stack([smooth, 255 - smooth], -1)
    streams = [encoded(two[..., band], "JPEG", quality=100) for band in range(2)]
    tags = {256: 64, 257: 48, 259: 7, 262: 1, 277: 2, 278: 48, 284: 2}
    places = (8, 8 + len(streams[0]))
    entries = {tag: shorts(number) for tag, number in tags.items()} | {
        258: shorts(8, 8),
        273: (4, 2, struct.pack(">II", *places)),
        279: (4, 2, struct.pack(">II", *map(len, streams))),
    }
    assert np.abs(opened(tiff(entries, b"".join(streams))).values.astype(int) - two).max() <= 2
    four = np.dstack([smooth, 255 - smooth, smooth // 2, 100 + smooth // 3])
    stream = encoded(Image.fromarray(255 - four, "CMYK"), "JPEG", quality=100, subsampling=0)  # which Pillow inverts
    tags = {256: 64, 257: 48, 259: 7, 262: 2, 277: 4, 278: 48, 338: 0}
    entries = {tag: shorts(number) for tag, number in tags.items()} | {258: shorts(8, 8, 8, 8)}
    found = opened(tiff(entries, stream))
    assert found.alpha is None
    assert np.abs(found.values.astype(int) - four).max() <= 2


def test_the_first_kind_of_jpeg_in_tiff_is_read_where_it_is_one_stream():
    stream = encoded(photo(), "JPEG", quality=100, subsampling=0)
    numbers = {256: 52, 257: 36, 259: 6, 262: 6, 277: 3, 278: 36, 514: len(stream)}
    tags = {tag: shorts(number) for tag, number in numbers.items()} | {258: shorts(8, 8, 8), 513: shorts(8)}
    assert np.abs(opened(tiff(tags, stream)).values.astype(int) - photo()).max() <= 2
    with pytest.raises(DataError, match=r"^is a TIFF file compressed as JPEG of before 1995 \(6\)"):
        opened(tiff({tag: entry for tag, entry in tags.items() if tag != 513}, stream))


@pytest.mark.parametrize("kind", ["group3", "group4", "tiff_ccitt"])
@pytest.mark.parametrize("photometric", [0, 1])
def test_fax_pages_keep_black_and_white(kind, photometric):
    levels = BANDS[..., 0] > 90
    data = encoded(Image.fromarray(levels), "TIFF", compression=kind, tiffinfo={262: photometric})
    assert np.array_equal(opened(data).values, np.where(levels, 255, 0))


def test_colours_multiplied_by_their_opacity_are_divided_again():
    alpha = BANDS[..., 3:4].astype(np.uint32)
    for bits in (8, 16):
        top = 2**bits - 1
        opacity, colours = alpha * (top // 255), BANDS[..., :3].astype(np.uint32) * (top // 255)
        stored = np.concatenate([(colours * opacity + top // 2) // top, opacity], -1)
        found = opened(page(stored, bits, 2, t338=1))
        assert found.values.dtype == f"u{bits // 8}"
        assert np.array_equal(found.alpha, opacity[..., 0])
        again = (found.values.astype(np.uint32) * opacity + top // 2) // top
        assert np.array_equal(again, stored[..., :3])


def test_missing_pixels_of_gdal_become_the_darkest_of_the_others():
    values = BANDS[..., :2].astype(np.float32) + 5
    values[3, 4] = values[5, 6] = -9999
    values[7, 8, 0] = -9999  # one band alone is no missing pixel
    data = plain_tiff(values, 3, photometric=1)
    entries = {tag: entry for tag, entry in entries_of(data, ">").items() if tag not in (273, 279, 338)}
    pixels = values.astype(">f4").tobytes()
    found = opened(tiff(entries | {42113: (2, 6, b"-9999\0")}, pixels)).values
    expected = values.copy()
    expected[3, 4] = expected[5, 6] = (-9999, values[..., 1][values[..., 1] > 0].min())
    assert np.array_equal(found, expected)
    assert np.array_equal(opened(tiff(entries | {42113: (2, 4, b"nan\0")}, pixels)).values, values)
    with pytest.raises(DataError, match=r"^holds nothing but padding, pixels that are marked as missing"):
        opened(page(np.full((H, W), 7, np.uint8), t42113=(2, 2, b"7\0")))


READ = {
    "no photometric": {"t262": None},
    "no count of bytes": {"t279": (4, 0, b"")},
    "a wrong count of bytes": {"t279": 3},
    "rows of a strip without end": {"t278": (4, 1, b"\xff" * 4)},
    "resolution of no unit": {"t296": 1},
    "an orientation that is none": {"t274": 9},
    "a thumbnail without its picture": {"t254": 1},
    "no-data beyond the type": {"t42113": (2, 6, b"-9999\0")},
}


@pytest.mark.parametrize("tags", READ.values(), ids=READ)
def test_odd_files_that_have_one_meaning_are_read(tags):
    assert np.array_equal(opened(page(BANDS[..., 0], **tags)).values, BANDS[..., 0])


REFUSED = {
    "JPEG 2000": ({"t259": 34712}, r"compressed as JPEG 2000 \(34712\), .*; save it uncompressed or deflated"),
    "LERC": ({"t259": 34887}, r"compressed as LERC \(34887\), .*; save it uncompressed or deflated"),
    "JPEG XL": ({"t259": 50002}, r"compressed as JPEG XL \(50002\)"),
    "WebP": ({"t259": 50001}, r"compressed as WebP \(50001\)"),
    "a number nobody has": ({"t259": 99}, r"compressed as an unknown kind \(99\)"),
    "complex": ({"t339": 6}, r"of complex numbers, .*; save their magnitude as floats"),
    "complex whole": ({"t339": 5}, r"of complex numbers"),
    "floats of 8 bits": ({"t339": 3}, r"with 1 band of 8-bit floats"),
    "signed, white is zero": ({"t339": 2, "t262": 0}, r"with 1 band of 8-bit signed numbers whose white is zero"),
    "mask": ({"t262": 4}, "that is a mask"),
    "raw mosaic": ({"t262": 32803}, "with the raw mosaic of a camera's sensor"),
    "logarithms": ({"t262": 32845}, "in logarithms of light"),
    "unknown colours": ({"t262": 77}, r"in colours of an unknown kind \(77\)"),
    "too few for RGB": ({"t262": 2}, "with 1 band of 8-bit whole numbers where its colours need 3"),
    "inks": ({"t262": 5, "t277": 4, "t258": 8, "t332": 2}, "with inks other than cyan, magenta, yellow and black"),
    "unknown predictor": ({"t259": 8, "t317": 4}, "with .* and predictor 4, .*; save it without one"),
    "floats' predictor": ({"t259": 8, "t317": 3}, "with .* and predictor 3, .*; save it without one"),
    "volume": ({"t32997": 4}, "of a volume, .*; save each slice as a page"),
    "strip left out": ({"t273": 0}, r"with strips or tiles left out \(sparse\), .*gdal_translate"),
    "bands that differ": ({"t258": shorts(8, 4), "t277": 2}, r"whose bands differ in .* \(8, 4 bits\)"),
    "raw file": ({"t254": 1, "t330": 8}, "with a preview only, as raw files of cameras"),
    "ImageJ": ({"t270": (2, 23, b"ImageJ=1.53\nimages=120\n")}, "of ImageJ with 120 slices behind one directory"),
    "JPEG of 16 bits": ({"t259": 7, "t258": 16}, "with 1 band of 16-bit whole numbers in JPEG"),
}


@pytest.mark.parametrize(("tags", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_read_has_a_name_and_a_remedy(tags, says):
    values = BANDS[..., :4] if "t277" in tags else BANDS[..., 0]
    with pytest.raises(DataError, match=rf"^is a TIFF file {says}"):
        opened(page(values, **tags))


def test_bands_without_end_and_strips_counted_again_and_again_are_too_large():
    tags = {256: shorts(4000), 257: shorts(4000), 258: shorts(8), 262: shorts(1), 277: shorts(65_535)}
    with pytest.raises(TooLargeError, match=r"^image of 65,535 bands of 8 bits unpacks to 1,048,560 MB, limit 800 MB"):
        opened(tiff(tags, bytes(32)))
    data = bytes(1000)
    tags = {256: shorts(4), 257: shorts(4000), 258: shorts(8), 259: shorts(8), 262: shorts(1), 278: shorts(1)}
    tags |= {273: (4, 4000, struct.pack(">I", 8) * 4000), 279: (4, 4000, struct.pack(">I", 900) * 4000)}
    with pytest.raises(TooLargeError, match=r"^image has strips or tiles of 4 MB in all"):
        opened(tiff(tags, data), max_pixels=16_000)
