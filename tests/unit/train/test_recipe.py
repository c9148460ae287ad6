"""Rates and curricula depend on the step alone."""

from __future__ import annotations

import pytest

from vitrail import config
from vitrail.errors import UsageError
from vitrail.evaluate.tta import TtaViews
from vitrail.spec import Grid
from vitrail.train.plan import Plan, ProgressiveStage, Recipe

GRID = Grid(7, 7)


def test_the_rate_rises_then_falls_to_zero():
    recipe = Recipe(steps=100, warmup=0.1, lr_schedule="linear")
    factors = [recipe.lr_factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 11)
    assert max(factors) == pytest.approx(factors[10], abs=0.03)
    assert factors[55] == pytest.approx(0.45)
    assert factors[100] == 0


@pytest.mark.parametrize(("decay", "half"), [("linear", 0.5), ("cosine", 0.5), ("constant", 1.0)])
def test_half_way_each_decay_stands_where_its_formula_says(decay, half):
    assert Recipe(steps=100, warmup=0.0, lr_schedule=decay).lr_factor(50) == pytest.approx(half)


def test_patches_are_dropped_until_the_turn():
    recipe = Recipe(steps=10, patch_keep_rate=0.5, patch_keep_until=0.7)
    assert [recipe.patches_at(step, 49) for step in range(10)] == [24] * 7 + [49] * 3


def test_at_least_one_patch_is_kept():
    assert Recipe(patch_keep_rate=0.01, patch_keep_until=0.5).patches_at(0, 4) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -1}, r"recipe.steps must be at least 0. Got -1"),
        ({"batch_size": -3}, r"recipe.batch_size must be at least 1. Got -3"),
        ({"lr": 0.0}, r"recipe.lr must be above 0: with 0.0"),
        ({"muon_lr": -1.0}, r"recipe.muon_lr must be above 0: with -1.0"),
        ({"weight_decay": 1.5}, r"recipe.weight_decay must lie in 0..1. Got 1.5"),
        ({"grad_clip_norm": -1.0}, r"recipe.grad_clip_norm must be a largest norm, or 0 for none. Got -1.0"),
        ({"grad_clip_norm": float("nan")}, r"recipe.grad_clip_norm must be a largest norm, or 0 for none. Got nan"),
        ({"evaluate_every": -1}, r"recipe.evaluate_every must be at least 0. Got -1"),
        ({"save_every": -5}, r"recipe.save_every must be at least 0. Got -5"),
        ({"warmup": 1.0}, r"recipe.warmup must lie in 0 <= fraction < 1. Got 1.0"),
        ({"patch_keep_rate": 0.0}, r"recipe.patch_keep_rate must lie in 0 < fraction <= 1. Got 0.0"),
        (
            {"randaugment_magnitude": 27.0},
            r"recipe.randaugment_magnitude must lie in 0..10. Got 27.0. torchvision counts to 30",
        ),
        ({"steps": 9, "steps_history": ((0, 5),)}, r"Got \[\[0, 5\]\] and recipe.steps=9. Leave it out to plan"),
        ({"steps": 9, "steps_history": ((0, 5), (7, 9))}, r"recipe.steps_history is written by a training"),
        ({"randaugment_num_ops": 0}, r"recipe.randaugment_num_ops must be at least 1. Got 0"),
        ({"crop_scale": 1.2}, r"recipe.crop_scale must lie in 0..1. Got 1.2"),
        ({"rotate": 200}, r"recipe.rotate must lie in 0..180. Got 200"),
        ({"scale": -0.1}, r"recipe.scale must lie in 0..1. Got -0.1"),
        ({"crop_padding": -1}, r"recipe.crop_padding must be at least 0. Got -1"),
        ({"random_erasing": -0.1}, r"recipe.random_erasing must lie in 0..1. Got -0.1"),
        ({"mixup": -0.2}, r"recipe.mixup must be 0 or more. Got -0.2"),
        ({"cutmix": float("inf")}, r"recipe.cutmix must be 0 or more. Got inf"),
        ({"tta_shift_vertical": True}, r"recipe.tta_shift_vertical needs a recipe.tta_shift above 0"),
        ({"repeated_augmentation": 0}, r"recipe.repeated_augmentation must be at least 1. Got 0"),
        (
            {"batch_size": 128, "repeated_augmentation": 3},
            r"multiple of recipe.repeated_augmentation.*Got batch_size=128, repeated_augmentation=3",
        ),
    ],
)
def test_settings_that_cannot_train_are_refused_with_their_numbers(change, message):
    with pytest.raises(UsageError, match=message):
        Recipe(**change)


def test_a_recipe_without_early_steps_has_one_phase():
    assert Recipe(steps=10).progressive_stages() == [ProgressiveStage(0.0, 1.0)]
    assert Recipe(patch_keep_rate=0.5, patch_keep_until=0.0).progressive_stages() == [ProgressiveStage(0.0, 1.0)]
    assert Recipe(progressive_size=1.0, progressive_until=0.5).progressive_stages() == [ProgressiveStage(0.0, 1.0)]


def test_patches_and_sizes_part_the_steps_into_phases():
    recipe = Recipe(steps=100, patch_keep_rate=0.5, patch_keep_until=0.75, progressive_size=0.6, progressive_until=0.25)
    assert recipe.progressive_stages() == [
        ProgressiveStage(0.0, 0.25),
        ProgressiveStage(0.25, 0.5),
        ProgressiveStage(0.75, 0.25),
    ]
    assert [recipe.grid_at(step, GRID) for step in (0, 24, 25, 99)] == [(4, 4), (4, 4), (7, 7), (7, 7)]
    assert [recipe.tokens_at(step, GRID) for step in (0, 24, 25, 74, 75)] == [8, 8, 24, 24, 49]


def test_sides_of_a_grid_shrink_alike_and_never_to_nothing():
    assert Recipe(progressive_size=0.5, progressive_until=0.9).grid_at(0, Grid(8, 14)) == Grid(4, 7)
    assert Recipe(progressive_size=0.1, progressive_until=0.9).grid_at(0, Grid(2, 2)) == Grid(1, 1)


@pytest.mark.parametrize(
    ("batch", "repeats", "count", "epochs"), [(10, 1, 100, 5.0), (10, 2, 100, 2.5), (64, 1, 8, 50)]
)
def test_epochs_count_each_picture_once(batch, repeats, count, epochs):
    assert Recipe(steps=50, batch_size=batch, repeated_augmentation=repeats).epochs(count) == epochs


@pytest.mark.parametrize(
    ("field", "value"), [("progressive_size", 0.0), ("progressive_size", 1.5), ("progressive_until", 1.0)]
)
def test_early_sizes_outside_their_bounds_are_refused(field, value):
    with pytest.raises(UsageError, match=rf"recipe\.{field} must lie in .* Got {value}"):
        Recipe(**{field: value})


def test_a_plan_from_before_there_were_vertical_shifts_keeps_its_six_views(tmp_path):
    lines = config.to_toml(Plan(recipe=Recipe(tta_flip=True, tta_shift=1)), {}).splitlines(keepends=True)
    (tmp_path / "plan.toml").write_text("".join(line for line in lines if "tta_shift_vertical" not in line))
    views = config.read_toml(tmp_path / "plan.toml", Plan).recipe.views
    assert views == TtaViews(flip=True, shift=1) and views.num_views == 6
