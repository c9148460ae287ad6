"""Is the shortcut alarm right? Trainings on planted pictures with a tag that betrays the class, and without.

    python benchmarks/tag_alarm.py               # twenty trainings of 300 steps, two at a time
    python benchmarks/tag_alarm.py --seeds 0 1

Goal V11: of ten sets of pictures with a tag and the same ten without, the alarm of `vitrail evaluate RUN --shortcuts`
is raised by the first ten models and by none of the others, in 19 of 20 cases at least. The tag is that of the class in
95 % of the pictures, and the glyph that makes the class is there, too. Steps are fixed, one thread each, so speed
changes nothing. Rows that are there are kept. Writes benchmarks/results/tag-alarm.json.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from making.records import Job, Results, Row, train_run

import vitrail
from vitrail.data.sources.synthetic import CLASSES, make_synthetic_images

PARTS = {"train": 1_400, "val": 200, "test": 400}
USUAL = (
    *("--model.depth", 2, "--model.class_token", "true", "--model.pool", "class+mean"),
    *("--steps", 300, "--compute.precision", "float32", "--compute.threads", 1),
)


def main() -> None:
    """Train what is missing and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("tag-alarm")
    jobs: list[Job] = [
        ({"tag": tag, "seed": seed}, partial(one, options.folder, tag, seed))
        for seed in options.seeds
        for tag in (True, False)
    ]
    for row in results.side_by_side(jobs):
        said = f"{'a tag' if row['tag'] else 'no tag'}, {'ALARM' if row['alarm'] else 'no alarm'}"
        figures = f"whole {row['whole']:.1%}, border {row['border']:.1%}, keeps {row['kept_by_border']:.0%}"
        print(f"seed {row['seed']}, {said}: {figures}", flush=True)
    right = sum(row["alarm"] == row["tag"] for row in results.rows)
    results.write({"right": right, "of": len(results.rows)})
    print(f"right in {right} of {len(results.rows)}")


def one(folder: Path, tag: bool, seed: int) -> Row:
    """Make the pictures, train one model, and look at the border of those that it has not seen."""
    name = f"tag-alarm-{'tag' if tag else 'plain'}-seed{seed}"
    run = folder / name
    row = train_run(run, pictures(folder / f"{name}.npz", tag, seed), *USUAL, "--seed", seed)
    found = vitrail.open(run).shortcuts()
    kept = ("alarm", "whole", "border", "centre", "kept_by_border", "kept_by_centre")
    return {**{field: getattr(found, field) for field in kept}, "steps": row["steps"], "commit": row["commit"]}


def pictures(path: Path, tag: bool, seed: int) -> Path:
    """A set of planted pictures of its own, in three splits."""
    made, arrays, start = (
        make_synthetic_images(sum(PARTS.values()), seed=seed, tag=tag),
        {"classes": np.array(CLASSES)},
        0,
    )
    for split, count in PARTS.items():
        rows = slice(start, start + count)
        arrays |= {f"x_{split}": made.images[rows], f"y_{split}": made.targets[rows]}
        start += count
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


if __name__ == "__main__":
    main()
