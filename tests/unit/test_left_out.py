"""What our own conftest leaves out of a run, it counts and names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", range(4))
def test_slow(case): pass

@pytest.mark.needs_compiler
def test_compiles(): assert False, "there is no compiler here"

def test_quick(): pass
"""


@pytest.fixture
def run(tmp_path):
    """Run a small suite under our conftest on a machine without a compiler."""
    tests = tmp_path / "tests"
    (tests / "unit").mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tests)
    (tests / "unit" / "test_some.py").write_text(SUITE)
    marks = "markers=slow\n needs_compiler"

    def run_pytest(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        surroundings = os.environ | {"PATH": "", "VITRAIL_SHAPES": "0", "VITRAIL_REQUIRE_ALL": "0", **environment}
        command = [sys.executable, "-m", "pytest", "-q", "-o", marks, *flags, "tests"]
        return subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)

    return run_pytest


def test_slow_tests_run_their_first_case_and_absent_needs_are_counted(run):
    done = run()
    assert done.returncode == 0, done.stdout
    assert "2 passed, 4 deselected" in done.stdout.splitlines()[-1]
    assert "left out: 1 tests that need a C++ compiler (apt-get install build-essential)" in done.stdout
    assert "left out: 3 tests that are further cases of slow tests (run them with --all)" in done.stdout
    assert "unit             2 tests" in done.stdout


def test_all_runs_every_case_of_slow_tests(run):
    assert "5 passed, 1 deselected" in run("--all").stdout


def test_an_absent_need_is_an_error_where_everything_is_required(run):
    done = run(VITRAIL_REQUIRE_ALL="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "VITRAIL_REQUIRE_ALL=1, but tests such as tests/unit/test_some.py::test_compiles need a C++" in done.stderr
