"""Kinds 56 to 63: animations and pages, names that lie, formats that are never opened, files with two faces."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from .case import Case
from .writing import encoded, grey, photo, three


def animated(kind: str, **options: object) -> bytes:
    """The photo, then its negative."""
    first, second = Image.fromarray(photo()), Image.fromarray(255 - photo())
    return encoded(first, kind, save_all=True, append_images=[second], duration=100, **options)


def animated_gif() -> bytes:
    """Grey, then its negative."""
    first, second = Image.fromarray(grey()), Image.fromarray(255 - grey())
    return encoded(first, "GIF", save_all=True, append_images=[second], duration=100)


def pages() -> bytes:
    """A TIFF of twelve pages."""
    all_pages = [Image.fromarray(np.full((8, 9), 10 * number, np.uint8)) for number in range(12)]
    return encoded(all_pages[0], "TIFF", save_all=True, append_images=all_pages[1:])


def with_archive() -> bytes:
    """A JPEG and behind it a ZIP file: both readers are content."""
    out = io.BytesIO(encoded(photo(), "JPEG", quality=100, subsampling=0))
    with zipfile.ZipFile(out, "a") as file:
        file.writestr("run.sh", "echo")
    return out.getvalue()


def box(brand: bytes, compatible: bytes = b"mif1") -> bytes:
    """The start of a file of the ISO family, such as HEIC."""
    return struct.pack(">I", 24) + b"ftyp" + brand + bytes(4) + compatible + bytes(4)


FILES = Path(__file__).parent / "files"
"""Pictures of formats that no library here writes: pillow-heif 1.8.1 has written them from `photo`."""
FIRST = ("first of several frames",)
NOT = r"^not a picture Vitrail reads \(it looks like {}"
FOREIGN = {
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "PostScript"),
    "ps": (b"%!PS\n", "PostScript"),
    "pdf": (b"%PDF-1.7\n", "PDF"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "icns": (b"icns\0\0\0\x08", "an icon of macOS"),
    "psd": (b"8BPS\0\1" + bytes(20), "a Photoshop file"),
    "fits": (b"SIMPLE  =                    T", "FITS"),
    "mp4": (box(b"isom", b"mp42"), "an MP4 video"),
    "ppm": (b"P6\n1 1\n255\n\0\0\0", "PPM, PGM or PBM"),
    "wmf": (b"\xd7\xcd\xc6\x9a" + bytes(20), "a Windows metafile"),
}
# fmt: off
CASES = (
    Case(number=56, name="moves.gif", what="animated GIF", make=animated_gif, status=200, remarks=FIRST,
         golden=lambda: three(grey())),
    Case(number=57, name="moves.png", what="animated PNG", make=lambda: animated("PNG"), status=200, remarks=FIRST,
         golden=photo),
    Case(number=58, name="moves.webp", what="animated WebP", make=lambda: animated("WEBP", lossless=True), status=200,
         remarks=FIRST, golden=photo),
    Case(number=58, name="pages.tif", what="TIFF of twelve pages", make=pages, status=422,
         says=r"^holds 12 pages; choose one with --image\.page N \(1 to 12\)"),
    Case(number=59, name="png.jpg", what="PNG named .jpg", make=lambda: encoded(photo(), "PNG"), status=200,
         golden=photo),
    Case(number=60, name="UPPER.PNG", what="ending in capitals", make=lambda: encoded(photo(), "PNG"), status=200,
         golden=photo),
    Case(number=60, name="no-ending", what="no ending", make=lambda: encoded(photo(), "PNG"), status=200, golden=photo),
    *(Case(number=61, name=name, what=f"{kind}, for which there is no decoder", status=415,
           make=lambda start=start: start, says=NOT.format(kind) + "; convert it to JPEG or PNG")
      for name, kind, start in (("plain.heif", "HEIF", box(b"mif1")), ("new.jxl", "JPEG XL", b"\xff\x0a" + bytes(30)))),
    Case(number=61, name="phone.heic", what="HEIC of a phone", status=200, golden=photo, within=2,
         make=(FILES / "photo.heic").read_bytes),
    Case(number=61, name="turned.heic", what="HEIC that the file turns upright", status=200, golden=photo, within=2,
         make=(FILES / "turned.heic").read_bytes),
    Case(number=61, name="web.avif", what="AVIF", status=200, golden=photo, within=3,
         make=lambda: encoded(photo(), "AVIF", quality=100, subsampling="4:4:4")),
    *(Case(number=62, name=f"other.{ending}", what=f"{kind} (.{ending})", make=lambda start=start: start, status=415,
           says=NOT.format(kind)) for ending, (start, kind) in FOREIGN.items()),
    Case(number=63, name="archive.jpg", what="JPEG and ZIP archive in one", make=with_archive, status=200, golden=photo,
         within=6),
    Case(number=63, name="script.jpg", what="JPEG with a script behind it", status=200, golden=photo, within=6,
         make=lambda: encoded(photo(), "JPEG", quality=100, subsampling=0) + b"<script>alert(1)</script>"),
)
# fmt: on
