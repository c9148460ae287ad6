"""From 2,000 JPEG files to a CSV of answers by a ViT-Ti/16: `vitrail predict` beside timm, transformers and a loader.

    python benchmarks/files_to_csv.py                # about an hour on two cores; nothing else should be running
    python benchmarks/files_to_csv.py --quick        # few files, one round, nothing written

Every way is a whole process, from its start to its last row; they run in turn, three rounds, medians. Files were read
before, so that the disk plays no part; 24 of them differ and the others are links. Defaults of the others are float32;
in each number format ours stands beside what can be had in it: transformers' pipeline with batches and workers, and the
best that we can write by hand with torch's DataLoader (making/file_peers.py). Ours writes 1,000 probabilities a row as
the loader does, timm's and transformers' ways the five largest. Writes benchmarks/results/end-to-end.json.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from making.records import RESULTS, Results, Row
from making.speed_files import CLASSES, SIZES, write_bundle, write_pictures

from vitrail.bench.machine import facts
from vitrail.checkpoints.bundle import load
from vitrail.checkpoints.save import save

MODEL = "vit_tiny_patch16_224"
COUNT, ROUNDS = 2000, 3
PEERS = Path(__file__).parent / "making" / "file_peers.py"
WAYS = {
    "float32": ("timm-inference", "pipeline", "pipeline-batched", "loader"),
    "bfloat16": ("pipeline-batched", "loader"),
}
DEFAULTS = ("timm-inference", "pipeline")
GOALS = {"640x427": {"best": 1.15, "defaults": 1.5}, "2560x1708": {"best": 2.0, "defaults": 2.0}}


def main() -> None:
    """Make files and models, then measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few files, one round, nothing written")
    parser.add_argument("--only", choices=SIZES, help="one size of files")
    parser.add_argument("--folder", type=Path, help="where files and models are made and kept; by default nowhere")
    options = parser.parse_args()
    count, rounds = (16, 1) if options.quick else (COUNT, ROUNDS)
    with tempfile.TemporaryDirectory() as nowhere:
        folder = options.folder or Path(nowhere)
        results = Results("end-to-end", Path(nowhere) if options.quick else RESULTS)
        for size in [options.only] if options.only else SIZES:
            pictures = write_pictures(folder / f"{size}-{count}", size, count)
            tell(results.row({"files": size}, partial(measured, folder, pictures, size, count, rounds)))
        results.write({"command": "python benchmarks/files_to_csv.py", "model": MODEL, "goals": GOALS})


def measured(folder: Path, pictures: Path, size: str, count: int, rounds: int) -> Row:
    """Every way in turn; the first round reads the files and is not counted."""
    ways = commands(folder, pictures)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, words in ways.items():
            out = folder / "answers.csv"
            out.unlink(missing_ok=True)
            began = time.perf_counter()
            subprocess.run(words(out), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number:
                seconds[name].append(time.perf_counter() - began)
            rows = len(out.read_text(encoding="utf-8").splitlines()) - name.startswith("vitrail")
            if rows != count:
                raise SystemExit(f"{name} answered {rows} of {count} files.")
    found = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "count": count, "rounds": rounds, "seconds": found,
        "fastest": {name: min(taken) for name, taken in seconds.items()},
        "slowest": {name: max(taken) for name, taken in seconds.items()},
        "times_as_fast": ratios(found), "machine": facts("cpu"),
    }  # fmt: skip


def commands(folder: Path, pictures: Path) -> dict[str, Words]:
    """By name, from the CSV to be written to the words of a process."""
    transformers = folder / "transformers"
    found: dict[str, Words] = {}
    for number_format, ways in WAYS.items():
        bundle = write_bundle(folder / f"bundle-{number_format}", MODEL, number_format)
        if not transformers.exists():
            kept = load(bundle)
            save(transformers, kept.model, kept.spec, CLASSES, "transformers")
        found[f"vitrail {number_format}"] = Words("-m", "vitrail", "predict", bundle, pictures, "--to")
        for way in ways:
            model = [transformers] if way.startswith("pipeline") else []
            found[f"{way} {number_format}"] = Words(PEERS, way, number_format, pictures, after=model)
    return found


class Words:
    """A process of Python that is told last where to write."""

    def __init__(self, *words: object, after: list[Path] | None = None):
        self.words, self.after = words, after or []

    def __call__(self, out: Path) -> list[str]:
        return [sys.executable, *map(str, self.words), str(out), *map(str, self.after)]


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """How many times as fast ours is as the best of the others in each format, and as the better of their defaults."""
    found = {}
    for number_format, ways in WAYS.items():
        best = min(seconds[f"{way} {number_format}"] for way in ways)
        found[f"best, {number_format}"] = best / seconds[f"vitrail {number_format}"]
    ours = min(seconds[f"vitrail {number_format}"] for number_format in WAYS)
    return {**found, "defaults": min(seconds[f"{way} float32"] for way in DEFAULTS) / ours}


def tell(row: Row) -> None:
    """For people."""
    print(f"\n{row['count']:,} files of {row['files']}")
    for name, seconds in sorted(row["seconds"].items(), key=lambda item: item[1]):
        print(f"  {name:<28} {seconds:8.1f} s  {row['count'] / seconds:8.1f} files/s")
    for name, times in row["times_as_fast"].items():
        print(f"  ours is {times:.2f} times as fast as: {name}", flush=True)


if __name__ == "__main__":
    main()
