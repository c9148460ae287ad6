"""Small defects in large pictures: recall and AUROC by the size of the defect, read whole and in tiles.

    python benchmarks/anomaly_tiles.py DINOV2            # the folder of dinov2-small
    python benchmarks/anomaly_tiles.py DINOV2 --side 616 --model-side 224
    python benchmarks/anomaly_tiles.py DINOV2 --cells ELPV --good 60 --held-out 40 --each 24 --model-side 168

A drawn factory in MVTec AD's layout: good pictures are a woven texture of SIDE x SIDE pixels with its own grain, light
and place, or solar cells of 300 x 300 pixels that the experts call certainly sound; defects the same with one scratch,
spot or missing part of 6, 12, 24 or 60 pixels, and masks. One run reads each picture whole, shrunk to the model's size,
the other in as many tiles as the plan would choose. Everything else is the plan of `vitrail train FOLDER --task anomaly
--weights DINOV2`.

Rows, pictures and runs are kept. Writes benchmarks/results/anomaly-tiles.json and .md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from elpv import read_cells
from making.records import RESULTS, Results, Row, commit
from PIL import Image
from planted_heads import table
from scipy.ndimage import gaussian_filter

import vitrail

CELL_SIDE = 300
SIZES = (6, 12, 24, 60)
"""Longer side of a defect in pixels."""
KINDS = ("scratch", "spot", "missing")
READ = ("whole", "tiles")


def draw_texture(side: int, seed: int) -> np.ndarray:
    """A woven texture float [side, side], around 128."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] + generator.uniform(0, 40, 2)[:, None, None]
    bend = gaussian_filter(generator.normal(size=(side // 8, side // 8)), 12) * 60
    bend = np.kron(bend, np.ones((8, 8)))[:side, :side]
    weave = 18 * np.sin(2 * np.pi * (x + bend) / 20) * np.sin(2 * np.pi * (y - bend) / 20)
    grain = gaussian_filter(generator.normal(size=(side, side)), 1.0) * 20
    light = 12 * np.sin(2 * np.pi * (x * generator.uniform(-1, 1) + y * generator.uniform(-1, 1)) / (2 * side))
    return np.asarray(128 + weave + grain + light)


def plant_defect(texture: np.ndarray, kind: str, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The texture with one defect, and its mask."""
    generator = np.random.default_rng(seed)
    row, column = generator.integers(40, len(texture) - 40 - size, 2)
    y, x = np.mgrid[: len(texture), : len(texture)] - np.array([row, column])[:, None, None] - size / 2
    turn = generator.uniform(0, np.pi)
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    if kind == "scratch":
        mask = (np.abs(along) <= size / 2) & (np.abs(across) <= max(1.0, size / 12))
    else:
        mask = along**2 + (1.5 * across) ** 2 <= (size / 2) ** 2
    flat = {"scratch": 205.0, "spot": 60.0, "missing": float(gaussian_filter(texture, 15)[row, column])}[kind]
    return np.where(mask, flat, texture), mask


def draw_factory(root: Path, draw: Callable[[int], np.ndarray], good: int, held_out: int, each: int) -> Path:
    """The folder of pictures; nothing where it is there already.

    Args:
        draw: a good picture by its number, float [side, side].
    """
    if root.is_dir():
        return root
    draft = root.with_name(f"{root.name}-draft")
    seed = 0
    for folder, count in (("train/good", good), ("test/good", held_out)):
        (draft / folder).mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            save(draw(seed), draft / folder / f"{seed}.png")
            seed += 1
    for size in SIZES:
        for place in range(each):
            kind, name = KINDS[place % len(KINDS)], f"{size:02}-pixels"
            picture, mask = plant_defect(draw(seed), kind, size, seed)
            for values, path in (
                (picture, draft / "test" / name / f"{seed}-{kind}.png"),
                (255 * mask, draft / "ground_truth" / name / f"{seed}-{kind}_mask.png"),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                save(values, path)
            seed += 1
    draft.rename(root)
    return root


def list_sound_cells(data: Path) -> list[Path]:
    """The certainly sound cells of the kind mono, in a drawn order."""
    paths = [data / name for name, chance, kind in read_cells(data / "labels.csv") if chance == 0 and kind == "mono"]
    return [paths[place] for place in np.random.default_rng(0).permutation(len(paths))]


def read_cell(cells: list[Path], number: int) -> np.ndarray:
    """A cell as float [side, side]."""
    with Image.open(cells[number]) as picture:
        return np.asarray(picture.convert("L"), dtype=float)


def save(values: np.ndarray, path: Path) -> None:
    """Write a grey picture."""
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path)


def measure(folder: Path, source: Path, weights: Path, read: str, side: int, model_side: int) -> Row:
    """One run, and its figures on the held-out pictures.

    Args:
        side, model_side: of pictures and of what the model reads at once, in pixels.
    """
    run, overlap = folder / f"{source.name}-{model_side}-{read}", model_side // 14 // 8
    count = round((side / 14 - overlap) / (model_side / 14 - overlap))
    tiles = {"model.tiles": f"{count},{count}", "model.tile_overlap": overlap} if read == "tiles" else {}
    began = time.perf_counter()
    if not (run / "report.html").is_file():
        vitrail.fit(
            source, task="anomaly", weights=weights, out=run, quiet=True, settings=tiles, image_size=model_side,
            alpha=0.1,
        )  # fmt: skip
    metrics = json.loads((run / "metrics-test.json").read_text(encoding="utf-8"))
    shape = vitrail.open(run).plan.model
    by_size = {int(one["name"][:2]): one for one in metrics["per_type"]}
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "size": list(shape.input_size),
        "tiles": list(shape.tiles),
        "good": metrics["good"],
        "alpha": metrics["alpha"],
        **{name: metrics.get(name) for name in ("auroc", "false_alarms", "pixel_auroc", "aupro")},
        **{f"recall_{size}": one["recall"] for size, one in by_size.items()},
        **{f"auroc_{size}": one["auroc"] for size, one in by_size.items()},
        "defects_each": [one["n"] for one in by_size.values()],
        "commit": commit(),
    }


def describe_number(name: str) -> Callable[[Row], str]:
    """A column with a figure of a row."""
    return lambda row: "-" if row.get(name) is None else f"{row[name]:.3f}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "pictures": lambda row: f"{'cells' if row['cells'] else 'textures'}, {row['side']} x {row['side']}",
    "read": lambda row: f"{row['read']}, {row['size'][0]} x {row['size'][1]}",
    "tiles": lambda row: f"{row['tiles'][0]} x {row['tiles'][1]}",
    **{f"found, {size} pixels": describe_number(f"recall_{size}") for size in SIZES},
    **{f"AUROC, {size} pixels": describe_number(f"auroc_{size}") for size in SIZES},
    "pixel AUROC": describe_number("pixel_auroc"),
    "AUPRO": describe_number("aupro"),
    "false alarms": describe_number("false_alarms"),
    "promised": describe_number("alpha"),
}


def main() -> None:
    """Draw, train what is missing, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--side", type=int, default=2016, help="of textures, in pixels")
    parser.add_argument("--cells", type=Path, help="ELPV's folder with labels.csv and images/, in place of textures")
    parser.add_argument("--good", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=6)
    parser.add_argument("--each", type=int, default=6, help="defects of each size")
    parser.add_argument("--model-side", type=int, default=448, help="what the model reads at once")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    counts, side = (options.good, options.held_out, options.each), options.side
    draw: Callable[[int], np.ndarray] = partial(draw_texture, side)
    if options.cells:
        draw, side = partial(read_cell, list_sound_cells(options.cells)), CELL_SIDE
    name = "-".join(map(str, ["factory", "cells" if options.cells else side, *counts]))
    source = draw_factory(options.folder / name, draw, *counts)
    results = Results("anomaly-tiles")
    for read in READ:
        key = {"cells": bool(options.cells), "side": side, "model_side": options.model_side, "train": options.good}
        settings = (options.folder, source, options.weights, read, side, options.model_side)
        key |= {"each": options.each, "read": read}
        print(results.row(key, lambda settings=settings: measure(*settings)), flush=True)
    results.write({})
    text = table(COLUMNS, results.rows)
    (RESULTS / "anomaly-tiles.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
