"""Masks of drawn pictures: a linear head on frozen patches beside tuning of the last blocks, by pictures and minutes.

    python benchmarks/masks.py DINOV2 --threads 1 --methods frozen queries    # DINOV2: the folder of dinov2-small
    python benchmarks/masks.py DINOV2 --threads 1 --methods tuning            # at the same time, beside it

Without --counts and --minutes that is the whole table: 5, 20 and 200 pictures, 2, 5 and 20 minutes, in 27 trainings.
With --clock processor other programs may run: a minute is then one of the processor's.

A picture has a ground, two overlapping stones whose texture differs in scale and not in brightness, and two cracks of 2
to 6 pixels; rings of a tomograph's kind cross all of it and belong to no class. Sides are 0.6 to 1.4 times SIDE. COUNT
of them are for training, a quarter as many (at least 2) for validation, and 40 others for the test, always the same.
`frozen` is --finetune.method probe, `tuning` --finetune.method full, and `queries` the same with --model.queries 16.

Pictures, runs and rows are kept: a job that was stopped goes on where it was, in the middle of a training too. Jobs
that run side by side must share no row; each adds its own to benchmarks/results/masks.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from making.records import RESULTS, Results, Row, commit
from PIL import Image
from planted_heads import table
from scipy.ndimage import gaussian_filter

import vitrail
from vitrail.errors import UsageError

CLASSES = ("ground", "stone", "crack")
METHODS: dict[str, dict[str, object]] = {
    "frozen": {"finetune.method": "probe"},
    "tuning": {"finetune.method": "full"},
    "queries": {"model.queries": 16, "finetune.method": "full"},
}
TEST, FIRST_TEST = 40, 100_000
CRACKS, STONES = 2, 2


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("--counts", type=int, nargs="+", default=[5, 20, 200])
    parser.add_argument("--minutes", type=float, nargs="+", default=[2, 5, 20])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=0, help="0: every core")
    parser.add_argument(
        "--clock", choices=("wall", "processor"), default="wall",
        help="processor: minutes of this process's computing, whatever else runs; with --threads 1 those of one core",
    )  # fmt: skip
    parser.add_argument("--side", type=int, default=448)
    parser.add_argument(
        "--read", type=int, help="--image-size of the trainings, for slow machines; the plan's by default"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.dinov2 is None:
        print("masks: left out, needs a folder with DINOv2; see --help")
        return
    if options.clock == "processor":  # the planner and the trainer read these two
        time.perf_counter = time.monotonic = time.process_time
    results = Results("masks")
    for minutes, count, method in product(options.minutes, options.counts, options.methods):
        source = draw_set(options.folder / f"masks-{options.side}-{count}", count, options.side)
        key = {"pictures": count, "side": options.side, "minutes": minutes, "method": method}
        key |= {"threads": options.threads, "read": options.read, "clock": options.clock}
        run = options.folder / f"masks-run-{options.side}-{options.read}-{count}-{minutes:g}-{method}"
        make = partial(measure, source, run, options.dinov2, minutes, options.read, METHODS[method], options.threads)
        try:
            print(results.row(key, make), flush=True)
        except UsageError as error:  # tried again the next time
            print(f"{key}: left out. {error}", flush=True)
            continue
        rows = sorted(results.rows, key=lambda row: (row["pictures"], row["minutes"], [*METHODS].index(row["method"])))
        (RESULTS / "masks.md").write_text(table(COLUMNS, rows), encoding="utf-8")
    print((RESULTS / "masks.md").read_text(encoding="utf-8"))


def draw_picture(seed: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """A grey picture uint8 [H, W] and its class map."""
    generator = np.random.default_rng(seed)
    height, width = (int(side * factor) for factor in generator.uniform(0.6, 1.4, 2))
    y, x = np.mgrid[:height, :width]
    fine, coarse = (gaussian_filter(generator.normal(size=(height, width)), sigma) for sigma in (1.5, 5.0))
    fine, coarse = fine / fine.std(), coarse / coarse.std()
    classes = np.zeros((height, width), np.uint8)
    for _ in range(STONES):
        row, column = generator.uniform(0.15, 0.85, 2) * (height, width)
        reach, turn = generator.uniform(0.1, 0.28) * side, generator.uniform(0, np.pi)
        along = (x - column) * np.cos(turn) + (y - row) * np.sin(turn)
        across = (y - row) * np.cos(turn) - (x - column) * np.sin(turn)
        classes[(along / reach) ** 2 + (across / (reach * generator.uniform(0.5, 1))) ** 2 < 1] = 1
    values = 120 + 22 * np.where(classes == 1, coarse, fine)
    for _ in range(CRACKS):
        classes, values = draw_crack(generator, classes, values)
    centre = generator.uniform(0.3, 0.7, 2) * (height, width)
    rings = np.sin(np.hypot(y - centre[0], x - centre[1]) * generator.uniform(0.3, 0.6))
    return (values + 9 * rings + generator.normal(0, 4, values.shape)).clip(0, 255).astype(np.uint8), classes


def draw_crack(
    generator: np.random.Generator, classes: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One dark line of 2 to 6 pixels that wanders through the picture."""
    height, width = classes.shape
    y, x = np.mgrid[:height, :width]
    steps = np.linspace(0, 1, 60)
    ends = generator.uniform(0, 1, (2, 2)) * (height, width)
    path = ends[0] + (ends[1] - ends[0]) * steps[:, None]
    path += np.cumsum(generator.normal(0, 0.008, (60, 2)), axis=0) * (height, width)
    distance = np.full(classes.shape, np.inf)
    for (row, column), (next_row, next_column) in pairwise(path):
        down, right = next_row - row, next_column - column
        share = ((y - row) * down + (x - column) * right) / max(down**2 + right**2, 1e-9)
        share = share.clip(0, 1)
        distance = np.minimum(distance, np.hypot(y - row - share * down, x - column - share * right))
    crack = distance <= generator.uniform(1, 3)
    classes, values = classes.copy(), values.copy()
    classes[crack] = 2
    values[crack] -= 45
    return classes, values


