"""One look at one picture, and columns of many looks: all that the doctor knows of pixels.

A picture is decoded once; what stays of it is its size, a hash of its values, a few measures, and of larger pictures a
sketch of 40 x 40 grey pixels, in which copies are recognised.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped, UInt8, UInt64
from numpy.typing import NDArray
from PIL import Image

from ...errors import DataError
from ...randomness import uniform
from ...spec import ImageSpec
from ..decode import convert
from ..decoding.stored import read
from ..decoding.values import Stored
from ..parallel import in_order
from ..source import Picture, Source

SKETCH = 40
"""Rows and columns of a sketch."""
SKETCHED_FROM = 64
"""Shorter side in pixels from which a picture is sketched; smaller ones of one set resemble each other too much."""
DARK, BRIGHT = 5, 250
"""Grey levels up to which a pixel is black, and from which it is white."""
CHUNK = 4096
BLOCK_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one picture is."""

    height: int
    width: int
    channels: int
    """As stored."""
    depth: str
    """Type of the stored values: uint8, uint16, ..."""
    kind: str
    """Format of the file, or "array"."""
    remarks: tuple[str, ...]
    """What the decoder noticed."""
    grey: bool
    """One channel, or three that are equal."""
    digest: int
    """64-bit hash of the upright stored values; grey hashes the same as one channel or three."""
    mean: float
    """Of the grey levels, 0..255, as the model's range shows them."""
    deviation: float
    dark: float
    """Share of pixels that are black."""
    bright: float
    """Share of pixels that are white."""
    sketch: UInt8[np.ndarray, "40 40"] | None
    """None where the picture is small or no sketch was asked for."""


Watch = Callable[[Iterator[Look | str], int], Iterator[Look | str]]
"""Sees looks pass, of which there will be so many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Looks:
    """Many looks, column by column, ordered by row; what could not be read is in `bad` instead."""

    rows: Int64[np.ndarray, " n"]
    """Their rows in the source."""
    heights: Int32[np.ndarray, " n"]
    widths: Int32[np.ndarray, " n"]
    channels: Int32[np.ndarray, " n"]
    depths: Shaped[np.ndarray, " n"]
    kinds: Shaped[np.ndarray, " n"]
    grey: Bool[np.ndarray, " n"]
    digests: UInt64[np.ndarray, " n"]
    means: Float32[np.ndarray, " n"]
    deviations: Float32[np.ndarray, " n"]
    dark: Float32[np.ndarray, " n"]
    bright: Float32[np.ndarray, " n"]
    sketched: Int64[np.ndarray, " s"]
    """Rows of the pictures that have a sketch."""
    sketches: UInt8[np.ndarray, "s 40 40"]
    remarks: dict[str, list[int]]
    """What the decoder noticed, and the rows where it did."""
    bad: list[tuple[int, str]]
    """(row, reason) of what cannot be read."""

    def __len__(self) -> int:
        return len(self.rows)


def look_at(
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    most_sketches: int,
    until: float | None = None,
    watch: Watch | None = None,
) -> Looks:
    """Look at pictures by as many threads as there are cores; uint8 arrays are looked at as a block, not one by one.

    Args:
        rows: which, in the order in which they are looked at.
        most_sketches: of more pictures than this, so many drawn by chance are sketched.
        until: a value of `time.monotonic` at which no further picture is begun.
        watch: passes single looks on, and may count them; not asked for a block.
    """
    sketch = uniform(0, "sketch", 0, rows, 1)[:, 0] * len(rows) < most_sketches
    stack = source.pictures
    if isinstance(stack, np.ndarray) and stack.dtype == np.uint8 and (spec.low, spec.high) == (0, 255):
        return _joined(list(_of_stack(stack, rows, sketch, spec, until)))
    work = ((source.pictures[row], wanted) for row, wanted in zip(rows.tolist(), sketch.tolist(), strict=True))
    looks = in_order(partial(_look_at_one, spec=spec), _while_time(work, until))
    looks = watch(looks, len(rows)) if watch else looks
    return _joined([_gathered(chunk) for chunk in _chunks(zip(rows.tolist(), looks, strict=False))])


def look(picture: Picture, spec: ImageSpec, sketch: bool = True) -> Look | str:
    """One picture, decoded as a training would; or the reason why it cannot be used."""
    try:
        stored = read(picture, spec)
        pixels = convert(stored, spec)
    except DataError as error:
        return str(error).removeprefix(f"{_called(picture)}: ")
    values = stored.values
    grey = _grey(pixels)
    mean, deviation, dark, bright = _measures(grey)
    return Look(
        height=values.shape[0],
        width=values.shape[1],
        channels=1 if values.ndim == 2 else values.shape[2],
        depth=values.dtype.name,
        kind=stored.kind,
        remarks=tuple(stored.remarks),
        grey=_is_grey(values),
        digest=digest(stored),
        mean=mean,
        deviation=deviation,
        dark=dark,
        bright=bright,
        sketch=_sketch(grey) if sketch and min(grey.size) >= SKETCHED_FROM else None,
    )


def digest(stored: Stored) -> int:
    """64-bit hash of type, shape, values and opacity. Full opacity is none, and grey has one channel."""
    values = stored.values[..., 0] if stored.values.ndim == 3 and _is_grey(stored.values) else stored.values
    found = hashlib.blake2b(f"{values.dtype.name} {values.shape}".encode(), digest_size=8)
    found.update(_bytes(values).data)
    if stored.alpha is not None and (stored.alpha != np.iinfo(stored.alpha.dtype).max).any():
        found.update(_bytes(stored.alpha).data)
    return int.from_bytes(found.digest(), "little")


def _look_at_one(work: tuple[Picture, bool], spec: ImageSpec) -> Look | str:
    return look(work[0], spec, work[1])


def _while_time(work: Iterable[tuple[Picture, bool]], until: float | None) -> Iterator[tuple[Picture, bool]]:
    for piece in work:
        if until is not None and time.monotonic() > until:
            return
        yield piece


def _called(picture: Picture) -> str:
    if isinstance(picture, np.ndarray):
        return ""
    return str(picture) if isinstance(picture, Path) else picture.name


def _is_grey(values: np.ndarray) -> bool:
    if values.ndim == 2 or values.shape[2] == 1:
        return True
    if values.shape[2] != 3:
        return False
    first = values[..., 0]
    return bool((first == values[..., 1]).all() and (first == values[..., 2]).all())


def _bytes(values: np.ndarray) -> NDArray[np.uint8]:
    """Values as one row of bytes, in this machine's order."""
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return native.reshape(-1).view(np.uint8)


