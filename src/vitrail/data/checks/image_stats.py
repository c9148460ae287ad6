"""Statistics of single images for the dataset check, and tables of them.

Each image is decoded once; kept are its size, a hash of its values, a few measures, and for larger images a sketch of
40 x 40 grey pixels, by which copies are recognised.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped, UInt8, UInt64
from numpy.typing import NDArray
from PIL import Image

from ...errors import DataError
from ...randomness import uniform
from ...spec import ImageSpec
from ..decoding.decode import convert_image, read_image, to_8_bits
from ..decoding.decoded_image import DecodedImage
from ..parallel import map_in_order
from ..source import ImageInput, Source

SKETCH_SIDE = 40
"""Rows and columns of a sketch."""
MIN_SKETCHED_SIDE = 64
"""Shorter side in pixels from which an image gets a sketch; smaller ones of one dataset are too similar."""
BLACK_LEVEL, WHITE_LEVEL = 5, 250
"""Grey levels up to which a pixel is black, and from which it is white."""
CHUNK = 4096
BLOCK_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class ImageStats:
    """Statistics of one image."""

    height: int
    width: int
    channels: int
    """As stored."""
    depth: str
    """Type of the stored values: uint8, uint16, ..."""
    kind: str
    """Format of the file, or "array"."""
    remarks: tuple[str, ...]
    """Remarks of the decoder."""
    is_grey: bool
    """One channel, or three that are equal."""
    digest: int
    """64-bit hash of the upright stored values; grey hashes the same as one channel or three."""
    mean: float
    """Of the grey levels, 0..255, after scaling by the model's value range."""
    std: float
    dark: float
    """Fraction of pixels that are black."""
    bright: float
    """Fraction of pixels that are white."""
    sketch: UInt8[np.ndarray, "40 40"] | None
    """None where the image is small or no sketch was requested."""


