"""The most memory that something takes: of the process on a CPU, of torch on a GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from ..train.planning import cost_estimate


def forget(device: str) -> bool:
    """Begin anew; whether that could be done, for on a CPU only Linux lets a process forget its highest point."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def highest(device: str) -> int:
    """Bytes at the highest point since `forget`: of the whole process on a CPU, libraries included."""
    return cost_estimate.measure_peak_memory(device)
