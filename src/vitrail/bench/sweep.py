"""A model measured at several batches: answers, training steps, files read and answered, beside the device's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import nn

from ..evaluate.collect import made_ready
from ..model import flops
from ..model.vit import ViT
from ..runtime import NumberFormat, memory_is_full
from ..spec import ImageSpec
from ..train.loop import build_train_state
from ..train.plan import ComputeSettings, Plan, Recipe
from . import files, jobs, limits, peak
from .clock import Clock, Job, Timing

What = Literal["inference", "training", "loading", "predicting"]
WHATS: tuple[What, ...] = get_args(What)
ENDLESS = 1_000_000
"""Steps of the training that is measured."""
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to measure, and how."""

    whats: tuple[What, ...] = WHATS
    batches: tuple[int, ...] = (1, 8, 32)
    device: str = "cpu"
    number_format: NumberFormat = "float32"
    workers: int = 2
    """Threads that decode pictures."""
    optimizer: Literal["muon", "adamw"] = "muon"
    compile: bool = False
    rounds: int = 5
    least: float = 0.2
    """Seconds that everything is repeated for in a round."""
    files: int = 64
    """Pictures in files that are read."""
    size: tuple[int, int] = (427, 640)
    """Their height and width."""


@dataclass(frozen=True)
class Row:
    """One thing that was measured at one batch; pictures a second, and what limits them."""

    what: What
    batch: int
    timing: Timing
    pictures: int
    """Of one call."""
    flops: float
    """Of one call, in the model's matrix products; 0 where there are none."""
    limit: float | None
    """Operations a second of the same products alone, timed in the same rounds; None where there are none."""
    memory: int | None
    """Bytes at the highest point; None where the machine cannot say."""

    @property
    def rate(self) -> float:
        """Pictures a second."""
        return self.pictures / self.timing.median

    @property
    def utilisation(self) -> float | None:
        """Share of the time that its products alone would take (model FLOPs utilisation)."""
        return None if self.limit is None else self.flops / self.timing.median / self.limit


