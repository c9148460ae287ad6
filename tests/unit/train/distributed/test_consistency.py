"""What several processes agree on, as far as one process can see it."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.errors import UsageError
from vitrail.train.distributed import consistency
from vitrail.train.distributed.collectives import SINGLE_PROCESS, GroupInfo, RankGroup
from vitrail.train.distributed.data_parallel import choose_strategy
from vitrail.train.plan import ComputeSettings, FinetuneSettings, Plan, Recipe

THREE = RankGroup(GroupInfo(rank=0, world_size=3, local_world_size=3))


def plan(engine: str = "auto", **recipe: int) -> Plan:
    return Plan(recipe=Recipe(**recipe), compute=ComputeSettings(strategy=engine))


def test_a_batch_that_nobody_asked_for_is_made_one_that_all_can_share():
    assert consistency.round_up_batch_size(THREE, plan(batch_size=128)).recipe.batch_size == 129
    assert (
        consistency.round_up_batch_size(THREE, plan(batch_size=128, repeated_augmentation=2)).recipe.batch_size == 132
    )
    assert consistency.round_up_batch_size(SINGLE_PROCESS, plan(batch_size=127)).recipe.batch_size == 127


def test_a_batch_that_cannot_be_shared_is_refused_with_one_that_can():
    with pytest.raises(UsageError, match=r"128 pictures .* shared by 3 processes\. Use --recipe\.batch_size 126"):
        consistency.check_plan_for_group(THREE, plan(batch_size=128))


def test_more_parts_than_pictures_are_refused():
    with pytest.raises(UsageError, match=r"recipe\.grad_accum_steps 5 .* than each process has pictures, 4"):
        consistency.check_plan_for_group(THREE, plan(batch_size=12, grad_accum_steps=5))
    consistency.check_plan_for_group(THREE, plan(batch_size=12, grad_accum_steps=4))


@pytest.mark.parametrize(("name", "value"), [("method", "lora"), ("method", "probe"), ("freeze_blocks", 2)])
def test_ways_from_a_checkpoint_that_train_some_weights_only_are_refused_to_several(name, value):
    start = FinetuneSettings(weights="weights.safetensors", **{name: value})
    asked = dataclasses.replace(plan(batch_size=12), finetune=start)
    words = (
        rf"finetune\.{name} {value} leaves weights as they are, which several processes cannot do yet\. Start "
        rf"one without"
    )
    with pytest.raises(UsageError, match=words):
        consistency.check_plan_for_group(THREE, asked)
    consistency.check_plan_for_group(SINGLE_PROCESS, asked)


def test_an_engine_for_several_is_refused_to_one():
    with pytest.raises(UsageError, match=r"compute\.strategy fsdp shares the work of several processes.*torchrun"):
        consistency.check_plan_for_group(SINGLE_PROCESS, plan("fsdp"))


def test_the_engine_of_several_has_its_reason():
    assert choose_strategy("auto", SINGLE_PROCESS, 10, "cpu") == ("alone", "one process")
    assert choose_strategy("auto", THREE, 10, "cpu") == ("ddp", "the model fits into each of 3 processes")
    assert choose_strategy("fsdp", THREE, 10, "cpu") == ("fsdp", "asked for")


def test_the_code_has_one_hash_and_one_process_hears_itself():
    assert (
        consistency.hash_package_code() == consistency.hash_package_code()
        and len(consistency.hash_package_code()) == 64
    )
    asked = dataclasses.replace(plan(), seed=7)
    assert consistency.broadcast_plan(SINGLE_PROCESS, asked) is asked
    assert (
        SINGLE_PROCESS.all_gather_object(5) == [5]
        and SINGLE_PROCESS.broadcast_object(5) == 5
        and SINGLE_PROCESS.all_reduce_max(2, 3) == (2, 3)
    )
