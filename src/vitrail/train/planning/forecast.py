"""What a run will take: seconds and memory, told with the plan, and compared with what happened at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...data.loader import ImageStore
from ...evaluate.collect import collect
from ...model.vit import create_model, parameter_count
from ...report.explanations import MOST
from ..dataset import Dataset
from ..deciding import FAMILIAR_PICTURES
from ..engines import ahead
from ..engines.engine import chosen
from ..engines.team import ALONE, Team
from ..events import Event, Finished
from ..explained import LEAST, SHARE
from ..plan import Plan
from ..recipe import LOOKED_AT
from ..transfer.settings import MOST_JUDGED
from . import cost, footprint
from .cost import Cost
from .pace import Pace

TIMED = 250
"""Pictures whose answers are timed."""
REPORT_SECONDS = 4.0
"""Figures with intervals, the bundle, the sheet and the report page, with the libraries that they import."""
PASSES = 6
"""Answers that one map for the report costs: two or three, of one picture at a time."""
REPORT_BYTES = 30 * 2**20
"""What those libraries take in memory, on top of the training's highest point."""


class Watch:
    """How long the parts of a run take, from the moment that it is made."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.decoding = 0.0

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    @contextmanager
    def decodes(self) -> Iterator[None]:
        """What happens in this block decodes the training pictures."""
        began = time.perf_counter()
        yield
        self.decoding = time.perf_counter() - began

    def kept(self, events: Iterator[Event], folder: Path, plan: Plan, predicted: Cost | None) -> Iterator[Event]:
        """The events of a run, whose cost is written into its folder: predicted at once, actual when it has ended.

        A run that was interrupted and went on later has no actual cost: nobody timed it as a whole.
        """
        prepared = self.elapsed()
        cost.write(folder, predicted)
        for event in events:
            if isinstance(event, Finished):
                after = self.elapsed() - prepared - event.seconds
                cost.write(folder, predicted, Cost(prepared, event.seconds, after, footprint.peak(plan.compute.device)))
            yield event


def foretell(
    plan: Plan, pace: Pace, spent: float, watch: Watch, pictures: ImageStore, dataset: Dataset, team: Team = ALONE
) -> Cost:
    """The cost of the run that this plan describes on this machine, from what its beginning took.

    Args:
        pace: of a plan without steps `settle.NO_STEPS`.
        spent: seconds of the training that come before its first step: pre-training, teacher, features and probes.
        pictures: the training pictures; a fresh model answers some of them to see how long that takes.
        team: on GPUs each process needs memory for its part.
    """
    answer = _seconds_per_answer(plan, pictures)
    decoded = watch.decoding / max(len(pictures.indices), 1)
    val, test = (len(dataset.splits[split]) for split in ("val", "test"))
    looks = min(val, LOOKED_AT) * plan.recipe.looks * answer
    familiar = min(FAMILIAR_PICTURES, len(dataset.splits["train"])) if val else 0
    views = plan.recipe.views.count
    training = plan.recipe.steps * pace.mean + spent
    held_out = (val + test) * (views * answer + decoded) + val * decoded + familiar * (answer + decoded)
    tuned = plan.start.from_checkpoint and plan.recipe.steps > 0
    finalists = 2 * val if val > MOST_JUDGED else 0
    compared = min(val, MOST_JUDGED) * (1 + len(plan.start.average)) + finalists if tuned else 0
    maps = min(2 * MOST * PASSES * answer, max(LEAST, SHARE * training))
    on_gpu = torch.device(plan.compute.device).type != "cpu"
    return Cost(
        preparation=watch.elapsed(),
        training=training,
        evaluation=looks + compared * (views * answer + decoded) + held_out + maps + REPORT_SECONDS,
        memory=_on_gpu(plan, pictures, team) if on_gpu else footprint.peak(plan.compute.device) + REPORT_BYTES,
        step_seconds=tuple(seconds for _, seconds in pace.phases),
    )


def _on_gpu(plan: Plan, pictures: ImageStore, team: Team) -> int:
    """Bytes that a process needs on its GPU."""
    device = plan.compute.device
    sharded = chosen(plan.compute.engine, team, parameter_count(plan.model), device)[0] == "fsdp"
    steps = footprint.on_device(plan, team.world if sharded else 1, team.world)
    return steps + ahead.bytes_held(pictures, device)


def _seconds_per_answer(plan: Plan, pictures: ImageStore) -> float:
    """Seconds to answer one view of a picture; the first batch warms up."""
    rows, device = pictures.indices[:TIMED], plan.compute.device
    model = create_model(plan.model, plan.seed).to(device)
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        collect(model, pictures, rows, plan.image, TIMED, device, plan.compute.number_format)
        seconds = time.perf_counter() - began
    return seconds / len(rows)
