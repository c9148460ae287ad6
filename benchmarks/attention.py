"""Fused kernel against two products and a softmax: which is faster, for which token counts, with and without gradients.

    python benchmarks/attention.py                     # the table behind model/attention.py, about three minutes
    python benchmarks/attention.py --model             # the whole training step of the 6x128, patch-4, 49-token model

Both print a table and write benchmarks/results/attention-*.json. Runs are interleaved (fused, open, fused, open),
figures are medians, and nothing else should be running.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from vitrail.model.attention import attend, place
from vitrail.model.sizes import named
from vitrail.model.vit import create
from vitrail.runtime import cpu_name

RESULTS = Path(__file__).parent / "results"
TOKENS = (16, 25, 49, 65, 101, 145, 197, 257)
REPEATS = 5
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="store_true", help="whole training step instead of attention alone")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [model_row(name, options.batch) for name in FORMATS] if options.model else list(attention_rows())
    result = {"machine": machine(), "rows": rows}
    kind = "model" if options.model else "alone"
    path = RESULTS / f"attention-{kind}-{place('cpu').lower()}.json"
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


def attention_rows() -> list[dict[str, object]]:
    """Attention alone, 4 heads of 32, about 6,000 tokens a batch."""
    rows = []
    print(f"{'format':9} {'gradients':9} {'tokens':>6} {'fused ms':>9} {'open ms':>9} {'fused/open':>10}")
    for name, dtype in FORMATS.items():
        for gradients in (True, False):
            for tokens in TOKENS:
                shape = (max(1, 6000 // tokens), 4, tokens, 32)
                q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=gradients) for _ in range(3))
                fused, open_ = interleaved(lambda path: once(q, k, v, path, gradients))  # noqa: B023 (called at once)
                rows.append(row(name, gradients, tokens, fused, open_))
    return rows


def once(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, path: str, gradients: bool) -> None:
    """One forward pass, and the backward pass where gradients flow."""
    with torch.set_grad_enabled(gradients):
        y = attend(q, k, v, 32**-0.5, 0.0, "fused" if path == "fused" else "open")
        if gradients:
            y.sum().backward()


def model_row(name: str, batch: int) -> dict[str, object]:
    """Forward and backward of the 6x128, patch-4, 49-token model, its attention forced either way."""
    config = dataclasses.replace(named("vit_nano_patch4_28"), channels=1, outputs=10)
    models = {path: create(dataclasses.replace(config, attention=path)).train() for path in ("fused", "open")}
    images, targets = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step(path: str) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bfloat16"):
            logits = models[path](images)
        F.cross_entropy(logits.float(), targets).backward()
        models[path].zero_grad()

    fused, open_ = interleaved(step)
    found = row(name, True, config.tokens, fused, open_)
    print(f"{name}: {batch / fused:.0f} images/s fused, {batch / open_:.0f} open, batch {batch}")
    return found | {"batch": batch, "fused_images_per_second": batch / fused, "open_images_per_second": batch / open_}


def interleaved(run: Callable[[str], None]) -> tuple[float, float]:
    """Median seconds of both paths, in turn."""
    seconds: dict[str, list[float]] = {"fused": [], "open": []}
    for path in seconds:
        run(path)
    for _ in range(REPEATS):
        for path, taken in seconds.items():
            began = time.perf_counter()
            run(path)
            taken.append(time.perf_counter() - began)
    return statistics.median(seconds["fused"]), statistics.median(seconds["open"])


def row(name: str, gradients: bool, tokens: int, fused: float, open_: float) -> dict[str, object]:
    """A line of the table, printed and kept."""
    print(
        f"{name:9} {gradients!s:9} {tokens:6} {fused * 1e3:9.2f} {open_ * 1e3:9.2f} {fused / open_:10.2f}", flush=True
    )
    return {
        "number_format": name, "gradients": gradients, "tokens": tokens,
        "fused_seconds": fused, "open_seconds": open_, "repeats": REPEATS,
    }  # fmt: skip


def machine() -> dict[str, object]:
    """What the figures were taken on, with the rate of a large product beside them as the limit."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    rates = {}
    for name, dtype in FORMATS.items():
        x, y = a.to(dtype), b.to(dtype)
        seconds = []
        for _ in range(4):
            began = time.perf_counter()
            x @ y
            seconds.append(time.perf_counter() - began)
        rates[name] = round(2 * 2048**3 / statistics.median(seconds[1:]) / 1e9, 1)
    return {
        "cpu": cpu_name(),
        "capability": place("cpu"),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "matrix_gflops": rates,
    }


if __name__ == "__main__":
    main()
