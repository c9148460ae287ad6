"""Which parameter learns how: groups for Muon and AdamW, their rates at a step, and the running mean of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...runtime import multiplies_bfloat16
from ..recipe import Recipe
from .muon import Muon


def build(
    model: nn.Module,
    recipe: Recipe,
    device: str,
    sharded: bool = False,
    compiled: bool = False,
    scales: Mapping[str, float] | None = None,
) -> list[torch.optim.Optimizer]:
    """The optimisers of a recipe, of what is free to learn. Biases, norms, tokens and tables are not decayed.

    Args:
        sharded: whether the parameters are shares of whole ones, as FSDP2 leaves them.
        compiled: whether torch.compile may make fewer kernels of Muon.
        scales: by the names of the parameters, the fraction of the rate at which each learns; None is 1 for all.
    """
    blocks, matrices, rest = _sorted(model)
    fused = device.startswith("cuda") or (device == "cpu" and not sharded)  # one kernel: 2 to 7 times as fast
    if recipe.optimizer == "adamw":
        return [_adamw(blocks | matrices, rest, recipe, fused, scales or {})]
    joint = {name: matrix for name, matrix in blocks.items() if name.endswith("attention.qkv.weight")}
    single = {name: matrix for name, matrix in blocks.items() if name not in joint}
    muon = Muon(
        [group | {"parts": 3} for group in _groups(joint, scales or {})] + _groups(single, scales or {}),
        lr=recipe.muon_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        compute=torch.bfloat16 if multiplies_bfloat16(device) else torch.float32,
        sharded=sharded,
        compiled=compiled,
    )
    return [muon, _adamw(matrices, rest, recipe, fused, scales or {})]


Parameters = dict[str, nn.Parameter]
TABLES = {
    "cls", "distillation", "registers", "mask_token", "probe", "table", "key_rows", "key_columns", "value_rows",
    "value_columns",
}  # fmt: skip
"""Parameters of two and more dimensions that multiply nothing: tokens, queries and positions, a row each."""


def _sorted(model: nn.Module) -> tuple[Parameters, Parameters, Parameters]:
    """By name: matrices of the blocks, other matrices, and what is never decayed; nothing of what is held still."""
    blocks: Parameters = {}
    matrices: Parameters = {}
    rest: Parameters = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2 or name.rpartition(".")[2] in TABLES:
            rest[name] = parameter
        elif ".blocks." in name:
            blocks[name] = parameter
        else:
            matrices[name] = parameter
    return blocks, matrices, rest


def _groups(parameters: Parameters, scales: Mapping[str, float]) -> list[dict[str, Any]]:
    """One group for each fraction of the rate."""
    by_scale: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        by_scale.setdefault(scales.get(name, 1.0), []).append(parameter)
    return [{"params": members, "scale": scale} for scale, members in by_scale.items()]


def _adamw(
    decayed: Parameters, rest: Parameters, recipe: Recipe, fused: bool, scales: Mapping[str, float]
) -> torch.optim.AdamW:
    groups = [group | {"weight_decay": recipe.weight_decay} for group in _groups(decayed, scales)]
    groups += [group | {"weight_decay": 0.0} for group in _groups(rest, scales)]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=fused or None)


def set_rates(optimizers: Iterable[torch.optim.Optimizer], recipe: Recipe, step: int) -> None:
    """Give every group the learning rate of a step."""
    for optimizer in optimizers:
        peak = recipe.muon_rate if isinstance(optimizer, Muon) else recipe.rate
        for group in optimizer.param_groups:
            group["lr"] = peak * recipe.rate_factor(step) * group["scale"]


class Average:
    """The running mean of a model's weights: mean <- decay * mean + (1 - decay) * weights after every step.

    Early on the decay is held at (1 + step) / (10 + step), so that the first random weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take the weights after `step` (from 0) into the mean."""
        decay = min(self.decay, (1 + step) / (10 + step))
        now = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(list(self.weights.values()), now, 1 - decay)


@contextmanager
def averaged(model: nn.Module, average: Average | None) -> Iterator[None]:
    """Within this block the model has the running mean of its weights, where one is kept."""
    if average is None:
        yield
        return
    own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _put(model, average.weights)
    try:
        yield
    finally:
        _put(model, own)


@torch.no_grad()
def _put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
