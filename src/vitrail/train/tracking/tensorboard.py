"""TensorBoard: event files in RUN/tensorboard; `tensorboard --logdir runs` shows all runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .tracker import Filed, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """One writer for each axis, made when its first row comes.

    A writer forgets what an earlier process of the run wrote from that row on: a resume does those steps again.
    """

    def __init__(self, filed: Filed):
        import tensorboard  # noqa: F401  # torch's writer needs it, and says so less clearly

        self._folder: Path = filed.folder / FOLDER
        self._settings = filed.settings
        self._writers: dict[str, SummaryWriter] = {}

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._add(axis, step, numbers, step)

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures as points at the last step."""
        self._add("step", step, figures, step + 1)

    def _add(self, axis: str, step: int, numbers: Mapping[str, float], forget_from: int) -> None:
        if axis not in self._writers:
            self._writers[axis] = self._writer(axis, forget_from)
        for name, number in numbers.items():
            self._writers[axis].add_scalar(name, number, step)

    def _writer(self, axis: str, forget_from: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder if axis == "step" else self._folder / axis.removesuffix("_step")
        fresh = not any(folder.glob("events.out.tfevents.*"))
        writer = SummaryWriter(str(folder), purge_step=forget_from)
        if axis == "step" and fresh:
            rows = "".join(f"| {name} | {value} |\n" for name, value in self._settings.items())
            writer.add_text("plan", f"| field | value |\n|---|---|\n{rows}", 0)
        return writer

    def close(self, whole: bool) -> None:
        """Write what is still in memory."""
        for writer in self._writers.values():
            writer.close()
