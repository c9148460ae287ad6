"""What comes before a training is counted in what it is foretold to take, whatever the budget is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.runtime import RuntimeSettings
from vitrail.train import fit as training
from vitrail.train.distill import distillation
from vitrail.train.events import PlanEvent, read_cost
from vitrail.train.plan import ProgressiveStage
from vitrail.train.planning import finalize, throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.pretrain import pretraining
from vitrail.train.request import TrainRequest

MACHINE = RuntimeSettings(device="cpu", threads=1)
TARGETS = np.arange(16) // 8
PICTURES = np.random.default_rng(0).integers(0, 60, (16, 16, 16, 3)) + 60 * TARGETS[:, None, None, None]
SOURCE = Source(
    name="drawn", classes=("dark", "light"), images=PICTURES.astype(np.uint8), targets=TARGETS,
    ids=tuple(f"{row}.png" for row in range(16)),
    splits={"train": np.arange(4, 12), "val": np.array([0, 15]), "test": np.array([1, 2, 3, 12, 13, 14])},
)  # fmt: skip
BOTH = {"pretrain.budget_fraction": "0.4", "distill.teacher": "cnn", "distill.budget_fraction": "0.1"}


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlanEvent]:
    """What is planned where a step of pre-training takes 3 s, one of the teacher 2 s and one of the training 0.5 s."""
    monkeypatch.setattr(pretraining, "measure_pretraining_step", lambda *_: 3.0)
    monkeypatch.setattr(distillation, "measure_distill_step", lambda *_: 2.0)
    monkeypatch.setattr(throughput, "measure_throughput", lambda *_: Throughput(((ProgressiveStage(0.0, 1.0), 0.5),)))

    def planned(overrides: dict[str, str], dry_run: bool = True, **asked: float) -> PlanEvent:
        model, pretrain = "vit_mu_patch8_16", "pretrain.budget_fraction" in overrides
        wishes = TrainRequest(data=DataSettings(), model=model, pretrain=pretrain, overrides=overrides, **asked)
        events = list(training.fit(wishes, MACHINE, tmp_path / "run", dry_run, source_object=SOURCE))
        return next(event for event in events if isinstance(event, PlanEvent))

    return planned


@pytest.mark.parametrize("asked", [{"steps": 50}, {"epochs": 50.0}])
def test_a_dry_run_of_steps_or_epochs_counts_pretraining_and_teacher(asked, fit):
    planned = fit({**BOTH, "recipe.batch_size": "8"}, **asked)
    plan = planned.plan
    assert (plan.pretrain.steps, plan.distill.steps, plan.recipe.steps) == (40, 10, 50)
    assert planned.cost.training == pytest.approx(40 * 3 + 10 * 2 + 50 * 0.5, abs=0.1)  # and the evaluations
    assert planned.reasons["pretrain.steps"] == "0.4 of all steps; 50 of training follow"


def test_a_dry_run_of_minutes_counts_them_as_it_did(fit):
    planned = fit(BOTH, minutes=10.0)
    plan = planned.plan
    assert (plan.pretrain.steps, plan.distill.steps, plan.recipe.steps) == (80, 30, 600)
    assert planned.cost.training == pytest.approx(600)


def test_what_many_steps_are_foretold_to_take_is_in_the_run_folder_with_what_comes_before(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_train_rank0", lambda *_: (event for event in ()))
    assert fit({"distill.teacher": "cnn", "distill.steps": "7"}, dry_run=False, steps=finalize.MEASURE_FROM_STEPS).cost
    predicted = read_cost(tmp_path / "run")["predicted"]["training"]
    assert predicted == pytest.approx(7 * 2 + 500 * 0.5, abs=0.1)  # and the evaluations


def test_nothing_is_measured_before_a_few_steps(fit, monkeypatch):
    monkeypatch.setattr(training, "_train_rank0", lambda *_: (event for event in ()))
    monkeypatch.setattr(distillation, "measure_distill_step", None)
    assert fit({"distill.teacher": "cnn"}, dry_run=False, steps=3).cost is None
