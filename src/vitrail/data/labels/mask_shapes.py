"""Draw the shapes of annotation tools into masks: polygons, ellipses, and boxes that may be turned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool


def fill_polygon(points: Sequence[Sequence[float]], size: tuple[int, int]) -> Bool[np.ndarray, "H W"]:
    """The pixels whose centres lie inside a polygon of (x, y), by the even-odd rule; (0, 0) is the picture's corner."""
    height, width = size
    parity = np.zeros((height, width + 1), np.int32)
    for (x, y), (next_x, next_y) in zip(points, [*points[1:], points[0]], strict=True):
        top, bottom = min(y, next_y), max(y, next_y)
        first, last = (min(max(math.ceil(end - 0.5), 0), height) for end in (top, bottom))
        if first >= last:
            continue
        rows = np.arange(first, last)
        crossings = x + (rows + 0.5 - y) * ((next_x - x) / (next_y - y))
        columns = np.ceil(crossings - 0.5).clip(0, width).astype(np.int64)  # the first centre right of the edge
        parity[rows, columns] += 1
    inside: Bool[np.ndarray, "H W"] = parity.cumsum(axis=1)[:, :width] % 2 == 1
    return inside


def fill_ellipse(
    centre: tuple[float, float], radii: tuple[float, float], degrees: float, size: tuple[int, int]
) -> Bool[np.ndarray, "H W"]:
    """The pixels whose centres lie inside an ellipse, turned clockwise.

    Args:
        centre, radii: (x, y) in pixels.
    """
    rows, columns = np.mgrid[: size[0], : size[1]] + 0.5
    across, down = columns - centre[0], rows - centre[1]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    along, beside = across * cosine + down * sine, down * cosine - across * sine
    inside: Bool[np.ndarray, "H W"] = (along / max(radii[0], 1e-9)) ** 2 + (beside / max(radii[1], 1e-9)) ** 2 <= 1
    return inside


def box_corners(
    left: float, top: float, width: float, height: float, degrees: float = 0.0, pivot: float = 0.0
) -> list[tuple[float, float]]:
    """The corners of a box that is turned clockwise.

    Args:
        pivot: about what: 0 is its left upper corner, 0.5 its centre.
    """
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    centre_x, centre_y = left + pivot * width, top + pivot * height
    corners = ((left, top), (left + width, top), (left + width, top + height), (left, top + height))
    offsets = [(x - centre_x, y - centre_y) for x, y in corners]
    return [(centre_x + x * cosine - y * sine, centre_y + x * sine + y * cosine) for x, y in offsets]
