"""Drawn scenes with known masks: textured discs and squares that overlap, as images/ and masks/."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ground", "disc", "square")
COLORS = {"#000000": "ground", "#ff0000": "disc", "#00ff00": "square"}


def draw_scene(seed: int, size: tuple[int, int] = (40, 40)) -> tuple[np.ndarray, np.ndarray]:
    """A picture uint8 [H, W, 3] with its class map uint8 [H, W]: 0 ground, 1 disc, 2 square, which lies on top."""
    generator = np.random.default_rng(seed)
    height, width = size
    side = min(size)
    rows, columns = np.mgrid[:height, :width]
    classes = np.zeros(size, np.uint8)
    row, column = generator.uniform(0.3, 0.7, 2) * size
    classes[np.hypot(rows - row, columns - column) < 0.3 * side] = 1
    top, left = (generator.uniform(0, 0.6, 2) * size).astype(int)
    classes[top : top + int(0.35 * side), left : left + int(0.35 * side)] = 2
    stripes = 40 * np.sign(np.sin(rows * 1.6)), 40 * np.sign(np.sin(columns * 1.6)), np.zeros(size)
    levels = (
        np.array([[90, 100, 110], [120, 90, 100], [100, 120, 90]])[classes]
        + np.choose(classes, stripes[::-1])[..., None]
    )
    return (levels + generator.normal(0, 6, (height, width, 1))).clip(0, 255).astype(np.uint8), classes


def draw_scenes(root: Path, n: int = 8, size: tuple[int, int] = (40, 40), first: int = 0) -> Path:
    """A folder with images/, masks/ of class numbers, and a legend."""
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    for seed in range(first, first + n):
        image, classes = draw_scene(seed, size)
        Image.fromarray(image).save(root / "images" / f"{seed}.png")
        Image.fromarray(classes).save(root / "masks" / f"{seed}.png")
    (root / "classes.csv").write_text("value,name\n" + "".join(f"{k},{name}\n" for k, name in enumerate(CLASSES)))
    return root
