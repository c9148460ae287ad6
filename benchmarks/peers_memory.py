"""The highest memory of a training step of ViT-B/16: ours beside timm's, all kept or blocks computed twice.

    python benchmarks/peers_memory.py           # five minutes on two cores; what else runs does no harm
    python benchmarks/peers_memory.py --quick   # a tiny shape, nothing written

Each contestant is a process of its own, like those of peers.py: two steps of AdamW of eight pictures at 224, the
highest point of the process less what it held after two such steps of a tiny model. Required: with everything kept not
above timm's, and with checkpointing (timm's set_grad_checkpointing, our `recompute`) at most half of timm's without.
timm's better setting for speed in bfloat16 is not fused, and ours for the same reason by itself (`attention="auto"`).
Weights, their gradients and AdamW's two moments are 1,385 MB of all of these, and no checkpointing makes them less; the
last figure leaves them out on both sides.
Writes benchmarks/results/peers-memory.json; rows that it has are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from making.children import Running
from making.records import RESULTS, Results, Row, commit
from peers import machine

WAYS: dict[str, dict[str, Any]] = {
    "vitrail": {"library": "vitrail"},
    "vitrail, fused": {"library": "vitrail", "attention": "fused"},
    "vitrail, recomputed": {"library": "vitrail", "recompute": True},
    "timm": {"library": "timm"},
    "timm, not fused": {"library": "timm", "fused": False},
    "timm, recomputed": {"library": "timm", "recompute": True},
}
FORMATS = ("bfloat16", "float32")


def main() -> None:
    """Measure what is missing and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny shape, nothing written")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    shape = "quick" if options.quick else "B/16"
    with tempfile.TemporaryDirectory() as nowhere:
        results = Results("peers-memory", Path(nowhere) if options.quick else RESULTS)
        for number_format in FORMATS:
            for way in WAYS:
                key = {"shape": shape, "format": number_format, "way": way, "threads": options.threads}
                row = results.row(key, partial(measure_contestant, shape, number_format, way, options.threads))
                print(f"{number_format} {way:<22} {row['memory'] / 1e6:8,.0f} MB", flush=True)
        found = {number_format: compare_memory(results.rows, number_format) for number_format in FORMATS}
        results.write({"command": "python benchmarks/peers_memory.py", "compared": found})
        print(json.dumps(found, indent=1))


def measure_contestant(shape: str, number_format: str, way: str, threads: int) -> Row:
    """One contestant alone.

    Raises:
        Died: it has died, with its last words.
    """
    usual = {"mode": "training", "compiled": False, "fused": True, "cast": False, "own": False}
    child = Running({**usual, "shape": shape, "format": number_format, "threads": threads, **WAYS[way]})
    try:
        answer = child.ask("warm")
    finally:
        child.end()
    kept = {name: answer[name] for name in ("memory", "parameters")}
    return {**kept, "machine": machine(), "commit": commit()}


def compare_memory(rows: list[Row], number_format: str) -> dict[str, float]:
    """Ours over timm's at the same kind of attention, and ours with blocks computed twice over timm's without."""
    here = [row for row in rows if row["format"] == number_format]
    found = {row["way"]: float(row["memory"]) for row in here}
    state = 4 * 4 * here[0]["parameters"]
    return {
        "as they come": found["vitrail"] / found["timm"],
        "both fused": found["vitrail, fused"] / found["timm"],
        "ours over timm's better setting for speed": found["vitrail"] / found["timm, not fused"],
        "recomputed over timm's all kept": found["vitrail, recomputed"] / found["timm"],
        "both recomputed": found["vitrail, recomputed"] / found["timm, recomputed"],
        "activations alone: recomputed over timm's all kept": (found["vitrail, recomputed"] - state)
        / (found["timm"] - state),
    }


if __name__ == "__main__":
    main()
