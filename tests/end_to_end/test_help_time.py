"""Help is an answer of a third of a second: torch alone would cost six times that."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from vitrail.cli.main import COMMANDS

SECONDS = 0.3
HEAVY = ("torch", "numpy", "scipy", "sklearn", "PIL", "matplotlib", "jinja2", "rich", "safetensors")


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(words):
    script = (
        "import sys\n"
        "from vitrail.cli.main import main\n"
        f"assert main({words!r}) == 0\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]], ids=" ".join)
def test_help_takes_less_than_a_third_of_a_second_of_the_processor(words):
    assert min(cpu_seconds([sys.executable, "-m", "vitrail", *words]) for _ in range(3)) < SECONDS


def cpu_seconds(line: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(line, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
