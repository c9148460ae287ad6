"""Help is an answer of a third of a second, and stored predictions are read at once: torch alone takes two seconds."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stored_runs import store_run
from vitrail.cli.main import COMMANDS
from vitrail.report.saliency import load_explanations

SECONDS = 0.3
HEAVY = ("torch", "numpy", "scipy", "sklearn", "PIL", "matplotlib", "jinja2", "rich", "safetensors")


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(words):
    done = run_without(HEAVY, words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]], ids=" ".join)
def test_help_takes_less_than_a_third_of_a_second_of_the_processor(words):
    assert min(cpu_seconds([sys.executable, "-m", "vitrail", *words]) for _ in range(3)) < SECONDS


def cpu_seconds(line: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(line, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run_without(heavy: tuple[str, ...], words: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which fails if it imports one of these libraries."""
    script = (
        "import sys\n"
        "from vitrail.cli.main import main\n"
        f"assert main({words!r}) == {code}\n"
        f"found = [name for name in {heavy!r} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_a_decision_of_stored_predictions_loads_no_model_library(tmp_path):
    run = store_run(tmp_path / "run")
    words = ["decide", str(run), "--rule", "cost 20", "--positive", "defect", "--keep", "clinic", "--use", "clinic"]
    done = run_without(("torch", "sklearn", "matplotlib", "safetensors"), words)
    assert done.returncode == 0 and "Loading PyTorch" not in done.stderr, done.stderr
    assert "val: 400 pictures" in done.stdout


@pytest.mark.wide
def test_a_report_is_built_again_without_torch(run_folder, tmp_path):
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    (run / "report.html").unlink()
    assert load_explanations(run) is not None, "its maps are drawn"
    done = run_without(("torch", "sklearn"), ["report", str(run)])
    assert done.returncode == 0 and "Loading PyTorch" not in done.stderr, done.stderr
    assert "data:image" in (run / "report.html").read_text()


def test_a_table_that_cannot_be_learnt_from_is_told_before_torch_is_loaded(tmp_path):
    (tmp_path / "export.csv").write_text("path,Befund,Maker\n1.png,a,x\n2.png,b,y\n3.png,a,y\n")
    done = run_without(("torch",), ["check", str(tmp_path / "export.csv")], code=3)
    assert done.returncode == 0 and "2 columns that may be learnt" in done.stderr, done.stderr
    assert "Loading PyTorch" not in done.stderr


def test_a_check_that_finds_nothing_and_its_page_need_no_torch(flowers, tmp_path):
    done = run_without(("torch",), ["check", str(flowers), "--out", str(tmp_path / "checked")])
    assert done.returncode == 0 and "Loading PyTorch" not in done.stderr, done.stderr
    assert "Nothing here stops a training." in done.stdout and (tmp_path / "checked" / "check.html").is_file()
