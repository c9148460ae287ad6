"""What `vitrail train --dry-run` says that a run will take, beside what it takes: five different runs.

    python benchmarks/predictions.py               # about eight minutes, nothing else running

Each run is asked twice, by a dry run and in earnest, as commands of their own; seconds are those from the command to
the report, memory is the highest point of the process (on a GPU: of torch). The goal is within a quarter. Writes
benchmarks/results/predictions.json and a table in Markdown beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from functools import partial
from pathlib import Path

from making.records import RESULTS, VITRAIL, Results, Row

RUNS: dict[str, tuple[object, ...]] = {
    "digits, half a minute": ("digits", "--minutes", 0.5),
    "digits, 60 epochs of a larger model": ("digits", "--epochs", 60, "--model", "vit_nano_patch2_8"),
    "Fashion-MNIST, one minute": ("fashion-mnist", "--minutes", 1),
    "Fashion-MNIST, 600 steps without dropped patches": (
        "fashion-mnist",
        "--steps",
        600,
        "--recipe.patch_keep_until",
        0,
    ),
    "planted, 64 x 64, AdamW": ("planted", "--steps", 600, "--image-size", 64, "--recipe.optimizer", "adamw"),
}
CLOSE = 0.25


def main() -> None:
    """Run what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("predictions")
    for number, (name, words) in enumerate(RUNS.items()):
        row = results.row(
            {"run": name}, partial(both, options.folder / f"predictions-{number}-{time.time():.0f}", words)
        )
        print(f"{name}: {row['predicted']} beside {row['actual']}", flush=True)
    results.write({"within_a_quarter": all(abs(share - 1) <= CLOSE for row in results.rows for share in shares(row))})
    (RESULTS / "predictions.md").write_text(table(results.rows), encoding="utf-8")
    print(table(results.rows))


def both(folder: Path, words: tuple[object, ...]) -> Row:
    """What the dry run says and what the run then takes."""
    dry = answer("train", *words, "--dry-run", "--json")
    began = time.perf_counter()
    ran = answer("train", *words, "--json", "--out", folder)
    return {"predicted": dry["predicted"], "actual": ran["cost"]["actual"], "wall": time.perf_counter() - began}


def answer(*words: object) -> Row:
    """What a command prints as JSON."""
    output = subprocess.run([VITRAIL, *map(str, words)], check=True, capture_output=True, text=True)
    found: Row = json.loads(output.stdout)
    return found


def shares(row: Row) -> tuple[float, float]:
    """Seconds and memory that the run took, for each that was predicted."""
    predicted, actual = row["predicted"], row["actual"]
    return actual["seconds"] / predicted["seconds"], actual["memory"] / predicted["memory"]


def table(rows: list[Row]) -> str:
    """Prediction beside outcome in Markdown."""
    head = ("run", "seconds predicted", "taken", "off", "memory predicted", "taken", "off")
    lines = [f"| {' | '.join(head)} |", "|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        predicted, actual, (seconds, memory) = row["predicted"], row["actual"], shares(row)
        time_said = f"{predicted['seconds']:.0f} | {actual['seconds']:.0f} | {seconds - 1:+.0%}"
        memory_said = f"{predicted['memory'] / 1e6:.0f} MB | {actual['memory'] / 1e6:.0f} MB | {memory - 1:+.0%}"
        lines.append(f"| {row['run']} | {time_said} | {memory_said} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
