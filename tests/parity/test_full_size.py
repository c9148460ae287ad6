"""A full-size file: the peak of memory, and the answers of its own library. benchmarks/load.py does it for seven."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "load.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    "case", ["dinov3-small-transformers", "b16-augreg-npz", "b16-torchvision-pth", "deit-b16-distilled-pth"]
)
def test_it_takes_little_memory_and_answers_as_its_own_library(case, tmp_path):
    words = [sys.executable, str(BENCHMARK), "--only", case, "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / f"load-{case}.json").read_text())
    assert row["times_the_file"] <= 2.2
    assert row["largest_difference"] <= 1e-4 * max(1.0, row["largest_answer"])
