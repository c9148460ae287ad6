"""Pictures made ready for a model: exactly as prediction does it, or, in training, decoded no larger than needed.

The way of training: read the file, cut a box out of it if asked to, resize once. A plain JPEG is decoded at the largest
reduction that leaves at least as many pixels as the model reads; everything else is decoded as always.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from jaxtyping import Int64, UInt8
from torch import Tensor

from ..errors import DataError
from ..spec import ImageSpec
from .decode import convert, decode
from .decoding.reduced_jpeg import PlainJpeg, plain, reduction
from .decoding.stored import file_bytes
from .decoding.values import Stored
from .regions import Cut
from .source import Picture, Source
from .transforms import channels_first, fit_one, prepare, resize

END = 4096  # bytes at the end of a file that tell it from another


class Box(NamedTuple):
    """A part of a picture, in its pixels."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False
    """Whether the resized part is mirrored left to right."""


class Maker:
    """Makes rows of a source ready; several threads may call it at once.

    Args:
        cut: show only what it cuts out of each picture; this is for training.
        training: allow the reduced decoding, and refuse files that change between two readings.
    """

    def __init__(self, source: Source, spec: ImageSpec, cut: Cut | None = None, training: bool = False):
        self._pictures = source.pictures
        self._spec = spec
        self._cut = cut
        self._training = training or cut is not None
        self._marks = np.zeros(len(source) if self._training else 0, np.uint64)  # what each row's file was at first

    def fill(
        self,
        images: UInt8[np.ndarray, "B C h w"],
        places: range,
        rows: Int64[np.ndarray, " B"],
        keys: Int64[np.ndarray, " B"],
        epoch: int,
    ) -> dict[int, DataError]:
        """Put the picture of `rows[place]` into `images[place]` for each place; what cannot be read comes back.

        Args:
            keys: what the cut of each picture is drawn by.
        """
        failed: dict[int, DataError] = {}
        encoded: dict[int, PlainJpeg] = {}
        for place in places:
            try:
                found = self._open(int(rows[place]))
                if isinstance(found, PlainJpeg):
                    encoded[place] = found
                elif isinstance(found, Tensor):
                    images[place] = found.numpy()
                else:
                    box = self._boxes(keys[[place]], epoch, [(found.shape[0], found.shape[1])])[0]
                    images[place] = self._finished(found, box)
            except DataError as error:
                failed[place] = error
        sizes = [(jpeg.height, jpeg.width) for jpeg in encoded.values()]
        boxes = self._boxes(keys[list(encoded)], epoch, sizes)  # in one call, which costs as much as for one picture
        for (place, jpeg), box in zip(encoded.items(), boxes, strict=True):
            try:
                images[place] = self._reduced(jpeg, box, self._pictures[int(rows[place])])
            except DataError as error:
                failed[place] = error
        return failed

    def _open(self, row: int) -> UInt8[Tensor, "C h w"] | PlainJpeg | UInt8[np.ndarray, "H W C"]:
        """Ready already if this is no training; else a JPEG with its pixels still encoded, or decoded values."""
        picture = self._pictures[row]
        if not self._training:
            return prepare(picture, self._spec)
        if isinstance(picture, np.ndarray):
            return decode(picture, self._spec)
        content = file_bytes(picture) if isinstance(picture, Path) else picture.fetch()
        if isinstance(content, bytes):
            self._remember(row, content, picture)
            jpeg = plain(content, self._spec.max_pixels)
            if jpeg is not None:
                return jpeg
        return _values(content, self._spec, picture)

    def _remember(self, row: int, content: bytes, picture: Picture) -> None:
        """Refuse a file that is not what it was when it was first read: its label may belong to the other one."""
        mark = np.uint64(len(content) << 32 | crc32(content[-END:]))
        if self._marks[row] not in (0, mark):
            before = int(self._marks[row]) >> 32
            raise DataError(
                f"{_name(picture)}: was changed while it was being trained on ({before:,} bytes before, "
                f"{len(content):,} now)."
            )
        self._marks[row] = mark

    def _boxes(self, keys: Int64[np.ndarray, " n"], epoch: int, sizes: list[tuple[int, int]]) -> list[Box] | list[None]:
        if self._cut is None or not sizes:
            return [None] * len(sizes)
        boxes = self._cut.boxes(keys, epoch, np.array(sizes, dtype=np.int64)).tolist()
        return [
            Box(*box)._replace(mirrored=way)
            for box, way in zip(boxes, self._cut.mirrored(keys, epoch).tolist(), strict=True)
        ]

    def _reduced(self, jpeg: PlainJpeg, box: Box | None, picture: Picture) -> UInt8[np.ndarray, "C h w"]:
        """The JPEG decoded no larger than needed, cut and resized."""
        by = reduction(_room(jpeg, box, self._spec))
        try:
            values = jpeg.decode(by)
        except ValueError:  # the exact decoder knows whether it can be used
            return self._finished(_values(jpeg.data, self._spec, picture), box)
        if box is not None:
            box = reduced(box, by)
            values = values[box.top : box.top + box.height, box.left : box.left + box.width]
            box = Box(0, 0, box.height, box.width, box.mirrored)
        return self._finished(_values(Stored(values, kind="JPEG"), self._spec, picture), box)

    def _finished(self, values: UInt8[np.ndarray, "H W C"], box: Box | None) -> UInt8[np.ndarray, "C h w"]:
        """Decoded values as the model reads them: the box resized, or all of it fitted."""
        if box is None:
            return fit_one(values, self._spec).numpy()
        cut = values[box.top : box.top + box.height, box.left : box.left + box.width]
        spec = self._spec
        resized = resize(channels_first(cut), spec.size, spec.interpolation, spec.antialias)[0].numpy()
        return resized[..., ::-1] if box.mirrored else resized


def reduced(box: Box, by: int) -> Box:
    """What a box covers of the picture whose sides are divided by `by`, to the nearest pixel."""
    top, left, bottom, right = (
        (2 * edge + by) // (2 * by) for edge in (box.top, box.left, box.top + box.height, box.left + box.width)
    )
    return Box(top, left, bottom - top, right - left, box.mirrored)


def _room(jpeg: PlainJpeg, box: Box | None, spec: ImageSpec) -> float:
    """How many times as many pixels there are as are needed, along the side where they are fewest."""
    if not spec.antialias:  # single pixels are looked up: averaging beforehand would change what they are
        return 1.0
    if box is not None:
        return min(box.height / spec.height, box.width / spec.width)
    rooms = jpeg.height / spec.cover[0], jpeg.width / spec.cover[1]
    return max(rooms) if spec.fit == "pad" else min(rooms)


def _values(content: bytes | np.ndarray | Stored, spec: ImageSpec, picture: Picture) -> UInt8[np.ndarray, "H W C"]:
    """Decoded and with the model's channels and range; an error names the picture."""
    try:
        return convert(content, spec) if isinstance(content, Stored) else decode(content, spec)
    except DataError as error:
        raise DataError(f"{_name(picture)}: {error}") from error.__cause__


def _name(picture: Picture) -> str:
    return str(picture) if isinstance(picture, Path | np.ndarray) else picture.name
