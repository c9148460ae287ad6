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
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest

import shapes
from suites import FURTHER, WORKER, Division, Seconds

TESTS = Path(__file__).parent
os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as vitrail itself sets it where it is imported before torch
os.environ.pop("COLUMNS", None)  # tables are as wide as they like, whatever terminal or worker runs the tests
os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import of huggingface_hub: no test asks the network

if os.environ.get("VITRAIL_SHAPES") != "0":
    shapes.check_on_import("vitrail")  # must come before the first import of vitrail

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
def one_or_two_threads() -> None:
    """Bits depend on the thread count, and the machine is shared: one thread in each of several workers."""
    import torch

    torch.set_num_threads(1 if WORKER else 2)


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
    "needs_pyright": (
        "pyright (pip install -c constraints.txt basedpyright)",
        lambda: importlib.util.find_spec("basedpyright") is not None,
    ),
    "needs_ray": (
        "Ray (pip install -c constraints.txt 'ray[data,train]')",
        lambda: all(importlib.util.find_spec(name) is not None for name in ("ray", "pyarrow", "pydantic")),
    ),
    "needs_ray_serve": (
        "Ray Serve (pip install -c constraints.txt 'ray[serve]')",
        lambda: all(importlib.util.find_spec(name) is not None for name in ("ray", "grpc", "aiohttp")),
    ),
    "needs_accelerate": (
        "Accelerate (pip install -c constraints.txt accelerate)",
        lambda: importlib.util.find_spec("accelerate") is not None,
    ),
    "needs_real_dinov2": (
        "published weights (benchmarks/making/real_dinov2.py makes a folder; name it in VITRAIL_DINOV2)",
        lambda: bool(os.environ.get("VITRAIL_DINOV2")),
    ),
    "needs_old_vit_pytorch": (
        "vit-pytorch 1.15.7 (pip install --no-deps --target FOLDER; name FOLDER in VITRAIL_OLD_VIT_PYTORCH)",
        lambda: bool(os.environ.get("VITRAIL_OLD_VIT_PYTORCH")),
    ),
    "needs_tritonclient": (
        "Triton's messages (pip install --no-deps tritonclient==2.73.0)",
        lambda: importlib.util.find_spec("tritonclient") is not None,
    ),
    "needs_openvino": (
        "OpenVINO (pip install -c constraints.txt openvino)",
        lambda: importlib.util.find_spec("openvino") is not None,
    ),
    "needs_kubernetes": (
        "the models of Kubernetes' client (pip install --no-deps kubernetes==37.0.2)",
        lambda: importlib.util.find_spec("kubernetes") is not None,
    ),
    "needs_mlflow": (
        "MLflow (pip install -c constraints.txt mlflow-skinny pandas)",
        lambda: importlib.util.find_spec("mlflow") is not None,
    ),
    "needs_mask_oracles": (
        "torchmetrics and pycocotools (pip install -c constraints.txt torchmetrics pycocotools)",
        lambda: all(importlib.util.find_spec(name) is not None for name in ("torchmetrics", "pycocotools")),
    ),
    "needs_onnxruntime_web": (
        "onnxruntime-web 1.30.0 (npm pack onnxruntime-web@1.30.0; name the file in VITRAIL_ONNXRUNTIME_WEB)",
        lambda: bool(os.environ.get("VITRAIL_ONNXRUNTIME_WEB")),
    ),
}
"""Markers: what their tests need, and whether it is here."""

LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every case of slow tests, not only the first of each")
    parser.addoption("--seconds-to", metavar="FILE", help="write the seconds of every file of tests as JSON")
    parser.addoption("--seconds-limit", type=float, metavar="S", help="fail where a file of tests takes longer")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("VITRAIL_REQUIRE_ALL") == "1" and config.getoption("numprocesses", None):
        for need, present in NEEDS.values():  # here, for what a worker raises is not told
            if not present():
                raise pytest.UsageError(f"VITRAIL_REQUIRE_ALL=1, but tests need {need}.")
    config.pluginmanager.register(Division(), "vitrail-division")
    counted = Seconds(config.getoption("--seconds-to"), config.getoption("--seconds-limit"))
    config.pluginmanager.register(counted, "vitrail-seconds")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {marker: need for marker, (need, present) in NEEDS.items() if not present()}
    reasons: Counter[str] = Counter()
    kept, dropped = [], []
    for item in items:
        lacking = [marker for marker in absent if item.get_closest_marker(marker)]
        reason = f"need {absent[lacking[0]]}" if lacking else None
        if lacking and os.environ.get("VITRAIL_REQUIRE_ALL") == "1":
            raise pytest.UsageError(f"VITRAIL_REQUIRE_ALL=1, but tests {reason}, such as {item.nodeid}.")
        if reason is None and item.stash.get(FURTHER, False) and not config.getoption("--all"):
            reason = "are further cases of slow tests (run them with --all)"
        reasons.update([reason] if reason else [])
        (dropped if reason else kept).append(item)
    config.stash[LEFT_OUT] = reasons
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several workers, all of which leave out the same tests
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in config.stash.get(LEFT_OUT, Counter()).items():
        terminalreporter.write_line(f"left out: {count} tests that {reason}")