def draw_set(root: Path, count: int, side: int) -> Path:
    """A folder with train/, val/ and test/; nothing where it is there already."""
    if root.is_dir():
        return root
    draft = root.with_name(f"{root.name}-draft-{os.getpid()}")
    valid = max(2, count // 4)
    seeds = {"train": range(count), "val": range(50_000, 50_000 + valid), "test": range(FIRST_TEST, FIRST_TEST + TEST)}
    for split, drawn in seeds.items():
        for kind in ("images", "masks"):
            (draft / split / kind).mkdir(parents=True, exist_ok=True)
        for seed in drawn:
            picture, classes = draw_picture(seed, side)
            Image.fromarray(picture).save(draft / split / "images" / f"{seed}.png")
            Image.fromarray(classes).save(draft / split / "masks" / f"{seed}.png")
        legend = "value,name\n" + "".join(f"{k},{name}\n" for k, name in enumerate(CLASSES))
        (draft / "classes.csv").write_text(legend, encoding="utf-8")
    if root.is_dir():  # the job beside this one was faster
        shutil.rmtree(draft)
    else:
        draft.rename(root)
    return root


def measure(
    source: Path,
    run: Path,
    weights: Path,
    minutes: float,
    image_size: int | None,
    settings: Mapping[str, object],
    threads: int,
) -> Row:
    """Metrics on the test pictures, with their intervals, and the seconds of the training."""
    began = time.perf_counter()
    if (run / "plan.toml").is_file():
        vitrail.open(run).resume(quiet=True)
    elif not (run / "metrics-test.json").is_file():
        vitrail.fit(
            source, task="segmentation", weights=weights, minutes=minutes, seed=0, out=run, image_size=image_size,
            quiet=True,
            settings={**settings, **({"compute.threads": threads} if threads else {})},
        )  # fmt: skip
    metrics = json.loads((run / "metrics-test.json").read_text(encoding="utf-8"))
    names = ("mean_iou", "mean_iou_interval", "mean_boundary_f", "mean_boundary_f_interval")
    ious = {one["name"]: round(one["iou"], 4) for one in metrics["per_class"]}
    tuned = json.loads((run / "start.json").read_text(encoding="utf-8")).get("tuned", [])
    chosen = next((one["name"] for one in tuned if one["chosen"]), "the start, frozen")
    return {
        "seconds": round(time.perf_counter() - began, 1), **{name: metrics[name] for name in names}, "iou": ious,
        "chosen": chosen, "commit": commit(),
        "training": json.loads((run / "report.json").read_text(encoding="utf-8"))["seconds"],
    }  # fmt: skip


def format_span(row: Row, name: str) -> str:
    """A metric with its interval."""
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.3f} ({low:.3f} to {high:.3f})"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "pictures": lambda row: (
        f"{row['pictures']} of about {row['side']}" + f", read at {row['read']}" * bool(row["read"])
    ),
    "minutes": lambda row: f"{row['minutes']:g}" + " of a core" * (row["clock"] == "processor"),
    "method": lambda row: row["method"],
    "mean IoU": lambda row: format_span(row, "mean_iou"),
    "boundary F": lambda row: format_span(row, "mean_boundary_f"),
    **{name: lambda row, name=name: f"{row['iou'][name]:.3f}" for name in CLASSES},
    "kept": lambda row: row["chosen"],
    "training, s": lambda row: f"{row['training']:.0f}",
    "in all, s": lambda row: f"{row['seconds']:.0f}",
}


if __name__ == "__main__":
    main()
