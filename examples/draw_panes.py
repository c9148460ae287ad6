"""Draw the picture that ships with Vitrail: a stained-glass window, 60 x 100 pixels, one channel.

    python examples/draw_panes.py src/vitrail/explain/panes_60x100.png

Diamond panes of different greys in lead, and a bright rosette in the middle. Drawn eight times as large and averaged
down, so that the lead has soft edges. The same seed draws the same window.
"""

from __future__ import annotations

import sys

import numpy as np
from PIL import Image

HEIGHT, WIDTH, FINER = 60, 100, 8
LEAD = 0.05
"""Grey of the lead, 0..1."""


def draw(seed: int = 1) -> np.ndarray:
    """The window as uint8 [60, 100]."""
    y, x = (np.mgrid[: HEIGHT * FINER, : WIDTH * FINER] + 0.5) / FINER  # in pixels of the finished picture
    generator = np.random.default_rng(seed)
    window = diamonds(y, x, generator)
    radius = np.hypot(y - HEIGHT / 2, x - WIDTH / 2)
    window = np.where(radius < 26.6, rosette(y, x, generator), window)
    window *= 0.82 + 0.18 * np.cos((x - 36) / 75) * np.cos((y - 18) / 48)  # daylight from the upper left
    border = np.minimum.reduce([y, x, HEIGHT - y, WIDTH - x])
    window = np.where(border < 1.1, LEAD, window)
    small = window.reshape(HEIGHT, FINER, WIDTH, FINER).mean((1, 3))
    levels: np.ndarray = np.round(255 * np.clip(small, 0, 1)).astype(np.uint8)
    return levels


def diamonds(y: np.ndarray, x: np.ndarray, generator: np.random.Generator, side: float = 13.0) -> np.ndarray:
    """Panes between two sets of slanting leads, each pane with a grey of its own."""
    u, v = (x - WIDTH / 2 + 1.5 * (y - HEIGHT / 2)) / side, (x - WIDTH / 2 - 1.5 * (y - HEIGHT / 2)) / side
    greys = generator.uniform(0.16, 0.66, (64, 64))
    glass = greys[np.floor(u).astype(int) % 64, np.floor(v).astype(int) % 64]
    across = side / np.hypot(1, 1.5)
    lead = np.minimum(np.abs(u - np.round(u)), np.abs(v - np.round(v))) * across
    return np.where(lead < 0.5, LEAD, glass + 0.05 * np.sin(2 * np.pi * u) * np.sin(2 * np.pi * v))


def rosette(y: np.ndarray, x: np.ndarray, generator: np.random.Generator, petals: int = 10) -> np.ndarray:
    """A bright eye, round petals about it, and a ring of panes twice as many."""
    down, right = y - HEIGHT / 2, x - WIDTH / 2
    radius, turn = np.hypot(down, right), np.arctan2(down, right) / (2 * np.pi) % 1
    ring = _ring(radius, turn, 2 * petals, generator.uniform(0.42, 0.74, 2 * petals))
    flower = _petals(down, right, radius, turn, petals, generator.uniform(0.80, 1.0, petals))
    eye = np.where(np.abs(radius - 5.4) < 0.55, LEAD, 1.0 - 0.02 * radius**1.2)
    glass = np.where(radius < 20.2, flower, ring)
    glass = np.where(radius < 5.95, eye, glass)
    for circle in (20.2, 26.2):
        glass = np.where(np.abs(radius - circle) < 0.6, LEAD, glass)
    return glass


def _ring(radius: np.ndarray, turn: np.ndarray, count: int, greys: np.ndarray) -> np.ndarray:
    spoke = turn * count
    from_lead = np.abs(spoke - np.round(spoke)) / count * 2 * np.pi * radius
    return np.where(from_lead < 0.45, LEAD, greys[np.floor(spoke).astype(int) % count])


def _petals(
    down: np.ndarray, right: np.ndarray, radius: np.ndarray, turn: np.ndarray, count: int, greys: np.ndarray
) -> np.ndarray:
    """Long ellipses on spokes, dark glass between them."""
    nearest = np.round(turn * count).astype(int) % count
    angle = (turn * count - np.round(turn * count)) / count * 2 * np.pi
    along, aside = radius * np.cos(angle) - 12.9, radius * np.sin(angle)
    inside = np.hypot(along / 6.3, aside / (2.2 + 0.16 * (along + 6.3)))  # 1 on the petal's edge, wider outwards
    glass = greys[nearest] - 0.10 * np.maximum(along, 0) / 6.3
    between = 0.24 + 0.08 * (nearest % 2)
    return np.where(inside < 0.86, glass, np.where(inside < 1.06, LEAD, between))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/draw_panes.py OUT.png")
    Image.fromarray(draw()).save(sys.argv[1], optimize=True)
