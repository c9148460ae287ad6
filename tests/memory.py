"""How much memory a process has held at its highest point."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak(reset: bool = False) -> float:
    """The most memory that this process has held, in MiB; on Linux since the last reset.

    `ru_maxrss` alone would not do: a new process begins with the peak of the one that started it.
    """
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    except OSError:
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