class Measurement:
    """The jobs of a sweep, made ready and timed in turn; `left_out` names what could not be.

    Args:
        model: with random or trained weights; a training moves them.
        folder: where pictures in files may be written.
    """

    def __init__(self, model: ViT, spec: ImageSpec, sweep: Sweep, folder: Path):
        self.model, self.spec, self.sweep, self.folder = model, spec, sweep, folder
        self.left_out: list[str] = []
        self.rows: list[Row] = []
        self.large, self.copied = 0.0, 0.0
        self._memory: dict[str, int | None] = {}

    def run(self) -> Iterator[str]:
        """Measure everything, saying what is being done; afterwards `rows`, `large` and `copied` are there."""
        model = self.model.to(self.sweep.device)
        ready: dict[str, tuple[What, int, Job, int]] = {}
        for what in self.sweep.whats:
            for batch, job, pictures in self._jobs(what, model):
                name = f"{what}, batch {batch}"
                yield f"warming up {name}"
                if not self._fits(name, job):
                    break
                ready[name] = (what, batch, job, pictures)
        bounds = self._limits(ready)
        every = {name: job for name, (_, _, job, _) in ready.items()}
        clock = Clock(every | {name: bound.job for name, bound in bounds.items()}, self.sweep.device, self.sweep.least)
        for name in clock.warm_up():
            yield f"warming up {name}"
        for number, name in clock.rounds(self.sweep.rounds):
            yield f"round {number} of {self.sweep.rounds}, {name}"
        rates = {name: bound.amount / clock.timing(name).median for name, bound in bounds.items()}
        self.large, self.copied = rates["one large product"], rates["copies"]
        self.rows = [
            Row(
                what, batch, clock.timing(name), pictures, self._flops(what, pictures),
                rates.get(f"products of {name}"), self._memory[name],
            )
            for name, (what, batch, _, pictures) in ready.items()
        ]  # fmt: skip

    def _jobs(self, what: What, model: ViT) -> Iterator[tuple[int, Job, int]]:
        """Batch by batch what to call, and the pictures of a call."""
        sweep, shape = self.sweep, self.model.config
        if what in ("training", "predicting") and not shape.outputs:
            self.left_out.append(f"{what}: the model has no outputs, only features")
        elif what in ("loading", "predicting") and self.spec.channels not in (1, 3):
            self.left_out.append(f"{what}: files have 1 or 3 channels, and this model reads {self.spec.channels}")
        elif what == "inference":
            ready = made_ready(model, sweep.number_format)
            answering = cast(nn.Module, torch.compile(ready)) if sweep.compile else ready
            for batch in sweep.batches:
                yield batch, jobs.answers(answering, self.spec, batch, sweep.device, sweep.number_format), batch
        elif what == "training":
            learner = build_train_state(model, self.plan(1))
            for batch in sweep.batches:
                yield batch, jobs.step(learner, self.plan(batch)), batch
        else:
            yield from self._of_files(what, model)

    def _of_files(self, what: What, model: ViT) -> Iterator[tuple[int, Job, int]]:
        """Files are read in batches of the sweep's largest: smaller ones say nothing new."""
        sweep, batch = self.sweep, min(max(self.sweep.batches), self.sweep.files)
        made = sorted(self.folder.glob("*/*.jpg")) or files.write(
            self.folder, sweep.files, sweep.size, self.spec.channels
        )
        if what == "loading":
            yield batch, jobs.reading(self.folder, self.spec, batch, sweep.workers), len(made) // batch * batch
        else:
            yield batch, jobs.predicting(model, self.spec, made, batch, sweep.device, sweep.number_format), len(made)

    def _fits(self, name: str, job: Job) -> bool:
        """Call a job once and note its memory; what does not fit is left out, and larger batches with it."""
        known = peak.forget(self.sweep.device)
        try:
            job()
        except (MemoryError, RuntimeError) as error:
            if not memory_is_full(error):
                raise
            self.left_out.append(f"{name} and above: the memory is full")
            return False
        self._memory[name] = peak.highest(self.sweep.device) if known else None
        return True

    def _limits(self, ready: Mapping[str, tuple[What, int, Job, int]]) -> dict[str, limits.Limit]:
        device, dtype = self.sweep.device, FORMATS[self.sweep.number_format]
        found = {"one large product": limits.large(dtype, device), "copies": limits.copies(device)}
        for name, (what, batch, _, _) in ready.items():
            if what in ("inference", "training"):
                found[f"products of {name}"] = limits.block(
                    self.model.config, batch, dtype, device, training=what == "training"
                )
        return found

    def _flops(self, what: What, pictures: int) -> float:
        if what == "loading":
            return 0.0
        count = flops.training_flops if what == "training" else flops.forward_flops
        return float(pictures * count(self.model.config))

    def plan(self, batch: int) -> Plan:
        """A training without end, as plain as the recipe's defaults are."""
        sweep = self.sweep
        compute = ComputeSettings(
            device=sweep.device, number_format=sweep.number_format, compile=sweep.compile, workers=sweep.workers
        )
        recipe = Recipe(steps=ENDLESS, batch=batch, optimizer=sweep.optimizer, warmup=0.0)
        return Plan(model=self.model.config, image=self.spec, recipe=recipe, compute=compute)


def chosen(names: Sequence[str]) -> tuple[What, ...]:
    """The things to measure that are named; all where none is.

    Raises:
        UsageError: there is no such thing.
    """
    from ..errors import UsageError

    for name in names:
        if name not in WHATS:
            raise UsageError(f"What can be measured is {', '.join(WHATS)}. Got {name!r}.")
    return tuple(what for what in WHATS if what in names or not names)


def timing_facts(timing: Timing) -> dict[str, float | int]:
    """A timing as plain values."""
    return {**dataclasses.asdict(timing), "spread": round(timing.spread, 4)}
