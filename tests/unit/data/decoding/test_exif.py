"""The orientation in an EXIF block, a text or an XMP packet, and blocks that make no sense."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from corpus.writing import chunk, encoded, exif, inserted, orientation, segment
from vitrail.data.decoding import decoded_image as reading
from vitrail.data.decoding.decode import parse_image
from vitrail.data.decoding.decoded_image import DecodedImage
from vitrail.data.decoding.jpeg import open_reducible_jpeg
from vitrail.spec import ImageSpec


@pytest.mark.parametrize("way", range(1, 9))
def test_pillows_own_blocks_are_read_in_both_byte_orders(way):
    block = Image.Exif()
    block[0x0112] = way
    assert reading.read_orientation(block.tobytes()) == way
    assert reading.read_orientation(orientation(way)) == way
    assert reading.read_orientation(orientation(way).removeprefix(b"Exif\0\0")) == way


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"", None),
        (b"Exif\0\0", None),
        (exif(), 0),
        (exif((0x010F, 2, 4, b"make")), 0),
        (exif((0x0112, 3, 1, struct.pack(">H2x", 77))), None),
        (exif((0x0112, 4, 1, struct.pack(">I", 3))), 3),
        (exif((0x0112, 1, 1, b"\x08\0\0\0")), 8),
        (exif((0x0112, 5, 1, b"\0\0\0\x08")), None),
        (b"Exif\0\0MM\0*\xff\xff\xff\xff", None),
    ],
)
def test_blocks_without_an_orientation_are_upright_and_nonsense_is_unreadable(block, found):
    assert reading.read_orientation(block) == found


def test_opacity_is_turned_with_the_picture():
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    turned = reading.apply_exif(DecodedImage(values, values + 100), [orientation(6)])
    assert np.array_equal(turned.alpha, turned.values + 100)
    assert turned.values.shape == (4, 3)


# -- Files whose orientation stands elsewhere than in an EXIF block of their own.

SIDEWAYS = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4) * 9
BLOCK = orientation(6)


def xmp(way: object, as_element: bool = False) -> bytes:
    """An XMP packet, with the orientation as an attribute or an element."""
    said = f"><tiff:Orientation>{way}</tiff:Orientation></" if as_element else f' tiff:Orientation="{way}"></'
    return f"<x:xmpmeta><rdf:RDF><rdf:Description{said}rdf:Description></rdf:RDF></x:xmpmeta>".encode()


def raw_profile(content: bytes) -> bytes:
    """Hexadecimal digits in lines, as ImageMagick writes profiles into texts."""
    digits = content.hex()
    lines = "\n".join(digits[place : place + 72] for place in range(0, len(digits), 72))
    return f"\nexif\n{len(content):8}\n{lines}\n".encode()


def text_chunk(kind: bytes, name: bytes, content: bytes) -> bytes:
    """A text of a PNG: tEXt plain, zTXt and iTXz packed, iTXt international."""
    packed = zlib.compress(content)
    bodies = {b"tEXt": content, b"zTXt": b"\0" + packed, b"iTXt": b"\0\0\0\0" + content, b"iTXz": b"\1\0\0\0" + packed}
    return chunk(kind.replace(b"iTXz", b"iTXt"), name + b"\0" + bodies[kind])


def in_png(*chunks: bytes) -> bytes:
    return inserted(encoded(SIDEWAYS, "PNG"), *chunks)


def in_jpeg(*blocks: bytes) -> bytes:
    data = encoded(SIDEWAYS, "JPEG")
    return data[:2] + b"".join(segment(0xE1, block) for block in blocks) + data[2:]


def in_tiff(*tags: tuple[int, object]) -> bytes:
    return encoded(SIDEWAYS, "TIFF", tiffinfo=dict(tags))


EXIF_NAME, APP1_NAME, XMP_NAME = b"Raw profile type exif", b"Raw profile type APP1", b"XML:com.adobe.xmp"
ADOBE = b"http://ns.adobe.com/xap/1.0/\0"
TURNED = {
    "zTXt exif": in_png(text_chunk(b"zTXt", EXIF_NAME, raw_profile(BLOCK))),
    "zTXt APP1": in_png(text_chunk(b"zTXt", APP1_NAME, raw_profile(BLOCK))),
    "tEXt exif": in_png(text_chunk(b"tEXt", EXIF_NAME, raw_profile(BLOCK))),
    "iTXt exif": in_png(text_chunk(b"iTXt", EXIF_NAME, raw_profile(BLOCK))),
    "zTXt APP1 with XMP": in_png(text_chunk(b"zTXt", APP1_NAME, raw_profile(ADOBE + xmp(6)))),
    "zTXt xmp": in_png(text_chunk(b"zTXt", b"Raw profile type xmp", raw_profile(xmp(6)))),
    "XMP": in_png(text_chunk(b"iTXt", XMP_NAME, xmp(6))),
    "XMP packed": in_png(text_chunk(b"iTXz", XMP_NAME, xmp(6))),
    "XMP as an element": in_png(text_chunk(b"iTXt", XMP_NAME, xmp(6, as_element=True))),
    "EXIF without an orientation beside XMP": in_png(chunk(b"eXIf", exif()[6:]), text_chunk(b"iTXt", XMP_NAME, xmp(6))),
    "EXIF against a text and XMP": in_png(
        text_chunk(b"zTXt", EXIF_NAME, raw_profile(orientation(3))),
        text_chunk(b"iTXt", XMP_NAME, xmp(8)),
        chunk(b"eXIf", BLOCK[6:]),
    ),
    "JPEG with XMP": in_jpeg(ADOBE + xmp(6)),
    "JPEG with XMP before EXIF": in_jpeg(ADOBE + xmp(8), BLOCK),
    "WebP with EXIF": encoded(SIDEWAYS, "WEBP", lossless=True, exif=BLOCK),
    "WebP with XMP": encoded(SIDEWAYS, "WEBP", lossless=True, xmp=xmp(6)),
    "WebP with both": encoded(SIDEWAYS, "WEBP", lossless=True, exif=BLOCK, xmp=xmp(3)),
    "TIFF": in_tiff((274, 6)),
    "TIFF with XMP": in_tiff((700, xmp(6))),
    "TIFF with both": in_tiff((274, 6), (700, xmp(3))),
    "several JPEGs in one": in_jpeg(BLOCK) + in_jpeg(orientation(3)),
}
UPRIGHT_FILES = {
    "EXIF says upright, XMP does not": in_png(
        chunk(b"eXIf", orientation(1)[6:]), text_chunk(b"iTXt", XMP_NAME, xmp(6))
    ),
    "XMP out of range": in_jpeg(ADOBE + xmp(9)),
    "XMP of zero": in_png(text_chunk(b"iTXt", XMP_NAME, xmp(0))),
    "XMP that is text": in_png(text_chunk(b"iTXt", XMP_NAME, xmp("left"))),
    "a text about it": in_png(text_chunk(b"tEXt", b"Comment", xmp(6))),
    "TIFF out of range": in_tiff((274, 9)),
}


@pytest.mark.parametrize("data", TURNED.values(), ids=TURNED)
def test_pictures_are_upright_wherever_their_orientation_stands(data):
    found = parse_image(data, ImageSpec())
    flat = np.array(found.values if found.values.ndim == 2 else found.values[..., 0])
    assert flat.shape == (4, 6)
    assert np.abs(flat.astype(int) - np.rot90(SIDEWAYS, -1)).max() <= 8
    assert found.remarks == ("turned upright by EXIF",)


@pytest.mark.parametrize("data", UPRIGHT_FILES.values(), ids=UPRIGHT_FILES)
def test_orientations_that_do_not_count_leave_pictures_as_they_are(data):
    assert parse_image(data, ImageSpec()).values.shape[:2] == SIDEWAYS.shape


def test_a_text_that_is_no_exif_block_is_remarked():
    found = parse_image(in_png(text_chunk(b"zTXt", EXIF_NAME, b"\nexif\n 3\nxyz\n")), ImageSpec())
    assert found.remarks == ("EXIF unreadable",)
    assert np.array_equal(found.values, SIDEWAYS)


def test_jpegs_read_at_reduced_size_are_upright_by_xmp_too():
    opened = open_reducible_jpeg(in_jpeg(ADOBE + xmp(6)), 10**6)
    assert opened is not None
    assert (opened.height, opened.width, opened.orientation) == (4, 6, 6)
