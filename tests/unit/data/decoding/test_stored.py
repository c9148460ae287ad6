"""Every kind of file: its values, or a sentence that says what is wrong with it."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoding import decode
from vitrail.data.decoding.decode import MAX_BYTES
from vitrail.data.decoding.decoded_image import DecodedImage
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

KINDS = ("PNG", "BMP", "TIFF", "GIF", "WEBP")


def parse(data: bytes, **settings: object) -> DecodedImage:
    return decode.parse_image(data, ImageSpec(**settings))


def read(picture: object) -> DecodedImage:
    return decode.read_image(picture, ImageSpec())


@pytest.mark.parametrize("kind", KINDS)
def test_every_lossless_format_gives_back_its_pixels(kind, photo, encode):
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = photo if kind != "GIF" else (photo // 64 * 64)[:, :, :1].repeat(3, axis=2)
    assert np.array_equal(parse(encode(picture, kind, **options)).values, picture)


@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 2}, {"progressive": True}], ids=str)
def test_a_jpeg_has_the_pixels_that_pillow_gives_it(options, photo, encode, tmp_path):
    (tmp_path / "a.jpg").write_bytes(encode(photo, "JPEG", **options))
    assert np.array_equal(read(tmp_path / "a.jpg").values, np.array(Image.open(tmp_path / "a.jpg")))


def test_a_grey_jpeg_stays_grey(photo, encode):
    assert parse(encode(photo[:, :, 0], "JPEG")).values.shape == (37, 53)


def test_the_name_of_a_file_says_nothing(photo, encode, tmp_path):
    (tmp_path / "really a png.jpg").write_bytes(encode(photo, "PNG"))
    assert np.array_equal(read(tmp_path / "really a png.jpg").values, photo)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_come_out_upright(kind, orientation, photo, encode):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    flat = parse(encode(photo, kind, **options)).values
    turned = parse(encode(photo, kind, exif=exif, **options)).values
    steps = {1: "", 2: "f", 3: "rr", 4: "rrf", 5: "rrrf", 6: "rrr", 7: "rf", 8: "r"}[orientation]
    for step in steps:  # r: a quarter turn against the clock, f: mirror left and right
        flat = np.rot90(flat) if step == "r" else flat[:, ::-1]
    assert np.array_equal(turned, flat)


def test_a_nonsensical_orientation_is_upright(photo, encode):
    data = encode(photo, "PNG")
    broken = Image.Exif()
    broken[0x0112] = 77
    assert np.array_equal(parse(encode(photo, "PNG", exif=broken)).values, photo)
    assert np.array_equal(parse(encode(photo, "PNG", exif=b"Exif\0\0" + b"\xff" * 40)).values, photo)
    assert np.array_equal(parse(data).values, photo)


def test_a_grey_ramp_of_16_bits_keeps_all_its_levels(png16, encode):
    ramp = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    assert np.array_equal(parse(png16(ramp[:, :, None])).values, ramp)
    assert np.array_equal(parse(encode(ramp, "TIFF")).values, ramp)
    assert np.array_equal(parse(encode(Image.fromarray(ramp.astype(np.int32)), "TIFF")).values, ramp)


def test_colour_of_16_bits_keeps_its_lower_bytes(png16):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7, 4)).astype(np.uint16)
    assert np.array_equal(parse(png16(values[:, :, :3])).values, values[:, :, :3])
    both = parse(png16(values))
    assert np.array_equal(both.values, values[:, :, :3])
    assert np.array_equal(both.alpha, values[:, :, 3])


def test_grey_with_alpha_of_16_bits_keeps_its_lower_bytes(png16):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7, 2)).astype(np.uint16)
    found = parse(png16(values))
    assert np.array_equal(found.values, values[:, :, 0])
    assert np.array_equal(found.alpha, values[:, :, 1])


def test_floats_are_kept(encode):
    values = np.linspace(-2, 5, 12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(parse(encode(values, "TIFF")).values, values)


def test_palettes_two_levels_and_cmyk_become_grey_or_colour(photo, encode):
    palette = Image.fromarray(photo).quantize(16)
    assert np.array_equal(parse(encode(palette, "PNG")).values, np.array(palette.convert("RGB")))
    levels = Image.fromarray(photo[:, :, 0] > 90)
    assert np.array_equal(parse(encode(levels, "PNG")).values, np.array(levels.convert("L")))
    cmyk = Image.fromarray(photo).convert("CMYK")
    assert np.abs(parse(encode(cmyk, "JPEG", quality=100)).values.astype(int) - photo).mean() < 3


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_opacity_comes_along(mode, photo, encode):
    clear = Image.fromarray(photo).convert("L" if mode == "LA" else "P" if mode == "PA" else "RGB").convert(mode)
    clear.putalpha(Image.fromarray(photo[:, :, 1]))
    kind = "PNG" if mode != "PA" else "TIFF"
    assert np.array_equal(parse(encode(clear.convert("RGBA") if mode == "PA" else clear, kind)).alpha, photo[:, :, 1])


def test_a_colour_named_transparent_is_clear(encode):
    data = encode(np.array([[0, 9], [9, 0]], np.uint8), "PNG", transparency=9)
    assert parse(data).alpha.tolist() == [[255, 0], [0, 255]]


def test_arrays_in_files_are_pictures_too(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(4))
    assert np.array_equal(read(tmp_path / "a.npy").values, np.eye(4))
    np.save(tmp_path / "b.npy", np.zeros(4))
    with pytest.raises(DataError, match=r"b\.npy: .*\[height, width\].* Got shape \(4,\)"):
        read(tmp_path / "b.npy")
    np.save(tmp_path / "c.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"c\.npy: damaged NPY file \(.*allow_pickle=False"):
        read(tmp_path / "c.npy")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"])
def test_a_cut_file_is_truncated_or_damaged(share, kind, photo, encode, tmp_path):
    whole = encode(np.tile(photo, (3, 3, 1)), kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=r"cut\.\w+: (truncated|damaged)"):
        read(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_half_a_file_is_called_truncated(kind, photo, encode):
    whole = encode(photo, kind)
    with pytest.raises(DataError, match=rf"^truncated \(.*{len(whole) // 2:,} (of [a-z ]*[\d,]+ )?bytes"):
        parse(whole[: len(whole) // 2])


def test_a_jpeg_that_lacks_only_its_end_marker_is_whole(photo, encode):
    whole = encode(photo, "JPEG")
    assert np.array_equal(parse(whole[:-2]).values, parse(whole).values)


def test_what_follows_a_picture_is_ignored(photo, encode):
    for kind in ("JPEG", "PNG"):
        assert np.array_equal(
            parse(encode(photo, kind) + b"PK\x03\x04 script").values, parse(encode(photo, kind)).values
        )


@pytest.mark.parametrize(
    ("data", "guess"),
    [
        (b"", "the file is empty"),
        (b"x", "looks like text"),
        (b"\xff\xd8", "unknown contents"),
        (b"I am no picture\n", "looks like text"),
        (b"\n <!DOCTYPE html><html>", "looks like HTML"),
        (b"PK\x03\x04zip", "looks like a ZIP archive"),
        (b"%PDF-1.7", "looks like PDF"),
        (b"%!PS-Adobe", "looks like PostScript"),
        (b"8BPS", "looks like a Photoshop file"),
        (b"SIMPLE  =\0", "looks like FITS"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "looks like an MP4 video; take pictures out of it"),
        (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", "looks like a QuickTime video; take pictures out of it"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "looks like an MP4 video; take pictures out of it"),
        (b"\0\0\0\x18ftypM4V \0\0\0\0M4V mp42", "looks like an MP4 video; take pictures out of it"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf", "looks like HEIF; convert it"),
        (b"RIFF\x10\0\0\0AVI LIST", "looks like an AVI video; take pictures out of it"),
        (b"\x1aE\xdf\xa3\x93B\x82", "looks like a Matroska or WebM video; take pictures out of it"),
        (b"\0\0\0\x18ftypcrx \0\0\0\0crx isom", "looks like the raw file of a camera; convert it"),
        (b"P6\n2 2\n255\n", "looks like PPM, PGM or PBM; convert it"),
        (b"P5 # by hand\n2 2 255\n", "looks like PPM, PGM or PBM; convert it"),
        (b"p5 is the fifth patient", "looks like text"),
        (b"II\xbc\1", "looks like JPEG XR; convert it"),
        (b"v/1\1\2\0", "looks like OpenEXR; convert it"),
    ],
)
def test_what_is_no_picture_gets_a_guess_at_what_it_is(data, guess):
    expected = "expected JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or DICOM files"
    with pytest.raises(DataError, match=rf"not a picture .*{guess}.*{expected}"):
        parse(data)


@pytest.mark.parametrize(
    "start", [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF89a", b"II*\0", b"RIFF\0\0\0\0WEBP",
              b"\0\0\0\x18ftypheic", b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif"],
)  # fmt: skip
def test_first_bytes_alone_are_truncated_or_damaged(start):
    with pytest.raises(DataError, match=r"^(truncated|damaged)"):
        parse(start)


def test_a_bomb_is_refused_from_its_header(bomb):
    with pytest.raises(DataError, match=r"image is 169 Mpx \(13,000 x 13,000\), limit 50 Mpx \(--image\.max_pixels\)"):
        parse(bomb)


def test_the_limit_counts_pixels(photo, encode):
    data = encode(photo, "PNG")
    assert parse(data, max_pixels=37 * 53).values.shape == (37, 53, 3)
    with pytest.raises(DataError, match=r"image is 0 Mpx \(37 x 53\), limit 0 Mpx"):
        parse(data, max_pixels=37 * 53 - 1)


def test_pages_of_a_tiff_are_counted(photo, encode):
    page = Image.fromarray(photo)
    with pytest.raises(DataError, match=r"holds 3 pages; choose one with --image\.page N \(1 to 3\)"):
        parse(encode(page, "TIFF", save_all=True, append_images=[page, page]))


def test_an_animation_shows_its_first_frame(photo, encode):
    first, second = Image.fromarray(photo), Image.fromarray(255 - photo)
    data = encode(first, "WEBP", save_all=True, append_images=[second], lossless=True)
    assert np.array_equal(parse(data).values, photo)


def test_what_is_no_plain_file_never_blocks(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: is a pipe, socket or device"):
        read(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r": is a folder, expected a picture file"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"gone\.png: cannot be read \(no such file or directory\)"):
        read(tmp_path / "gone.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"link\.png: is a link to .*nowhere\.png, which does not exist"):
        read(tmp_path / "link.png")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # paths of sockets are short
        try:
            server.bind("s.png")
            with pytest.raises(DataError, match="is a pipe, socket or device"):
                read(tmp_path / "s.png")
        finally:
            os.chdir(here)


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match=r"huge\.png: file is 512 MiB, limit 512 MiB"):
        read(tmp_path / "huge.png")


def test_a_cut_jpeg_with_an_end_marker_is_still_cut(photo, encode):
    whole = encode(np.tile(photo, (3, 3, 1)), "JPEG", quality=90)
    with pytest.raises(DataError, match=r"^truncated \(JPEG file"):
        parse(whole[: len(whole) // 2] + b"\xff\xd9")


@pytest.mark.parametrize(
    ("marker", "kind"), [(0xF7, "JPEG-LS"), (0xC5, "hierarchical JPEG"), (0xCE, "hierarchical JPEG")]
)
def test_rare_kinds_of_jpeg_are_named_and_never_called_damaged(marker, kind, photo, encode):
    data = bytearray(encode(photo, "JPEG"))
    data[data.index(b"\xff\xc0") + 1] = marker
    with pytest.raises(DataError, match=rf"^is a {kind} file, a kind that Vitrail does not read; convert it to"):
        parse(bytes(data))


def test_bytes_before_an_end_marker_are_no_damage(photo, encode):
    whole = encode(photo, "JPEG")
    found = parse(whole[:-2] + b"xyz" + whole[-2:])
    assert np.array_equal(found.values, parse(whole).values)
    assert found.remarks == ()


def test_a_jpeg_of_endless_passes_is_refused(photo, encode):
    data = encode(photo, "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff", start + 14)
    with pytest.raises(DataError, match=r"^image has more than 200 passes"):
        parse(data[:end] + data[start:end] * 300 + data[end:])


def test_damage_that_the_jpeg_decoder_notices_and_survives_is_remarked(photo, encode):
    whole = encode(np.tile(photo, (3, 3, 1)), "JPEG", quality=90)
    remarks = set()
    for place in range(len(whole) // 2, len(whole) - 100, 40):
        try:
            remarks.update(parse(whole[:place] + bytes(20) + whole[place + 20 :]).remarks)
        except DataError as error:
            assert str(error).startswith(("truncated", "damaged"))
    assert remarks == {"damage among the pixels"}
