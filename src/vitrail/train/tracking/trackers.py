"""All trackers of a run, fed by one thread, so that no step waits for a network and none can end a training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import NamedTuple

from ...errors import ResourceError
from ...files import atomic
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .tracker import Filed, Tracker
from .trackio import Trackio
from .wandb import Wandb

OPENED: dict[str, Callable[[Filed], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
    "trackio": Trackio,
}
KNOWN_AS = "tracked.json"
"""In the run folder: each tracker's own word for the run."""
PATIENCE = 60.0
"""Seconds that a run which is over waits for its trackers."""


class _Row(NamedTuple):
    axis: str
    step: int
    numbers: Mapping[str, float]
    last: bool = False


class Trackers:
    """Takes rows as metrics.jsonl holds them. Without trackers it does nothing."""

    def __init__(self) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._told: list[str] = []
        self._rows: Queue[_Row | None] = Queue()
        self._feeder: Thread | None = None
        self._whole = False

    def open(self, names: tuple[str, ...], filed: Filed) -> None:
        """Begin, or go on, with these trackers; one that cannot be opened is told of and left out."""
        known = _known(filed.folder)
        for name in names:
            with self._leaving_out(name):
                self._trackers[name] = OPENED[name](replace(filed, known_as=known.get(name, "")))
        known |= {name: tracker.known_as for name, tracker in self._trackers.items() if tracker.known_as}
        if known:
            with suppress(ResourceError, OSError):
                atomic.write_json(filed.folder / KNOWN_AS, known)
        if self._trackers:
            self._feeder = Thread(target=self._feed, name="trackers", daemon=True)
            self._feeder.start()

    def record(self, row: Mapping[str, float]) -> None:
        """Pass on a row of the curves; one of what comes before the training has a step of its own beside `step`."""
        if self._feeder is not None:
            axis = next((name for name in row if name.endswith("_step")), "step")
            numbers = {name: number for name, number in row.items() if name not in ("step", axis)}
            self._rows.put(_Row(axis, int(row[axis]), numbers))

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Pass on the figures of the held-out pictures."""
        if self._feeder is not None:
            self._rows.put(_Row("step", step, figures, last=True))

    def told(self) -> list[str]:
        """What has gone wrong since this was asked last, in sentences."""
        found, self._told = self._told, []
        return found

    def close(self, whole: bool = False) -> list[str]:
        """Deliver what is left, for a minute at most; what went wrong, in sentences. A second time does nothing.

        Args:
            whole: whether the run came to its end.
        """
        if self._feeder is not None:
            self._whole = whole
            self._rows.put(None)
            self._feeder.join(PATIENCE)
            if self._feeder.is_alive():
                names = " and ".join(self._trackers)
                self._told.append(f"{names} did not take all rows within {PATIENCE:.0f} s; metrics.jsonl has them.")
            self._feeder = None
        return self.told()

    def _feed(self) -> None:
        while (row := self._rows.get()) is not None:
            for name, tracker in list(self._trackers.items()):
                with self._leaving_out(name):
                    if row.last:
                        tracker.conclude(row.step, row.numbers)
                    else:
                        tracker.record(row.axis, row.step, row.numbers)
        for name, tracker in list(self._trackers.items()):
            with self._leaving_out(name):
                tracker.close(self._whole)

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        """A tracker is a program of others: whatever it raises is told, and it gets no more rows."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            why = " ".join(str(error).split()) or type(error).__name__
            why = why[:300].rstrip(".")
            self._told.append(f"{name} gets no more rows: {why}. The training goes on; metrics.jsonl has them all.")


def _known(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / KNOWN_AS).read_text(encoding="utf-8")))
    return {}
