"""What the benchmarks of files need: folders of JPEG pictures that cost little disk, and models that nobody trained."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from vitrail.checkpoints import bundle_weights
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.services.open_model import default_image_spec

SIZES = {"640x427": (640, 427), "2560x1708": (2560, 1708)}
DIFFERENT = 24
"""Files that are encoded; the others are links to them."""
CLASSES = tuple(f"class {number:03}" for number in range(1000))


def write_pictures(folder: Path, size: str, count: int) -> Path:
    """scikit-learn's two photographs, shifted so that files differ, enlarged to the size, JPEG of quality 90."""
    folder.mkdir(parents=True, exist_ok=True)
    photographs = load_sample_images().images
    for number in range(count):
        path = folder / f"{number:05}.jpg"
        if path.exists():
            continue
        if number >= DIFFERENT:
            os.link(folder / f"{number % DIFFERENT:05}.jpg", path)
            continue
        values = np.roll(photographs[number % 2], 17 * number, axis=1)
        Image.fromarray(values).resize(SIZES[size], Image.Resampling.LANCZOS).save(path, quality=90)
    return folder


def write_bundle(folder: Path, name: str) -> Path:
    """A bundle of a named size with random weights."""
    if not folder.exists():
        config = dataclasses.replace(config_from_name(name), outputs=len(CLASSES))
        model = create_model(config, 0).eval()
        bundle_weights.save_bundle(folder, model, default_image_spec(config), "classification", CLASSES, {})
    return folder


def total_cpu(before: os.times_result, after: os.times_result) -> float:
    """CPU seconds of ended children between two looks."""
    return (after.children_user + after.children_system) - (before.children_user + before.children_system)
