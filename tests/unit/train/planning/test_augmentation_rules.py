"""What a training is fed: rules by the number of pictures and by the length of the run."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.data.settings import DataSettings
from vitrail.runtime import Runtime
from vitrail.train.plan import Plan
from vitrail.train.planning import augmentation_rules
from vitrail.train.planning.planner import draft_plan
from vitrail.train.request import DatasetFingerprint, TrainRequest

CLOTHES = DatasetFingerprint(
    name="clothes", num_images=54_000, num_classes=10, height=28, width=28, channels=1, low=0.0, high=255.0
)  # fmt: skip
MACHINE = Runtime(device="cpu", precision="float32", threads=1, num_workers=0, compile=False, reasons={})


def wishes(**changes: object) -> TrainRequest:
    return dataclasses.replace(TrainRequest(data=DataSettings()), **changes)


def drafted(found: DatasetFingerprint = CLOTHES, **changes: object):
    return draft_plan(found, wishes(**changes), MACHINE)


@pytest.mark.parametrize(
    ("count", "name", "expected"),
    [
        (
            100,
            "folder",
            {"batch_size": 16, "patch_keep_rate": 0.6, "patch_keep_until": 0.9, "label_smoothing": 0.1, "flip": True},
        ),
        (
            1_258,
            "digits",
            {"batch_size": 128, "patch_keep_rate": 0.6, "patch_keep_until": 0.9, "label_smoothing": 0.1, "flip": False},
        ),
        (
            54_000,
            "clothes",
            {"batch_size": 128, "patch_keep_rate": 0.5, "patch_keep_until": 0.7, "label_smoothing": 0.0, "flip": True},
        ),
        (4_999, "clothes", {"progressive_size": 1.0, "progressive_until": 0.0}),
        (5_000, "clothes", {"progressive_size": 0.6, "progressive_until": 0.5}),
    ],
)
def test_the_number_of_pictures_decides_batch_patches_sizes_and_smoothing(count, name, expected):
    recipe = drafted(dataclasses.replace(CLOTHES, num_images=count, name=name))[0].recipe
    assert {field: value for field, value in dataclasses.asdict(recipe).items() if field in expected} == expected


def test_pictures_have_one_size_on_a_gpu_and_where_it_was_asked_for():
    on_a_gpu = draft_plan(CLOTHES, wishes(), dataclasses.replace(MACHINE, device="cuda"))[0]
    assert [phase.fraction for phase in on_a_gpu.recipe.progressive_stages()] == pytest.approx([0.7, 0.3])
    for asked in ({"recipe.progressive_size": "1"}, {"recipe.progressive_until": "0"}):
        assert drafted(overrides=asked)[0].recipe.progressive_stages() == on_a_gpu.recipe.progressive_stages()
    assert [phase.fraction for phase in drafted()[0].recipe.progressive_stages()] == pytest.approx([0.5, 0.2, 0.3])


def test_more_pictures_never_make_a_batch_smaller():
    batches = [drafted(dataclasses.replace(CLOTHES, num_images=2**n))[0].recipe.batch_size for n in range(18)]
    assert batches == sorted(batches)


def test_a_gpu_takes_larger_batches_of_many_pictures_only():
    gpu = dataclasses.replace(MACHINE, device="cuda")
    sizes = {
        count: tuple(
            draft_plan(dataclasses.replace(CLOTHES, num_images=count), wishes(), machine)[0].recipe.batch_size
            for machine in (MACHINE, gpu)
        )
        for count in (100, 1_258, 20_000, 54_000, 10**6)
    }
    assert sizes == {100: (16, 16), 1_258: (128, 128), 20_000: (128, 256), 54_000: (128, 512), 10**6: (128, 512)}


@pytest.mark.parametrize("text", ["0.5", "1"])
def test_a_resized_crop_leaves_no_shift_unless_it_was_asked_for(text):
    plan, reasons = drafted(overrides={"recipe.crop_scale": text})
    assert plan.recipe.crop_padding == 0 and "resized crop" in reasons["recipe.crop_padding"]
    both = {"recipe.crop_scale": text, "recipe.crop_padding": "3"}
    assert drafted(overrides=both)[0].recipe.crop_padding == 3
    assert drafted(overrides={"recipe.crop_scale": "0"})[0].recipe.crop_padding == 1


@pytest.mark.parametrize(("batch", "repeats", "steps"), [(128, 1, 844), (64, 1, 1688), (128, 4, 3375)])
def test_epochs_are_counted_with_the_batch_and_the_repeats_that_were_asked_for(batch, repeats, steps):
    plan, reasons = drafted(
        epochs=2.0, overrides={"recipe.batch_size": str(batch), "recipe.repeated_augmentation": str(repeats)}
    )
    assert plan.recipe.steps == steps
    assert plan.recipe.epochs(54_000) == pytest.approx(2.0, abs=0.002)
    assert reasons["recipe.steps"] == f"2 epochs of 54,000 pictures, {batch // repeats} a step"


def long(plan: Plan, epochs: float, count: int) -> Plan:
    steps = round(epochs * count / plan.recipe.batch_size)
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=steps))


@pytest.mark.parametrize(
    ("count", "epochs", "mixup", "cutmix"),
    [
        (54_000, 15, 0.0, 0.0),  # Fashion-MNIST in ten minutes
        (54_000, 46, 0.0, 0.0),  # in twenty
        (1_312, 3, 0.0, 0.0),
        (1_312, 60, 0.2, 0.0),  # solar cells in a minute
        (1_312, 500, 0.2, 0.0),  # in ten
        (1_280, 300, 0.2, 0.0),  # digits in a minute
        (1_280, 2_200, 0.8, 1.0),  # in eight
    ],
)
def test_the_length_of_the_run_decides_how_pictures_are_mixed(count, epochs, mixup, cutmix):
    plan, reasons = drafted(dataclasses.replace(CLOTHES, num_images=count))
    longer, new = augmentation_rules.choose_augmentation(
        long(plan, epochs, count), count, "classification", wishes(), reasons
    )
    reasons |= new
    assert (longer.recipe.mixup, longer.recipe.cutmix) == (mixup, cutmix)
    assert reasons["recipe.mixup"].startswith(f"{epochs:,.0f} epochs, ")


def test_a_longer_run_and_a_larger_model_never_get_less_variety():
    plan, _ = drafted()
    wide = dataclasses.replace(plan, model=dataclasses.replace(plan.model, width=768))
    for base in (plan, wide):
        fed = [
            augmentation_rules.choose_augmentation(long(base, epochs, 5_000), 5_000, "classification", wishes(), {})[0]
            for epochs in (1, 20, 90, 9_000)
        ]
        amounts = [(each.recipe.mixup, each.recipe.cutmix, each.model.drop_path) for each in fed]
        assert amounts == sorted(amounts)
    assert augmentation_rules.memorization_score(wide, 5_000) > augmentation_rules.memorization_score(plan, 5_000)


def test_what_was_asked_for_is_never_changed_by_the_length():
    asked = {"recipe.mixup": "0", "model.drop_path": "0.3"}
    plan, reasons = drafted(overrides=asked)
    longer, new = augmentation_rules.choose_augmentation(
        long(plan, 5_000, 1_000), 1_000, "classification", wishes(overrides=asked), reasons
    )
    reasons |= new
    assert (longer.recipe.mixup, longer.recipe.cutmix, longer.model.drop_path) == (0.0, 1.0, 0.3)
    assert reasons["recipe.mixup"] == "asked for"


@pytest.mark.parametrize(("name", "epochs", "turn"), [("digits", 300, 10.0), ("digits", 1, 0.0), ("clothes", 300, 0.0)])
def test_signs_lean_in_trainings_that_are_long_for_them(name, epochs, turn):
    plan, reasons = drafted(dataclasses.replace(CLOTHES, num_images=1_280, name=name))
    plan = dataclasses.replace(plan, data=DataSettings(source=name))
    longer, new = augmentation_rules.choose_augmentation(
        long(plan, epochs, 1_280), 1_280, "classification", wishes(), reasons
    )
    reasons |= new
    assert longer.recipe.rotate == turn and (longer.recipe.scale > 0) == (turn > 0)
    assert ("lean" in reasons.get("recipe.rotate", "")) == (turn > 0)
    asked = wishes(overrides={"recipe.rotate": "0"})
    kept, _ = augmentation_rules.choose_augmentation(long(plan, epochs, 1_280), 1_280, "classification", asked, {})
    assert kept.recipe.rotate == 0


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_only_classes_are_smoothed(task):
    plan, reasons = drafted(dataclasses.replace(CLOTHES, task=task))
    longer, _ = augmentation_rules.choose_augmentation(long(plan, 500, 1_000), 1_000, task, wishes(), reasons)
    assert longer.recipe.label_smoothing == 0
