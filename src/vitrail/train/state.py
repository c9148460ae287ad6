"""What a run can be continued from: weights, optimisers, running mean and step, in folders that are whole or absent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import DamagedFileError
from ..files import atomic, tensors
from .optimizer import Average

KEPT = 2


def save(
    folder: Path, step: int, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], average: Average | None
) -> Path:
    """Write `folder/step-00000123/` for a run that has finished 123 steps, and forget all but the newest two.

    Raises:
        ResourceError: no room or no permission; the older checkpoints are untouched.
    """
    path = folder / f"step-{step:08d}"
    if path.exists():
        return path
    with atomic.folder(path) as new:
        tensors.save(new / "model.safetensors", model.state_dict(), {})
        tensors.save(new / "optimizer.safetensors", dict(_optimizer_tensors(model, optimizers)), {})
        if average is not None:
            tensors.save(new / "average.safetensors", average.weights, {})
        facts = {"step": step, "torch": torch.__version__, "threads": torch.get_num_threads()}
        atomic.write_json(new / "state.json", facts)
    atomic.write_text(folder / "LATEST", path.name + "\n")
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and a sentence for every newer one that is damaged. None if there never was one.

    Raises:
        DamagedFileError: there are checkpoints and all of them are damaged.
    """
    found = sorted(folder.glob("step-*"), reverse=True)
    complaints = []
    for path in found:
        try:
            atomic.verify(path)
        except DamagedFileError as error:
            complaints.append(str(error))
        else:
            return path, complaints
    if found:
        raise DamagedFileError("No checkpoint of this run is whole: " + " ".join(complaints))
    return None, []


def load(path: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], average: Average | None) -> int:
    """Put a checkpoint back into its parts, strictly, and return the number of finished steps.

    Raises:
        DamagedFileError: a tensor is missing, left over, or of another shape.
    """
    _fill(path / "model.safetensors", model.state_dict())
    for optimizer in optimizers:
        _prepare(optimizer)
    _fill(path / "optimizer.safetensors", dict(_optimizer_tensors(model, optimizers)))
    if average is not None:
        _fill(path / "average.safetensors", average.weights)
    return int(json.loads((path / "state.json").read_text(encoding="utf-8"))["step"])


@torch.no_grad()
def _fill(path: Path, ours: dict[str, Tensor]) -> None:
    theirs = tensors.load(path)
    odd = sorted(theirs.keys() ^ ours.keys())
    odd += [name for name in theirs.keys() & ours.keys() if theirs[name].shape != ours[name].shape]
    if odd:
        raise DamagedFileError(
            f"{path} does not fit this run: {len(odd)} tensors are missing, left over or of another shape, "
            f"the first is {odd[0]}. The plan was changed, or the file belongs to another run."
        )
    for name, tensor in ours.items():
        tensor.copy_(theirs[name])


def _optimizer_tensors(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, Tensor]]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, tensor in state.items():
                yield f"{names[parameter]}/{key}", tensor


def _prepare(optimizer: torch.optim.Optimizer) -> None:
    """Give a fresh optimiser its state by a step that moves nothing: no gradient, no rate."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
