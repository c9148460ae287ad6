"""What a training or many answers will take on any number of devices: operations, memory, seconds, data rates."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError
from ..evaluate.side_by_side import TEAMS, parts_on
from ..model import flops
from ..model.attention import choose_path
from ..model.config import ViTConfig
from ..model.vit import parameter_count
from ..runtime import NumberFormat
from ..train.plan import ComputeSettings, Plan, Recipe
from ..train.planning import cost_estimate
from .pace import Optimizer, Seconds

PICTURE_BYTES = 110_000
"""A picture's file: the mean of ImageNet-1k's training files, 141 GB of 1,281,167."""
READ_BY_A_CORE = 590
"""Files of 640 x 427 pixels that a core decodes, cuts and resizes a second (benchmarks/results/loading.json)."""
BACKWARD = 2 / 3
"""Share of a step in which gradients are sent while others are still computed."""
KEPT, KEPT_FLOAT32 = 1.9, 2.4
"""Bytes that answers hold on a processor for each that is in use at once: in float32 they come in smaller parts, which
leave more holes."""
MATRICES = 4
"""Copies of the largest matrix beside them."""
Engine = Literal["alone", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be foretold.

    Raises:
        UsageError: less than one device, or a batch that does not part evenly among them.
    """

    config: ViTConfig
    batch: int = 256
    """Pictures in a step, of all devices together."""
    devices: int = 1
    number_format: NumberFormat = "bfloat16"
    optimizer: Optimizer = "adamw"

    def __post_init__(self) -> None:
        if self.devices < 1 or self.batch < 1:
            raise UsageError(f"--devices and --batch must be at least 1. Got {self.devices} and {self.batch}.")
        if self.batch % self.devices:
            raise UsageError(
                f"--batch counts the pictures of all devices, so it must be a multiple of --devices {self.devices}. "
                f"Got {self.batch}."
            )

    @property
    def each(self) -> int:
        """Pictures of one device in a step."""
        return self.batch // self.devices


@dataclass(frozen=True, kw_only=True)
class Room:
    """The devices around a model: how much each holds, and how fast they tell each other."""

    place: str
    """As `model.attention.place` names it: cuda, AVX512 and so on."""
    memory: float | None
    """Bytes of each; None where that is no bound."""
    link: float
    """Bytes a second."""
    threads: int = 1
    """Of a processor; a GPU answers a batch as one."""


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """Bytes and operations of one device unless said otherwise."""

    parameters: int
    forward_flops: int
    """Of one picture."""
    training_flops: int
    """Of one picture's share of a step."""
    engine: Engine
    training_memory: int
    inference_memory: int
    fits: bool
    """Whether the training's memory is there."""
    sent: float
    """Bytes that a device sends in a step."""
    waiting: float
    """Seconds of a step in which nothing can be computed because of them."""
    step: float
    """Seconds of a step, waiting included."""
    training_rate: float
    """Pictures a second of all devices together."""
    inference_rate: float
    """The same of answers, where every device answers pictures of its own."""


def foretell(wanted: Wanted, seconds: Seconds, room: Room) -> Foretold:
    """From the seconds of a device's own batch to those of all of them together."""
    config = wanted.config
    plan = _plan(wanted, "cuda" if room.place == "cuda" else "cpu")
    engine = _engine(plan, wanted, room)
    shares = wanted.devices if engine == "fsdp" else 1
    parameters = parameter_count(config)
    memory = cost_estimate.estimate_training_memory(plan, shares)
    sent = sent_bytes(parameters, wanted.devices, engine)
    waiting = waits(sent, seconds.step, engine, room.link)
    step = seconds.step + waiting
    return Foretold(
        parameters=parameters,
        forward_flops=flops.forward_flops(config),
        training_flops=flops.training_flops(config),
        engine=engine,
        training_memory=memory,
        inference_memory=answering_bytes(wanted, room),
        fits=room.memory is None or memory <= room.memory,
        sent=sent,
        waiting=waiting,
        step=step,
        training_rate=wanted.batch / step,
        inference_rate=wanted.batch / seconds.forward,
    )


def sent_bytes(parameters: int, devices: int, engine: Engine) -> float:
    """What a device sends in a step round a ring, in float32.

    With DDP gradients are summed and told, with FSDP2 weights are told twice and gradients summed into shares.
    """
    ways = {"alone": 0, "ddp": 2, "fsdp": 3}[engine]
    return ways * 4.0 * parameters * (devices - 1) / devices


def waits(sent: float, step: float, engine: Engine, link: float) -> float:
    """Seconds of sending that no computing hides: DDP sends during the backward pass, FSDP2 during the whole step."""
    hidden = step * (BACKWARD if engine == "ddp" else 1.0)
    return max(0.0, sent / link - hidden)


def answering_bytes(wanted: Wanted, room: Room) -> int:
    """Memory of answers to a device's own batch: weights, their copy in the products' format, one block's numbers.

    A processor answers the batch in parts, a few at a time. It keeps what it frees, in pieces that fit or do not: as
    much again as is in use, nearly, and some copies of its largest matrix (benchmarks/cost_model.py).
    """
    config, b = wanted.config, 4 if wanted.number_format == "float32" else 2
    every = parameter_count(config, fixed_tables=True)
    tokens, inner = config.tokens, config.attention_width
    numbers = 8 * config.width + b * (2 * config.width + 4 * inner)
    path = choose_path(config.attention, room.place, wanted.number_format, tokens, gradients=False)
    if path == "open" or config.relative:
        numbers += 2 * b * config.heads * tokens
    hidden = 8 * config.width + b * (2 if config.mlp == "plain" else 3) * config.mlp_width
    pixels = config.channels * config.image_size[0] * config.image_size[1]
    weights = 4 * every + (0 if wanted.number_format == "float32" else 2 * every)
    parts = parts_on(room.threads, config, wanted.each, wanted.number_format)
    at_once = wanted.each * min(parts, room.threads, TEAMS) / parts
    used = at_once * (tokens * max(numbers, hidden) + 4 * pixels) + wanted.each * pixels
    if room.place in ("cuda", "mps"):
        return round(cost_estimate.GPU_OVERHEAD * (weights + used))
    kept = KEPT_FLOAT32 if wanted.number_format == "float32" else KEPT
    return round(weights + kept * used + MATRICES * 4 * config.width * config.mlp_width)


def _engine(plan: Plan, wanted: Wanted, room: Room) -> Engine:
    """FSDP2 only where a whole copy does not fit."""
    if wanted.devices == 1:
        return "alone"
    return "ddp" if room.memory is None or cost_estimate.estimate_training_memory(plan) <= room.memory else "fsdp"


def _plan(wanted: Wanted, device: str) -> Plan:
    config = wanted.config if wanted.config.outputs else dataclasses.replace(wanted.config, outputs=1000)
    recipe = Recipe(steps=1, batch=wanted.each, optimizer=wanted.optimizer)
    return Plan(model=config, recipe=recipe, compute=ComputeSettings(device=device, number_format=wanted.number_format))
