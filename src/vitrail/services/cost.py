"""Cost of training and inference: operations, memory, time and data rates on any number of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .. import runtime
from ..bench import cost_model
from ..bench.cost_model import (
    IMAGE_FILE_BYTES,
    IMAGES_PER_CORE_SECOND,
    THIS_MACHINE,
    CostEstimate,
    Hardware,
    Workload,
    estimate_workload_cost,
)
from ..errors import UsageError
from ..evaluate.device_check import choose_checked_runtime
from ..formatting import format_bytes, format_count, format_duration, format_flops, format_short_duration
from ..model import flops
from ..model.attention import device_capability
from ..model.config import ViTConfig
from ..runtime import Precision
from ..spec import ImageSpec
from ..train.events import PlanEvent
from ..train.plan import Plan

DEFAULT_LINK_BANDWIDTH = {"cpu": 1.25e9, "mps": 1.25e9, "cuda": 25e9}
"""Assumed bytes a second between devices like this machine's: 10 Gb/s Ethernet, or PCIe 4."""
DEFAULT_BATCH_PER_DEVICE = {"cpu": 32, "mps": 64}
"""Default batch size of a device; 256 on a GPU."""


@dataclass(frozen=True, kw_only=True)
class CostRequest:
    """Options of a cost estimate.

    Raises:
        UsageError: an invalid number of devices, images or epochs, or an invalid utilization.
    """

    device: str = THIS_MACHINE
    devices: int = 1
    batch_size: int = 0
    """Images in a step on all devices together; 0 takes the default."""
    num_images: int = 0
    """Images of the data set; 0 for none."""
    epochs: float = 0.0
    """Epochs of a training on them; 0 estimates inference only."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    optimizer: cost_model.Optimizer = "adamw"
    utilization: float | None = None
    """Utilization of another device's published rate."""

    def __post_init__(self) -> None:
        if self.devices < 1 or self.batch_size < 0:
            raise UsageError(f"--devices and --batch must be at least 1. Got {self.devices} and {self.batch_size}.")
        if self.num_images < 0 or self.epochs < 0:
            raise UsageError(f"--pictures and --epochs must be 0 or more. Got {self.num_images} and {self.epochs:g}.")
        if self.epochs and not self.num_images:
            raise UsageError("--epochs are passes over so many --pictures. Give both.")
        if self.utilization is not None and self.device == THIS_MACHINE:
            raise UsageError("--reached is a share of a published rate. Name the device with --on, such as --on h100.")
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise UsageError(f"--reached must lie in 0 < share <= 1. Got {self.utilization:g}.")


def estimate_cost(config: ViTConfig, spec: ImageSpec, request: CostRequest) -> dict[str, Any]:
    """Cost as plain values; on this machine two shallow copies of the model are timed for some seconds.

    Raises:
        UsageError: no such device, or a batch size that is no multiple of the devices.
    """
    workload, seconds, hardware, where, assumed = (
        _measure_here(config, spec, request) if request.device == THIS_MACHINE else _estimate_elsewhere(config, request)
    )
    cost = estimate_workload_cost(workload, seconds, hardware)
    return {
        "on": where,
        "devices": workload.num_devices,
        "batch": workload.batch_size,
        "number_format": workload.precision,
        "optimizer": workload.optimizer,
        **asdict(cost),
        "parts": flops.flops_by_part(config),
        "run": _summarize_run(cost, request, workload.num_devices),
        "data": {
            "training": _estimate_data_rate(cost.training_rate),
            "answers": _estimate_data_rate(cost.inference_rate),
        },
        "assumed": assumed,
    }


