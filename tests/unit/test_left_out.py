"""What our own conftest leaves out of a run, it counts and names; which tests are wide; and what a file may take."""

from __future__ import annotations

import json
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
GRID = """
import pytest, time

@pytest.mark.first(2)
@pytest.mark.parametrize("case", range(5))
def test_first(case): pass

@pytest.mark.each_value
@pytest.mark.parametrize("one", "abc")
@pytest.mark.parametrize("other", "xyz")
def test_grid(one, other): pass

@pytest.mark.wide
def test_wide(): pass

def test_long():
    until = time.process_time() + 0.3
    while time.process_time() < until: pass
"""


@pytest.fixture
def run(tmp_path):
    """Run a small suite under our conftest on a machine without a compiler."""
    tests = tmp_path / "tests"
    (tests / "unit").mkdir(parents=True)
    for name in ("conftest.py", "suites.py", "shapes.py"):
        shutil.copy(Path(__file__).parents[1] / name, tests)
    (tests / "unit" / "test_some.py").write_text(SUITE)
    (tests / "unit" / "test_grid.py").write_text(GRID)
    marks = "markers=slow\n needs_compiler\n first\n each_value\n wide\n serial"

    def run_pytest(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        surroundings = ours | {"PATH": "", "VITRAIL_SHAPES": "0", "VITRAIL_REQUIRE_ALL": "0", **environment}
        file = "grid" if "-m" in flags else "some"
        command = [sys.executable, "-m", "pytest", "-q", "-o", marks, "-o", "pythonpath=tests", *flags]
        command.append(f"tests/unit/test_{file}.py")
        return subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)

    return run_pytest


def test_slow_tests_run_their_first_case_and_absent_needs_are_counted(run):
    done = run()
    assert done.returncode == 0, done.stdout
    assert "2 passed, 4 deselected" in done.stdout.splitlines()[-1]
    assert "left out: 1 tests that need a C++ compiler (apt-get install build-essential)" in done.stdout
    assert "left out: 3 tests that are further cases of slow tests (run them with --all)" in done.stdout
    assert "unit             2 tests" in done.stdout


@pytest.mark.wide
def test_all_runs_every_case_of_slow_tests(run):
    assert "5 passed, 1 deselected" in run("--all").stdout


@pytest.mark.wide
def test_an_absent_need_is_an_error_where_everything_is_required(run):
    done = run(VITRAIL_REQUIRE_ALL="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "VITRAIL_REQUIRE_ALL=1, but tests need a C++ compiler" in done.stderr


def test_of_grids_a_few_cases_stay_and_a_file_that_takes_longer_than_it_may_fails_the_run(run, tmp_path):
    """Of 3 x 3 cases those five that show a value for the first time."""
    done = run("-m", "not wide", "--seconds-to", "kept/seconds.json", "--seconds-limit", "0.01")
    assert "8 passed, 8 deselected" in done.stdout.splitlines()[-1]
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "TOO LONG: tests/unit/test_grid.py took" in done.stdout
    kept = json.loads((tmp_path / "kept" / "seconds.json").read_text())
    assert kept["files"]["tests/unit/test_grid.py"]["tests"] == 8 and kept["slowness"] >= 1


@pytest.mark.wide
def test_what_stays_in_no_run_is_in_the_other(run):
    done = run("-m", "wide", "--seconds-limit", "20")
    assert "8 passed, 8 deselected" in done.stdout.splitlines()[-1] and done.returncode == 0


@pytest.mark.wide
def test_two_workers_run_and_count_what_one_does(run):
    done = run("-n", "2")
    assert "2 passed" in done.stdout.splitlines()[-1] and "unit             2 tests" in done.stdout
    assert "left out: 1 tests that need a C++ compiler" in done.stdout
    done = run("-n", "2", VITRAIL_REQUIRE_ALL="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "VITRAIL_REQUIRE_ALL=1, but tests need a C++ compiler" in done.stderr
