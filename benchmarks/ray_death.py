"""Predict on a local Ray cluster of two workers, kill one on the way, and compare with a process of its own.

    python benchmarks/ray_death.py RUN PICTURES                  # a folder, a pattern or @list.txt

Prints who was killed, after how many parts, and whether the file is complete and equal: the bytes, or else how far the
scores are apart and how many decisions differ. Exits with 1 unless it is complete and no decision differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = str(ROOT / "tests" / "on_ray.py")
COMPARED = ("prob_", "value_")


def main() -> None:
    """Predict twice, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pictures")
    parser.add_argument("--part-size", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(options.model, options.pictures, options.part_size, Path(folder))
    print(json.dumps(result, indent=2))
    sys.exit(not (result["complete"] and not result["decisions_changed"]))


def run(model: str, pictures: str, size: int, folder: Path) -> dict[str, object]:
    """Both predictions and what became of them."""
    alone, shared, victim = folder / "alone.csv", folder / "ray.csv", folder / "victim.json"
    words = ["predict", model, pictures, "--device", "cpu"]
    began = time.monotonic()
    count_done([sys.executable, "-m", "vitrail", *words, "--to", str(alone)])
    middle = time.monotonic()
    on_ray = ["--engine", "ray", "--part-size", str(size), "--to", str(shared)]
    count_done([sys.executable, PROGRAM, str(victim), *words, *on_ray])
    parts = len(list(shared.with_name(f"{shared.name}.parts").glob("part-*.csv")))
    killed = json.loads(victim.read_text())
    return {
        "killed": killed["killed"], "parts_before_the_death": killed["parts"], "parts": parts,
        "seconds_alone": round(middle - began, 1), "seconds_on_ray": round(time.monotonic() - middle, 1),
        **compare_predictions(alone, shared),
    }  # fmt: skip


def compare_predictions(alone: Path, shared: Path) -> dict[str, object]:
    """How two files of predictions differ."""
    ours, theirs = map(rows_of, (alone, shared))
    pairs = list(zip(ours, theirs, strict=False))
    apart = [
        abs(float(one[name]) - float(other[name])) for one, other in pairs for name in one if name.startswith(COMPARED)
    ]
    changed = sum(any(one.get(name) != other.get(name) for name in ("label", "abstain")) for one, other in pairs)
    return {
        "rows_alone": len(ours), "rows_on_ray": len(theirs),
        "complete": [row["path"] for row in ours] == [row["path"] for row in theirs],
        "equal_bytes": alone.read_bytes() == shared.read_bytes(), "largest_difference": max(apart, default=0.0),
        "decisions_changed": changed,
    }  # fmt: skip


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV by the names of their columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def count_done(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
