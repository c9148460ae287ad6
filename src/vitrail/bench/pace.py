"""Seconds of a batch: on this machine from two shallow copies of the model, on others from what their makers say."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from ..evaluate.collect import made_ready
from ..model import flops
from ..model.config import ViTConfig
from ..model.vit import ViT, create_model
from ..runtime import NumberFormat
from ..spec import ImageSpec
from ..train.loop import build_train_state
from ..train.plan import ComputeSettings, Plan, Recipe
from . import jobs
from .clock import Clock, Job
from .devices import Device

REACHED = 0.35
"""Share of a device's published rate that a ViT's step is assumed to reach: published trainings of ViT-B/16 on an H100
reach 0.15 to 0.23 (PyTorch and JAX as they come), and this project's goal is 0.45. To be replaced by measurements."""
ADAMW_BYTES, MUON_BYTES = 32, 24
"""Read and written for each parameter: weight, gradient (twice, for its norm) and moments, each in float32."""
ROUNDS_OF_MUON = 5
Optimizer = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Seconds:
    """Of one batch on one device."""

    forward: float
    """Answers."""
    step: float
    """Forward, backward, optimiser."""


def on_paper(
    config: ViTConfig, batch: int, device: Device, number_format: NumberFormat, optimizer: Optimizer, reached: float
) -> Seconds:
    """By operations and bytes alone."""
    rate = device.products[number_format] * reached
    updated = update_bytes(config, optimizer) / device.copies + update_flops(config, optimizer) / rate
    return Seconds(
        forward=batch * flops.forward_flops(config) / rate,
        step=batch * flops.training_flops(config) / rate + updated,
    )


def here(
    config: ViTConfig,
    spec: ImageSpec,
    batch: int,
    device: str,
    number_format: NumberFormat,
    optimizer: Optimizer,
    rounds: int = 3,
) -> Seconds:
    """Measured with few of the model's blocks, and a line drawn through both; a shallow model is measured itself.

    The training loop itself is timed, with all that it does beside the model. A model without outputs is given some.
    """
    config = config if config.outputs else dataclasses.replace(config, outputs=1000)
    few = config.pool_blocks if config.depth > config.pool_blocks + 2 else config.depth
    depths = (few,) if few == config.depth else (few, few + 2)
    made = {}
    for depth in depths:
        model = create_model(dataclasses.replace(config, depth=depth, pool_every=1), 0)
        ready = made_ready(model.to(device), number_format)
        made[f"forward {depth}"] = jobs.answers(ready, spec, batch, device, number_format)
        made[f"step {depth}"] = _step(model, spec, batch, device, number_format, optimizer)
    clock = Clock(made, device)
    for _ in clock.warm_up():
        pass
    for _ in clock.rounds(rounds):
        pass
    found = {name: clock.timing(name).median for name in made}
    return Seconds(*(_along(depths, [found[f"{what} {depth}"] for depth in depths], config.depth) for what in WHATS))


WHATS = ("forward", "step")


def update_bytes(config: ViTConfig, optimizer: Optimizer) -> float:
    """Bytes that an optimiser reads and writes in a step."""
    matrices = sum(rows * columns for rows, columns in _matrices(config))
    every = _parameters(config)
    muon = matrices if optimizer == "muon" else 0
    return float(MUON_BYTES * muon + ADAMW_BYTES * (every - muon))


def update_flops(config: ViTConfig, optimizer: Optimizer) -> float:
    """Operations of Muon's iteration, five rounds of three products a matrix; AdamW has none to speak of."""
    if optimizer == "adamw":
        return 0.0
    total = 0
    for rows, columns in _matrices(config):
        few, many = sorted((rows, columns))
        total += ROUNDS_OF_MUON * (4 * few * few * many + 2 * few**3)
    return float(total)


def _step(
    model: ViT, spec: ImageSpec, batch: int, device: str, number_format: NumberFormat, optimizer: Optimizer
) -> Job:
    recipe = Recipe(steps=1_000_000, batch=batch, optimizer=optimizer, warmup=0.0)
    compute = ComputeSettings(device=device, number_format=number_format)
    plan = Plan(model=model.config, image=spec, recipe=recipe, compute=compute)
    return jobs.step(build_train_state(model, plan), plan)


def _along(depths: tuple[int, ...], seconds: list[float], depth: int) -> float:
    """The value at a depth of the line through what was measured."""
    if len(depths) == 1:
        return statistics.median(seconds)
    slope = (seconds[1] - seconds[0]) / (depths[1] - depths[0])
    return seconds[0] + max(slope, 0.0) * (depth - depths[0])


def _parameters(config: ViTConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ViT(config).parameters())


def _matrices(config: ViTConfig) -> list[tuple[int, int]]:
    """Rows and columns of the matrices that Muon moves; queries, keys and values are three."""
    with torch.device("meta"):
        named = dict(ViT(config).named_parameters())
    found: list[tuple[int, int]] = []
    for name, parameter in named.items():
        if ".blocks." in name and parameter.ndim >= 2:
            rows, columns = parameter.shape[0], parameter[0].numel()
            joint = name.endswith("attention.qkv.weight")
            found += [(rows // 3, columns)] * 3 if joint else [(rows, columns)]
    return found
