"""Ours beside timm's model of the same shape on one device, both compiled, in turns: training, batches, a lone picture.

timm's side is the shortest loop there is: pictures that lie normalised on the device, autocast, fused AdamW. Ours is
the loop of `vitrail train` with augmentation and guards, and for answers what `vitrail predict` calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.bench import measure
from vitrail.model.config import ViTConfig
from vitrail.model.layers import cast_linear_weights
from vitrail.model.vit import create_model
from vitrail.train.loop import build_train_state
from vitrail.train.plan import Plan

from .contestant import declare, of_timm
from .records import Row

Job = Callable[[], object]
WARM_UP, ROUNDS = 5, 7
LEAST = 0.5
"""Seconds of a turn."""
GRAPHS = "reduce-overhead"
"""torch.compile's mode that records a call once and replays it: a lone picture is mostly starts of kernels."""


def compare_with_timm(plan: Plan, answered: int, device: str, dry: bool) -> Iterator[Row]:
    """A row for each kind of work: ours, timm's, and how many times as fast ours is.

    Args:
        plan: of a training of ours, compiled unless `dry`.
        answered: pictures of a large batch of answers.
    """
    declare()
    theirs = of_timm(plan.model, {"fused": True}).to(device)
    kinds: dict[str, tuple[int, dict[str, Job]]] = {
        "training": (
            plan.recipe.batch_size,
            {
                "vitrail": measure.make_training_job(build_train_state(create_model(plan.model, 0), plan), plan),
                "timm": training_step(theirs, plan.model, plan.recipe.batch_size, device, dry),
            },
        )
    }
    yield from measure_turns(kinds, device, dry)
    models = {"vitrail": create_model(plan.model, 0).to(device), "timm": theirs}
    ready = {name: cast_linear_weights(model.eval(), torch.bfloat16) for name, model in models.items()}
    for batch in (answered, 1):
        each = {name: answer(model, plan.model, batch, device, dry) for name, model in ready.items()}
        yield from measure_turns({"answers": (batch, each)}, device, dry)


def measure_turns(kinds: Mapping[str, tuple[int, Mapping[str, Job]]], device: str, dry: bool) -> Iterator[Row]:
    """Medians over turns."""
    for kind, (batch, contestants) in kinds.items():
        seconds = in_turns(contestants, device, dry)
        found: Row = {"row": f"{kind} beside timm, batch {batch}, bfloat16, {'not ' if dry else ''}compiled"}
        for name, taken in seconds.items():
            found[f"{name} images/s"] = round(batch / taken, 1)
            found[f"{name} ms"] = round(1000 * taken, 3)
        found["times as fast"] = round(seconds["timm"] / seconds["vitrail"], 3)
        yield found


def in_turns(contestants: Mapping[str, Job], device: str, dry: bool) -> dict[str, float]:
    """Median seconds of a call of each, after a warm-up that compiles."""
    for job in contestants.values():
        for _ in range(1 if dry else WARM_UP):
            job()
    counts = {name: 1 if dry else math.ceil(LEAST / turn(job, 3, device)) for name, job in contestants.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(2 if dry else ROUNDS):
        for name, job in contestants.items():
            taken[name].append(turn(job, counts[name], device))
    return {name: statistics.median(each) for name, each in taken.items()}


def turn(job: Job, count: int, device: str) -> float:
    """Mean seconds of so many calls, to the end of what the device does for them."""
    finished = torch.cuda.synchronize if device == "cuda" else lambda: None
    finished()
    began = time.perf_counter()
    for _ in range(count):
        job()
    finished()
    return (time.perf_counter() - began) / count


def training_step(model: nn.Module, config: ViTConfig, batch: int, device: str, dry: bool) -> Job:
    """Forward, cross entropy, backward, fused AdamW, as a plain script has them."""
    model.train()
    images = torch.randn(batch, config.channels, *config.image_size, device=device)
    targets = torch.arange(batch, device=device) % config.outputs
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def measure(images: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            outputs = model(images)
        return F.cross_entropy(outputs.float(), targets)

    loss_of = measure if dry else torch.compile(measure)

    def job() -> None:
        loss_of(images).backward()
        optimizer.step()
        optimizer.zero_grad()

    return job


def answer(model: nn.Module, config: ViTConfig, batch: int, device: str, dry: bool) -> Job:
    """Outputs of pictures that lie on the device, by matrices that were cast once."""
    images = torch.randn(batch, config.channels, *config.image_size, device=device)
    called = model if dry else torch.compile(model, mode=GRAPHS)

    def job() -> object:
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16):
            return called(images)

    return job
