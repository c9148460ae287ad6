"""Kinds 27 to 46: every way to store a colour, from two levels to floats, CMYK, Lab and profiles."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import simplejpeg
from PIL import Image, ImageCms

from .case import Case
from .writing import chunk, encoded, grey, inserted, photo, plain_tiff, png16, segment, three

RAMP = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
FILM = np.arange(4096, dtype=np.uint16).reshape(64, 64)
DEEP = photo().astype(np.uint16) * 257
DEEP[:, :, 0] += 100  # what a reader of the upper bytes alone would lose


def opacity() -> np.ndarray:
    """uint8 [36, 52], from clear on the left to full on the right."""
    return np.broadcast_to(np.linspace(0, 255, photo().shape[1]).round().astype(np.uint8), grey().shape).copy()


def on_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """RGB [H, W, 3] laid on white, in exact arithmetic."""
    share = alpha.astype(np.float64)[:, :, None] / 255
    return np.rint(colours * share + 255 * (1 - share)).astype(np.uint8)


def with_opacity(mode: str) -> Image.Image:
    """The photo, clear on the left, in a mode that holds opacity."""
    image = Image.fromarray(grey() if mode == "LA" else photo()).convert(mode)
    image.putalpha(Image.fromarray(opacity()))
    return image


def palette() -> Image.Image:
    """The photo in 16 colours."""
    return Image.fromarray(photo()).quantize(16, dither=Image.Dither.NONE)


def palette_with_opacity() -> bytes:
    """A TIFF of mode PA: 16 colours and the opacity beside them."""
    image = palette().convert("PA")
    image.putalpha(Image.fromarray(opacity()))
    return encoded(image, "TIFF")


def clear_colour() -> np.ndarray:
    """16 colours, the first of them clear, laid on white."""
    numbers = np.array(palette())
    return on_white(np.array(palette().convert("RGB")), np.where(numbers == 0, 0, 255))


def levels(values: np.ndarray, high: float) -> np.ndarray:
    """What a value range of 0..high makes of deep values, as RGB."""
    scaled = np.rint(values.astype(np.float64) * 255 / high).astype(np.uint8)
    return scaled if values.ndim == 3 else three(scaled)


def inks() -> np.ndarray:
    """CMYK [H, W, 4] of the photo, 255 for full ink, with the black that the three colours share taken out."""
    light = photo().astype(np.float64) / 255
    black = 1 - light.max(-1, keepdims=True)
    colours = 1 - light / (1 - black)
    return np.rint(np.concatenate([colours, black], -1) * 255).astype(np.uint8)


def cmyk_jpeg(adobe: bool) -> bytes:
    """A CMYK JPEG without conversion: by Adobe's marker and custom it counts light, without the marker ink.

    Pillow writes light and the marker; taken out here, with the picture turned round beforehand.
    """
    image = Image.frombytes("CMYK", inks().shape[1::-1], (inks() if adobe else 255 - inks()).tobytes())
    data = encoded(image, "JPEG", quality=100, subsampling=0)
    start = data.index(b"\xff\xee")
    return data if adobe else data[:start] + data[start + 16 :]


def ycck_jpeg() -> bytes:
    """A YCCK JPEG, as libjpeg-turbo writes CMYK; light, as Adobe's marker says."""
    return simplejpeg.encode_jpeg(255 - inks(), quality=100, colorspace="CMYK", colorsubsampling="444")


def in_lab() -> Image.Image:
    """The photo in CIE Lab of 8 bits."""
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    turned = ImageCms.profileToProfile(Image.fromarray(photo()), *profiles, outputMode="LAB")
    del turned.info["icc_profile"]
    return turned


def profile(description: bytes) -> bytes:
    """A colour profile of the least that readers ask for: a header and a description."""
    text = b"desc\0\0\0\0" + struct.pack(">I", len(description) + 1) + description + bytes(80)
    tags = struct.pack(">I4sII", 1, b"desc", 144, len(text))
    body = b"mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(88) + tags + text
    return struct.pack(">I", len(body) + 12) + bytes(4) + struct.pack(">I", 0x04000000) + body


def profiled_jpeg(block: bytes) -> bytes:
    """The photo as a JPEG with a colour profile."""
    data = encoded(photo(), "JPEG", quality=100, subsampling=0)
    return data[:2] + segment(0xE2, b"ICC_PROFILE\0\1\1" + block) + data[2:]


def profiled_png(block: bytes) -> bytes:
    """The photo as a PNG with a colour profile."""
    return inserted(encoded(photo(), "PNG"), chunk(b"iCCP", b"name\0\0" + block))


def film() -> bytes:
    """A 12-bit film in a 16-bit PNG."""
    return encoded(FILM, "PNG")


def saved(image: Image.Image, **options: object) -> bytes:
    """A PNG file."""
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    return out.getvalue()


