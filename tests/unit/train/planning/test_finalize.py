"""The last lines of a plan: when the pace is measured, and what the number of epochs changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitrail.data.loader import InMemoryImageStore
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.model.registry import config_from_name
from vitrail.train.context import PlanContext
from vitrail.train.dataset import Dataset
from vitrail.train.plan import Plan, ProgressiveStage, Recipe
from vitrail.train.planning import finalize, throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.request import TrainRequest

COUNT = 512
IMAGES = np.random.default_rng(0).integers(0, 255, (COUNT, 8, 8)).astype(np.uint8)
SOURCE = Source(
    name="drawn", classes=("a", "b"), images=IMAGES, targets=np.arange(COUNT) % 2, ids=tuple(map(str, range(COUNT)))
)
DATASET = Dataset(SOURCE, {"train": np.arange(COUNT), "val": np.arange(200)})
MODEL = dataclasses.replace(config_from_name("vit_mu_patch2_8"), outputs=2, channels=1)  # 25 parameters a picture
PLAN = Plan(
    recipe=Recipe(batch_size=128, flip=True), image=dataclasses.replace(Plan().image, height=8, width=8), model=MODEL
)  # fmt: skip


@pytest.fixture
def settled(monkeypatch):
    """Settle a plan at a made-up pace; the plan, its reasons, and how often the pace was measured."""

    def run(
        plan: Plan,
        seconds: float = 0.1,
        overrides: dict[str, str] | None = None,
        model: str | None = None,
        **more: object,
    ):
        asked: list[Plan] = []
        pace = Throughput(((ProgressiveStage(0.0, 1.0), seconds),))
        monkeypatch.setattr(throughput, "measure_throughput", lambda context: asked.append(context.plan) or pace)
        wishes, reasons = TrainRequest(data=DataSettings(), model=model, overrides=overrides or {}), {}
        found, new, told = finalize.finalize_plan(draft(plan), wishes, reasons, **more)
        return found, reasons | new, asked, told

    return run


def draft(plan: Plan) -> PlanContext:
    images = InMemoryImageStore(torch.from_numpy(IMAGES)[:, None])
    return PlanContext(plan=plan, dataset=DATASET, images=images)


def minutes(amount: float) -> Plan:
    return dataclasses.replace(PLAN, minutes=amount)


def test_a_short_run_keeps_its_draft_and_is_measured_once(settled):
    plan, reasons, asked, pace = settled(minutes(0.1))
    assert plan.recipe.steps == 60 and len(asked) == 1 and pace is not None
    assert dataclasses.replace(plan.recipe, steps=1000) == PLAN.recipe
    assert reasons["recipe.mixup"].startswith("15 epochs, ")


def test_a_long_run_is_fed_with_more_and_measured_again_with_it(settled):
    plan, reasons, asked, _ = settled(minutes(1.0))
    assert plan.recipe.steps == 600 and len(asked) == 2  # 150 epochs
    assert asked[1].recipe.mixup == plan.recipe.mixup > 0
    assert plan.recipe.flip_vertical and plan.recipe.transpose, "noise has no way up"
    assert reasons["recipe.mixup"].startswith("150 epochs, ")


def test_looks_that_would_take_longer_than_the_training_become_fewer(settled):
    plan, reasons, _, _ = settled(minutes(0.1), seconds=0.3, overrides={"recipe.batch_size": "128"})
    assert plan.recipe.steps == 20 and plan.recipe.num_evaluations == 3  # of 200 pictures; 2,560 are learnt
    assert reasons["recipe.evaluate_every"].startswith("200 validation pictures each")


def test_the_reasons_tell_the_length_that_the_run_has_and_not_that_of_its_draft(settled, monkeypatch):
    plan, reasons, asked, _ = settled(minutes(1.0), seconds=0.1)
    assert len(asked) == 2 and reasons["recipe.mixup"].startswith(f"{plan.recipe.epochs(COUNT):,.0f} epochs, ")
    paces = iter([0.1, 0.2])
    measure = lambda context: Throughput(((ProgressiveStage(0.0, 1.0), next(paces)),))  # noqa: E731
    monkeypatch.setattr(throughput, "measure_throughput", measure)
    slower, reasons, _ = finalize.finalize_plan(draft(minutes(1.0)), TrainRequest(data=DataSettings()), {})
    assert slower.recipe.steps == 300
    assert reasons["recipe.mixup"].startswith(f"{slower.recipe.epochs(COUNT):,.0f} epochs, ")


def test_what_is_spent_before_is_taken_off_the_minutes(settled):
    plan, reasons, _, _ = settled(minutes(0.1), spent=3.0)
    assert plan.recipe.steps == 30 and reasons["recipe.steps"].startswith("0.05 min at 0.100 s a step")


@pytest.mark.parametrize(("steps", "dry_run", "measured"), [(100, False, 0), (100, True, 1), (500, False, 1)])
def test_steps_that_were_asked_for_are_measured_where_that_is_worth_it(steps, dry_run, measured, settled):
    plan = dataclasses.replace(PLAN, recipe=dataclasses.replace(PLAN.recipe, steps=steps))
    found, reasons, asked, pace = settled(plan, dry_run=dry_run)
    assert found.recipe.steps == steps and len(asked) == measured and (pace is not None) == bool(measured)
    assert "recipe.steps" not in reasons


PICO = dataclasses.replace(config_from_name("vit_pico_patch2_8"), outputs=2, channels=1)


def test_minutes_of_few_steps_take_the_smaller_model_and_measure_it(settled):
    drafted = dataclasses.replace(minutes(0.1), model_name="vit_pico_patch2_8", model=PICO)
    plan, reasons, asked, _ = settled(drafted)
    assert plan.model_name == "vit_femto_patch2_8"
    assert plan.model == dataclasses.replace(config_from_name(plan.model_name), outputs=2, channels=1)
    assert reasons["model_name"] == (
        "femto learns more where the minutes are fewer than 4,000 steps of pico; "
        "at the pace measured just now they are 60"
    )
    assert [each.model for each in asked[:2]] == [PICO, plan.model]


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({"minutes": 10.0}, {}),  # 6,000 steps
        ({"minutes": 0.1}, {"model.depth": "4"}),
        ({"minutes": 0.1, "pretrain": dataclasses.replace(PLAN.pretrain, budget_fraction=0.5)}, {}),
        ({"minutes": 0.1, "distill": dataclasses.replace(PLAN.distill, teacher="cnn")}, {}),
        ({"minutes": 0.0}, {}),  # steps were asked for
        ({"minutes": 0.1, "model_name": "vit_nano_patch2_8"}, {}),
    ],
)
def test_a_model_stays_with_many_steps_a_shape_that_was_asked_for_or_what_learns_first(changes, overrides, settled):
    drafted = dataclasses.replace(PLAN, **{"model_name": "vit_pico_patch2_8", "model": PICO, **changes})
    plan, reasons, *_ = settled(drafted, overrides=overrides)
    assert plan.model_name == drafted.model_name and plan.model.width == PICO.width
    assert "model_name" not in reasons


def test_a_model_that_was_asked_for_stays(settled):
    drafted = dataclasses.replace(minutes(0.1), model_name="vit_pico_patch2_8", model=PICO)
    plan, *_ = settled(drafted, model="vit_pico_patch2_8")
    assert plan.model == PICO


def test_the_pace_of_batches_with_very_many_patches_follows_from_a_few_pictures(monkeypatch):
    batches: list[int] = []

    def steps(train_state, images, targets, plan, *words, **more):
        batches.append(plan.recipe.batch_size)
        yield from [None] * 100

    monkeypatch.setattr(throughput, "train_steps", steps)
    context = draft(PLAN)
    monkeypatch.setattr(throughput, "MAX_MEASURED_TOKENS", 10 * PLAN.model.tokens)
    few = throughput._limit_batch(context)
    assert (few[0].batch_size, few[1]) == (10, 12.8)
    throughput.measure_throughput(context)
    parts = dataclasses.replace(PLAN, recipe=dataclasses.replace(PLAN.recipe, grad_accum_steps=4))
    assert throughput._limit_batch(context.with_plan(parts))[0].batch_size == 8
    monkeypatch.setattr(throughput, "MAX_MEASURED_TOKENS", 1000 * PLAN.model.tokens)
    throughput.measure_throughput(context)
    assert batches == [10, 128]


def test_one_step_is_enough_where_it_takes_long(monkeypatch):
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: float(next(clock)))
    made: list[int] = []

    def steps(*words, **more):
        for number in range(100):
            made.append(number)
            yield None

    monkeypatch.setattr(throughput, "train_steps", steps)
    assert throughput.measure_throughput(draft(PLAN)).mean_seconds == 7.0
    assert made == [0]