def format_cost(name: str, facts: Mapping[str, Any]) -> list[str]:
    """The cost as lines for people."""
    count, total, run = facts["devices"], sum(facts["parts"].values()), facts["run"]
    shares = ", ".join(f"{part} {amount / total:.0%}" for part, amount in facts["parts"].items() if amount)
    engine = {"alone": "", "ddp": ", a copy on each (DDP)", "fsdp": ", shared out (FSDP2)"}[facts["engine"]]
    room = "" if facts["fits"] else "; more than it has: take a smaller --batch or more --devices"
    rows = {
        "operations": f"{format_flops(facts['forward_flops'])} a picture forward ({shares}), "
        f"{format_flops(facts['training_flops'])} in training",
        "memory": f"training {format_bytes(facts['training_memory'])} a device with "
        f"{format_count(facts['batch'] // count, 'picture')}{engine}{room}; answers "
        f"{format_bytes(facts['inference_memory'])}",
        "step": f"{format_short_duration(facts['step'])} for {format_count(facts['batch'], 'picture')}, "
        f"{format_short_duration(facts['waiting'])} of it waiting for "
        f"other devices; {facts['training_rate']:,.0f} pictures/s",
        "answers": f"{facts['inference_rate']:,.0f} pictures/s",
    }
    if run:
        pictures = f"{run['pictures']:,}"
        what = f"{run['epochs']:g} epochs of {pictures} pictures" if run["epochs"] else f"{pictures} answers"
        hours, operations = f"{run['device_hours']:,.1f} device hours", format_flops(run["flops"])
        rows["whole run"] = f"{what}: {format_duration(run['seconds'])}, {hours}, {operations}"
    rate = facts["data"]["answers" if run and not run["epochs"] else "training"]
    rows["data"] = (
        f"{rate['bytes_per_second'] / 1e9:,.2f} GB/s of JPEG files of {IMAGE_FILE_BYTES / 1000:g} kB, decoded by "
        f"{rate['cores']:,} cores at {IMAGES_PER_CORE_SECOND} pictures/s each"
    )
    head = f"Cost of {name} on {count} x {facts['on']} in {facts['number_format']}, {facts['optimizer']}"
    width = max(map(len, rows))
    assumed = [f"  {'assumed':<{width}}  {text}" for text in facts["assumed"]]
    return [head, *(f"  {what:<{width}}  {text}" for what, text in rows.items()), *assumed]


def count_plan_flops(plan: Plan) -> int:
    """Operations of a planned training, including the savings of its early stages."""
    total, recipe = 0.0, plan.recipe
    for phase in recipe.progressive_stages():
        step = recipe.step_at(phase.begin)
        shown = recipe.tokens_at(step, plan.model.grid)
        total += phase.fraction * recipe.steps * recipe.batch_size * flops.training_flops(plan.model, shown)
    return round(total)


def estimate_plan_cost(planned: PlanEvent, num_devices: int | None) -> dict[str, Any]:
    """Operations of a planned run, and with `num_devices` its cost on several devices like this machine's.

    Raises:
        UsageError: less than one device, or a batch size that is no multiple of the devices.
    """
    plan = planned.plan
    facts: dict[str, Any] = {
        "forward_flops": flops.forward_flops(plan.model),
        "training_flops": flops.training_flops(plan.model),
        "run_flops": count_plan_flops(plan),
    }
    if num_devices is None or planned.cost is None:
        return facts
    workload = Workload(
        config=plan.model, batch_size=plan.recipe.batch_size, num_devices=num_devices, precision=plan.compute.precision,
        optimizer=plan.recipe.optimizer,
    )  # fmt: skip
    each = planned.cost.training / max(plan.recipe.steps, 1) / num_devices
    hardware = _describe_hardware(plan.compute.device, plan.compute.threads)
    cost = estimate_workload_cost(workload, cost_model.StepSeconds(forward=each, step=each), hardware)
    training = cost.step * plan.recipe.steps
    total = planned.cost.preparation + training + planned.cost.evaluation
    facts["on_devices"] = {
        "devices": num_devices, "engine": cost.engine, "training_seconds": training, "seconds": total,
        "waiting": cost.waiting, "memory": cost.training_memory, "pictures_per_second": cost.training_rate,
        "assumed": _format_link(hardware),
    }  # fmt: skip
    return facts


def format_plan_cost(planned: PlanEvent, num_devices: int | None) -> list[str]:
    """The cost of a planned run as sentences; arguments as `estimate_plan_cost`."""
    facts = estimate_plan_cost(planned, num_devices)
    forward, training, run = (format_flops(facts[f"{name}_flops"]) for name in ("forward", "training", "run"))
    lines = [f"Operations: {forward} a picture forward, {training} in training, {run} in the whole run."]
    if "on_devices" in facts:
        many = facts["on_devices"]
        lines.append(
            f"On {num_devices} devices like this one: {format_duration(many['seconds'])}, "
            f"training {format_duration(many['training_seconds'])} at {many['pictures_per_second']:,.0f} pictures/s, "
            f"{format_bytes(many['memory'])} each ({many['engine']}); assumed {many['assumed']}."
        )
    return lines


