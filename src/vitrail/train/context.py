"""What the functions of one training share: its plan, its images, the processes that train, and the run folder."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from ..data.loader import ImageStore
from .dataset import Dataset
from .distributed.collectives import SINGLE_PROCESS, RankGroup
from .plan import Plan
from .run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class PlanContext:
    """A plan and what it would train on: enough to measure a few steps, before there is a run folder."""

    plan: Plan
    dataset: Dataset
    images: ImageStore
    """Those of the train split."""
    group: RankGroup = SINGLE_PROCESS
    measure_until: float | None = None
    """Value of `time.perf_counter` from which no more is measured before the first step than must be."""

    def measuring_seconds(self) -> float:
        """Seconds that are left for measurements, at least 0."""
        return math.inf if self.measure_until is None else max(0.0, self.measure_until - time.perf_counter())

    def with_plan(self, plan: Plan) -> PlanContext:
        """The same images and processes under another plan."""
        return replace(self, plan=plan)

    def in_run(self, run: RunFolder, plan: Plan) -> TrainContext:
        """The training of the final plan, in its run folder."""
        return TrainContext(run=run, plan=plan, dataset=self.dataset, images=self.images, group=self.group)


@dataclass(frozen=True, kw_only=True)
class TrainContext(PlanContext):
    """A training with its run folder; made once, when the plan is final."""

    run: RunFolder