IGNORED = ("colour profile ignored",)
# fmt: off
CASES = (
    Case(number=27, name="1.png", what="two levels (mode 1)", status=200,
         make=lambda: encoded(Image.fromarray(grey() > 120), "PNG"),
         golden=lambda: three(np.where(grey() > 120, 255, 0).astype(np.uint8))),
    Case(number=28, name="L.png", what="grey (L)", make=lambda: encoded(grey(), "PNG"), status=200,
         golden=lambda: three(grey())),
    Case(number=29, name="LA.png", what="grey with opacity (LA)", status=200,
         make=lambda: encoded(with_opacity("LA"), "PNG"), golden=lambda: on_white(three(grey()), opacity())),
    Case(number=29, name="LA16.png", what="the same of 16 bits", status=200, high=65535,
         make=lambda: png16(np.stack([grey(), opacity()], -1).astype(np.uint16) * 257),
         golden=lambda: on_white(three(grey()), opacity())),
    Case(number=30, name="P.png", what="palette (P)", make=lambda: encoded(palette(), "PNG"), status=200,
         golden=lambda: np.array(palette().convert("RGB"))),
    Case(number=31, name="P-clear.png", what="palette with a clear colour", status=200, golden=clear_colour,
         make=lambda: saved(palette(), transparency=0)),
    Case(number=32, name="RGBA.png", what="colour with opacity (RGBA)", status=200,
         make=lambda: encoded(with_opacity("RGBA"), "PNG"), golden=lambda: on_white(photo(), opacity())),
    Case(number=33, name="PA.tif", what="palette with opacity (PA)", make=palette_with_opacity, status=200,
         golden=lambda: on_white(np.array(palette().convert("RGB")), opacity())),
    Case(number=34, name="I16.png", what="grey of 16 bits (I;16)", make=lambda: encoded(RAMP, "PNG"), status=200,
         high=65535, golden=lambda: levels(RAMP, 65535)),
    Case(number=35, name="I16B.tif", what="grey of 16 bits, big end first (I;16B)", make=lambda: plain_tiff(RAMP),
         status=200, high=65535, golden=lambda: levels(RAMP, 65535)),
    Case(number=36, name="film.png", what="12-bit film in a 16-bit PNG", make=film, status=200, high=4095,
         remarks=("uses 12 of 16 bits",), golden=lambda: levels(FILM, 4095)),
    Case(number=37, name="I.tif", what="grey of 32 bits (I)", make=lambda: plain_tiff(RAMP.astype(np.int32) * 1000, 2),
         status=200, high=65_535_000, golden=lambda: levels(RAMP.astype(np.int64) * 1000, 65_535_000)),
    Case(number=38, name="F.tif", what="floats (F)", make=lambda: plain_tiff((RAMP / 65535).astype(np.float32), 3),
         status=200, high=1, golden=lambda: levels(RAMP / 65535, 1)),
    Case(number=39, name="RGB16.tif", what="colour of 16 bits in a TIFF", make=lambda: plain_tiff(DEEP), status=200,
         high=65535, golden=lambda: levels(DEEP, 65535)),
    Case(number=39, name="RGB16.png", what="colour of 16 bits in a PNG", make=lambda: png16(DEEP), status=200,
         high=65535, golden=lambda: levels(DEEP, 65535)),
    Case(number=39, name="RGB+NIR.tif", what="colour and a fourth band in a TIFF", status=422, make=lambda: plain_tiff(
        np.dstack([photo(), grey()]), extra=0), says=r"^The model reads 3 channels, the picture has 4\."),
    Case(number=39, name="jpeg2000.tif", what="TIFF compressed as JPEG 2000", status=422, make=lambda: plain_tiff(
        photo(), compression=34712), says=r"^is a TIFF file compressed as JPEG 2000 \(34712\), .*; save it"),
    Case(number=40, name="cmyk.jpg", what="CMYK JPEG without Adobe's marker", status=200,
         make=lambda: cmyk_jpeg(False), golden=photo, within=3),
    Case(number=41, name="adobe.jpg", what="CMYK JPEG inverted, as Adobe does", status=200,
         make=lambda: cmyk_jpeg(True), golden=photo, within=3),
    Case(number=42, name="ycck.jpg", what="YCCK JPEG", make=ycck_jpeg, status=200, golden=photo, within=3),
    Case(number=43, name="lab.tif", what="Lab TIFF", make=lambda: encoded(in_lab(), "TIFF"), status=200,
         golden=photo, within=3),
    Case(number=43, name="cmyk.tif", what="CMYK TIFF", status=200, golden=photo, within=3,
         make=lambda: plain_tiff(inks(), photometric=5)),
    Case(number=43, name="cmyk16.tif", what="CMYK TIFF of 16 bits", status=200, golden=photo, within=3, high=65535,
         make=lambda: plain_tiff(inks().astype(np.uint16) * 257, photometric=5)),
    Case(number=44, name="p3.jpg", what="profile Display P3", make=lambda: profiled_jpeg(profile(b"Display P3")),
         status=200, remarks=IGNORED, golden=photo, within=6),
    Case(number=45, name="linear.png", what="profile of linear light", status=200, remarks=IGNORED, golden=photo,
         make=lambda: profiled_png(zlib.compress(profile(b"Linear RGB")))),
    Case(number=46, name="corrupt-icc.jpg", what="corrupt profile in a JPEG", make=lambda: profiled_jpeg(b"\xff" * 60),
         status=200, remarks=IGNORED, golden=photo, within=6),
    Case(number=46, name="corrupt-icc.png", what="corrupt profile in a PNG", make=lambda: profiled_png(b"\xff" * 60),
         status=200, remarks=IGNORED, golden=photo),
)
# fmt: on
