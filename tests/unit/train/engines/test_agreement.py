"""What several processes agree on, as far as one process can see it."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.errors import UsageError
from vitrail.train.engines import agreement
from vitrail.train.engines.engine import chosen
from vitrail.train.engines.group import Group
from vitrail.train.engines.team import ALONE, Team
from vitrail.train.plan import ComputeSettings, Plan
from vitrail.train.recipe import Recipe
from vitrail.train.transfer.settings import StartSettings

THREE = Team(Group(rank=0, world=3, local_world=3))


def plan(engine: str = "auto", **recipe: int) -> Plan:
    return Plan(recipe=Recipe(**recipe), compute=ComputeSettings(engine=engine))


def test_a_batch_that_nobody_asked_for_is_made_one_that_all_can_share():
    assert agreement.shared_batch(THREE, plan(batch=128)).recipe.batch == 129
    assert agreement.shared_batch(THREE, plan(batch=128, repeats=2)).recipe.batch == 132
    assert agreement.shared_batch(ALONE, plan(batch=127)).recipe.batch == 127


def test_a_batch_that_cannot_be_shared_is_refused_with_one_that_can():
    with pytest.raises(UsageError, match=r"128 pictures .* shared by 3 processes\. Use --recipe\.batch 126"):
        agreement.check(THREE, plan(batch=128))


def test_more_parts_than_pictures_are_refused():
    with pytest.raises(UsageError, match=r"recipe\.accumulate 5 .* than each process has pictures, 4"):
        agreement.check(THREE, plan(batch=12, accumulate=5))
    agreement.check(THREE, plan(batch=12, accumulate=4))


@pytest.mark.parametrize(("name", "value"), [("method", "lora"), ("method", "probe"), ("frozen_blocks", 2)])
def test_ways_from_a_checkpoint_that_train_some_weights_only_are_refused_to_several(name, value):
    start = StartSettings(weights="weights.safetensors", **{name: value})
    asked = dataclasses.replace(plan(batch=12), start=start)
    words = (
        rf"start\.{name} {value} leaves weights as they are, which several processes cannot do yet\. Start one without"
    )
    with pytest.raises(UsageError, match=words):
        agreement.check(THREE, asked)
    agreement.check(ALONE, asked)


def test_an_engine_for_several_is_refused_to_one():
    with pytest.raises(UsageError, match=r"compute\.engine fsdp shares the work of several processes.*torchrun"):
        agreement.check(ALONE, plan("fsdp"))


def test_the_engine_of_several_has_its_reason():
    assert chosen("auto", ALONE, 10, "cpu") == ("alone", "one process")
    assert chosen("auto", THREE, 10, "cpu") == ("ddp", "the model fits into each of 3 processes")
    assert chosen("fsdp", THREE, 10, "cpu") == ("fsdp", "asked for")


def test_the_code_has_one_hash_and_one_process_hears_itself():
    assert agreement.code() == agreement.code() and len(agreement.code()) == 64
    asked = dataclasses.replace(plan(), seed=7)
    assert agreement.the_leaders(ALONE, asked) is asked
    assert ALONE.gathered(5) == [5] and ALONE.told(5) == 5 and ALONE.most(2, 3) == (2, 3)
