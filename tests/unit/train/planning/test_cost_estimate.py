"""What a run is expected to take, and what it took."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from vitrail.data.loader import InMemoryImageStore
from vitrail.data.source import Source
from vitrail.evaluate.tta import TtaViews
from vitrail.train import events as events_module
from vitrail.train.context import PlanContext
from vitrail.train.dataset import Dataset
from vitrail.train.events import Note, RunCost
from vitrail.train.plan import FinetuneSettings, Plan, ProgressiveStage, Recipe
from vitrail.train.planning import cost_estimate, finalize
from vitrail.train.planning.cost_estimate import RunTimer
from vitrail.train.planning.throughput import Throughput

PREDICTED = RunCost(1.0, 20.0, 3.0, 1_000_000)


def test_the_parts_of_a_cost_add_up_and_survive_their_file(tmp_path):
    assert PREDICTED.seconds == 24.0
    events_module.write_cost(tmp_path, PREDICTED)
    expected = {"preparation": 1.0, "training": 20.0, "evaluation": 3.0, "memory": 1_000_000, "seconds": 24.0}
    assert events_module.read_cost(tmp_path) == {"predicted": expected, "actual": None}
    assert events_module.read_cost(tmp_path / "nowhere") == {"predicted": None, "actual": None}


def test_seconds_of_a_step_in_each_phase_survive_the_file_and_a_damaged_one_tells_nothing(tmp_path):
    assert events_module.read_step_seconds(tmp_path) == ((), 0.0)
    measured = dataclasses.replace(PREDICTED, step_seconds=(0.0251234, 0.1), validation=1.5)
    events_module.write_cost(tmp_path, measured, PREDICTED)
    assert events_module.read_step_seconds(tmp_path) == ((0.02512, 0.1), 1.5)
    assert not {"step_seconds", "validation"} & set(events_module.read_cost(tmp_path)["actual"])
    (tmp_path / events_module.COST_FILE).write_text('{"predicted": ')
    assert events_module.read_step_seconds(tmp_path) == ((), 0.0)


def test_a_pace_is_the_mean_over_its_phases():
    assert Throughput(
        ((ProgressiveStage(0.0, 0.75), 0.1), (ProgressiveStage(0.75, 0.25), 0.3))
    ).mean_seconds == pytest.approx(0.15)


def test_a_run_that_does_not_end_has_a_predicted_cost_only(tmp_path):
    events = RunTimer().record_cost((note for note in [Note("on the way")]), tmp_path, Plan(), PREDICTED)
    assert list(events) == [Note("on the way")]
    assert json.loads((tmp_path / events_module.COST_FILE).read_text()) == {
        "predicted": PREDICTED.to_json(),
        "actual": None,
    }


def test_decoding_is_timed_apart(monkeypatch):
    clock = iter([0.0, 1.0, 4.5])
    monkeypatch.setattr(cost_estimate.time, "perf_counter", lambda: next(clock))
    watch = RunTimer()
    with watch.time_decoding():
        pass
    assert watch.decode_seconds == 3.5


def test_of_many_validation_pictures_the_start_and_the_best_answer_to_all_of_them(monkeypatch):
    targets = np.arange(20) % 2
    source = Source(
        name="drawn", classes=("a", "b"), images=np.zeros((20, 4, 4), np.uint8), targets=targets,
        ids=tuple(map(str, range(20))),
    )  # fmt: skip
    dataset = Dataset(source, {"train": np.arange(8), "val": np.arange(8, 18), "test": np.arange(18, 20)})
    pictures = InMemoryImageStore(torch.zeros(8, 1, 4, 4, dtype=torch.uint8))
    monkeypatch.setattr(cost_estimate, "_measure_inference_seconds", lambda plan, pictures, count: 1.0)
    plan = dataclasses.replace(
        Plan(), finetune=FinetuneSettings(weights="x", wise_ft_alphas=(0.5, 1.0)), recipe=Recipe(steps=4)
    )

    def evaluation(judged: int, plan: Plan = plan) -> float:
        monkeypatch.setattr(cost_estimate, "MAX_COMPARED_IMAGES", judged)
        context = PlanContext(plan=plan, dataset=dataset, images=pictures)
        return cost_estimate.estimate_cost(context, finalize.NO_THROUGHPUT, 0.0, RunTimer()).evaluation

    fresh = evaluation(10, dataclasses.replace(plan, finetune=FinetuneSettings()))
    assert evaluation(10) == pytest.approx(fresh + 3 * 10)
    assert evaluation(4) == pytest.approx(fresh + 3 * 4 + 2 * 10)


@pytest.mark.parametrize("views", [TtaViews(), TtaViews(True), TtaViews(True, 1), TtaViews(True, 1, vertical=True)])
def test_held_out_pictures_are_decoded_and_every_view_of_them_is_answered(views, monkeypatch):
    source = Source(
        name="drawn", classes=("a", "b"), images=np.zeros((150, 4, 4), np.uint8), targets=np.arange(150) % 2,
        ids=tuple(map(str, range(150))),
    )  # fmt: skip
    parts = {"train": np.arange(50), "val": np.arange(50, 70), "test": np.arange(70, 150)}
    pictures = InMemoryImageStore(torch.zeros(50, 1, 4, 4, dtype=torch.uint8))
    monkeypatch.setattr(cost_estimate, "_measure_inference_seconds", lambda plan, pictures, count: 0.01)
    watch = RunTimer()
    watch.decode_seconds = 5.0  # a tenth of a second a picture
    recipe = Recipe(steps=40, tta_flip=views.flip, tta_shift=views.shift, tta_shift_vertical=views.vertical)
    plan = dataclasses.replace(Plan(), recipe=recipe)
    context = PlanContext(plan=plan, dataset=Dataset(source, parts), images=pictures)
    told = cost_estimate.estimate_cost(context, Throughput(((ProgressiveStage(0.0, 1.0), 0.5),)), 0.0, watch)
    looks = 20 * 10 * 0.01
    assert told.training == 20.0 + looks
    held_out = 100 * 0.01 * views.num_views + 120 * 0.1 + 50 * (0.01 + 0.1)  # and what is familiar
    maps = 12 * 6 * 0.01
    assert told.evaluation == pytest.approx(held_out + maps + cost_estimate.REPORT_SECONDS)
