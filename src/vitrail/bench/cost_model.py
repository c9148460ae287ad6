"""Cost model of training and inference on any number of devices: operations, memory, seconds and data rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from ..errors import UsageError
from ..evaluate.inference import MAX_THREAD_TEAMS, cast_weights, num_parallel_parts_on
from ..model import flops
from ..model.attention import choose_path
from ..model.config import ViTConfig
from ..model.vit import ViT, create_model, parameter_count
from ..runtime import Precision
from ..spec import ImageSpec
from ..train.loop import build_train_state
from ..train.plan import ComputeSettings, Plan, Recipe
from ..train.planning import cost_estimate
from . import measure
from .measure import BenchmarkJob, InterleavedTimer

IMAGE_FILE_BYTES = 110_000
"""Mean size of an image file: ImageNet-1k's training files, 141 GB / 1,281,167."""
IMAGES_PER_CORE_SECOND = 590
"""JPEG files of 640 x 427 pixels that a core decodes, crops and resizes a second (benchmarks/results/loading.json)."""
BACKWARD_FRACTION = 2 / 3
"""Fraction of a step in which DDP can overlap communication with the backward pass."""
CPU_FRAGMENTATION, CPU_FRAGMENTATION_FLOAT32 = 1.9, 2.4
"""Allocated over used memory of inference on a CPU; in float32 batches come in smaller parts and fragment more."""
EXTRA_MATRIX_COPIES = 4
"""Further copies of the largest matrix during inference on a CPU."""
ParallelStrategy = Literal["alone", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, batch size, number of devices, precision and optimizer.

    Raises:
        UsageError: less than one device, or a batch size that is no multiple of the devices.
    """

    config: ViTConfig
    batch_size: int = 256
    """Images in a step on all devices together."""
    num_devices: int = 1
    precision: Precision = "bfloat16"
    optimizer: Optimizer = "adamw"

    def __post_init__(self) -> None:
        if self.num_devices < 1 or self.batch_size < 1:
            raise UsageError(f"--devices and --batch must be at least 1. Got {self.num_devices} and {self.batch_size}.")
        if self.batch_size % self.num_devices:
            raise UsageError(
                f"--batch counts the pictures of all devices, so it must be a multiple of --devices "
                f"{self.num_devices}. "
                f"Got {self.batch_size}."
            )

    @property
    def batch_per_device(self) -> int:
        """Images in a step on one device."""
        return self.batch_size // self.num_devices


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Memory, interconnect and threads of the devices."""

    capability: str
    """As `model.attention.device_capability`: cuda, AVX512 and so on."""
    memory_bytes: float | None
    """Memory of each device; None for no limit."""
    link_bandwidth: float
    """Bytes a second between devices."""
    num_threads: int = 1
    """Threads of a CPU; a GPU computes a batch as one."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Memory, operations and times; of one device unless stated otherwise."""

    parameters: int
    forward_flops: int
    """Operations of a forward pass for one image."""
    training_flops: int
    """Operations of forward and backward pass for one image."""
    engine: ParallelStrategy
    training_memory: int
    inference_memory: int
    fits: bool
    """Whether the device has the memory for training."""
    sent: float
    """Bytes that a device sends in a step."""
    waiting: float
    """Seconds of a step spent waiting for communication."""
    step: float
    """Seconds of a step, including the waiting."""
    training_rate: float
    """Training images a second on all devices together."""
    inference_rate: float
    """Inference images a second on all devices together, each with its own images."""


def estimate_workload_cost(workload: Workload, seconds: StepSeconds, hardware: Hardware) -> CostEstimate:
    """Cost of a workload on all devices, from the seconds of one device's batch."""
    config = workload.config
    plan = _make_plan(workload, "cuda" if hardware.capability == "cuda" else "cpu")
    engine = _choose_strategy(plan, workload, hardware)
    shares = workload.num_devices if engine == "fsdp" else 1
    parameters = parameter_count(config)
    memory = cost_estimate.estimate_training_memory(plan, shares)
    sent = count_sent_bytes(parameters, workload.num_devices, engine)
    waiting = estimate_communication_wait(sent, seconds.step, engine, hardware.link_bandwidth)
    step = seconds.step + waiting
    return CostEstimate(
        parameters=parameters,
        forward_flops=flops.forward_flops(config),
        training_flops=flops.training_flops(config),
        engine=engine,
        training_memory=memory,
        inference_memory=estimate_inference_memory(workload, hardware),
        fits=hardware.memory_bytes is None or memory <= hardware.memory_bytes,
        sent=sent,
        waiting=waiting,
        step=step,
        training_rate=workload.batch_size / step,
        inference_rate=workload.batch_size / seconds.forward,
    )


def count_sent_bytes(parameters: int, num_devices: int, strategy: ParallelStrategy) -> float:
    """Bytes that a device sends in a step on a ring, in float32.

    DDP: all-reduce of gradients. FSDP2: two all-gathers of weights, one reduce-scatter of gradients.
    """
    ways = {"alone": 0, "ddp": 2, "fsdp": 3}[strategy]
    return ways * 4.0 * parameters * (num_devices - 1) / num_devices


def estimate_communication_wait(sent: float, step: float, strategy: ParallelStrategy, link: float) -> float:
    """Seconds of communication not hidden by computation: DDP overlaps the backward pass, FSDP2 the whole step."""
    hidden = step * (BACKWARD_FRACTION if strategy == "ddp" else 1.0)
    return max(0.0, sent / link - hidden)


def estimate_inference_memory(workload: Workload, hardware: Hardware) -> int:
    """Memory of inference for one device's batch: weights, their copy in reduced precision, one block's activations.

    A CPU computes the batch in parts, a few at a time, and keeps freed memory with fragmentation: nearly as much again
    as is in use, and some copies of its largest matrix (benchmarks/cost_model.py).
    """
    config, b = workload.config, 4 if workload.precision == "float32" else 2
    every = parameter_count(config, include_buffers=True)
    tokens, inner = config.tokens, config.attention_width
    numbers = 8 * config.width + b * (2 * config.width + 4 * inner)
    path = choose_path(config.attention, hardware.capability, workload.precision, tokens, gradients=False)
    if path == "open" or config.relative:
        numbers += 2 * b * config.heads * tokens
    hidden = 8 * config.width + b * (2 if config.mlp == "plain" else 3) * config.mlp_width
    pixels = config.channels * config.image_size[0] * config.image_size[1]
    weights = 4 * every + (0 if workload.precision == "float32" else 2 * every)
    parts = num_parallel_parts_on(hardware.num_threads, config, workload.batch_per_device, workload.precision)
    at_once = workload.batch_per_device * min(parts, hardware.num_threads, MAX_THREAD_TEAMS) / parts
    used = at_once * (tokens * max(numbers, hidden) + 4 * pixels) + workload.batch_per_device * pixels
    if hardware.capability in ("cuda", "mps"):
        return round(cost_estimate.GPU_OVERHEAD * (weights + used))
    kept = CPU_FRAGMENTATION_FLOAT32 if workload.precision == "float32" else CPU_FRAGMENTATION
    return round(weights + kept * used + EXTRA_MATRIX_COPIES * 4 * config.width * config.mlp_width)


def _choose_strategy(plan: Plan, workload: Workload, hardware: Hardware) -> ParallelStrategy:
    """FSDP2 only if a whole copy does not fit."""
    if workload.num_devices == 1:
        return "alone"
    limit = hardware.memory_bytes
    return "ddp" if limit is None or cost_estimate.estimate_training_memory(plan) <= limit else "fsdp"


def _make_plan(workload: Workload, device: str) -> Plan:
    config = workload.config if workload.config.outputs else dataclasses.replace(workload.config, outputs=1000)
    recipe = Recipe(steps=1, batch_size=workload.batch_per_device, optimizer=workload.optimizer)
    return Plan(model=config, recipe=recipe, compute=ComputeSettings(device=device, precision=workload.precision))


# -- Seconds of a batch: measured on this machine with two shallow copies of the model, else from data sheets.

DEFAULT_UTILIZATION = 0.35
"""Assumed model FLOPs utilisation of a device's published rate. Published trainings of ViT-B/16 on an H100 reach 0.15
to 0.23 (PyTorch and JAX as they come), and this project's goal is 0.45. To be replaced by measurements."""
ADAMW_BYTES, MUON_BYTES = 32, 24
"""Memory traffic of the optimizer per parameter: weight, gradient (twice, for its norm) and moments, in float32."""
MUON_ITERATIONS = 5
Optimizer = Literal["adamw", "muon"]


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of one batch on one device."""

    forward: float
    """Forward pass alone."""
    step: float
    """Training step: forward, backward, optimizer."""


def estimate_step_seconds(
    config: ViTConfig,
    batch_size: int,
    device: DeviceSpec,
    precision: Precision,
    optimizer: Optimizer,
    utilization: float,
) -> StepSeconds:
    """From operations, memory traffic and a device's published rates."""
    rate = device.flops_per_second[precision] * utilization
    traffic = count_optimizer_bytes(config, optimizer) / device.memory_bandwidth
    update = traffic + count_optimizer_flops(config, optimizer) / rate
    return StepSeconds(
        forward=batch_size * flops.forward_flops(config) / rate,
        step=batch_size * flops.training_flops(config) / rate + update,
    )


def measure_step_seconds(
    config: ViTConfig,
    spec: ImageSpec,
    batch_size: int,
    device: str,
    precision: Precision,
    optimizer: Optimizer,
    num_rounds: int = 3,
) -> StepSeconds:
    """Measure at two small depths and extrapolate linearly to the model's depth; a shallow model is measured itself.

    The real training loop is timed. A model without outputs gets 1000.
    """
    config = config if config.outputs else dataclasses.replace(config, outputs=1000)
    few = config.pool_blocks if config.depth > config.pool_blocks + 2 else config.depth
    depths = (few,) if few == config.depth else (few, few + 2)
    recipe = Recipe(steps=measure.UNLIMITED_STEPS, batch_size=batch_size, optimizer=optimizer, warmup=0.0)
    compute = ComputeSettings(device=device, precision=precision)
    jobs: dict[str, BenchmarkJob] = {}
    for depth in depths:
        model = create_model(dataclasses.replace(config, depth=depth, pool_every=1), 0)
        ready = cast_weights(model.to(device), precision)
        jobs[f"forward {depth}"] = measure.make_inference_job(ready, spec, batch_size, device, precision)
        plan = Plan(model=model.config, image=spec, recipe=recipe, compute=compute)
        jobs[f"step {depth}"] = measure.make_training_job(build_train_state(model, plan), plan)
    clock = InterleavedTimer(jobs, device)
    clock.run(num_rounds)
    forward, step = (
        _extrapolate_depth(depths, [clock.timing(f"{part} {depth}").median for depth in depths], config.depth)
        for part in ("forward", "step")
    )
    return StepSeconds(forward, step)


def count_optimizer_bytes(config: ViTConfig, optimizer: Optimizer) -> float:
    """Bytes that an optimizer reads and writes in a step."""
    muon = sum(rows * columns for rows, columns in _list_matrices(config)) if optimizer == "muon" else 0
    return float(MUON_BYTES * muon + ADAMW_BYTES * (parameter_count(config) - muon))


def count_optimizer_flops(config: ViTConfig, optimizer: Optimizer) -> float:
    """Operations of Muon's Newton-Schulz iteration, five rounds of three products a matrix; negligible for AdamW."""
    if optimizer == "adamw":
        return 0.0
    total = 0
    for rows, columns in _list_matrices(config):
        few, many = sorted((rows, columns))
        total += MUON_ITERATIONS * (4 * few * few * many + 2 * few**3)
    return float(total)


def _extrapolate_depth(depths: tuple[int, ...], seconds: list[float], depth: int) -> float:
    """Linear extrapolation of the seconds measured at one or two depths; one depth is the model's."""
    if len(depths) == 1:
        return seconds[0]
    slope = (seconds[1] - seconds[0]) / (depths[1] - depths[0])
    return seconds[0] + max(slope, 0.0) * (depth - depths[0])


def _list_matrices(config: ViTConfig) -> list[tuple[int, int]]:
    """Rows and columns of the matrices that Muon updates; queries, keys and values count as three."""
    with torch.device("meta"):
        named = dict(ViT(config).named_parameters())
    matrices: list[tuple[int, int]] = []
    for name, parameter in named.items():
        if ".blocks." in name and parameter.ndim >= 2:
            rows, columns = parameter.shape[0], parameter[0].numel()
            joint = name.endswith("attention.qkv.weight")
            matrices += [(rows // 3, columns)] * 3 if joint else [(rows, columns)]
    return matrices


# -- Data sheets of other devices.


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """A device by its data sheet: rates per second, sizes in bytes."""

    name: str
    flops_per_second: Mapping[Precision, float]
    """Peak rate of dense matrix products, by precision."""
    memory_bandwidth: float
    memory_bytes: float
    devices_per_node: int
    """Devices in one machine."""
    intra_node_bandwidth: float
    """Between devices of one machine, each way."""
    inter_node_bandwidth: float
    """Network between machines for each device, each way."""

    def link_bandwidth(self, num_devices: int) -> float:
        """Bandwidth of the slowest link on a ring through so many devices."""
        return self.intra_node_bandwidth if num_devices <= self.devices_per_node else self.inter_node_bandwidth


# Sources: NVIDIA's data sheets of the SXM modules (dense rates, without sparsity; float32 without TF32, torch's
# default); between machines one port of 400 Gb/s a device, 200 for the A100.
_H100 = DeviceSpec(
    name="NVIDIA H100 SXM 80 GB",
    flops_per_second={"float32": 67e12, "bfloat16": 989e12, "float16": 989e12},
    memory_bandwidth=3.35e12,
    memory_bytes=80e9,
    devices_per_node=8,
    intra_node_bandwidth=450e9,
    inter_node_bandwidth=50e9,
)
DEVICES = {
    "h100": _H100,
    "h200": dataclasses.replace(_H100, name="NVIDIA H200 SXM 141 GB", memory_bandwidth=4.8e12, memory_bytes=141e9),
    "a100": DeviceSpec(
        name="NVIDIA A100 SXM 80 GB",
        flops_per_second={"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
        memory_bandwidth=2.04e12,
        memory_bytes=80e9,
        devices_per_node=8,
        intra_node_bandwidth=300e9,
        inter_node_bandwidth=25e9,
    ),
}
THIS_MACHINE = "here"


def get_device_spec(name: str) -> DeviceSpec:
    """A device by its short name.

    Raises:
        UsageError: an unknown name.
    """
    if name not in DEVICES:
        raise UsageError(f"--on must be {THIS_MACHINE} (this machine, measured), {', '.join(DEVICES)}. Got {name!r}.")
    return DEVICES[name]
