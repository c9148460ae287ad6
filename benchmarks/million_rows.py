"""A manifest of a million rows: indexed, split by patients and iterated for 1,000 batches, in seconds and memory.

    python benchmarks/million_rows.py                     # a million rows, in a temporary folder
    python benchmarks/million_rows.py --rows 100000 --batches 100

The pictures are hard links of twenty JPEG files of 320 x 213 that are drawn here, in a thousand folders, so a file
system with hard links and a million free inodes' names is needed. Each stage is measured in one further process, whose
peak memory counts everything from the start of Python on: torch, the table, the source, the batches. Linux only. Writes
benchmarks/results/million-rows.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULT = Path(__file__).parent / "results" / "million-rows.json"
LINKS = 50_000  # of one file; ext4 allows 65,000
FOLDER = 1000  # pictures in each
CLASSES = 100
SECONDS, BYTES = 30, 1.5e9
"""What indexing may take, and what the whole may hold."""


def main() -> None:
    """Make the pictures and their manifest, then measure; or, in the child process, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=64, help="pixels that a picture is brought to")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options)))
        return
    with tempfile.TemporaryDirectory() as name:
        path = make(Path(name), options.rows)
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--measure", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
    row = json.loads(done.stdout)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(row, indent=1) + "\n")
    print(
        f"{row['rows']:,} rows: indexed in {row['index_seconds']:.1f} s, peak {row['index_peak_bytes'] / 1e6:,.0f} MB; "
        f"split in {row['split_seconds']:.1f} s; {row['batches']:,} batches of {row['batch']} in "
        f"{row['batch_seconds']:.1f} s; peak in all {row['peak_bytes'] / 1e6:,.0f} MB"
    )
    if row["index_seconds"] > SECONDS or row["peak_bytes"] > BYTES:
        raise SystemExit(f"over the goal of {SECONDS} s for indexing and {BYTES / 1e6:,.0f} MB in all")


def make(root: Path, rows: int) -> Path:
    """Pictures in root/pictures/000/ and so on, and the manifest that names them."""
    from PIL import Image

    draws = np.random.default_rng(0)
    originals = []
    for number in range(-(-rows // LINKS)):
        coarse = Image.fromarray(draws.integers(0, 256, (21, 32, 3), dtype=np.uint8))
        originals.append(root / f"original-{number}.jpg")
        coarse.resize((320, 213), Image.Resampling.BICUBIC).save(originals[-1], quality=90)
    labels, views = draws.integers(0, CLASSES, rows), draws.integers(0, 2, rows)
    with (root / "films.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("path", "label", "Patient ID", "age", "view"))
        for row in range(rows):
            folder = f"pictures/{row // FOLDER:04d}"
            if row % FOLDER == 0:
                (root / folder).mkdir(parents=True)
            name = f"{folder}/{row:08d}.jpg"
            os.link(originals[row // LINKS], root / name)
            table.writerow((name, f"class {labels[row]}", f"p{row // 4:06d}", 20 + row % 70, ("PA", "AP")[views[row]]))
    return root / "films.csv"


def measure(path: Path, options: argparse.Namespace) -> dict[str, object]:
    """Seconds of each stage, and the most memory that was held until its end."""
    import torch

    from vitrail.data.loader import iter_batches, load_images
    from vitrail.data.open import open_source
    from vitrail.data.settings import DataSettings
    from vitrail.data.splits import make_splits
    from vitrail.spec import ImageSpec

    found: dict[str, object] = {"batches": options.batches, "batch": options.batch, "side": options.side}
    found |= {"workers": options.workers, "torch": torch.__version__, "import_peak_bytes": peak()}
    settings = DataSettings(source=str(path), group="Patient ID")
    began = time.perf_counter()
    source = open_source(str(path), settings)
    found |= {"rows": len(source), "index_seconds": time.perf_counter() - began, "index_peak_bytes": peak()}
    began = time.perf_counter()
    splits = make_splits(source, settings, seed=0)
    found |= {"split_seconds": time.perf_counter() - began, "split_peak_bytes": peak()}
    found |= {f"{split}_rows": len(rows) for split, rows in splits.items()}
    spec = ImageSpec(height=options.side, width=options.side)
    began = time.perf_counter()
    pictures = load_images(source, splits["train"], spec, limit_bytes=0, num_workers=options.workers)
    batches = iter_batches(pictures, source.targets[splits["train"]], options.batch, seed=0)
    total = sum(int(next(batches)[2].images[0, 0, 0, 0]) for _ in range(options.batches))
    found |= {"batch_seconds": time.perf_counter() - began, "peak_bytes": peak(), "first_pixels": total}
    return found


def peak() -> int:
    """The most memory that this process and its finished children held, in bytes."""
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1024 * (own + children)


if __name__ == "__main__":
    main()
