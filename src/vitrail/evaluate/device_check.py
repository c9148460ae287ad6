"""Check of a device before it is trusted: attention and a tiny model there, compared with the CPU in float64.

A device can compute wrongly without an error: a fused attention kernel that reads beyond its memory (PyTorch issue
174861), or that mistakes the strides of its inputs. Outputs and gradients of both attention paths are compared in each
number format that a training would use. The verdict is kept in the user's cache folder for each device, version of
torch and driver; `vitrail doctor` measures it anew.
"""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from .. import runtime
from ..errors import MachineWarning, ResourceError
from ..files.atomic import write_json
from ..model.attention import AttentionPath, attend
from ..model.config import ViTConfig
from ..model.vit import ViT, create_model
from ..runtime import Precision, Runtime, RuntimeSettings
from .inference import DTYPES

Part = Literal["attention", "model"]
CHECK_VERSION = 1
"""Raised when the check finds more than before, so that earlier verdicts are measured again."""

UNIT_ROUNDOFF: dict[Precision, float] = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest relative error of a number in a format that truncates; rounding to the nearest has half of it."""
TF32_ROUNDOFF = 2.0**-11
"""The same of TF32, in which a GPU may multiply float32: convolutions by torch's default, others by the environment."""


def allowed_difference(device: str, part: Part, precision: Precision) -> float:
    """Largest ratio of a difference's norm to the norm of the right values that rounding explains.

    Independent roundings add up by their squares, so that n of them give about sqrt(n) times one. In a low format
    attention rounds products, weights and output, and as many again backwards: 4 times the unit. The tiny model rounds
    after each of its products, some twenty, and three times as many backwards: 16 times. float32 adds up to 1,025
    products in one sum; on a GPU these may be of TF32. A CPU with AMX has at most a third of each.
    """
    if precision == "float32":
        return 256 * UNIT_ROUNDOFF["float32"] if device == "cpu" else 4 * TF32_ROUNDOFF  # 1.5e-5; 2.0e-3
    return (4 if part == "attention" else 16) * UNIT_ROUNDOFF[precision]  # bfloat16: 1.6e-2 and 6.2e-2


ATTENTION_SHAPES = ((2, 2, 17, 17, 32), (2, 3, 197, 197, 64), (96, 3, 5, 5, 64), (2, 2, 1, 1025, 64))
"""(images, heads, queries, keys, width of a head): kernels differ by these. The last block asks with one token only."""
TINY_MODEL = ViTConfig(
    image_size=(32, 32), patch=(4, 4), width=64, depth=2, heads=2, mlp_width=128, registers=2, outputs=5,
    rotary="axial", positions="none", class_position=False,
)  # fmt: skip


class DeviceDifference(NamedTuple):
    """How far one computation of a device is from the right values."""

    kernel: str
    """Which attention, of what."""
    precision: Precision
    difference: float
    """Norm of the difference by the norm of the right values; infinite if the device gives NaN or an error."""
    allowed: float

    @property
    def is_wrong(self) -> bool:
        """Whether the difference is more than rounding."""
        return not self.difference <= self.allowed

    def __str__(self) -> str:
        much = "is not finite or fails" if math.isinf(self.difference) else f"is wrong by {self.difference:.2g}"
        return f"{self.kernel} in {self.precision} {much} of its size, where rounding explains {self.allowed:.2g}"


# -- Choice of a device that has passed.


def choose_checked_runtime(settings: RuntimeSettings, num_processes: int = 1) -> Runtime:
    """As `runtime.choose`, but a GPU that computes otherwise than the CPU is used only if it is named.

    Issues a MachineWarning about such a GPU. A GPU's first use on a machine takes some seconds for the check.

    Raises:
        UsageError: as `runtime.choose`.
    """
    machine = runtime.choose(settings, num_processes)
    if machine.device == "cpu":
        return machine
    fault, name = find_device_fault(machine.device), describe_device(machine.device)
    if not fault:
        reason = f"{machine.reasons['device']}, and computes as the CPU does"
        return replace(machine, reasons={**machine.reasons, "device": reason})
    sentence = f"{name} computes wrongly with torch {torch.__version__}: {fault}"
    mend = "Another version of torch or of the driver may mend it; vitrail doctor checks again."
    if settings.device != "auto":
        message = f"{sentence}. It is used because it was asked for, and the answers may be wrong. {mend}"
        warnings.warn(message, MachineWarning, stacklevel=2)
        return machine
    message = f"{sentence}. The CPU is used instead; --device {machine.device} uses it all the same. {mend}"
    warnings.warn(message, MachineWarning, stacklevel=2)
    machine = runtime.choose(replace(settings, device="cpu"), num_processes)
    return replace(machine, reasons={**machine.reasons, "device": f"{name} computes wrongly: {fault}"})


def find_device_fault(device: str) -> str:
    """The worst difference of a device in words, from the cache or measured now; empty if it computes rightly."""
    known = _read_verdicts().get(_describe_surroundings(device))
    return known if isinstance(known, str) else describe_fault(check_again(device))


def check_again(device: str) -> list[DeviceDifference]:
    """Measure a device, whatever the cache holds, and keep the verdict there."""
    differences = measure_device(device)
    with suppress(OSError, ResourceError):  # where it cannot be kept, the check is made again the next time
        write_json(_cache_file(), _read_verdicts() | {_describe_surroundings(device): describe_fault(differences)})
    return differences