def _grey(pixels: UInt8[np.ndarray, "H W C"]) -> Image.Image:
    if pixels.shape[2] == 3:
        return Image.fromarray(pixels).convert("L")
    if pixels.shape[2] == 1:
        return Image.fromarray(np.ascontiguousarray(pixels[..., 0]))
    return Image.fromarray(pixels.mean(axis=2).astype(np.uint8))


def _measures(grey: Image.Image) -> tuple[float, float, float, float]:
    """Mean, deviation, share of black and of white, from the 256 counts of grey levels."""
    shares = np.array(grey.histogram(), dtype=np.float64) / (grey.width * grey.height)
    levels = np.arange(256)
    mean = float(shares @ levels)
    deviation = math.sqrt(max(0.0, float(shares @ (levels - mean) ** 2)))
    return mean, deviation, float(shares[: DARK + 1].sum()), float(shares[BRIGHT:].sum())


def _sketch(grey: Image.Image) -> UInt8[np.ndarray, "40 40"]:
    """Squashed to a square by the filter that leaves least of what is too fine for it, so that copies of another size
    are alike, and stretched from black to white, so that pale pictures keep their detail."""
    levels = np.asarray(grey.convert("F").resize((SKETCH, SKETCH), Image.Resampling.LANCZOS))
    low, high = float(levels.min()), float(levels.max())
    return np.rint((levels - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)


def _of_stack(
    stack: np.ndarray, rows: NDArray[np.int64], sketch: NDArray[np.bool_], spec: ImageSpec, until: float | None
) -> Iterator[Looks]:
    """Block by block. Nothing can be wrong with one picture of a stack that is not wrong with all."""
    first = look(stack[rows[0]], spec) if len(rows) else "no pictures"
    if isinstance(first, str):
        yield _gathered([(row, first) for row in rows.tolist()])
        return
    size = max(1, BLOCK_BYTES // stack[0].nbytes)
    for start in range(0, len(rows), size):
        if until is not None and start and time.monotonic() > until:
            return
        part = slice(start, start + size)
        yield _of_block(np.ascontiguousarray(stack[rows[part]]), rows[part], sketch[part], first)


def _of_block(
    block: UInt8[np.ndarray, "b ..."], rows: NDArray[np.int64], sketch: NDArray[np.bool_], first: Look
) -> Looks:
    n = len(rows)
    grey = np.array([_is_grey(values) for values in block]) if first.channels == 3 else np.full(n, first.grey)
    levels = _luma(block).reshape(n, -1)
    exact = levels.astype(np.float32)
    seen = np.flatnonzero(sketch) if min(first.height, first.width) >= SKETCHED_FROM else np.zeros(0, np.int64)
    sketches = [_sketch(Image.fromarray(levels[i].reshape(first.height, first.width))) for i in seen.tolist()]
    return Looks(
        rows=rows,
        heights=np.full(n, first.height, np.int32),
        widths=np.full(n, first.width, np.int32),
        channels=np.full(n, first.channels, np.int32),
        depths=np.full(n, first.depth),
        kinds=np.full(n, first.kind),
        grey=grey,
        digests=np.array([digest(Stored(values)) for values in block], dtype=np.uint64),
        means=exact.mean(1),
        deviations=exact.std(1),
        dark=(levels <= DARK).mean(1, dtype=np.float32),
        bright=(levels >= BRIGHT).mean(1, dtype=np.float32),
        sketched=rows[seen],
        sketches=np.array(sketches, np.uint8).reshape(-1, SKETCH, SKETCH),
        remarks={},
        bad=[],
    )


def _luma(block: UInt8[np.ndarray, "b ..."]) -> UInt8[np.ndarray, "b H W"]:
    """Grey levels of a block [b, H, W] or [b, H, W, C]; of three channels by the weights that Pillow uses."""
    if block.ndim == 3:
        return block
    if block.shape[-1] == 3:
        red, green, blue = (block[..., channel].astype(np.uint32) for channel in range(3))
        return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)
    return block[..., 0] if block.shape[-1] == 1 else block.mean(axis=-1).astype(np.uint8)


def _chunks(looks: Iterable[tuple[int, Look | str]]) -> Iterator[list[tuple[int, Look | str]]]:
    looks = iter(looks)
    while chunk := list(islice(looks, CHUNK)):
        yield chunk


def _gathered(chunk: Sequence[tuple[int, Look | str]]) -> Looks:
    """Single looks to columns."""
    good = [(row, each) for row, each in chunk if isinstance(each, Look)]
    looks = [each for _, each in good]
    drawn = [(row, each.sketch) for row, each in good if each.sketch is not None]
    remarks: dict[str, list[int]] = {}
    for row, each in good:
        for remark in each.remarks:
            remarks.setdefault(remark, []).append(row)
    return Looks(
        rows=np.array([row for row, _ in good], dtype=np.int64),
        heights=np.array([each.height for each in looks], dtype=np.int32),
        widths=np.array([each.width for each in looks], dtype=np.int32),
        channels=np.array([each.channels for each in looks], dtype=np.int32),
        depths=np.array([each.depth for each in looks], dtype=np.str_),
        kinds=np.array([each.kind for each in looks], dtype=np.str_),
        grey=np.array([each.grey for each in looks], dtype=np.bool_),
        digests=np.array([each.digest for each in looks], dtype=np.uint64),
        means=np.array([each.mean for each in looks], dtype=np.float32),
        deviations=np.array([each.deviation for each in looks], dtype=np.float32),
        dark=np.array([each.dark for each in looks], dtype=np.float32),
        bright=np.array([each.bright for each in looks], dtype=np.float32),
        sketched=np.array([row for row, _ in drawn], dtype=np.int64),
        sketches=np.array([sketch for _, sketch in drawn], dtype=np.uint8).reshape(-1, SKETCH, SKETCH),
        remarks=remarks,
        bad=[(row, each) for row, each in chunk if isinstance(each, str)],
    )


def _joined(parts: list[Looks]) -> Looks:
    """Parts put together and ordered by row."""
    parts = parts or [_gathered([])]
    order = np.argsort(np.concatenate([part.rows for part in parts]), kind="stable")
    drawn = np.argsort(np.concatenate([part.sketched for part in parts]), kind="stable")
    remarks: dict[str, list[int]] = {}
    for part in parts:
        for remark, rows in part.remarks.items():
            remarks.setdefault(remark, []).extend(rows)
    return Looks(
        rows=np.concatenate([part.rows for part in parts])[order],
        heights=np.concatenate([part.heights for part in parts])[order],
        widths=np.concatenate([part.widths for part in parts])[order],
        channels=np.concatenate([part.channels for part in parts])[order],
        depths=np.concatenate([part.depths for part in parts])[order],
        kinds=np.concatenate([part.kinds for part in parts])[order],
        grey=np.concatenate([part.grey for part in parts])[order],
        digests=np.concatenate([part.digests for part in parts])[order],
        means=np.concatenate([part.means for part in parts])[order],
        deviations=np.concatenate([part.deviations for part in parts])[order],
        dark=np.concatenate([part.dark for part in parts])[order],
        bright=np.concatenate([part.bright for part in parts])[order],
        sketched=np.concatenate([part.sketched for part in parts])[drawn],
        sketches=np.concatenate([part.sketches for part in parts])[drawn],
        remarks={remark: sorted(rows) for remark, rows in sorted(remarks.items())},
        bad=sorted(each for part in parts for each in part.bad),
    )
