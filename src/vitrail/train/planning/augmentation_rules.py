"""Choose batch size, patch dropout and augmentation from the number of images and the length of the run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from ... import config
from ...data.source import Task
from ...formatting import format_count
from ...model.config import ViTConfig
from ...model.vit import parameter_count
from ..class_weights import choose_class_weights
from ..plan import Plan, Recipe, suggest_batch_size
from ..request import FEW_IMAGES, DatasetFingerprint, Reasons, TrainRequest

NO_FLIP_SOURCES = ("digits", "mnist")
DIGIT_AUGMENTATION = {"recipe.rotate": 10.0, "recipe.scale": 0.1, "recipe.translate": 0.05}
"""Augmentation of handwritten digits in long trainings: one point of validation accuracy more on digits, one less on
solar cells, whose busbars are always in one place (EXPERIMENTS.md)."""
PROGRESSIVE_SIZE, PROGRESSIVE_UNTIL = 0.6, 0.5
"""Progressive resizing for many images on a CPU: a fifth more steps in the same minutes. With `pico` 0.3 to 0.7 points
on Fashion-MNIST at 1, 3 and 10 minutes, with `femto` nothing at 1 (EXPERIMENTS.md)."""
MASK_BATCH = 16
"""Most pictures of a step on masks: each has many pixels, and steps are dear."""
MIN_SHIFT_SIDE = 28
"""Pixels of image side per pixel of random shift; below twice that, test-time augmentation shifts by one pixel."""


class AugmentationRule(NamedTuple):
    """Augmentation beyond shifts and flips for trainings from a memorization score on."""

    min_memorization: float
    plan_fields: Mapping[str, float]
    """Plan fields by their dotted names."""
    reason: str


AUGMENTATION_RULES = (
    AugmentationRule(1_000, {"recipe.mixup": 0.2}, "mixup reduces overfitting"),
    AugmentationRule(
        500_000,
        {"recipe.mixup": 0.8, "recipe.cutmix": 1.0, "recipe.label_smoothing": 0.1, "model.drop_path": 0.1},
        "it would overfit without strong mixing",
    ),
)
"""By score. Below the first, more augmentation lowers the accuracy (EXPERIMENTS.md)."""


def memorization_score(plan: Plan, count: int) -> float:
    """How easily a training overfits: epochs times parameters per image.

    Fashion-MNIST in ten minutes on two cores has 110 (18 epochs, 6 parameters an image) and loses by more augmentation;
    solar cells after 60 epochs have 14,000 and gain by mixup 0.2. Published: on CIFAR-10, mixup 0.2 was best at 2,400
    (50 epochs, 2.4 million parameters), strong mixing at 17,000 (300 epochs, 2.8 million). Solar cells at 35,000 were
    as good with either, digits at 50,000 better with mixup 0.2 (EXPERIMENTS.md).
    """
    return plan.recipe.epochs(count) * parameter_count(plan.model) / count


def draft_recipe(
    fingerprint: DatasetFingerprint, model: ViTConfig, request: TrainRequest, device: str
) -> tuple[Recipe, Reasons]:
    """The recipe for images, model and device, before its number of steps is known; and reasons."""
    flip, few = fingerprint.name not in NO_FLIP_SOURCES, fingerprint.num_images < FEW_IMAGES
    if fingerprint.task == "segmentation":
        return _draft_mask_recipe(fingerprint, model, device)
    early = not few and device == "cpu"
    cut = request.overrides.get("recipe.crop_scale", "0") not in ("0", "0.0")
    reasons = {
        "recipe.batch_size": format_count(fingerprint.num_images, "training picture"),
        "recipe.flip": "mirrored pictures mean the same; if yours do not, --recipe.flip false"
        if flip
        else "a mirrored digit is another sign",
        "recipe.patch_keep_rate": "few pictures: patch dropout reduces overfitting"
        if few
        else "half of the patches teach nearly as much at half the price",
        "recipe.crop_padding": "the resized crop moves pictures already" if cut else "one pixel in 28",
    }
    small = MIN_SHIFT_SIDE <= min(model.image_size) < 2 * MIN_SHIFT_SIDE
    # digits of 28 pixels gained nothing by vertical shifts, and an answer costs 1.7 times as much
    vertical = small and flip and request.overrides.get("recipe.tta_shift") != "0"
    if small:
        reasons["recipe.tta_shift"] = "three times the work of an answer, half a point on Fashion-MNIST"
    if vertical:
        why_vertical = "five times the work of an answer, not three; 0.2 points more on Fashion-MNIST in 13 minutes"
        reasons["recipe.tta_shift_vertical"] = why_vertical
    if early:
        why_small = "early steps cost less: a fifth more in the same minutes, 0.4 points on Fashion-MNIST (pico)"
        reasons |= dict.fromkeys(("recipe.progressive_size", "recipe.progressive_until"), why_small)
    class_weights, why = choose_class_weights(fingerprint.task, fingerprint.imbalance_ratio, fingerprint.has_weights)
    reasons |= why
    if few and fingerprint.task == "classification":
        reasons["recipe.label_smoothing"] = "few pictures: kept with the missing patches on digits"
    recipe = Recipe(
        batch_size=suggest_batch_size(fingerprint.num_images, device),
        patch_keep_rate=0.6 if few else 0.5,
        patch_keep_until=0.9 if few else 0.7,
        progressive_size=PROGRESSIVE_SIZE if early else 1.0,
        progressive_until=PROGRESSIVE_UNTIL if early else 0.0,
        label_smoothing=0.1 if few and fingerprint.task == "classification" else 0.0,
        class_weights=class_weights,
        crop_padding=0 if cut else min(model.image_size) // MIN_SHIFT_SIDE,
        flip=flip,
        tta_flip=flip,
        tta_shift=int(small),
        tta_shift_vertical=vertical,
    )
    return recipe, reasons


def _draft_mask_recipe(fingerprint: DatasetFingerprint, model: ViTConfig, device: str) -> tuple[Recipe, Reasons]:
    """The recipe for pictures with masks, of which every patch is seen."""
    reasons = {
        "recipe.batch_size": format_count(fingerprint.num_images, "training picture"),
        "recipe.flip": "mirrored pictures mean the same; if yours do not, --recipe.flip false",
        "recipe.patch_keep_rate": "every pixel has an answer, so every patch is seen",
        "recipe.tta_flip": "every pixel has one answer",
        "recipe.crop_padding": "one pixel in 28, masks with their pictures",
        "recipe.dice_weight": "a class of few pixels counts as much as one of many",
        "recipe.mixup": "masks are not mixed",
    }
    recipe = Recipe(
        batch_size=min(MASK_BATCH, suggest_batch_size(fingerprint.num_images, device)),
        crop_padding=min(model.image_size) // MIN_SHIFT_SIDE,
        flip=True,
        dice_weight=1.0,
    )
    return recipe, reasons


def apply_step_budget(plan: Plan, count: int, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with the requested steps or epochs, and the reason; a budget of minutes changes nothing yet."""
    recipe = plan.recipe
    if request.epochs is not None:
        distinct = min(max(1, recipe.batch_size // recipe.repeated_augmentation), count)
        steps = max(1, math.ceil(request.epochs * count / distinct))
        why = f"{request.epochs:g} epochs of {format_count(count, 'picture')}, {distinct} a step"
    elif request.steps is not None:
        steps, why = request.steps, "asked for"
    else:
        return plan, {}
    return dataclasses.replace(plan, recipe=dataclasses.replace(recipe, steps=steps)), {"recipe.steps": why}


def is_long_training(plan: Plan, count: int) -> bool:
    """Whether a training is so long for its images that more augmentation pays."""
    return memorization_score(plan, count) >= AUGMENTATION_RULES[0].min_memorization


def describe_length(plan: Plan, count: int) -> str:
    """Epochs and parameters per image, for reasons."""
    return f"{plan.recipe.epochs(count):,.0f} epochs, {parameter_count(plan.model) / count:,.0f} parameters a picture"


def choose_augmentation(
    plan: Plan, count: int, task: Task, request: TrainRequest, reasons: Reasons
) -> tuple[Plan, Reasons]:
    """The plan, whose steps are known, with the strongest augmentation that pays, and new reasons.

    Requested fields keep their values.

    Args:
        reasons: of the plan so far; an existing reason for mixup is kept.
    """
    if task == "segmentation":
        return plan, {}  # masks are not mixed
    score, length = memorization_score(plan, count), describe_length(plan, count)
    rules = [rule for rule in AUGMENTATION_RULES if score >= rule.min_memorization]
    if not rules:
        why = f"{length}: too few to overfit, so more augmentation would cost accuracy"
        return plan, {} if "recipe.mixup" in reasons else {"recipe.mixup": why}
    rule = rules[-1]
    digits = DIGIT_AUGMENTATION if plan.data.source in NO_FLIP_SOURCES else {}
    changes = {name: value for name, value in {**rule.plan_fields, **digits}.items() if name not in request.overrides}
    if task != "classification":
        changes.pop("recipe.label_smoothing", None)
    new = dict.fromkeys(changes.keys() & digits.keys(), "signs written by hand lean and vary in size")
    new |= dict.fromkeys(changes.keys() & rule.plan_fields.keys(), f"{length}: {rule.reason}")
    return config.override(plan, {name: repr(value) for name, value in changes.items()}), new