def _read_verdicts() -> dict[str, object]:
    """Surroundings -> the fault in words, empty for none; a damaged file holds nothing."""
    with suppress(OSError, ValueError):
        content = json.loads(_cache_file().read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def describe_fault(differences: list[DeviceDifference]) -> str:
    """The difference that exceeds its limit most, in words; empty if none does."""
    wrong = [each for each in differences if each.is_wrong]
    return str(max(wrong, key=lambda each: each.difference / each.allowed)) if wrong else ""


def describe_device(device: str) -> str:
    """A device with its model name."""
    if device.startswith("cuda"):
        return f"The GPU {torch.cuda.get_device_name(device)} ({device})"
    return "Apple's GPU (mps)" if device == "mps" else f"The processor {runtime.cpu_name()}"


def _describe_surroundings(device: str) -> str:
    """Everything by which a device's kernels are chosen: model, torch, its libraries, driver or system."""
    driver = ""
    with suppress(OSError):
        driver = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    system = f"{platform.system()} {platform.mac_ver()[0] or platform.release()}"
    libraries = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return "; ".join(
        [describe_device(device), f"torch {torch.__version__}", libraries, driver, system, f"check {CHECK_VERSION}"]
    )


def _cache_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrail" / "device-checks.json"


# -- The check itself.


def measure_device(device: str) -> list[DeviceDifference]:
    """Differences of attention and of a tiny model on a device, in float32 and the format that it is fast in."""
    low: Precision = "bfloat16" if device == "cpu" or runtime.supports_bfloat16(device) else "float16"
    formats: tuple[Precision, ...] = ("float32", low)
    found = []
    for precision in formats:
        for path in get_args(AttentionPath):
            measures = {
                "attention": partial(_attention_differences, device, precision, path),
                "model": partial(_model_differences, device, precision, path),
            }
            for part in get_args(Part):
                try:
                    differences = dict(measures[part]())
                except (RuntimeError, TypeError):  # how torch refuses what a device cannot do
                    if precision != "float32" and device == "mps":
                        continue  # it is used in float32, and refuses another format with an error
                    differences = {"": math.inf}
                for what, difference in differences.items():
                    kernel = f"{path} attention{' in a tiny model' if part == 'model' else ''}{what}"
                    found.append(
                        DeviceDifference(kernel, precision, difference, allowed_difference(device, part, precision))
                    )
    return found


def _attention_differences(device: str, precision: str, path: AttentionPath) -> Iterator[tuple[str, float]]:
    """Of the outputs and the gradients of every shape, the largest of each; q, k and v are views, as in the model."""
    generator = torch.Generator().manual_seed(0)
    outputs, inference, gradients = [], [], []
    for images, heads, queries, keys, width in ATTENTION_SHAPES:
        qkv = torch.randn(images, keys, 3, heads, width, generator=generator).to(DTYPES[precision])
        weight = torch.randn(images, heads, queries, width, generator=generator)
        exact = qkv.double().requires_grad_()
        q, k, v = exact.permute(2, 0, 3, 1, 4)
        right = (q[:, :, :queries] @ k.mT * width**-0.5).softmax(-1) @ v
        (right * weight).sum().backward()
        tested = qkv.to(device).requires_grad_()
        q, k, v = tested.permute(2, 0, 3, 1, 4)
        with torch.no_grad():
            inference.append(_relative_difference(attend(q[:, :, :queries], k, v, width**-0.5, 0.0, path), right))
        y = attend(q[:, :, :queries], k, v, width**-0.5, 0.0, path)
        (y.float() * weight.to(device)).sum().backward()
        outputs.append(_relative_difference(y, right))
        gradients.append(_relative_difference(tested.grad, exact.grad))
    yield ", its outputs", max(inference)
    yield ", its outputs in training", max(outputs)
    yield ", its gradients", max(gradients)


def _model_differences(device: str, precision: str, path: AttentionPath) -> Iterator[tuple[str, float]]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, 3, *TINY_MODEL.image_size, generator=generator)
    weight = torch.randn(4, TINY_MODEL.outputs, generator=generator)
    exact = _make_tiny_model("open").double()
    right = exact(images.double())
    (right * weight).sum().backward()
    tested, dtype = _make_tiny_model(path).to(device), DTYPES[precision]
    with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
        with torch.no_grad():
            inference = tested(images.to(device))
        outputs = tested(images.to(device))
    (outputs.float() * weight.to(device)).sum().backward()
    yield ", its outputs", _relative_difference(inference, right)
    yield ", its outputs in training", _relative_difference(outputs, right)
    yield ", its gradients", _relative_difference(_flatten_gradients(tested), _flatten_gradients(exact))


def _make_tiny_model(path: AttentionPath) -> ViT:
    """The model with random values everywhere: a fresh head is zero, and so would be most gradients."""
    model, generator = create_model(replace(TINY_MODEL, attention=path), 0), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
            else:
                parameter.add_(noise, alpha=0.1)
    return model


def _flatten_gradients(model: ViT) -> Float[Tensor, " n"]:
    return torch.cat([p.grad.flatten().double().cpu() for p in model.parameters() if p.grad is not None])


def _relative_difference(tested: Tensor | None, right: Tensor | None) -> float:
    """Norm of the difference by the norm of the right values; infinite for NaN."""
    assert tested is not None and right is not None
    right = right.detach().double()
    ratio = float((tested.detach().cpu().double() - right).norm() / right.norm())
    return ratio if math.isfinite(ratio) else math.inf
