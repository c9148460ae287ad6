"""What a map costs beside a forward pass: seconds and memory of every method, on one picture.

    python benchmarks/explaining.py                     # ViT-B/16 at 224 pixels, every method
    python benchmarks/explaining.py --large             # also ViT-L/14 at 518 pixels, the default method: some minutes

The promise: the default map takes at most three forward passes, ViT-B/16 at most 2 seconds on two cores, and ViT-L at
518 pixels at most 8 GiB. Runs are interleaved with forward passes, figures are medians, and nothing else should be
running. Every method is measured in a process of its own, so that its peak of memory is its own. Prints a table and
writes benchmarks/results/explaining.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from vitrail.explain.methods import METHODS, MethodOptions, default_method, explain_images
from vitrail.model.config import ViTConfig
from vitrail.model.registry import config_from_name
from vitrail.model.vit import ViT, create_model
from vitrail.runtime import cpu_name

RESULTS = Path(__file__).parent / "results"
BASE, LARGE = "vit_base_patch16_224", "vit_large_patch14_518"
FORWARD = "forward"
FEW = ("integrated", "occlusion")
"""Methods of tens of passes, measured once; as is the large model."""
REPEATS = 5


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also a ViT-L/14 at 518 pixels")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", nargs=2, metavar=("MODEL", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.alone:
        print(json.dumps(measure_methods(*options.alone)))
        return
    todo = [(BASE, method) for method in (FORWARD, *METHODS)]
    todo += [(LARGE, FORWARD), (LARGE, "relevance")] if options.large else []
    rows = []
    print(f"{'model':22} {'method':11} {'seconds':>8} {'x forward':>9} {'peak MB':>8}")
    for name, method in todo:
        row = in_own_process(name, method, options.threads)
        rows.append(row)
        print(f"{name:22} {method:11} {row['seconds']:8.3f} {row['times']:9.2f} {row['peak_mb']:8.0f}", flush=True)
    machine = {"cpu": cpu_name(), "torch": torch.__version__, "threads": options.threads, "system": platform.platform()}
    path = RESULTS / "explaining.json"
    path.write_text(
        json.dumps({"machine": machine, "default": default_method(config_of(BASE)), "rows": rows}, indent=1) + "\n"
    )
    print(f"written to {path}")


def in_own_process(name: str, method: str, threads: int) -> dict[str, object]:
    """One row of the table."""
    line = [sys.executable, __file__, "--threads", str(threads), "--alone", name, method]
    return json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


def measure_methods(name: str, method: str) -> dict[str, object]:
    """Medians of forward pass and map, turn by turn, and the highest memory of this process."""
    model = create_model(config_of(name), seed=0).eval()
    images = torch.randn(1, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    options_of = MethodOptions(patch=1) if method == "similarity" else MethodOptions()

    def explain_batch() -> None:
        if method == FORWARD:
            forward(model, images)
        else:
            explain_images(model, images, method, options=options_of)

    repeats = 1 if method in FEW or name == LARGE else REPEATS
    forward(model, images)
    explain_batch()
    pairs = [(seconds(lambda: forward(model, images)), seconds(explain_batch)) for _ in range(repeats)]
    passes, maps = (statistics.median(column) for column in zip(*pairs, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    return {
        "model": name, "method": method, "seconds": maps, "forward_seconds": passes, "times": maps / passes,
        "peak_mb": peak,
    }  # fmt: skip


def config_of(name: str) -> ViTConfig:
    """A named size, with values that are not zero from the start."""
    return replace(config_from_name(name), init="torch")


def forward(model: ViT, images: torch.Tensor) -> None:
    """What a prediction costs."""
    with torch.inference_mode():
        model(images)


def seconds(work: Callable[[], None]) -> float:
    """Wall clock of one run."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
