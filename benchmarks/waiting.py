"""Seconds from Enter to the first line, to the plan and to the first step of `vitrail train SOURCE --minutes 1`.

    python benchmarks/waiting.py                                  # about five minutes, nothing else running
    python benchmarks/waiting.py --sources digits --repeats 1     # a trial of some

Four sources: digits, a folder of 100 photographs, Fashion-MNIST, and a folder of 20,000 files. Each start is a process
of its own, ended after its first steps; files have been read before, so that the disk plays no part. The goal for what
comes before the first step is 10 s and a tenth of the minutes. Writes benchmarks/results/waiting.json and a table in
Markdown beside it, of the medians; rows that are there are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
from making.records import RESULTS, VITRAIL, Results, Row
from PIL import Image
from sklearn.datasets import load_sample_images

from vitrail.bench.measure import describe_machine

MINUTES = 1.0
GOAL = 10 + 0.1 * 60 * MINUTES
PLAN_LINE = "model  "
"""Begins the first line of a plan."""
PHOTOGRAPHS = {"100 photographs": (100, (640, 427), 2), "20,000 files": (20_000, (160, 120), 10)}
"""Source -> files, their width and height, and classes."""
SOURCES = ("digits", "100 photographs", "fashion-mnist", "20,000 files")


def main() -> None:
    """Start every source several times, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("waiting"), help="where pictures are made once and kept")
    parser.add_argument("--sources", nargs="+", default=SOURCES, choices=SOURCES)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    results = Results("waiting")
    for name in options.sources:
        source = write_photographs(options.folder, name) if name in PHOTOGRAPHS else name
        row = results.row({"source": name, "minutes": MINUTES}, partial(measure, str(source), options.repeats))
        print(f"{name}: {describe(row)}", flush=True)
    results.write({"goal": GOAL, "machine": describe_machine("cpu")})
    (RESULTS / "waiting.md").write_text(table(results.rows), encoding="utf-8")
    print(table(results.rows))


def write_photographs(folder: Path, name: str) -> Path:
    """Class folders of pieces of scikit-learn's two photographs, all different: a class is a photograph and a zoom."""
    count, size, classes = PHOTOGRAPHS[name]
    root = folder / f"photographs-{count}"
    if (root / "complete").is_file():
        return root
    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    random = np.random.default_rng(0)
    for number in range(count):
        kind = number % classes
        photograph, zoom = photographs[kind % 2], 1 - 0.15 * (kind // 2) - random.uniform(0, 0.1)
        width, height = (round(zoom * side) for side in photograph.size)
        left, top = random.integers(0, photograph.width - width + 1), random.integers(0, photograph.height - height + 1)
        path = root / f"kind-{kind}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        piece = photograph.crop((left, top, left + width, top + height)).resize(size, Image.Resampling.BILINEAR)
        piece.save(path, quality=int(random.integers(80, 96)))
    (root / "complete").touch()
    return root


def measure(source: str, repeats: int) -> Row:
    """Medians of the seconds of several starts, after one that reads every file."""
    starts = [time_start(source) for _ in range(repeats + 1)][1:]
    medians = {name: statistics.median(start[name] for start in starts) for name in starts[0]}
    return {**{name: round(seconds, 2) for name, seconds in medians.items()}, "repeats": repeats, "starts": starts}


def time_start(source: str) -> dict[str, float]:
    """Seconds from the start of a training to its first line, its plan, and the end of its first step."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["train", source, "--minutes", str(MINUTES), "--out", str(run), "--weights", "none"]
        began = time.perf_counter()
        with subprocess.Popen(
            [VITRAIL, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as training:
            reader = Thread(target=note_lines, args=(training, began, found))
            reader.start()
            while training.poll() is None and (row := first_row(run / "metrics.jsonl")) is None:
                time.sleep(0.02)
            seen = time.perf_counter() - began
            training.terminate()
            training.wait()
            reader.join()
        assert row is not None, f"{source} ended before its first step"
    found["first_step"] = seen - (row["step"] - 1) * row["seconds"]
    return {name: round(seconds, 2) for name, seconds in found.items()}


def note_lines(training: subprocess.Popen[str], began: float, found: dict[str, float]) -> None:
    """Note when the first line and that of the plan come."""
    assert training.stdout is not None
    for line in training.stdout:
        now = time.perf_counter() - began
        found.setdefault("first_line", now)
        if line.startswith(PLAN_LINE):
            found.setdefault("plan", now)


def first_row(metrics: Path) -> dict[str, float] | None:
    """The first row of a run's metrics, once it is whole."""
    text = metrics.read_text(encoding="utf-8") if metrics.is_file() else ""
    return json.loads(text.partition("\n")[0]) if "\n" in text else None


def describe(row: Row) -> str:
    """The medians of a source as a sentence."""
    return f"first line {row['first_line']:.1f} s, plan {row['plan']:.1f} s, first step {row['first_step']:.1f} s"


def table(rows: list[Row]) -> str:
    """Medians in Markdown."""
    head = ("trained on", "first line", "plan", "first step", f"goal of {GOAL:g} s")
    lines = [f"| {' | '.join(head)} |", "|---|---:|---:|---:|---|"]
    for row in rows:
        said = "met" if row["first_step"] <= GOAL else "missed"
        cells = [f"{row[name]:.1f} s" for name in ("first_line", "plan", "first_step")]
        lines.append(f"| {' | '.join([row['source'], *cells, said])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
