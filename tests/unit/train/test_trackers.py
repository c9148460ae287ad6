"""Rows reach every tracker in order, and no tracker can stop a training or make it wait."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from vitrail.train import trackers
from vitrail.train.trackers import RUN_IDS_FILE, TrackedRun, Tracker, Trackers


class Noting(Tracker):
    """Writes down what it gets."""

    def __init__(self, filed: TrackedRun):
        self.filed = filed
        self.run_id = filed.run_id or "noted-7"
        self.rows: list[object] = []

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        self.rows.append((axis, step, dict(numbers)))

    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append(("end", step, dict(metrics)))

    def close(self, completed: bool) -> None:
        self.rows.append(completed)


class Breaking(Noting):
    """Takes one row."""

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        if self.rows:
            raise ConnectionError("nobody\nlistens")
        super().record(axis, step, numbers)


class Stuck(Noting):
    """Waits for a server that never answers, until the test lets it go."""

    free = threading.Event()

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        assert self.free.wait(60)


def refusing(filed: TrackedRun) -> Tracker:
    raise RuntimeError("no key for api.example")


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Trackers of these kinds, open, and what was made."""
    made: dict[str, Noting] = {}

    def kept(name: str, kind: type[Noting]):
        def make(filed: TrackedRun) -> Noting:
            made[name] = kind(filed)
            return made[name]

        return make

    kinds = {name: kept(name, kind) for name, kind in (("noting", Noting), ("breaking", Breaking), ("stuck", Stuck))}
    monkeypatch.setattr(trackers, "TRACKER_CLASSES", {**kinds, "refusing": refusing})

    def open_them(*names: str) -> tuple[Trackers, dict[str, Noting]]:
        found = Trackers()
        found.open(names, filed(tmp_path))
        return found, made

    return open_them


def filed(folder: Path) -> TrackedRun:
    return TrackedRun(folder=folder, name="run", project="", settings={"seed": 3})


def test_rows_come_in_order_each_over_its_own_axis(opened):
    them, made = opened("noting")
    them.record({"step": 0, "masked_step": 4, "masked_loss": 0.5})
    them.record({"step": 1, "loss": 2.0, "lr": 0.1})
    them.record_final(9, {"final/test_accuracy": 0.75})
    assert them.close(completed=True) == []
    assert made["noting"].rows == [
        ("masked_step", 4, {"masked_loss": 0.5}),
        ("step", 1, {"loss": 2.0, "lr": 0.1}),
        ("end", 9, {"final/test_accuracy": 0.75}),
        True,
    ]


def test_one_that_breaks_is_told_of_once_and_the_others_go_on(opened):
    them, made = opened("breaking", "noting")
    for step in range(1, 4):
        them.record({"step": step, "loss": 1.0})
    (told,) = them.close()
    assert told == "breaking gets no more rows: nobody listens. The training goes on; metrics.jsonl has them all."
    assert len(made["breaking"].rows) == 1
    assert [row[1] for row in made["noting"].rows[:-1]] == [1, 2, 3] and made["noting"].rows[-1] is False
    assert them.take_messages() == [] and them.close() == []


def test_one_that_cannot_be_opened_is_told_of_and_left_out(opened):
    them, made = opened("refusing", "noting")
    assert them.take_messages()[0].startswith("refusing gets no more rows: no key for api.example")
    them.record({"step": 1, "loss": 1.0})
    assert them.close(completed=True) == [] and made["noting"].rows == [("step", 1, {"loss": 1.0}), True]


def test_a_run_that_is_over_does_not_wait_for_ever(opened, monkeypatch):
    monkeypatch.setattr(trackers, "CLOSE_TIMEOUT", 0.05)
    them, _ = opened("stuck")
    them.record({"step": 1, "loss": 1.0})
    assert them.close(completed=True) == ["stuck did not take all rows within 0 s; metrics.jsonl has them."]
    Stuck.free.set()


def test_a_resumed_run_goes_on_under_the_same_name(opened, tmp_path):
    first, made = opened("noting")
    first.close()
    assert made["noting"].filed.run_id == ""
    assert json.loads((tmp_path / RUN_IDS_FILE).read_text()) == {"noting": "noted-7"}
    second, made = opened("noting")
    second.close()
    assert made["noting"].filed.run_id == "noted-7"


def test_without_trackers_nothing_is_begun():
    them, before = Trackers(), threading.active_count()
    them.record({"step": 1, "loss": 1.0})
    them.record_final(1, {})
    assert them.close(completed=True) == [] and threading.active_count() == before
