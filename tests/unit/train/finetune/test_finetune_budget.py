"""What a run from a checkpoint takes before its steps: taken off its minutes, and counted in what is foretold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.checkpoints.save import save_model
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.runtime import RuntimeSettings
from vitrail.spec import ImageSpec
from vitrail.train import events
from vitrail.train import fit as training
from vitrail.train.distill import distillation
from vitrail.train.events import PlanEvent
from vitrail.train.finetune import finetune_planner
from vitrail.train.plan import FinetuneSettings, Plan, ProgressiveStage
from vitrail.train.planning import throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.request import TrainRequest

MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")
SHAPE = ViTConfig(image_size=(16, 16), patch=(8, 8), width=16, depth=2, heads=2, mlp_width=32, outputs=5)
PICTURES = np.random.default_rng(0).integers(0, 90, (48, 16, 16, 3)).astype(np.uint8)
SOURCE = Source(
    name="drawn", classes=("a", "b"), images=PICTURES, targets=np.arange(48) % 2,
    ids=tuple(f"{row}.png" for row in range(48)),
)  # fmt: skip
SPLITS = {"train": np.arange(30), "val": np.arange(30, 40), "test": np.arange(40, 48)}
FEATURES = 70.0 + finetune_planner.PROBE_SECONDS[0]
"""Seconds, of 30 pictures, their mirror images and 10 others, at a second each."""
PACE = Throughput(((ProgressiveStage(0.0, 1.0), 0.5),))


@pytest.fixture
def foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlanEvent]:
    """The plan of a dry run where the features of a picture take a second, and a step takes half of one."""
    save_model(tmp_path / "theirs", create_model(SHAPE, 3), ImageSpec(height=16, width=16), (), "timm")
    monkeypatch.setattr(finetune_planner, "measure_feature_seconds", lambda *_: 1.0)
    monkeypatch.setattr(throughput, "measure_throughput", lambda *_: PACE)

    def planned(overrides: dict[str, str] | None = None, **asked: float) -> PlanEvent:
        wishes = TrainRequest(data=DataSettings(), weights=str(tmp_path / "theirs"), overrides=overrides or {}, **asked)
        given = dataclasses.replace(SOURCE, splits=SPLITS)
        (found,) = [
            event
            for event in training.fit(wishes, MACHINE, tmp_path / "run", True, source_object=given)
            if isinstance(event, PlanEvent)
        ]
        assert found.cost is not None and not (tmp_path / "run").exists()
        return found

    return planned


@pytest.mark.parametrize(("asked", "steps"), [({"steps": 4}, 4), ({"epochs": 2.0}, 8), ({"minutes": 2.0}, 96)])
def test_a_dry_run_counts_features_and_probes_whatever_the_budget_is(asked, steps, foretold):
    planned = foretold(**asked)
    assert planned.plan.recipe.steps == steps
    assert planned.cost.training == pytest.approx(FEATURES + 0.5 * steps, abs=0.1)
    assert planned.cost.step_seconds == (0.5,)


@pytest.mark.parametrize("asked", [{"overrides": {"finetune.method": "probe"}}, {"minutes": 0.02}])
def test_a_probe_is_foretold_whether_it_was_asked_for_or_the_minutes_are_too_few(asked, foretold):
    planned = foretold(**asked)
    assert (planned.plan.finetune.method, planned.plan.recipe.steps) == ("probe", 0)
    assert planned.cost.training == pytest.approx(FEATURES, abs=0.1)
    assert planned.cost.step_seconds == () and planned.cost.evaluation > 4


def test_a_teacher_that_is_trained_first_is_counted_and_named_beside_the_features(foretold, monkeypatch):
    monkeypatch.setattr(distillation, "measure_distill_step", lambda *_: 2.0)
    planned = foretold({"distill.teacher": "cnn", "distill.steps": "5"}, steps=4)
    assert planned.cost.training == pytest.approx(10 + FEATURES + 2, abs=0.1)
    planned = foretold({"distill.teacher": "cnn", "distill.steps": "5"}, minutes=2.0)
    assert planned.reasons["recipe.steps"] == "2 minutes less 82 s for features and the teacher, 0.500 s a step"
    assert planned.plan.recipe.steps == 76


def test_a_written_plan_of_a_probe_is_foretold_too(foretold, tmp_path):
    plan = foretold({"finetune.method": "probe"}).plan
    given = dataclasses.replace(SOURCE, splits=SPLITS)
    events = training.fit_plan(plan, tmp_path / "again", given, dry_run=True)
    (planned,) = [event for event in events if isinstance(event, PlanEvent)]
    assert planned.plan == dataclasses.replace(plan, minutes=0.0)
    assert planned.cost.training == pytest.approx(FEATURES, abs=0.1)


@pytest.mark.parametrize(
    ("overrides", "asked", "predicted"),
    [({}, {"steps": 4}, None), ({"finetune.method": "probe"}, {}, None), ({}, {"steps": 600}, FEATURES + 300)],
)
def test_a_run_is_measured_before_it_for_many_steps_and_not_for_few_or_a_probe(
    overrides, asked, predicted, foretold, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "_train_rank0", lambda *_: (event for event in ()))
    if predicted is None:
        monkeypatch.setattr(finetune_planner, "measure_feature_seconds", None)
    wishes = TrainRequest(data=DataSettings(), weights=str(tmp_path / "theirs"), overrides=overrides, **asked)
    list(training.fit(wishes, MACHINE, tmp_path / "run", source_object=dataclasses.replace(SOURCE, splits=SPLITS)))
    told = events.read_cost(tmp_path / "run")["predicted"]
    assert (told or {}).get("training") == (None if predicted is None else pytest.approx(predicted, abs=0.1))


def test_several_processes_make_the_fewest_steps_where_one_would_end_with_the_probe():
    plan = dataclasses.replace(Plan(), finetune=FinetuneSettings(weights="x"), minutes=1.0)
    wishes = TrainRequest(data=DataSettings(), overrides={"recipe.batch_size": "8"})
    found, reasons = finetune_planner.fix_finetune_steps(plan, 58.0, PACE, wishes, world_size=2)
    assert (found.finetune.method, found.recipe.steps) == ("full", finetune_planner.MIN_FINETUNE_STEPS)
    why = "1 minutes less 58 s for features, 0.500 s a step, are 4"
    assert reasons["recipe.steps"] == f"at least, for 2 processes cannot end with the probe yet: {why}"
    found, reasons = finetune_planner.fix_finetune_steps(plan, 50.0, PACE, wishes, world_size=2)
    assert found.recipe.steps == 20
    assert reasons["recipe.steps"] == "1 minutes less 50 s for features, 0.500 s a step"
    found, _ = finetune_planner.fix_finetune_steps(plan, 58.0, PACE, TrainRequest(data=DataSettings()))
    assert found.finetune.method == "probe"


def test_slow_evaluations_on_masks_are_fewer():
    fifty_masks = 15.0
    assert [finetune_planner.count_evaluations(minutes, fifty_masks) for minutes in (1, 2, 4, 5, 20)] == [1, 1, 2, 3, 3]
    assert finetune_planner.count_evaluations(2, 0.0) == 3
    plan = dataclasses.replace(Plan(), finetune=FinetuneSettings(weights="x"), minutes=1.0)
    for evaluations, every in ((1, 1200), (3, 40)):
        wishes = TrainRequest(data=DataSettings())
        found, _ = finetune_planner.fix_finetune_steps(plan, 0.0, PACE, wishes, evaluations=evaluations)
        assert (found.recipe.steps, found.recipe.evaluate_every) == (120, every)
