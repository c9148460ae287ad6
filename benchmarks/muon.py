"""One optimiser step of our batched Muon against torch's own, on the matrices of named models.

    python benchmarks/muon.py

Interleaved (ours, torch's, ours, torch's), medians of nine; writes benchmarks/results/muon-*.json.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch
from attention import machine

from vitrail.model.attention import device_capability
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.runtime import cpu_supports_bfloat16
from vitrail.train.optim import Muon

RESULTS = Path(__file__).parent / "results"
NAMES = ("vit_pico_patch4_28", "vit_nano_patch4_28", "vit_tiny_patch16_224")
REPEATS = 9


def main() -> None:
    """Time both on every model, print the table and keep it."""
    rows = [compare(name) for name in NAMES]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"muon-{device_capability('cpu').lower()}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written to {path}")


def compare(name: str) -> dict[str, object]:
    """Median seconds of a step that moves every matrix of the blocks."""
    matrices = [
        p for key, p in create_model(config_from_name(name)).named_parameters() if p.ndim == 2 and ".blocks." in key
    ]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    joint = [matrix for matrix in matrices if matrix.shape[0] == 3 * matrix.shape[1]]
    single = [matrix for matrix in matrices if matrix.shape[0] != 3 * matrix.shape[1]]
    compute = torch.bfloat16 if cpu_supports_bfloat16() else torch.float32  # as train/stepping/optimizer.py chooses
    optimizers = {
        "ours": Muon([{"params": joint, "parts": 3}, {"params": single}], lr=1e-6, compute=compute),
        "torch": torch.optim.Muon(matrices, lr=1e-6),
    }
    seconds: dict[str, list[float]] = {"ours": [], "torch": []}
    for repeat in range(REPEATS + 1):
        for key, optimizer in optimizers.items():
            began = time.perf_counter()
            optimizer.step()
            if repeat:
                seconds[key].append(time.perf_counter() - began)
    ours, theirs = (statistics.median(seconds[key]) for key in ("ours", "torch"))
    print(f"{name:22} ours {ours * 1e3:8.1f} ms   torch's {theirs * 1e3:8.1f} ms   {theirs / ours:5.1f} times")
    return {"model": name, "ours_seconds": ours, "torch_seconds": theirs, "repeats": REPEATS}


if __name__ == "__main__":
    main()
