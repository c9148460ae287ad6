"""What a model costs, in values and in words; nothing is timed here."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.bench.cost_model import IMAGES_PER_CORE_SECOND
from vitrail.errors import UsageError
from vitrail.formatting import format_flops, format_short_duration
from vitrail.model import flops
from vitrail.model.registry import config_from_name
from vitrail.services import cost
from vitrail.services.cost import CostRequest
from vitrail.services.open_model import default_image_spec
from vitrail.train.events import PlanEvent, RunCost
from vitrail.train.plan import ComputeSettings, Plan, Recipe

SMALL = config_from_name("vit_small_patch16_224")
IMAGENET = CostRequest(device="h100", batch_size=1024, num_images=1_281_167, epochs=90)


def facts(asked: CostRequest) -> dict:
    return cost.estimate_cost(SMALL, default_image_spec(SMALL), asked)


def test_ninety_epochs_of_imagenet_are_their_operations_over_the_rate():
    found = facts(IMAGENET)
    run = found["run"]
    assert run["flops"] == 90 * 1_281_167 * flops.training_flops(SMALL)
    assert run["seconds"] == pytest.approx(run["flops"] / (0.35 * 989e12), rel=0.01)
    assert run["seconds"] < 4 * 3600
    assert run["device_hours"] == pytest.approx(run["seconds"] / 3600)


def test_twice_the_share_takes_half_the_time():
    one, two = (facts(dataclasses.replace(IMAGENET, utilization=share))["run"]["seconds"] for share in (0.2, 0.4))
    assert one / two == pytest.approx(2, rel=0.01)


def test_answers_alone_are_foretold_without_epochs_and_their_data_rates_are_told():
    found = facts(CostRequest(device="h100", devices=8, num_images=10**9))
    rate = found["inference_rate"]
    assert found["run"]["seconds"] == pytest.approx(1e9 / rate)
    assert found["data"]["answers"]["bytes_per_second"] == pytest.approx(110_000 * rate)
    assert found["data"]["answers"]["cores"] == pytest.approx(rate / IMAGES_PER_CORE_SECOND, abs=1)
    told = cost.format_cost("vit_small_patch16_224", found)
    assert any("1,000,000,000 answers: " in line for line in told)
    assert told[-1].startswith("  assumed") and "35% of 989 TFLOP/s are reached" in told[-1]


def test_every_line_says_what_it_is_about():
    told = cost.format_cost("vit_small_patch16_224", facts(IMAGENET))
    assert told[0] == "Cost of vit_small_patch16_224 on 1 x NVIDIA H100 SXM 80 GB in bfloat16, adamw"
    assert [line.split()[0] for line in told[1:]] == [
        "operations", "memory", "step", "answers", "whole", "data", "assumed",
    ]  # fmt: skip
    assert told[1].split("operations")[1].strip().startswith("8.62 GFLOP a picture forward (patches 1%")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"devices": 0}, "Got 0 and 0"),
        ({"epochs": 3.0}, "Give both"),
        ({"num_images": -1}, "Got -1 and 0"),
        ({"utilization": 0.4}, "--on h100"),
        ({"device": "h100", "utilization": 1.5}, "Got 1.5"),
    ],
)
def test_what_cannot_be_is_refused(said, named):
    with pytest.raises(UsageError, match=named):
        CostRequest(**said)


PLAN = Plan(model=SMALL, recipe=Recipe(steps=100, batch_size=64), compute=ComputeSettings(precision="float32"))
TAKES = RunCost(preparation=10.0, training=800.0, evaluation=20.0, memory=10**9)


def test_a_plans_operations_leave_out_what_its_early_steps_do_not_see():
    every = cost.count_plan_flops(PLAN)
    assert every == 100 * 64 * flops.training_flops(SMALL)
    recipe = dataclasses.replace(PLAN.recipe, patch_keep_rate=0.5, patch_keep_until=0.75)
    early = flops.training_flops(SMALL, 98)
    expected = 64 * (75 * early + 25 * flops.training_flops(SMALL))
    assert cost.count_plan_flops(dataclasses.replace(PLAN, recipe=recipe)) == pytest.approx(expected)


def test_a_plan_on_four_devices_takes_a_quarter_and_the_waiting():
    found = cost.estimate_plan_cost(PlanEvent(PLAN, {}, TAKES), 4)["on_devices"]
    assert found["training_seconds"] == pytest.approx(200 + 100 * found["waiting"])
    assert found["seconds"] == pytest.approx(found["training_seconds"] + 30) and found["engine"] == "ddp"
    told = cost.format_plan_cost(PlanEvent(PLAN, {}, TAKES), 4)
    assert told[0].startswith("Operations: 8.62 GFLOP a picture forward, 25.9 GFLOP in training, 165 TFLOP in the")
    assert told[1].startswith("On 4 devices like this one: 3 min 50 s, training 3 min 20 s at 32 pictures/s")


def test_a_plan_whose_pace_nobody_measured_has_its_operations_alone():
    assert len(cost.format_plan_cost(PlanEvent(PLAN, {}), 4)) == 1


def test_operations_and_short_times_are_said_as_people_do():
    assert [format_flops(n) for n in (12, 9.2e9, 3.19e18, 999.6e9)] == ["12 FLOP", "9.2 GFLOP", "3.19 EFLOP", "1 TFLOP"]
    assert [format_short_duration(s) for s in (0.0123, 4.5, 75)] == ["12.3 ms", "4.5 s", "1 min 15 s"]


def test_only_a_processor_answers_by_several_threads():
    assert [cost._describe_hardware(device, 4).num_threads for device in ("cpu", "mps")] == [4, 1]
    assert cost._describe_hardware("cpu", 0).num_threads == 1
