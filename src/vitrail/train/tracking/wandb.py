"""Weights & Biases: one run, resumed under its id; its own environment variables say where and as whom."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .tracker import Filed, Tracker


class Wandb(Tracker):
    """Every row names its own step, so that a resumed run may repeat some."""

    def __init__(self, filed: Filed):
        import wandb

        self._run = wandb.init(
            project=filed.project or os.environ.get("WANDB_PROJECT") or "vitrail",
            name=filed.name,
            id=filed.known_as or None,
            resume="allow",
            dir=str(filed.folder),
            config=dict(filed.settings),
            settings=wandb.Settings(console="off"),
        )
        self.known_as = str(self._run.id)
        self._axes: set[str] = set()

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row, drawn over its own axis."""
        if axis not in self._axes:
            self._axes.add(axis)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric("*" if axis == "step" else f"{axis.removesuffix('step')}*", step_metric=axis)
        self._run.log({axis: step, **numbers})

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Put the figures into the run's summary."""
        self._run.summary.update(dict(figures))

    def close(self, whole: bool) -> None:
        """Finish the run; one that was stopped counts as failed until it goes on."""
        self._run.finish(exit_code=0 if whole else 1)
