"""What a training would compute with on this machine: facts, their reasons, and the command that mends what is poor."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from .. import runtime
from ..model.attention import OPEN_PATH_MAX_TOKENS, device_capability
from ..waiting import waits_briefly

CORE = (
    "torch", "numpy", "pillow", "simplejpeg", "safetensors", "scikit-learn", "matplotlib", "jinja2", "jaxtyping",
    "rich",
)  # fmt: skip
COMPILERS = ("c++", "g++", "clang++")
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


class Fact(NamedTuple):
    """One thing about the machine. `mend` is the command that improves it, or empty."""

    name: str
    value: str
    reason: str
    mend: str = ""


def examine(device: str = "auto") -> list[Fact]:
    """Every fact, in reading order.

    Raises:
        UsageError: a device that is not here.
    """
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    choices = {
        "device": machine.device,
        "number format": machine.number_format,
        "threads": str(machine.threads),
        "workers": str(machine.workers),
        "compile": "yes" if machine.compile else "no",
    }
    facts = [Fact(name, value, machine.reasons[name.replace(" ", "_")]) for name, value in choices.items()]
    return [*_processor(machine), *facts, *_attention(machine), _compiler(), *_packages(), _pictures()]


def _processor(machine: runtime.Runtime) -> list[Fact]:
    import torch

    facts = [
        Fact("processor", runtime.cpu_name(), f"torch uses its {torch.backends.cpu.get_cpu_capability()} instructions"),
        Fact("memory", f"{_memory() / 2**30:.1f} GiB", "all of the machine's"),
    ]
    if machine.device == "cpu":
        left = runtime.why_not_kept()
        why = left or "up to 1 GiB: the system fills large blocks that are taken anew with zeros each time"
        soon = "so that other programs cost their share and no more"
        idle = Fact("idle threads", "sleep soon", soon)
        if not waits_briefly():
            beside = "they look for work without end, and beside another program a training nearly stands still"
            idle = Fact("idle threads", "keep their cores", beside, "export GOMP_SPINCOUNT=5000")
        facts.append(idle)
        facts.append(Fact("freed memory", "as the allocator does" if left else "kept for the next batch", why))
    if machine.device == "cpu" and shutil.which("nvidia-smi"):
        mend = "pip install --force-reinstall torch  (the build for CUDA; this one cannot use the GPU)"
        facts.append(Fact("GPU", "not usable", f"nvidia-smi is here, but torch {torch.__version__} sees none", mend))
    return facts


def _attention(machine: runtime.Runtime) -> list[Fact]:
    """The rows of the measured table that hold here."""
    here = device_capability(machine.device)
    rows = [
        (gradients, OPEN_PATH_MAX_TOKENS.get((here, machine.number_format, gradients), 0))
        for gradients in (True, False)
    ]
    return [
        Fact(
            f"attention, {'training' if gradients else 'inference'}",
            f"open to {tokens} tokens" if tokens else "fused",
            f"measured on {here}, {machine.number_format}" if tokens else f"nothing faster was measured on {here}",
        )
        for gradients, tokens in rows
    ]


def _compiler() -> Fact:
    found = next((path for name in (os.environ.get("CXX", "c++"), *COMPILERS) if (path := shutil.which(name))), None)
    if found:
        return Fact("compiler", found, "torch.compile works on the CPU")
    mend = "xcode-select --install" if platform.system() == "Darwin" else "sudo apt-get install build-essential"
    return Fact("compiler", "none", "needed only by --compute.compile true on a CPU", mend)


def _packages() -> list[Fact]:
    facts = [Fact("python", platform.python_version(), platform.platform())]
    for name in CORE:
        found = _version(name)
        mend = "" if found else f"pip install {name}"
        facts.append(Fact(name, found or "missing", "" if found else "vitrail needs it", mend))
    return facts


def _pictures() -> Fact:
    if FASHION_MNIST.is_dir():
        return Fact("fashion-mnist", str(FASHION_MNIST), "where Debian's package puts it")
    return Fact("fashion-mnist", "absent", "only for `vitrail train fashion-mnist` without --data-root")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
