"""The training step compiles as one graph, and gives what it gives uncompiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

PROGRAM = Path(__file__).parents[3] / "compiled_step.py"


def compiled(*words: str) -> dict[str, tuple[float, float]]:
    """What tests/compiled_step.py prints."""
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), *words], capture_output=True, text=True, timeout=280
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return json.loads(answer.stdout)


def test_no_training_step_breaks_its_graph():
    found = compiled("aot_eager")
    assert len(found) == 6
    for name, (loss, gradients) in found.items():
        limit = 0.02 if "bfloat16" in name else 1e-5
        assert loss < limit and gradients < limit, name


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("name", ["mixed, half of the patches", "labels"])
def test_a_step_in_machine_code_gives_the_same(name):
    loss, gradients = compiled("inductor", name)[name]
    assert loss < 1e-5 and gradients < 1e-5
