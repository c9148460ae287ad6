"""Two manifests of drawn pictures whose answers can be learnt in seconds: two labels with blanks, and a number."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

TINY = (
    "--model", "vit_mu_patch8_16", "--recipe.batch_size", "32", "--compute.threads", "1", "--data.val_fraction", "0.2",
    "--data.test_fraction", "0.25", "--recipe.tta_flip", "true", "--recipe.evaluate_every", "60",
)  # fmt: skip
STEPS = 150
BLANKS = 0.2
"""Share of the labels, and of the numbers, that the manifests leave empty."""


def draw_labels(folder: Path, n: int = 240, seed: int = 0) -> Path:
    """films.csv with the labels `bars` and `nodule`, each there in half of the noisy pictures, some cells empty."""
    generator = np.random.default_rng(seed)
    there = generator.random((n, 2)) < 0.5
    blank = generator.random((n, 2)) < BLANKS
    y, x = np.mgrid[:16, :16]
    rows = []
    for number in range(n):
        grey = generator.normal(90, 12, (16, 16))
        if there[number, 0]:
            grey += 50 * ((x // 2) % 2)
        if there[number, 1]:
            top, left = generator.integers(3, 13, 2)
            grey += 110 * ((y - top) ** 2 + (x - left) ** 2 < 8)
        _save(folder, number, grey)
        cells = ["" if blank[number, k] else str(int(there[number, k])) for k in range(2)]
        rows.append([f"pictures/{number:03d}.png", *cells])
    return _manifest(folder / "films.csv", ["path", "bars", "nodule"], rows)


def draw_numbers(folder: Path, n: int = 240, seed: int = 0) -> Path:
    """cells.csv with the number `power`: how bright a square of random place is, in watts around 300; some empty."""
    generator = np.random.default_rng(seed)
    power = generator.uniform(250, 350, n)
    rows = []
    for number in range(n):
        grey = generator.normal(60, 8, (16, 16))
        top, left = generator.integers(0, 4, 2)
        grey[top : top + 12, left : left + 12] += 1.4 * (power[number] - 250)
        _save(folder, number, grey)
        cell = "" if generator.random() < BLANKS else f"{power[number]:.2f}"
        rows.append([f"pictures/{number:03d}.png", cell])
    return _manifest(folder / "cells.csv", ["path", "power"], rows)


def _save(folder: Path, number: int, grey: np.ndarray) -> None:
    (folder / "pictures").mkdir(exist_ok=True, parents=True)
    Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(folder / "pictures" / f"{number:03d}.png")


def _manifest(path: Path, header: list[str], rows: list[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path