ProgressWrapper = Callable[[Iterator[ImageStats | str], int], Iterator[ImageStats | str]]
"""Wraps an iterator of statistics with a known total, to show progress."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStatsTable:
    """Statistics of many images as columns, ordered by row; unreadable images are in `bad_images` instead."""

    rows: Int64[np.ndarray, " n"]
    """Their rows in the source."""
    heights: Int32[np.ndarray, " n"]
    widths: Int32[np.ndarray, " n"]
    channels: Int32[np.ndarray, " n"]
    depths: Shaped[np.ndarray, " n"]
    kinds: Shaped[np.ndarray, " n"]
    is_grey: Bool[np.ndarray, " n"]
    digests: UInt64[np.ndarray, " n"]
    means: Float32[np.ndarray, " n"]
    stds: Float32[np.ndarray, " n"]
    dark: Float32[np.ndarray, " n"]
    bright: Float32[np.ndarray, " n"]
    sketch_rows: Int64[np.ndarray, " s"]
    """Rows of the images that have a sketch."""
    sketches: UInt8[np.ndarray, "s 40 40"]
    remarks: dict[str, list[int]]
    """Remarks of the decoder, with the rows that they concern."""
    bad_images: list[tuple[int, str]]
    """(row, reason) of images that cannot be read."""

    def __len__(self) -> int:
        return len(self.rows)


COLUMNS = [field.name for field in fields(ImageStatsTable) if field.name not in ("remarks", "bad_images")]
"""Fields of `ImageStatsTable` that are arrays."""


def measure_images(
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    max_sketches: int,
    until: float | None = None,
    progress: ProgressWrapper | None = None,
) -> ImageStatsTable:
    """Compute statistics of images, in one thread per core; uint8 arrays are processed in blocks.

    Args:
        rows: the images, in the order of processing.
        max_sketches: largest number of sketches; of more images, a random sample gets one.
        until: a value of `time.monotonic` after which no further image is started.
        progress: wraps the iterator of single images; not used for blocks.
    """
    sketch = uniform(0, "sketch", 0, rows, 1)[:, 0] * len(rows) < max_sketches
    stack = source.images
    if (
        isinstance(stack, np.ndarray)
        and stack.dtype == np.uint8
        and (spec.low, spec.high, spec.bit_depth) == (0, 255, 8)
    ):
        return _concat_stats(list(_measure_stack(stack, rows, sketch, spec, until)))
    work = ((source.images[row], wanted) for row, wanted in zip(rows.tolist(), sketch.tolist(), strict=True))
    work_in_time = takewhile(lambda _: until is None or time.monotonic() <= until, work)
    stats = map_in_order(lambda task: measure_image(task[0], spec, task[1]), work_in_time)
    stats = progress(stats, len(rows)) if progress else stats
    measured = zip(rows.tolist(), stats, strict=False)
    parts = []
    while chunk := list(islice(measured, CHUNK)):
        parts.append(_stack_stats(chunk))
    return _concat_stats(parts)


def measure_image(image: ImageInput, spec: ImageSpec, with_sketch: bool = True) -> ImageStats | str:
    """Statistics of one image, decoded as in training; or the reason why it cannot be used."""
    try:
        stored = read_image(image, spec)
        pixels = convert_image(stored, spec)
    except DataError as error:
        if isinstance(image, np.ndarray):
            return str(error)
        return str(error).removeprefix(f"{image if isinstance(image, Path) else image.name}: ")
    values = stored.values
    grey = _to_grey_image(to_8_bits(pixels))
    levels = np.arange(256)
    fractions = np.array(grey.histogram(), dtype=np.float64) / (grey.width * grey.height)
    mean = float(fractions @ levels)
    std = math.sqrt(max(0.0, float(fractions @ (levels - mean) ** 2)))
    return ImageStats(
        height=values.shape[0],
        width=values.shape[1],
        channels=1 if values.ndim == 2 else values.shape[2],
        depth=values.dtype.name,
        kind=stored.kind,
        remarks=tuple(stored.remarks),
        is_grey=_is_grey(values),
        digest=hash_image(stored),
        mean=mean,
        std=std if spec.bit_depth == 8 else float(pixels.mean(2).std() / 257),
        dark=float(fractions[: BLACK_LEVEL + 1].sum()),
        bright=float(fractions[WHITE_LEVEL:].sum()),
        sketch=_make_sketch(grey) if with_sketch and min(grey.size) >= MIN_SKETCHED_SIDE else None,
    )


def hash_image(stored: DecodedImage) -> int:
    """64-bit hash of dtype, shape, values and opacity; full opacity counts as none, and grey as one channel."""
    values = stored.values[..., 0] if stored.values.ndim == 3 and _is_grey(stored.values) else stored.values
    digest = hashlib.blake2b(f"{values.dtype.name} {values.shape}".encode(), digest_size=8)
    digest.update(_as_bytes(values).data)
    if stored.alpha is not None and (stored.alpha != np.iinfo(stored.alpha.dtype).max).any():
        digest.update(_as_bytes(stored.alpha).data)
    return int.from_bytes(digest.digest(), "little")


def _is_grey(values: np.ndarray) -> bool:
    if values.ndim == 2 or values.shape[2] == 1:
        return True
    if values.shape[2] != 3:
        return False
    first = values[..., 0]
    return bool((first == values[..., 1]).all() and (first == values[..., 2]).all())


def _as_bytes(values: np.ndarray) -> NDArray[np.uint8]:
    """Values as one row of bytes, in native byte order."""
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return native.reshape(-1).view(np.uint8)


def _to_grey_image(pixels: UInt8[np.ndarray, "H W C"]) -> Image.Image:
    if pixels.shape[2] == 3:
        return Image.fromarray(pixels).convert("L")
    if pixels.shape[2] == 1:
        return Image.fromarray(np.ascontiguousarray(pixels[..., 0]))
    return Image.fromarray(pixels.mean(axis=2).astype(np.uint8))


def _make_sketch(grey: Image.Image) -> UInt8[np.ndarray, "40 40"]:
    """Resize to a square, so that copies of another size match, and stretch the contrast of pale images."""
    levels = np.asarray(grey.convert("F").resize((SKETCH_SIDE, SKETCH_SIDE), Image.Resampling.LANCZOS))
    low, high = float(levels.min()), float(levels.max())
    return np.rint((levels - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)


def _measure_stack(
    stack: np.ndarray, rows: NDArray[np.int64], sketch: NDArray[np.bool_], spec: ImageSpec, until: float | None
) -> Iterator[ImageStatsTable]:
    """Statistics block by block; images of one array are all valid or all invalid."""
    first = measure_image(stack[rows[0]], spec) if len(rows) else "no pictures"
    if isinstance(first, str):
        yield _stack_stats([(row, first) for row in rows.tolist()])
        return
    size = max(1, BLOCK_BYTES // stack[0].nbytes)
    for start in range(0, len(rows), size):
        if until is not None and start and time.monotonic() > until:
            return
        part = slice(start, start + size)
        yield _measure_block(np.ascontiguousarray(stack[rows[part]]), rows[part], sketch[part], first)


def _measure_block(
    block: UInt8[np.ndarray, "b ..."], rows: NDArray[np.int64], sketch: NDArray[np.bool_], first: ImageStats
) -> ImageStatsTable:
    n = len(rows)
    grey = np.array([_is_grey(values) for values in block]) if first.channels == 3 else np.full(n, first.is_grey)
    levels = _to_luma(block).reshape(n, -1)
    exact = levels.astype(np.float32)
    seen = np.flatnonzero(sketch) if min(first.height, first.width) >= MIN_SKETCHED_SIDE else np.zeros(0, np.int64)
    sketches = [_make_sketch(Image.fromarray(levels[i].reshape(first.height, first.width))) for i in seen.tolist()]
    return ImageStatsTable(
        rows=rows,
        heights=np.full(n, first.height, np.int32),
        widths=np.full(n, first.width, np.int32),
        channels=np.full(n, first.channels, np.int32),
        depths=np.full(n, first.depth),
        kinds=np.full(n, first.kind),
        is_grey=grey,
        digests=np.array([hash_image(DecodedImage(values)) for values in block], dtype=np.uint64),
        means=exact.mean(1),
        stds=exact.std(1),
        dark=(levels <= BLACK_LEVEL).mean(1, dtype=np.float32),
        bright=(levels >= WHITE_LEVEL).mean(1, dtype=np.float32),
        sketch_rows=rows[seen],
        sketches=np.array(sketches, np.uint8).reshape(-1, SKETCH_SIDE, SKETCH_SIDE),
        remarks={},
        bad_images=[],
    )


def _to_luma(block: UInt8[np.ndarray, "b ..."]) -> UInt8[np.ndarray, "b H W"]:
    """Grey levels of a block [b, H, W] or [b, H, W, C]; of three channels by Pillow's luma weights."""
    if block.ndim == 3:
        return block
    if block.shape[-1] == 3:
        red, green, blue = (block[..., channel].astype(np.uint32) for channel in range(3))
        return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)
    return block[..., 0] if block.shape[-1] == 1 else block.mean(axis=-1).astype(np.uint8)


