"""From 2,000 JPEG files to a CSV of answers by a ViT-Ti/16: `vitrail predict` beside timm, transformers and a loader.

    python benchmarks/files_to_csv.py                # about an hour on two cores; nothing else should be running
    python benchmarks/files_to_csv.py --quick        # few files, one round, nothing written

Every way is a whole process, from its start to its last row; they run in turn, in another order in each of three
rounds; medians. Rows are kept as they are measured, so that it can be stopped and goes on (`--stop-after 60`). Files
were read before, so that the disk plays no part; 24 of them differ and the others are links. Defaults of the others
are float32; in each number format ours stands beside what can be had in it: transformers' pipeline with batches and
workers, and the best that we can write by hand with torch's DataLoader (making/file_peers.py). Ours writes 1,000
probabilities a row as the loader does, timm's and transformers' ways the five largest. Writes
benchmarks/results/end-to-end.json.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from making.records import RESULTS, Results, Row, commit
from making.speed_files import CLASSES, SIZES, write_bundle, write_pictures

from vitrail.bench.measure import describe_machine
from vitrail.checkpoints.bundle_weights import load_bundle
from vitrail.checkpoints.save import save_model

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
    parser.add_argument("--stop-after", type=float, default=math.inf, help="begin no process after so many minutes")
    parser.add_argument("--folder", type=Path, help="where files and models are made and kept; by default nowhere")
    options = parser.parse_args()
    count, rounds = (16, 1) if options.quick else (COUNT, ROUNDS)
    until = time.perf_counter() + 60 * options.stop_after
    with tempfile.TemporaryDirectory() as nowhere:
        folder = options.folder or Path(nowhere)
        results = Results("end-to-end", Path(nowhere) if options.quick else RESULTS)
        for size in [options.only] if options.only else SIZES:
            every_way(results, folder, size, count, rounds, until)
        found = {size: compare_speeds(results.rows, size) for size in SIZES}
        results.write({"command": "python benchmarks/files_to_csv.py", "model": MODEL, "compared": found})
    for size, each in found.items():
        tell(size, results.rows, each)


def every_way(results: Results, folder: Path, size: str, count: int, rounds: int, until: float) -> None:
    """Each way once a round, in another order each time; a row is kept as soon as it is measured.

    All files are read before, and each way answers 16 of them uncounted, so that its libraries have been read, too.
    """
    pictures, few = (write_pictures(folder / f"{size}-{number}", size, number) for number in (count, 16))
    ways, short, warm = commands(folder, pictures), commands(folder, few), set[str]()
    for picture in pictures.iterdir():
        picture.read_bytes()
    for number in range(rounds):
        for name in random.Random(number).sample(sorted(ways), len(ways)):
            key = {"files": size, "round": number, "way": name, "count": count}
            there = any(all(row.get(field) == value for field, value in key.items()) for row in results.rows)
            if there or time.perf_counter() > until:
                continue
            if name not in warm:
                warm.add(name)
                measure_process(short[name](folder / "answers.csv"), folder / "answers.csv", name, 16)
            results.row(
                key, partial(measure_process, ways[name](folder / "answers.csv"), folder / "answers.csv", name, count)
            )


def measure_process(words: list[str], out: Path, name: str, count: int) -> Row:
    """Seconds of one process from its start to its last row; a failure keeps its last words instead of seconds."""
    out.unlink(missing_ok=True)
    load, began = os.getloadavg()[0], time.perf_counter()
    done = subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    rows = len(out.read_text(encoding="utf-8").splitlines()) - name.startswith("vitrail") if out.is_file() else 0
    kept = {"load": load, "machine": describe_machine("cpu"), "commit": commit()}
    if done.returncode or rows != count:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {**kept, "seconds": None, "reason": f"ended with {done.returncode} and {rows} rows: {last[:300]}"}
    return {**kept, "seconds": seconds}


def medians(rows: list[Row], size: str) -> dict[str, float]:
    """Median seconds of every way that has answered all files of this size."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["files"] == size and row["seconds"] is not None:
            found.setdefault(str(row["way"]), []).append(float(row["seconds"]))
    return {name: statistics.median(taken) for name, taken in found.items()}


def compare_speeds(rows: list[Row], size: str) -> dict[str, dict[str, object]]:
    """How many times as fast ours is, what is required, and whether it is; only what has figures on both sides."""
    found = ratios(medians(rows, size))
    wanted = {name: GOALS[size]["defaults" if name == "defaults" else "best"] for name in found}
    return {
        name: {"times": times, "wanted": wanted[name], "met": times >= wanted[name]} for name, times in found.items()
    }


def commands(folder: Path, pictures: Path) -> dict[str, Words]:
    """By name, from the CSV to be written to the words of a process."""
    transformers = folder / "transformers"
    found: dict[str, Words] = {}
    for number_format, ways in WAYS.items():
        bundle = write_bundle(folder / "bundle", MODEL)
        if not transformers.exists():
            kept = load_bundle(bundle)
            save_model(transformers, kept.model, kept.spec, CLASSES, "transformers")
        found[f"vitrail {number_format}"] = Words(
            "-m", "vitrail", "predict", bundle, pictures, "--precision", number_format, "--to"
        )  # fmt: skip
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
        others = [seconds[name] for way in ways if (name := f"{way} {number_format}") in seconds]
        if others and f"vitrail {number_format}" in seconds:
            found[f"best, {number_format}"] = min(others) / seconds[f"vitrail {number_format}"]
    ours = [seconds[name] for number_format in WAYS if (name := f"vitrail {number_format}") in seconds]
    theirs = [seconds[name] for way in DEFAULTS if (name := f"{way} float32") in seconds]
    return {**found, "defaults": min(theirs) / min(ours)} if ours and theirs else found


def tell(size: str, rows: list[Row], each: dict[str, dict[str, object]]) -> None:
    """For people."""
    print(f"\nfiles of {size}")
    count = max((int(row["count"]) for row in rows if row["files"] == size), default=0)
    for name, seconds in sorted(medians(rows, size).items(), key=lambda item: item[1]):
        print(f"  {name:<28} {seconds:8.1f} s  {count / seconds:8.1f} files/s")
    for row in rows:
        if row["files"] == size and row["seconds"] is None:
            print(f"  {row['way']:<28} no figure: {row['reason']}")
    for name, one in each.items():
        said = "met" if one["met"] else "missed"
        print(f"  ours is {one['times']:.2f} times as fast as: {name} (wanted {one['wanted']}: {said})", flush=True)


if __name__ == "__main__":
    main()