_EstimateInputs = tuple[Workload, cost_model.StepSeconds, Hardware, str, list[str]]


def _measure_here(config: ViTConfig, spec: ImageSpec, request: CostRequest) -> _EstimateInputs:
    machine = choose_checked_runtime(runtime.RuntimeSettings(precision=request.precision))
    runtime.apply(machine)
    kind = machine.device.partition(":")[0]
    workload = _make_workload(config, request, machine.precision, DEFAULT_BATCH_PER_DEVICE.get(kind, 256))
    seconds = cost_model.measure_step_seconds(
        config, spec, workload.batch_per_device, machine.device, machine.precision, workload.optimizer
    )
    hardware = _describe_hardware(machine.device, machine.threads)
    where = f"this machine's {machine.device}"
    if kind == "cpu":
        where = f"this machine ({runtime.cpu_name()}, {format_count(machine.threads, 'thread')})"
    return workload, seconds, hardware, where, [_format_link(hardware)] if workload.num_devices > 1 else []


def _estimate_elsewhere(config: ViTConfig, request: CostRequest) -> _EstimateInputs:
    device = cost_model.get_device_spec(request.device)
    precision: Precision = "bfloat16" if request.precision == "auto" else request.precision
    workload = _make_workload(config, request, precision, 256)
    utilization, origin = request.utilization, "as --reached says"
    if utilization is None:
        utilization, origin = cost_model.DEFAULT_UTILIZATION, "not measured: see docs/scale.md"
    seconds = cost_model.estimate_step_seconds(
        config, workload.batch_per_device, device, precision, workload.optimizer, utilization
    )
    hardware = Hardware(
        capability="cuda", memory_bytes=device.memory_bytes, link_bandwidth=device.link_bandwidth(workload.num_devices)
    )
    rate = device.flops_per_second[precision] / 1e12
    return (
        workload,
        seconds,
        hardware,
        device.name,
        [f"{utilization:.0%} of {rate:,.0f} TFLOP/s are reached ({origin})"],
    )


def _make_workload(config: ViTConfig, request: CostRequest, precision: Precision, batch_per_device: int) -> Workload:
    return Workload(
        config=config,
        batch_size=request.batch_size or batch_per_device * request.devices,
        num_devices=request.devices,
        precision=precision,
        optimizer=request.optimizer,
    )


def _describe_hardware(device: str, threads: int) -> Hardware:
    kind, memory = device.partition(":")[0], None
    if kind == "cuda":
        import torch

        memory = float(torch.cuda.get_device_properties(device).total_memory)
    return Hardware(
        capability=device_capability(device),
        memory_bytes=memory,
        link_bandwidth=DEFAULT_LINK_BANDWIDTH[kind],
        num_threads=max(1, threads) if kind == "cpu" else 1,
    )


def _format_link(hardware: Hardware) -> str:
    return f"{hardware.link_bandwidth / 1e9:g} GB/s from each device to the next"


def _summarize_run(estimate: CostEstimate, request: CostRequest, num_devices: int) -> dict[str, float]:
    """Totals of the training, or of inference on all images; empty without a data set."""
    if not request.num_images:
        return {}
    shown = request.num_images * (request.epochs or 1)
    rate, flops = estimate.inference_rate, estimate.forward_flops
    if request.epochs:
        rate, flops = estimate.training_rate, estimate.training_flops
    return {
        "pictures": request.num_images, "epochs": request.epochs, "seconds": shown / rate,
        "device_hours": shown / rate * num_devices / 3600, "flops": float(shown * flops),
        "bytes_of_the_set": float(request.num_images * IMAGE_FILE_BYTES),
    }  # fmt: skip


def _estimate_data_rate(rate: float) -> dict[str, float]:
    return {
        "pictures_per_second": rate,
        "bytes_per_second": rate * IMAGE_FILE_BYTES,
        "cores": math.ceil(rate / IMAGES_PER_CORE_SECOND),
    }
