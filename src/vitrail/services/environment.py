"""Facts about this machine for `vitrail doctor`, each with its reason and the command that improves it."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from .. import runtime
from ..evaluate.device_check import check_again, choose_checked_runtime, describe_fault
from ..model.attention import OPEN_PATH_MAX_TOKENS, device_capability
from ..openmp import has_short_spin

CORE_PACKAGES = (
    "torch", "numpy", "pillow", "simplejpeg", "safetensors", "scikit-learn", "matplotlib", "jinja2", "jaxtyping",
    "rich",
)  # fmt: skip
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


class MachineFact(NamedTuple):
    """One fact about the machine. `mend` is the command that improves it, or empty."""

    name: str
    value: str
    reason: str
    mend: str = ""


def examine_machine(device: str = "auto") -> list[MachineFact]:
    """All facts, in the order of the printed table.

    Raises:
        UsageError: a missing device.
    """
    settings = runtime.RuntimeSettings(device=device)
    checks = _check_device(runtime.choose(settings).device)
    machine = choose_checked_runtime(settings)
    choices = {
        "device": machine.device,
        "precision": machine.precision,
        "threads": str(machine.threads),
        "num_workers": str(machine.num_workers),
        "compile": "yes" if machine.compile else "no",
    }
    reasons = machine.reasons | {"precision": f"of trainings: {machine.reasons['precision']}; predictions in float32"}
    facts = [MachineFact(name, value, reasons[name]) for name, value in choices.items()]
    return [
        *_examine_processor(machine),
        *facts,
        *_examine_attention(machine),
        *checks,
        _examine_compiler(),
        *_examine_packages(),
        MachineFact("fashion-mnist", str(FASHION_MNIST), "where Debian's package puts it")
        if FASHION_MNIST.is_dir()
        else MachineFact("fashion-mnist", "absent", "only for `vitrail train fashion-mnist` without --data-root"),
    ]


def _examine_processor(machine: runtime.Runtime) -> list[MachineFact]:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = [
        MachineFact(
            "processor", runtime.cpu_name(), f"torch uses its {torch.backends.cpu.get_cpu_capability()} instructions"
        ),
        MachineFact("memory", f"{memory / 2**30:.1f} GiB", "all of the machine's"),
    ]
    if machine.device == "cpu":
        left = runtime.explain_unchanged_allocator()
        why = left or "up to 1 GiB: the system fills large blocks that are taken anew with zeros each time"
        soon = "so that other programs cost their share and no more"
        idle = MachineFact("idle threads", "sleep soon", soon)
        if not has_short_spin():
            beside = "they look for work without end, and beside another program a training nearly stands still"
            idle = MachineFact("idle threads", "keep their cores", beside, "export GOMP_SPINCOUNT=5000")
        facts.append(idle)
        facts.append(MachineFact("freed memory", "as the allocator does" if left else "kept for the next batch", why))
    if machine.device == "cpu" and shutil.which("nvidia-smi"):
        mend = "pip install --force-reinstall torch  (the build for CUDA; this one cannot use the GPU)"
        facts.append(
            MachineFact("GPU", "not usable", f"nvidia-smi is here, but torch {torch.__version__} sees none", mend)
        )
    return facts


def _examine_attention(machine: runtime.Runtime) -> list[MachineFact]:
    """The rows of `OPEN_PATH_MAX_TOKENS` for this device."""
    capability, facts = device_capability(machine.device), []
    for use, precision, gradients in (("training", machine.precision, True), ("inference", "float32", False)):
        value, reason = "fused", f"nothing faster was measured on {capability}"
        if tokens := OPEN_PATH_MAX_TOKENS.get((capability, precision, gradients), 0):
            value, reason = f"open to {tokens} tokens", f"measured on {capability}, {precision}"
        facts.append(MachineFact(f"attention, {use}", value, reason))
    return facts


def _check_device(device: str) -> list[MachineFact]:
    """Whether the device computes rightly in each number format, measured anew."""
    differences, facts = check_again(device), []
    for precision in dict.fromkeys(each.precision for each in differences):
        measured = [each for each in differences if each.precision == precision]
        share = max(each.difference / each.allowed for each in measured)
        name, reason = f"check, {precision}", describe_fault(measured)
        if reason:
            instead = "" if device == "cpu" else "; until then --device cpu"
            facts.append(MachineFact(name, "wrong", reason, f"pip install --upgrade torch, or a newer driver{instead}"))
            continue
        reason = f"attention and a tiny model on {device}, at most {share:.0%} of what rounding explains"
        facts.append(MachineFact(name, "right", reason))
    return facts


def _examine_compiler() -> MachineFact:
    for name in (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"):
        if path := shutil.which(name):
            return MachineFact("compiler", path, "torch.compile works on the CPU")
    mend = "xcode-select --install" if platform.system() == "Darwin" else "sudo apt-get install build-essential"
    return MachineFact("compiler", "none", "needed only by --compute.compile true on a CPU", mend)


def _examine_packages() -> list[MachineFact]:
    facts = [MachineFact("python", platform.python_version(), platform.platform())]
    for name in CORE_PACKAGES:
        try:
            facts.append(MachineFact(name, version(name), ""))
        except PackageNotFoundError:
            facts.append(MachineFact(name, "missing", "vitrail needs it", f"pip install {name}"))
    return facts
