"""Plain JPEGs decoded at a half, a quarter or an eighth of their size: for training only.

A JPEG stores blocks of 8 x 8 cosine waves. Leaving out the fine waves gives the smaller picture at once (DCT scaling of
libjpeg), several times sooner than decoding all of it. The result is close to the shrunk picture, not equal to it, so
evaluation and prediction never do this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simplejpeg
from jaxtyping import UInt8

from .exif import TURNS, UPRIGHT, orientation
from .formats import ENOUGH, recognise
from .jpeg_file import KIND, read_header

REDUCTIONS = (8, 4, 2)
"""What sides are divided by; libjpeg's other fractions take longer than the whole picture."""
COLOURS = {1: "GRAY", 3: "RGB"}
SIDEWAYS = 5  # from this orientation on, height and width change places


@dataclass(frozen=True)
class PlainJpeg:
    """A grey or colour JPEG of 8 bits, sequential, whose header has been read and whose pixels are still encoded."""

    data: bytes
    height: int
    """Of the upright picture, as is the width."""
    width: int
    channels: int
    """1 or 3."""
    orientation: int
    """EXIF's number, 1 for upright."""

    def decode(self, reduction: int = 1) -> UInt8[np.ndarray, "H W c"]:
        """The upright picture, its sides divided by `reduction` and rounded up.

        Raises:
            ValueError: libjpeg finds something odd; the exact decoder knows whether the picture can be used.
        """
        sides = (self.width, self.height) if self.orientation >= SIDEWAYS else (self.height, self.width)
        reduced = tuple(-(-side // reduction) for side in sides)
        least = reduced if reduction > 1 else (0, 0)
        values = simplejpeg.decode_jpeg(
            self.data, COLOURS[self.channels], min_height=least[0], min_width=least[1], min_factor=reduction
        )
        if values.shape[:2] != reduced:
            raise ValueError(f"JPEG of {values.shape[:2]} pixels, its header says {reduced}")
        turn = TURNS.get(self.orientation)
        return values if turn is None else turn(values)


def plain(data: bytes, max_pixels: int) -> PlainJpeg | None:
    """The picture if it may be decoded here; None for everything that the exact decoder must look at."""
    if recognise(data[:ENOUGH]) != KIND:
        return None
    try:
        header = read_header(data)
    except Exception:  # whatever is odd about foreign bytes, the exact decoder says it better
        return None
    if header.progressive or header.bits != 8 or header.channels not in COLOURS:
        return None
    if not 0 < header.height * header.width <= max_pixels:
        return None
    way = next((known for known in map(orientation, header.exif) if known is not None), UPRIGHT)
    height, width = (header.width, header.height) if way >= SIDEWAYS else (header.height, header.width)
    return PlainJpeg(data, height, width, header.channels, way)


def reduction(room: float) -> int:
    """The largest reduction that leaves enough pixels where there are `room` times as many as needed, each way."""
    return next((each for each in REDUCTIONS if each <= room), 1)
