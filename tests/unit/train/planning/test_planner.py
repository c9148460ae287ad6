"""From pictures and wishes to a plan, each choice with its reason."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail import config
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.runtime import Runtime
from vitrail.train.plan import Plan, ProgressiveStage, Recipe
from vitrail.train.plan_reasons import DEFAULT_REASONS, complete_reasons
from vitrail.train.planning import unused_settings
from vitrail.train.planning.model_size import MAX_PATCHES, choose_patch
from vitrail.train.planning.planner import draft_plan, fix_steps, space_evaluations
from vitrail.train.planning.throughput import Throughput
from vitrail.train.request import DatasetFingerprint, TrainRequest

CLOTHES = DatasetFingerprint(
    name="fashion-mnist", num_images=55_000, num_classes=10, height=28, width=28, channels=1, low=0.0, high=255.0
)
MACHINE = Runtime(
    device="cpu",
    precision="float32",
    threads=2,
    num_workers=2,
    compile=False,
    reasons={"device": "no GPU that torch can use"},
)


def wishes(**changes: object) -> TrainRequest:
    return dataclasses.replace(TrainRequest(data=DataSettings()), **changes)


def test_small_pictures_keep_their_size_and_get_about_49_patches():
    plan, reasons = draft_plan(CLOTHES, wishes(minutes=5.0), MACHINE)
    assert (plan.model.image_size, plan.model.patch, plan.model.outputs) == ((28, 28), (4, 4), 10)
    assert plan.image.size == plan.model.image_size
    assert plan.minutes == 5.0
    assert "own size" in reasons["model.image_size"]
    assert reasons["compute.device"] == "no GPU that torch can use"


def test_every_reason_belongs_to_a_setting_and_the_plan_survives_its_file(tmp_path):
    plan, reasons = draft_plan(CLOTHES, wishes(), MACHINE)
    path = tmp_path / "plan.toml"
    path.write_text(config.to_toml(plan, reasons), encoding="utf-8")
    assert config.read_toml(path, Plan) == plan


def test_only_few_pictures_of_classes_are_smoothed():
    few = dataclasses.replace(CLOTHES, num_images=500)
    smoothed = {
        task: draft_plan(dataclasses.replace(few, task=task), wishes(), MACHINE)[0].recipe.label_smoothing
        for task in ("classification", "multilabel", "regression")
    }
    assert smoothed == {"classification": 0.1, "multilabel": 0.0, "regression": 0.0}


@pytest.mark.parametrize(
    ("count", "size", "side", "patch"),
    [(55_000, (480, 640), 64, 8), (2_000, (300, 300), 96, 12), (2_000, (70, 90), 64, 8), (2_000, (64, 90), 64, 9)],
)
def test_large_pictures_are_reduced_and_few_ones_less(count, size, side, patch):
    plan, reasons = draft_plan(
        dataclasses.replace(CLOTHES, num_images=count, height=size[0], width=size[1]), wishes(), MACHINE
    )
    assert plan.model.patch == (patch, patch)
    reason = reasons["model.image_size"]
    if min(size) > 64:
        assert plan.model.image_size == (side, side)
        assert reason.startswith(f"the pictures are {size[0]} high, {size[1]} wide")
        assert ("made square" in reason) == (size[0] != size[1])
    else:
        assert reason.startswith(f"the pictures' own size, {size[0]} x {size[1]}")


@pytest.mark.parametrize(("asked", "patch"), [((28, 28), 4), ((64, 64), 8), ((96, 96), 12), ((128, 128), 16)])
def test_a_size_that_is_asked_for_is_cut_about_as_finely(asked, patch):
    plan, reasons = draft_plan(CLOTHES, wishes(image_size=asked), MACHINE)
    assert (plan.model.image_size, plan.model.patch[0]) == (asked, patch)
    assert reasons["model.image_size"] == "asked for"


@pytest.mark.parametrize(
    ("size", "patch"), [((28, 28), 4), ((32, 32), 4), ((8, 8), 2), ((64, 64), 8), ((60, 100), 10), ((1, 1), 1)]
)
def test_patches_divide_the_picture_about_seven_times(size, patch):
    assert choose_patch(size) == (patch, size)


def test_a_size_that_no_good_patch_divides_goes_to_the_nearest_that_one_does():
    assert choose_patch((37, 41)) == (5, (35, 40))
    plan, reasons = draft_plan(dataclasses.replace(CLOTHES, height=37, width=41), wishes(), MACHINE)
    assert (plan.model_name, plan.model.image_size) == ("vit_pico_patch5_35x40", (35, 40))
    assert "nearest whole patches 35 x 40" in reasons["model.image_size"]
    with pytest.raises(UsageError, match=r"No patch near 5 divides 37x41\. Use 35x40"):
        draft_plan(CLOTHES, wishes(image_size=(37, 41)), MACHINE)


def test_digits_are_never_mirrored_and_clothes_are():
    digits = dataclasses.replace(CLOTHES, name="digits")
    assert draft_plan(digits, wishes(), MACHINE)[0].recipe.flip is False
    assert draft_plan(CLOTHES, wishes(), MACHINE)[0].recipe.flip is True


@pytest.mark.parametrize(("side", "shift"), [(8, 0), (28, 1), (32, 1), (64, 0)])
def test_answers_are_averaged_over_moves_of_a_pixel_where_that_is_little_but_not_nothing(side, shift):
    plan, reasons = draft_plan(dataclasses.replace(CLOTHES, height=side, width=side), wishes(), MACHINE)
    assert plan.recipe.tta_shift == shift and plan.recipe.tta_shift_vertical == bool(shift)
    assert ("recipe.tta_shift" in reasons) == ("recipe.tta_shift_vertical" in reasons) == bool(shift)


def test_without_shifts_there_are_no_vertical_ones_nor_for_digits():
    digits = draft_plan(dataclasses.replace(CLOTHES, name="digits"), wishes(), MACHINE)[0].recipe
    assert digits.tta_shift == 1 and digits.views.num_views == 3
    assert draft_plan(CLOTHES, wishes(overrides={"recipe.tta_shift": "0"}), MACHINE)[0].recipe.views.num_views == 2
    with pytest.raises(UsageError, match=r"recipe\.tta_shift_vertical needs a recipe\.tta_shift above 0"):
        draft_plan(CLOTHES, wishes(overrides={"recipe.tta_shift": "0", "recipe.tta_shift_vertical": "true"}), MACHINE)


def test_the_range_and_the_window_of_the_pictures_are_in_the_plan_with_their_reasons():
    films = dataclasses.replace(
        CLOTHES, high=4095.0, range_reason="12 bits", window="file", window_reason="each has one"
    )
    plan, reasons = draft_plan(films, wishes(), MACHINE)
    assert (plan.image.low, plan.image.high, plan.image.window) == (0.0, 4095.0, "file")
    assert (reasons["image.high"], reasons["image.window"]) == ("12 bits", "each has one")
    assert "image.window" not in draft_plan(CLOTHES, wishes(), MACHINE)[1]


def test_wishes_win_and_say_so():
    plan, reasons = draft_plan(CLOTHES, wishes(overrides={"recipe.batch_size": "7", "model.depth": "2"}), MACHINE)
    assert (plan.recipe.batch_size, plan.model.depth) == (7, 2)
    assert reasons["recipe.batch_size"] == "asked for"


def test_a_misspelt_field_names_the_nearest():
    with pytest.raises(UsageError, match=r"recipe\.batch_sise.*recipe\.batch_size"):
        draft_plan(CLOTHES, wishes(overrides={"recipe.batch_sise": "7"}), MACHINE)


def test_epochs_and_steps_are_exact_budgets():
    plan, _ = draft_plan(CLOTHES, wishes(epochs=2.0), MACHINE)
    assert plan.recipe.steps == -(-110_000 // plan.recipe.batch_size)
    assert plan.minutes == 0
    assert draft_plan(CLOTHES, wishes(steps=17), MACHINE)[0].recipe.steps == 17


def test_the_field_of_the_steps_is_a_budget_too():
    plan, reasons = draft_plan(CLOTHES, wishes(overrides={"recipe.steps": "17"}), MACHINE)
    assert (plan.recipe.steps, plan.minutes, reasons["recipe.steps"]) == (17, 0, "asked for")
    with pytest.raises(UsageError, match=r"Give one budget. Got --epochs and --recipe.steps"):
        draft_plan(CLOTHES, wishes(epochs=1.0, overrides={"recipe.steps": "500"}), MACHINE)


def test_only_extend_says_where_a_run_was_extended():
    with pytest.raises(UsageError, match=r"written by --extend alone"):
        draft_plan(CLOTHES, wishes(steps=9, overrides={"recipe.extended_at": "5"}), MACHINE)


def test_two_budgets_are_refused():
    with pytest.raises(UsageError, match=r"Give one budget. Got --minutes and --steps"):
        draft_plan(CLOTHES, wishes(minutes=1.0, steps=3), MACHINE)


@pytest.mark.parametrize("budget", [{"minutes": 0.0}, {"epochs": -1.0}, {"steps": 0}])
def test_an_empty_budget_is_refused(budget):
    with pytest.raises(UsageError, match=f"--{next(iter(budget))} must be above 0"):
        draft_plan(CLOTHES, wishes(**budget), MACHINE)


def test_minutes_become_steps_by_the_measured_pace():
    plan, _ = draft_plan(CLOTHES, wishes(minutes=2.0), MACHINE)
    plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, patch_keep_rate=0.5, patch_keep_until=0.5))
    stages = (ProgressiveStage(0.0, 0.5), 0.1), (ProgressiveStage(0.5, 0.5), 0.3)
    fixed, reasons = fix_steps(plan, Throughput(stages))
    assert fixed.recipe.steps == 600
    assert "0.200 s a step" in reasons["recipe.steps"]


def test_minutes_that_are_too_few_for_the_fewest_steps_are_told():
    plan, _ = draft_plan(CLOTHES, wishes(minutes=1.0), MACHINE)
    fixed, reasons = fix_steps(plan, Throughput(((ProgressiveStage(0.0, 1.0), 30.0),)))
    assert fixed.recipe.steps == 20
    assert reasons["recipe.steps"].startswith("at least, which take about 10 min: 1 min at 30.000 s a step")
    assert reasons["recipe.steps"].endswith(", are 2")


@pytest.mark.parametrize(
    ("asked", "need"),
    [
        ({"recipe.optimizer": "adamw", "recipe.muon_lr": "0.01"}, "--recipe.optimizer muon"),
        ({"recipe.optimizer": "adamw", "recipe.muon_momentum": "0.9"}, "--recipe.optimizer muon"),
        ({"recipe.randaugment_num_ops": "3"}, "--recipe.auto_augment rand"),
        ({"recipe.auto_augment": "trivial", "recipe.randaugment_magnitude": "5"}, "--recipe.auto_augment rand"),
        ({"recipe.patch_keep_rate": "0.4", "recipe.patch_keep_until": "0"}, "a --recipe.patch_keep_until above 0"),
        ({"recipe.patch_keep_until": "0.4", "recipe.patch_keep_rate": "1"}, "a --recipe.patch_keep_rate below 1"),
        ({"recipe.progressive_size": "0.6", "recipe.progressive_until": "0"}, "a --recipe.progressive_until above 0"),
        ({"recipe.progressive_until": "0.5", "recipe.progressive_size": "1"}, "a --recipe.progressive_size below 1"),
        ({"model.pool_every": "2"}, "a --model.pool_blocks above 1"),
        ({"model.class_position": "false"}, "--model.class_token true"),
        ({"track.project": "cells"}, "--track.report_to wandb, mlflow or trackio"),
        ({"track.project": "cells", "track.report_to": "tensorboard"}, "--track.report_to wandb, mlflow or trackio"),
    ],
)
def test_what_would_have_no_effect_is_refused(asked, need):
    with pytest.raises(UsageError, match=f"has no effect here without {need}. Give that too, or leave it out"):
        draft_plan(CLOTHES, wishes(overrides=asked), MACHINE)


def test_a_batch_of_more_than_there_is_is_told():
    asked = {"recipe.batch_size": "200", "recipe.repeated_augmentation": "2"}
    plan, _ = draft_plan(CLOTHES, wishes(overrides=asked), MACHINE)
    assert (
        unused_settings.describe_reduced_settings(plan, asked, 100)
        == ()
        == unused_settings.describe_reduced_settings(plan, {}, 63)
    )
    told = "A step sees a picture once, so it has all 63 and not the 100 of recipe.batch_size."
    assert unused_settings.describe_reduced_settings(plan, asked, 63) == (told,)


@pytest.mark.parametrize(
    "asked",
    [{"recipe.progressive_size": "0.95", "recipe.progressive_until": "0.5"}, {"recipe.patch_keep_rate": "0.999"}],
)
def test_a_share_of_the_patches_that_rounds_to_all_of_them_is_refused(asked):
    name, *_ = asked
    rounded = rf"--{name} {asked[name]} of 7 x 7 patches rounds to all of them and has no effect\. Give less"
    with pytest.raises(UsageError, match=rounded):
        draft_plan(CLOTHES, wishes(overrides=asked), MACHINE)


@pytest.mark.parametrize(
    "asked",
    [
        {"recipe.muon_lr": "0.01"},
        {"recipe.auto_augment": "rand", "recipe.randaugment_magnitude": "5", "recipe.randaugment_num_ops": "1"},
        {"recipe.patch_keep_rate": "1"},
        {"recipe.patch_keep_until": "0"},
        {"recipe.patch_keep_rate": "0.4"},
        {"recipe.progressive_size": "1"},
        {"recipe.progressive_until": "0"},
        {"recipe.progressive_until": "0.7"},
        {"model.pool_every": "2", "model.pool_blocks": "2"},
        {"model.class_position": "false", "model.class_token": "true"},
    ],
)
def test_what_has_an_effect_is_taken(asked):
    _, reasons = draft_plan(CLOTHES, wishes(overrides=asked), MACHINE)
    assert all(reasons[name] == "asked for" for name in asked)


def test_a_move_as_wide_as_the_pictures_is_refused_before_the_training():
    with pytest.raises(
        UsageError, match=r"recipe\.tta_shift must be below the width of the pictures, 28 pixels\. Got 28"
    ):
        draft_plan(CLOTHES, wishes(overrides={"recipe.tta_shift": "28"}), MACHINE)
    wide, both = dataclasses.replace(CLOTHES, width=42), {"recipe.tta_shift": "28", "recipe.tta_shift_vertical": "true"}
    with pytest.raises(UsageError, match=r"recipe\.tta_shift must be below the height of the pictures, 28 pixels"):
        draft_plan(wide, wishes(overrides=both), MACHINE)
    sideways = both | {"recipe.tta_shift_vertical": "false"}
    assert draft_plan(wide, wishes(overrides=sideways), MACHINE)[0].recipe.views.num_views == 6


@pytest.mark.parametrize(("validation", "looks"), [(0, 10), (270, 10), (600, 6), (6000, 3), (6000000, 3)])
def test_looks_on_the_way_answer_at_most_three_tenths_of_the_pictures_that_are_learnt(validation, looks):
    plan, _ = draft_plan(CLOTHES, wishes(overrides={"recipe.batch_size": "128"}), MACHINE)
    plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=100))
    spaced, reasons = space_evaluations(plan, validation, wishes())  # 12,800 pictures, three tenths of them are 3,840
    assert spaced.recipe.num_evaluations == looks
    assert (spaced is plan) == (looks == 10)
    assert ("a tenth of the time is for evaluations" in reasons.get("recipe.evaluate_every", "")) == (looks < 10)


def test_a_step_or_two_have_one_look_and_what_was_asked_for_stays():
    plan, _ = draft_plan(CLOTHES, wishes(overrides={"recipe.batch_size": "8"}), MACHINE)
    plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=20))
    assert space_evaluations(plan, 6000, wishes())[0].recipe.num_evaluations == 1
    assert space_evaluations(plan, 6000, wishes(overrides={"recipe.evaluate_every": "1"})) == (plan, {})


def test_a_model_that_does_not_divide_the_picture_is_refused():
    with pytest.raises(UsageError, match="image height 30 is not a multiple of the patch height 4"):
        draft_plan(CLOTHES, wishes(model="vit_nano_patch4_28", image_size=(30, 28)), MACHINE)


def test_outputs_that_are_not_the_classes_are_refused():
    with pytest.raises(UsageError, match=r"one output per class, 10. Got outputs=3"):
        draft_plan(CLOTHES, wishes(overrides={"model.outputs": "3"}), MACHINE)


def test_an_image_description_that_is_not_the_model_s_is_refused():
    with pytest.raises(UsageError, match=r"reads 28x28 pixels of 1 channel, but \[image\] gives 32x28 of 1"):
        draft_plan(CLOTHES, wishes(overrides={"image.height": "32"}), MACHINE)


@pytest.mark.parametrize("alone", [{"recipe.progressive_size": "0.5"}, {"recipe.progressive_until": "0.5"}])
def test_of_few_pictures_an_early_size_without_an_end_is_refused_and_so_is_an_end_without_a_size(alone):
    few = dataclasses.replace(CLOTHES, num_images=100)
    with pytest.raises(
        UsageError, match=r"no effect here without a --recipe\.progressive_(until above 0|size below 1)\."
    ):
        draft_plan(few, wishes(overrides=alone), MACHINE)
    both = {"recipe.progressive_size": "0.5", "recipe.progressive_until": "0.5"}
    assert draft_plan(few, wishes(overrides=both), MACHINE)[0].recipe.progressive_size == 0.5


def test_only_square_pictures_may_exchange_rows_and_columns():
    with pytest.raises(UsageError, match=r"transpose .* Got 28x56"):
        draft_plan(CLOTHES, wishes(image_size=(28, 56), overrides={"recipe.transpose": "true"}), MACHINE)


def test_every_line_of_a_plan_has_a_reason_and_a_written_plan_none():
    plan, reasons = draft_plan(CLOTHES, wishes(), MACHINE)
    filled = complete_reasons(plan, reasons)
    names = [field.name for field in config.describe(Plan)]
    machines = {name for name in names if name.startswith("compute.")} - {"compute.device", "compute.timeout"}
    assert set(names) - filled.keys() == machines
    assert filled["model.depth"] == "as vit_pico_patch4_28 has it"
    assert complete_reasons(plan, {}) == {}


@pytest.mark.parametrize("count", [900, 55_000])
def test_a_value_that_is_not_the_default_is_explained_by_the_rule_that_chose_it(count):
    plan, reasons = draft_plan(dataclasses.replace(CLOTHES, num_images=count), wishes(), MACHINE)
    usual, about_any_value = vars(Recipe()), {"patch_keep_until", "tta_flip"}
    changed = {name for name, value in vars(plan.recipe).items() if value != usual[name]} - about_any_value
    assert {f"recipe.{name}" for name in changed} <= reasons.keys()


def test_the_standing_reasons_belong_to_fields_that_exist():
    assert DEFAULT_REASONS.keys() <= {field.name for field in config.describe(Plan)}


@pytest.mark.parametrize(
    ("size", "read", "patch"),
    [((64, 2048), (64, 256), 8), ((2048, 64), (256, 64), 8), ((10, 20_000), (10, 102), 2), ((60, 2048), (63, 324), 9)],
)
def test_long_strips_get_at_most_256_patches_and_say_what_all_of_them_would_be(size, read, patch):
    plan, reasons = draft_plan(dataclasses.replace(CLOTHES, height=size[0], width=size[1]), wishes(), MACHINE)
    assert (plan.model.image_size, plan.model.patch) == (read, (patch, patch))
    assert plan.model.grid.patches <= MAX_PATCHES == 256
    whole = choose_patch(size)[1]
    many = whole[0] * whole[1] // patch**2
    assert f"squashed to {max(read)}: whole it would be {many:,} patches" in reasons["model.image_size"]
    assert f"--image-size {whole[0]}x{whole[1]}" in reasons["model.image_size"]
    asked, _ = draft_plan(CLOTHES, wishes(image_size=(64, 2048)), MACHINE)
    assert asked.model.grid.patches == 2048, "a size that is asked for is followed"


@pytest.mark.parametrize(
    ("size", "grid"),
    [((96, 384), (4, 16)), ((384, 96), (16, 4)), ((100, 200), (6, 10)), ((120, 360), (5, 12)), ((70, 7000), (2, 32))],
)
def test_pictures_that_are_all_strips_keep_their_shape_in_as_many_patches_as_a_square(size, grid):
    aspect = size[1] / size[0]
    strips = dataclasses.replace(CLOTHES, height=size[0], width=size[1], aspects=(aspect, aspect))
    plan, reasons = draft_plan(strips, wishes(), MACHINE)
    assert plan.model.grid == grid and plan.model.patch == (8, 8) and 60 <= plan.model.grid.patches <= 64
    said = f"all pictures are strips, mostly {size[0]} high, {size[1]} wide; their shape is kept"
    assert reasons["model.image_size"].startswith(said)
    few, _ = draft_plan(dataclasses.replace(strips, num_images=900), wishes(), MACHINE)
    assert (few.model.grid, few.model.patch[0]) == (grid, 12 if min(size) >= 96 else 8)


@pytest.mark.parametrize(
    ("size", "grid", "patch"), [((128, 512), (8, 32), 8), ((512, 128), (32, 8), 8), ((100, 400), (4, 16), 8)]
)
def test_strips_with_masks_keep_their_shape_in_finer_patches(size, grid, patch):
    aspect = size[1] / size[0]
    strips = dataclasses.replace(
        CLOTHES, height=size[0], width=size[1], aspects=(aspect, aspect), task="segmentation", num_classes=3
    )
    plan, reasons = draft_plan(strips, wishes(), MACHINE)
    assert (plan.model.grid, plan.model.patch[0]) == (grid, patch) and plan.model.is_dense
    assert reasons["model.image_size"].startswith("all pictures are strips")


def test_pictures_of_which_some_are_no_strips_or_that_are_cut_stay_square():
    wide = dataclasses.replace(CLOTHES, height=96, width=384, aspects=(4.0, 4.0))
    for mixed in ((1.5, 4.0), (0.25, 4.0), (1.0, 1.0)):
        plan, reasons = draft_plan(dataclasses.replace(wide, aspects=mixed), wishes(), MACHINE)
        assert plan.model.grid == (8, 8) and "made square" in reasons["model.image_size"]
    cut, _ = draft_plan(wide, wishes(overrides={"image.fit": "crop"}), MACHINE)
    assert cut.model.grid == (8, 8)
