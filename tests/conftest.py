"""Every test: shapes checked, seeds fixed, two threads; what cannot run here is left out, counted and named.

`--all` runs every case of slow tests, not only the first of each. VITRAIL_REQUIRE_ALL=1 makes it an error to lack
something that a test needs. VITRAIL_SHAPES=0 leaves shapes unchecked.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import hypothesis
import jaxtyping
import numpy as np
import pytest

TESTS = Path(__file__).parent
os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as vitrail itself sets it where it is imported before torch
os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import of huggingface_hub: no test asks the network

if os.environ.get("VITRAIL_SHAPES") != "0":
    jaxtyping.install_import_hook("vitrail", "shapes.checked")  # must come before the first import of vitrail

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("house")


def declare_torchvision_operators() -> None:
    """Let torchvision, timm and transformers import as oracles beside a CPU-only torch (Vitrail never imports them).

    The registry's torchvision is built for CUDA: its library does not load there, and its Python code then misses the
    declarations of two operators. A torchvision built for the CPU declares them itself.
    """
    try:
        version = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return
    import torch

    if torch.version.cuda is None and not version.endswith("+cpu"):
        torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


declare_torchvision_operators()


@pytest.fixture(scope="session", autouse=True)
def two_threads() -> None:
    """Bits depend on the thread count, and the machine is shared."""
    import torch

    torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Whatever a test draws without saying so is the same every time."""
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for libraries that draw from the global generator
    torch.manual_seed(0)


BOOK = ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "nbclient", "ipykernel")
NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "needs_compiler": (
        "a C++ compiler (apt-get install build-essential)",
        lambda: any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")),
    ),
    "needs_apt_data": (
        "Fashion-MNIST (apt-get install dataset-fashion-mnist)",
        lambda: Path("/usr/share/datasets/fashion-mnist").is_dir(),
    ),
    "needs_chromium": (
        "a browser (apt-get install chromium)",
        lambda: any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")),
    ),
    "needs_book": (
        "what builds the book (pip install -c constraints.txt -e .[docs])",
        lambda: all(importlib.util.find_spec(name) is not None for name in BOOK),
    ),
    "needs_hatchling": (
        "what builds the package (pip install -c constraints.txt -e .[dev])",
        lambda: importlib.util.find_spec("hatchling") is not None,
    ),
    "needs_ray": (
        "Ray (pip install -c constraints.txt 'ray[data,train]')",
        lambda: all(importlib.util.find_spec(name) is not None for name in ("ray", "pyarrow", "pydantic")),
    ),
    "needs_ray_serve": (
        "Ray Serve (pip install -c constraints.txt 'ray[serve]')",
        lambda: all(importlib.util.find_spec(name) is not None for name in ("ray", "grpc", "aiohttp")),
    ),
    "needs_real_dinov2": (
        "published weights (benchmarks/making/real_dinov2.py makes a folder; name it in VITRAIL_DINOV2)",
        lambda: bool(os.environ.get("VITRAIL_DINOV2")),
    ),
}
"""Markers: what their tests need, and whether it is here."""

LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every case of slow tests, not only the first of each")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Suites(), "vitrail-suites")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {marker: need for marker, (need, present) in NEEDS.items() if not present()}
    slow_seen: set[str] = set()
    reasons: Counter[str] = Counter()
    kept, dropped = [], []
    for item in items:
        lacking = [marker for marker in absent if item.get_closest_marker(marker)]
        reason = f"need {absent[lacking[0]]}" if lacking else None
        if lacking and os.environ.get("VITRAIL_REQUIRE_ALL") == "1":
            raise pytest.UsageError(f"VITRAIL_REQUIRE_ALL=1, but tests such as {item.nodeid} {reason}.")
        if reason is None and item.get_closest_marker("slow") and not config.getoption("--all"):
            test = item.nodeid.partition("[")[0]
            reason = "are further cases of slow tests (run them with --all)" if test in slow_seen else None
            slow_seen.add(test)
        reasons.update([reason] if reason else [])
        (dropped if reason else kept).append(item)
    config.stash[LEFT_OUT] = reasons
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


SLOW_FILES = 12
"""So many files are named after the suites: where the time goes."""


class Suites:
    """How many tests ran and for how long, folder by folder, and the slowest files."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.files: defaultdict[str, float] = defaultdict(float)
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        folder = Path(file).parts[1:-1]
        suite = folder[0] if folder else "top level"
        self.seconds[suite] += report.duration
        self.files[file] += report.duration
        self.tests[suite] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        write = terminalreporter.write_line
        write("")
        for suite in sorted(self.seconds, key=self.seconds.__getitem__, reverse=True):
            write(f"{suite:<12} {self.tests[suite]:>5} tests {self.seconds[suite]:>8.1f} s")
        for file in sorted(self.files, key=self.files.__getitem__, reverse=True)[:SLOW_FILES]:
            if self.files[file] >= 10:
                write(f"{self.files[file]:>28.1f} s in {file}")
        for reason, count in config.stash.get(LEFT_OUT, Counter()).items():
            write(f"left out: {count} tests that {reason}")
