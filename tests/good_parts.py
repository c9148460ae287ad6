"""Drawn parts in the layout of MVTec AD: good ones with a fine grain, defects with a bright spot, and their masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.checkpoints.save import save_model
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.runtime import RuntimeSettings
from vitrail.spec import ImageSpec

MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")
SHAPE = ViTConfig(image_size=(32, 32), patch=(4, 4), width=24, depth=3, heads=2, mlp_width=48, outputs=5)


def draw_part(seed: int, spot: bool = False) -> np.ndarray:
    """A grey part uint8 [40, 40]; a spot of 10 x 10 pixels, whose place depends on the seed."""
    generator = np.random.default_rng(seed)
    part = 100 + 8 * generator.normal(size=(40, 40))
    if spot:
        row, column = generator.integers(2, 28, 2)
        part[row : row + 10, column : column + 10] += 120
    return part.clip(0, 255).astype(np.uint8)


def spot_mask(seed: int) -> np.ndarray:
    """Where `draw_part` has put the spot, uint8 [40, 40]."""
    return np.where(draw_part(seed, spot=True).astype(int) > draw_part(seed).astype(int) + 60, 255, 0).astype(np.uint8)


def draw_parts(root: Path, good: int = 12, defects: int = 4) -> Path:
    """A folder with train/good, test/good, test/spot and ground_truth/spot."""
    for folder, seeds, spot in (
        ("train/good", range(good), False),
        ("test/good", range(100, 100 + defects), False),
        ("test/spot", range(200, 200 + defects), True),
    ):
        (root / folder).mkdir(parents=True)
        for seed in seeds:
            Image.fromarray(draw_part(seed, spot)).save(root / folder / f"{seed}.png")
    (root / "ground_truth" / "spot").mkdir(parents=True)
    for seed in range(200, 200 + defects):
        Image.fromarray(spot_mask(seed)).save(root / "ground_truth" / "spot" / f"{seed}_mask.png")
    return root


def save_weights(folder: Path, shape: ViTConfig = SHAPE) -> Path:
    """A checkpoint of another library with fresh weights."""
    spec = ImageSpec(height=shape.image_size[0], width=shape.image_size[1], channels=shape.channels)
    save_model(folder, create_model(shape, 3), spec, (), "timm")
    return folder
