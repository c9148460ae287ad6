from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from vitrail.errors import UsageError
from vitrail.services.train_arguments import (
    TrainArguments,
    build_train_request,
    check_plan_fields,
    override_plan,
    parse_image_size,
)
from vitrail.train.plan import Plan, Recipe


def test_other_steps_of_a_finished_plan_are_planned_from_the_beginning():
    replanned = Plan(recipe=Recipe(steps=8, steps_history=((0, 9), (4, 8))))
    assert override_plan(replanned, TrainArguments(steps=7)).recipe == Recipe(steps=7)
    assert override_plan(replanned, TrainArguments(changes={"recipe.steps": "6"})).recipe == Recipe(steps=6)
    assert override_plan(replanned, TrainArguments(seed=1)).recipe == replanned.recipe


def test_what_is_not_asked_is_left_to_the_plan():
    wanted, settings = build_train_request(TrainArguments(source="digits"))
    assert (wanted.data.source, wanted.model, wanted.minutes, wanted.seed) == ("digits", None, None, 0)
    assert (wanted.overrides, settings.device, settings.threads) == ({}, "auto", 0)


def test_data_and_compute_fields_go_where_they_are_read_and_the_rest_to_the_plan():
    changes = {"data.val_fraction": "0.3", "compute.threads": "1", "recipe.batch_size": "8"}
    wanted, settings = build_train_request(TrainArguments(source="digits", changes=changes, device="cpu"))
    assert (wanted.data.val_fraction, settings.threads, settings.device) == (0.3, 1, "cpu")
    assert wanted.overrides == {"recipe.batch_size": "8"}


def test_no_source_says_what_a_source_is():
    with pytest.raises(
        UsageError, match=r"A training needs a SOURCE: a folder that holds one folder per class, a manifest.*planted"
    ):
        build_train_request(TrainArguments())


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (TrainArguments(source="digits", steps=3), "recipe.steps"),
        (TrainArguments(source="digits", device="cpu"), "compute.device"),
    ],
)
def test_a_flag_and_its_field_are_not_both_taken(asked, name):
    flags = {"recipe.steps": "--steps", "compute.device": "--device"}
    with pytest.raises(UsageError, match=rf"{flags[name]} and --{name} are the same setting"):
        build_train_request(TrainArguments(**{**vars(asked), "changes": {name: "1"}}))


def test_a_plan_is_changed_by_flags_and_by_names():
    plan = override_plan(Plan(), TrainArguments(steps=7, seed=3, skip_bad=True, changes={"recipe.lr": "0.1"}))
    assert (plan.recipe.steps, plan.seed, plan.data.skip_bad, plan.recipe.lr) == (7, 3, True, 0.1)


def test_the_task_the_group_and_the_list_to_exclude_have_flags_of_their_own():
    asked = TrainArguments(source="films.csv", task="classification", group="patient", exclude=Path("bad.csv"))
    data = build_train_request(asked)[0].data
    assert (data.task, data.group, data.exclude) == ("classification", "patient", "bad.csv")
    assert override_plan(Plan(), asked).data == dataclasses.replace(data, data_root="")
    with pytest.raises(UsageError, match=r"--group and --data\.group are the same setting"):
        build_train_request(dataclasses.replace(asked, changes={"data.group": "module"}))
    with pytest.raises(UsageError, match=r"data\.task must be .*multilabel.* Got .tags"):
        build_train_request(dataclasses.replace(asked, task="tags"))


def test_folds_have_a_flag_and_the_fold_its_name():
    data = build_train_request(TrainArguments(source="films.csv", folds=5, changes={"data.fold": "4"}))[0].data
    assert (data.folds, data.fold) == (5, 4)
    with pytest.raises(UsageError, match=r"--folds and --data\.folds are the same setting"):
        build_train_request(TrainArguments(source="films.csv", folds=5, changes={"data.folds": "3"}))


def test_a_plan_trains_one_fold_which_has_to_be_named():
    with pytest.raises(UsageError, match=r"A plan trains one model\. Give --data\.fold NUMBER beside --folds 5"):
        override_plan(Plan(), TrainArguments(folds=5))
    data = override_plan(Plan(), TrainArguments(folds=5, changes={"data.fold": "4"})).data
    assert (data.folds, data.fold) == (5, 4)


def test_a_plan_can_go_back_to_seed_0():
    assert override_plan(Plan(seed=5), TrainArguments(seed=0)).seed == 0


def test_zero_is_asked_for_too():
    assert (
        override_plan(Plan(), TrainArguments(steps=0)).recipe.steps == 0
    )  # which the plan's check refuses but for a probe
    with pytest.raises(UsageError, match=r"--steps and --recipe\.steps are the same setting"):
        override_plan(Plan(), TrainArguments(steps=0, changes={"recipe.steps": "4"}))


def test_a_plan_refuses_what_it_has_settled():
    with pytest.raises(UsageError, match=r"A plan has settled --model and --epochs already"):
        override_plan(Plan(), TrainArguments(model="vit_mu_patch8_16", epochs=2))


def test_only_fields_of_the_plan_are_names():
    check_plan_fields({"recipe.batch_size": "1"})
    with pytest.raises(UsageError, match=r"there is no setting recipe\.batch_sise\. Did you mean recipe\.batch_size\?"):
        check_plan_fields({"recipe.batch_sise": "1"})


@pytest.mark.parametrize(
    ("written", "size"),
    [(64, (64, 64)), ("64", (64, 64)), ("60x100", (60, 100)), ("60 × 100", (60, 100)), ((60, 100), (60, 100))],
)
def test_an_image_size_is_one_side_or_height_by_width(written, size):
    assert parse_image_size(written) == size


@pytest.mark.parametrize("written", ["", "x", "60x", "0", "60x0", "-3", "1.5", 0])
def test_any_other_image_size_is_refused(written):
    with pytest.raises(UsageError, match=r"one side or HEIGHTxWIDTH in pixels, such as 64 or 60x100\. Got"):
        parse_image_size(written)
