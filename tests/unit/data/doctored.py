"""Small sources for the doctor's tests, and pictures with their near copies."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from vitrail.data.source import Source
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=8, channels=1)


def of_arrays(*pictures: np.ndarray, **changes: object) -> Source:
    """Two classes in turn, ids a, b, c ... unless said otherwise."""
    n = len(pictures)
    given: dict[str, object] = {
        "name": "drawn",
        "classes": ("a", "b"),
        "images": pictures,
        "targets": np.arange(n) % 2,
        "ids": tuple(_letters(number) for number in range(n)),
    }
    return Source(**{**given, **changes})


def _letters(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number] if number < 26 else f"a{number}"


def everything(source: Source) -> dict[str, np.ndarray]:
    """All of it to train on."""
    return {"train": np.arange(len(source)), "val": np.arange(0), "test": np.arange(0)}


def halves(source: Source) -> dict[str, np.ndarray]:
    """The first half to train on, the rest for the test."""
    half = len(source) // 2
    return {"train": np.arange(half), "val": np.arange(0), "test": np.arange(half, len(source))}


def textures(n: int, seed: int = 0, side: int = 96) -> list[np.ndarray]:
    """Pictures uint8 [side, side] of smooth noise with some grain, no two alike."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        total = np.zeros((side, side))
        for cells, weight in ((6, 1.0), (14, 0.6), (30, 0.35)):
            small = Image.fromarray(generator.normal(0, 1, (cells, cells)).astype(np.float32))
            total += weight * np.asarray(small.resize((side, side), Image.Resampling.BICUBIC))
        values = 127 + 45 * total / total.std() + generator.normal(0, 3, total.shape)
        found.append(np.rint(values).clip(0, 255).astype(np.uint8))
    return found


def as_jpeg(values: np.ndarray, quality: int = 75) -> np.ndarray:
    data = io.BytesIO()
    Image.fromarray(values).save(data, "JPEG", quality=quality)
    return np.asarray(Image.open(data))


def resized(values: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC))


def cropped(values: np.ndarray, pixels: int = 2) -> np.ndarray:
    """Less at each end."""
    return np.ascontiguousarray(values[pixels:-pixels, pixels:-pixels])


def codes(concerns: object) -> list[str]:
    return [concern.code for concern in concerns]
