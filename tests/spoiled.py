"""A folder of drawn pictures that was spoiled on purpose in twenty ways, each with a name.

    python tests/spoiled.py FOLDER && vitrail check FOLDER

Below FOLDER lie train/ and test/ with four kinds of drawings of 96 x 96 pixels, then what `WAYS` lists.
"""

from __future__ import annotations

import io
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 96
KINDS = ("disc", "stripes", "checks", "rings")
TRAIN, TEST = 14, 5


def make(folder: Path) -> None:
    """The healthy pictures, then every way to spoil them."""
    generator = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("test", TEST)):
        for kind in KINDS:
            (folder / split / kind).mkdir(parents=True)
            for number in range(count):
                drawing(kind, generator).save(folder / split / kind / f"{number:02}.png")
    for spoil in WAYS.values():
        spoil(folder)


def drawing(kind: str, generator: np.random.Generator) -> Image.Image:
    """One kind of figure at a place of its own, on a ground of its own, in colours of its own."""
    y, x = np.mgrid[:SIDE, :SIDE]
    top, left, size = *generator.uniform(30, 66, 2), generator.uniform(14, 26)
    away = np.hypot(y - top, x - left)
    angle = generator.uniform(0, np.pi)
    figure = {
        "disc": away < size,
        "stripes": np.sin((x * np.cos(angle) + y * np.sin(angle)) * generator.uniform(0.3, 0.6)) > 0,
        "checks": (x // int(size // 2) + y // int(size // 2)) % 2 == 0,
        "rings": np.sin(away * generator.uniform(0.3, 0.6)) > 0,
    }[kind]
    small = Image.fromarray(generator.integers(40, 215, (9, 9, 3), dtype=np.uint8))
    ground = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(np.float64)
    colours = ground + 45 * (figure[..., None] - 0.5) + generator.normal(0, 6, (SIDE, SIDE, 1))
    return Image.fromarray(np.rint(colours).clip(0, 255).astype(np.uint8))


def empty(folder: Path) -> None:
    (folder / "train/disc/empty.png").write_bytes(b"")


def cut_short(folder: Path) -> None:
    data = (folder / "train/disc/03.png").read_bytes()
    (folder / "train/disc/cut.png").write_bytes(data[: len(data) // 2])


def web_page(folder: Path) -> None:
    (folder / "train/stripes/page.jpg").write_text("<!DOCTYPE html><html><body>404 Not Found</body></html>")


def bomb(folder: Path) -> None:
    """A few bytes that claim to be 169 million pixels."""
    size = struct.pack(">IIBBBBB", 13_000, 13_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", size), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    data = b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    (folder / "train/stripes/bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def two_pages(folder: Path) -> None:
    first, second = (Image.open(folder / f"train/checks/0{number}.png") for number in (0, 1))
    first.save(folder / "train/checks/pages.tif", save_all=True, append_images=[second])


def dead_link(folder: Path) -> None:
    (folder / "train/checks/link.png").symlink_to("nowhere.png")


def no_end_marker(folder: Path) -> None:
    data = _jpeg(drawing("rings", np.random.default_rng(1)), 90)
    (folder / "train/rings/unended.jpg").write_bytes(data.removesuffix(b"\xff\xd9"))


def wrong_ending(folder: Path) -> None:
    drawing("rings", np.random.default_rng(2)).save(folder / "train/rings/really_png.jpg", "PNG")


def other_depth(folder: Path) -> None:
    """A 16-bit film among 8-bit pictures."""
    deep = np.asarray(drawing("disc", np.random.default_rng(3)).convert("L")).astype(np.uint16) * 257
    Image.fromarray(deep).save(folder / "train/disc/deep.png")


def smaller_than_a_patch(folder: Path) -> None:
    Image.fromarray(np.arange(9, dtype=np.uint8).reshape(3, 3) * 25).save(folder / "train/disc/tiny.png")


def odd_shape(folder: Path) -> None:
    values = np.random.default_rng(4).integers(0, 256, (12, 900, 3), dtype=np.uint8)
    Image.fromarray(values).save(folder / "train/stripes/banner.png")


def black(folder: Path) -> None:
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(folder / "train/stripes/black.png")


def white(folder: Path) -> None:
    Image.fromarray(np.full((SIDE, SIDE, 3), 255, np.uint8)).save(folder / "train/checks/white.png")


def copy_in_train(folder: Path) -> None:
    """The same pixels in another format, so that no comparison of files would see it."""
    Image.open(folder / "train/disc/05.png").save(folder / "train/disc/again.bmp")


def copy_in_test(folder: Path) -> None:
    shutil.copy(folder / "train/stripes/06.png", folder / "test/stripes/leaked.png")


def near_copy_in_test(folder: Path) -> None:
    """Cropped, made smaller, and saved as JPEG."""
    picture = Image.open(folder / "train/checks/07.png").crop((2, 2, SIDE - 2, SIDE - 2)).resize((80, 80))
    (folder / "test/checks/nearly.jpg").write_bytes(_jpeg(picture, 75))


def two_labels(folder: Path) -> None:
    shutil.copy(folder / "train/disc/08.png", folder / "train/rings/is_a_disc.png")


def class_of_constant_pictures(folder: Path) -> None:
    for split, greys in (("train", range(60, 72)), ("test", range(72, 76))):
        (folder / split / "plain").mkdir()
        for grey in greys:
            Image.fromarray(np.full((SIDE, SIDE, 3), grey, np.uint8)).save(folder / split / "plain" / f"{grey}.png")


def class_with_a_shortcut(folder: Path) -> None:
    """All pictures of one class come from another camera."""
    generator = np.random.default_rng(5)
    for split, count in (("train", 12), ("test", 4)):
        (folder / split / "blobs").mkdir()
        for number in range(count):
            picture = drawing("disc", generator).resize((120, 80))
            (folder / split / "blobs" / f"{number:02}.jpg").write_bytes(_jpeg(picture, 90))


def class_absent_from_test(folder: Path) -> None:
    generator = np.random.default_rng(6)
    (folder / "train/ring").mkdir()
    for number in range(4):
        drawing("rings", generator).save(folder / "train/ring" / f"{number:02}.png")


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    data = io.BytesIO()
    picture.convert("RGB").save(data, "JPEG", quality=quality)
    return data.getvalue()


# fmt: off
WAYS: dict[str, Callable[[Path], None]] = {
    "an empty file":                            empty,
    "a file that is cut short":                 cut_short,
    "a web page called .jpg":                   web_page,
    "a header that claims 169 million pixels":  bomb,
    "a TIFF with two pages":                    two_pages,
    "a link to nothing":                        dead_link,
    "a JPEG without its end marker":            no_end_marker,
    "a PNG called .jpg":                        wrong_ending,
    "a 16-bit picture among 8-bit ones":        other_depth,
    "a picture smaller than a patch":           smaller_than_a_patch,
    "a picture of an odd shape":                odd_shape,
    "a black picture":                          black,
    "a white picture":                          white,
    "a copy in another format":                 copy_in_train,
    "a training picture in test":               copy_in_test,
    "nearly a training picture in test":        near_copy_in_test,
    "one picture in two classes":               two_labels,
    "a class of constant pictures":             class_of_constant_pictures,
    "a class from another camera":              class_with_a_shortcut,
    "a class that test lacks":                  class_absent_from_test,
}
# fmt: on

if __name__ == "__main__":
    make(Path(sys.argv[1]))
