"""Fused kernel against two products and a softmax: which is faster, for which token counts, with and without gradients.

    python benchmarks/attention.py                     # the table behind model/attention.py, about three minutes
    python benchmarks/attention.py --model             # the whole training step of the 6x128, patch-4, 49-token model

Both print a table and write benchmarks/results/attention-*.json. Runs are interleaved (fused, open, fused, open),
figures are medians, and nothing else should be running. The first is `vitrail bench --attention`, which also says what
should change in the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from pathlib import Path

import torch
import torch.nn.functional as F

from vitrail.bench import measure
from vitrail.bench.attention_table import compare_paths, propose_changes, time_both_paths
from vitrail.bench.measure import InterleavedTimer, Timing
from vitrail.evaluate.inference import DTYPES
from vitrail.model.attention import device_capability
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.runtime import cpu_name
from vitrail.services.benchmarking import format_attention_results

RESULTS = Path(__file__).parent / "results"
REPEATS = 5
MEASURED_FORMATS = ("float32", "bfloat16")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="store_true", help="whole training step instead of attention alone")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [model_row(name, options.batch) for name in MEASURED_FORMATS] if options.model else attention_rows()
    result = {"machine": machine(), "rows": rows}
    kind = "model" if options.model else "alone"
    path = RESULTS / f"attention-{kind}-{device_capability('cpu').lower()}.json"
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


def attention_rows() -> list[dict[str, object]]:
    """Attention alone, 6 heads of 64, about 3,000 tokens a batch."""
    found = list(compare_paths("cpu", MEASURED_FORMATS, num_rounds=REPEATS))
    print(format_attention_results(found, propose_changes(found, "cpu")))
    return [row(one.precision, one.gradients, one.tokens, one.fused, one.open) for one in found]


def model_row(name: str, batch: int) -> dict[str, object]:
    """Forward and backward of the 6x128, patch-4, 49-token model, its attention forced either way."""
    config = dataclasses.replace(config_from_name("vit_nano_patch4_28"), channels=1, outputs=10)
    models = {path: create_model(dataclasses.replace(config, attention=path)).train() for path in ("fused", "open")}
    images, targets = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step(path: str) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bfloat16"):
            logits = models[path](images)
        F.cross_entropy(logits.float(), targets).backward()
        models[path].zero_grad()

    fused, open_ = time_both_paths(step, "cpu", REPEATS)
    rates = {"fused_images_per_second": batch / fused.median, "open_images_per_second": batch / open_.median}
    print(f"{name}: {batch / fused.median:.0f} images/s fused, {batch / open_.median:.0f} open, batch {batch}")
    return row(name, True, config.tokens, fused, open_) | {"batch": batch} | rates


def row(name: str, gradients: bool, tokens: int, fused: Timing, open_: Timing) -> dict[str, object]:
    """What is kept of both paths."""
    return {
        "number_format": name, "gradients": gradients, "tokens": tokens,
        "fused_seconds": fused.median, "open_seconds": open_.median, "repeats": fused.rounds,
    }  # fmt: skip


def machine() -> dict[str, object]:
    """What the figures were taken on, with the rate of a large product beside them as the limit."""
    bounds = {name: measure.make_matmul_limit(DTYPES[name], "cpu") for name in MEASURED_FORMATS}
    clock = InterleavedTimer({name: bound.job for name, bound in bounds.items()})
    clock.run(3)
    return {
        "cpu": cpu_name(),
        "capability": device_capability("cpu"),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "matrix_gflops": {
            name: round(bound.amount / clock.timing(name).median / 1e9, 1) for name, bound in bounds.items()
        },
    }


if __name__ == "__main__":
    main()