def _stack_stats(chunk: Sequence[tuple[int, ImageStats | str]]) -> ImageStatsTable:
    """Collect single statistics into columns."""
    good = [(row, each) for row, each in chunk if isinstance(each, ImageStats)]
    stats = [each for _, each in good]
    drawn = [(row, each.sketch) for row, each in good if each.sketch is not None]
    remarks: dict[str, list[int]] = {}
    for row, each in good:
        for remark in each.remarks:
            remarks.setdefault(remark, []).append(row)
    return ImageStatsTable(
        rows=np.array([row for row, _ in good], dtype=np.int64),
        heights=np.array([each.height for each in stats], dtype=np.int32),
        widths=np.array([each.width for each in stats], dtype=np.int32),
        channels=np.array([each.channels for each in stats], dtype=np.int32),
        depths=np.array([each.depth for each in stats], dtype=np.str_),
        kinds=np.array([each.kind for each in stats], dtype=np.str_),
        is_grey=np.array([each.is_grey for each in stats], dtype=np.bool_),
        digests=np.array([each.digest for each in stats], dtype=np.uint64),
        means=np.array([each.mean for each in stats], dtype=np.float32),
        stds=np.array([each.std for each in stats], dtype=np.float32),
        dark=np.array([each.dark for each in stats], dtype=np.float32),
        bright=np.array([each.bright for each in stats], dtype=np.float32),
        sketch_rows=np.array([row for row, _ in drawn], dtype=np.int64),
        sketches=np.array([sketch for _, sketch in drawn], dtype=np.uint8).reshape(-1, SKETCH_SIDE, SKETCH_SIDE),
        remarks=remarks,
        bad_images=[(row, each) for row, each in chunk if isinstance(each, str)],
    )


def _concat_stats(parts: list[ImageStatsTable]) -> ImageStatsTable:
    """Concatenate parts, ordered by row."""
    parts = parts or [_stack_stats([])]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    order = np.argsort(columns["rows"], kind="stable")
    sketch_order = np.argsort(columns["sketch_rows"], kind="stable")
    for name in COLUMNS:
        columns[name] = columns[name][sketch_order if name in ("sketch_rows", "sketches") else order]
    remarks: dict[str, list[int]] = {}
    for part in parts:
        for remark, rows in part.remarks.items():
            remarks.setdefault(remark, []).extend(rows)
    return ImageStatsTable(
        **columns,
        remarks={remark: sorted(rows) for remark, rows in sorted(remarks.items())},
        bad_images=sorted(each for part in parts for each in part.bad_images),
    )
