"""Time to accuracy: how many seconds a training of Fashion-MNIST takes to 90, 92, 93 and 94 % of the official test.

    python benchmarks/speedrun.py --minutes 0.5 1 3 --seeds 0 1 2 3 4 5 6 7 8 9
    python benchmarks/speedrun.py --minutes 1 --set recipe.batch_size=256 --label "batch 256"

Every training is `vitrail train fashion-mnist --minutes M --seed S` from scratch with the plan's own choices, alone on
the machine. A goal is reached in the shortest time whose mean over the seeds reaches it. Nothing is chosen on the test
pictures: they are answered once, by the finished model. `seconds` are the training with all that it prepares, as
`--minutes` counts them; `wall_seconds` the whole command, with the evaluation and its report. Rows that the results
file has are kept. Writes benchmarks/results/speedrun-MACHINE.json, where the machine is its GPU or its threads.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from making.records import T95, Results, Row, number, train_run

GOALS = (0.90, 0.92, 0.93, 0.94)


def main() -> None:
    """Run what is missing, then say when each goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="+", default=[0.5, 1.0, 2.0, 3.0, 5.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="other than the plan's own")
    parser.add_argument("--label", default="the plan", help="what the rows are called then")
    options = parser.parse_args()
    changes = dict(each.split("=", 1) for each in options.set)
    results = Results(f"speedrun-{machine_name()}")
    for minutes in sorted(options.minutes):
        for seed in options.seeds:
            key = {"label": options.label, "minutes": minutes, "seed": seed}
            row = results.row(key, partial(run, options.folder, options.label, minutes, seed, changes))
            print(
                f"{minutes:g} min, seed {seed}: {number(row, 'accuracy'):.4f}, {number(row, 'seconds'):.1f} s",
                flush=True,
            )
    times = summaries([row for row in results.rows if row["label"] == options.label])
    results.write({"times": times, "goals": reached(times)})
    for each in times:
        print("  ".join(f"{name} {value}" for name, value in each.items()))
    for goal in reached(times):
        print("  ".join(f"{name} {value}" for name, value in goal.items()))


def machine_name() -> str:
    """The GPU, or the number of the CPU's threads."""
    if torch.cuda.is_available():
        return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower())
    return f"{os.cpu_count()}-threads"


def run(folder: Path, label: str, minutes: float, seed: int, changes: Mapping[str, str]) -> Row:
    """One training; of its figures those that a speed run is about."""
    name = re.sub(r"[^a-z0-9]+", "-", label.lower())
    words = ["fashion-mnist", "--minutes", minutes, "--seed", seed]
    words += [word for field, value in changes.items() for word in (f"--{field}", value)]
    row = train_run(folder / f"speedrun-{name}-{minutes:g}min-seed{seed}", *words)
    kept = ("accuracy", "log_loss", "steps", "images_seen", "model", "parameters", "seconds", "wall_seconds", "commit")
    return {name: row[name] for name in kept}


def summaries(rows: list[Row]) -> list[Row]:
    """For each number of minutes the mean of accuracy and seconds, and the 95 % interval of the mean by Student's t."""
    found = []
    for minutes in sorted({number(row, "minutes") for row in rows}):
        runs = [row for row in rows if row["minutes"] == minutes]
        accuracies = [number(row, "accuracy") for row in runs]
        mean, interval = statistics.mean(accuracies), None
        if len(runs) > 1:
            half = T95[min(len(runs) - 1, len(T95)) - 1] * statistics.stdev(accuracies) / math.sqrt(len(runs))
            interval = [round(mean - half, 5), round(mean + half, 5)]
        seconds = statistics.mean(number(row, "seconds") for row in runs)
        found.append(
            {"minutes": minutes, "n": len(runs), "mean_accuracy": round(mean, 5), "interval": interval,
             "seconds": round(seconds, 1)}
        )  # fmt: skip
    return found


def reached(times: list[Row]) -> list[Row]:
    """The first of the times whose mean reaches each goal; no seconds where none does."""
    rows = []
    for goal in GOALS:
        first = next((each for each in times if each["mean_accuracy"] >= goal), None)
        rows.append({"goal": goal, "seconds": first and first["seconds"], "n": first and first["n"]})
    return rows


if __name__ == "__main__":
    main()
