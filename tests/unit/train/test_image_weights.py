"""Weights of single images: an image of weight 2 is learnt as if it were there twice, in every loss, mixed or not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitrail.data.loader import Batch, InMemoryImageStore
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec
from vitrail.train.batch_augment import mix_batch
from vitrail.train.class_weights import choose_class_weights
from vitrail.train.dataset import Dataset
from vitrail.train.distill.distillation import check_teacher
from vitrail.train.loop import build_train_state, train_steps
from vitrail.train.losses import build_loss
from vitrail.train.plan import DistillSettings, Plan, Recipe

generator = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(6, 4, generator=generator) * 3
CLASSES = torch.tensor([0, 3, 1, 1, 2, 0])
CELLS = torch.where(torch.rand(6, 4, generator=generator) < 0.2, torch.nan, torch.rand(6, 4, generator=generator))
TIMES = torch.tensor([1, 2, 3, 1, 4, 1])
BALANCE = torch.tensor([0.5, 2.0, 1.0, 0.25])


@pytest.mark.parametrize(
    ("task", "recipe", "targets", "balance"),
    [
        ("classification", Recipe(label_smoothing=0.1), CLASSES, None),
        ("classification", Recipe(), CLASSES, BALANCE),
        ("classification", Recipe(), OUTPUTS.softmax(1), None),
        ("multilabel", Recipe(label_smoothing=0.1), CELLS, BALANCE),
        ("multilabel", Recipe(asl_gamma_neg=4, asl_gamma_pos=1, asl_margin=0.05), CELLS, None),
        ("regression", Recipe(), CELLS, None),
        ("regression", Recipe(huber_delta=0.5), CELLS, None),
    ],
)
def test_a_whole_weight_is_the_loss_of_so_many_copies(task, recipe, targets, balance):
    loss, copies = build_loss(task, recipe, balance), torch.arange(6).repeat_interleave(TIMES)
    total, weight = loss(OUTPUTS, targets, TIMES.float())
    torch.testing.assert_close(total, loss(OUTPUTS[copies], targets[copies])[0])
    assert weight == loss(OUTPUTS, targets)[1], "the weights have mean 1 over the training, so the divisor stays"


@pytest.mark.parametrize("recipe", [Recipe(mixup=0.4), Recipe(cutmix=1.0), Recipe(mixup=0.4, cutmix=1.0)])
@pytest.mark.parametrize("soft", [False, True])
def test_in_a_mixture_each_target_has_the_weight_of_its_image(recipe, soft):
    """Every image has a class of its own, so that the mixed targets are the shares of the images."""
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=generator)
    targets = torch.eye(6) if soft else torch.arange(6)
    weights = torch.tensor([0.1, 3.0, 1.0, 0.5, 20.0, 1.0])
    plain = Batch(images, targets, np.arange(6))
    shown, shares, nothing = mix_batch(images, plain, recipe, 0, 0, 6)
    also_shown, weighted, mixed = mix_batch(
        images, Batch(images, targets, np.arange(6), None, weights), recipe, 0, 0, 6
    )
    assert nothing is None and mixed is not None and torch.equal(shown, also_shown)
    torch.testing.assert_close(mixed[:, None] * weighted, shares * weights)
    torch.testing.assert_close(weighted.sum(1), torch.ones(6))
    assert ((shares > 0).sum(1) == 2).sum() > 2, "most of them are mixtures"


def test_without_mixing_the_weights_are_those_of_the_batch():
    weights = torch.arange(1.0, 7.0)
    batch = Batch(torch.zeros(6, 1, 4, 4, dtype=torch.uint8), CLASSES, np.arange(6), None, weights)
    assert mix_batch(batch.images, batch, Recipe(), 0, 0, 4)[2] is weights


MODEL = ViTConfig(
    image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=1, heads=2, mlp_width=16, outputs=3,
    class_token=False, pool="mean", positions="none",
)  # fmt: skip
IMAGES = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=generator)
COPIES = np.arange(12).repeat(np.arange(12) % 3 + 1)


def trained(task: str, rows: np.ndarray, weights: np.ndarray | None, **recipe: object) -> tuple[list[float], list]:
    """Losses and parameters of four steps on whole epochs."""
    targets = np.arange(12) % 3 if task == "classification" else np.eye(3, dtype=np.float32)[np.arange(12) % 3]
    plan = Plan(
        model=MODEL,
        image=ImageSpec(height=8, width=8, channels=1),
        recipe=Recipe(**{"steps": 4, "batch_size": 64, "optimizer": "adamw", **recipe}),
    )
    state = build_train_state(create_model(MODEL, 0), plan)
    steps = train_steps(state, InMemoryImageStore(IMAGES[rows]), targets[rows], plan, task=task, image_weights=weights)
    losses = [step.loss for step in steps]
    return losses, [parameter.detach().clone() for parameter in state.model.parameters()]


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_training_with_whole_weights_is_that_with_copies(task, parts):
    weights = (np.arange(12) % 3 + 1).astype(np.float32)
    losses, ours = trained(task, np.arange(12), weights / weights.mean(), grad_accum_steps=parts)
    expected, theirs = trained(task, COPIES, None)
    assert losses == pytest.approx(expected, rel=1e-4)
    plain, _ = trained(task, np.arange(12), None)
    assert losses != pytest.approx(plain, rel=1e-3)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-2)


def source(weights: np.ndarray | None) -> Source:
    return Source(
        name="drawn", classes=("a", "b"), images=np.zeros((4, 2, 2), np.uint8), targets=np.array([0, 0, 0, 1]),
        ids=tuple("stuv"), weights=weights,
    )  # fmt: skip


def test_weights_have_mean_one_over_the_training_images():
    splits = {"train": np.array([3, 1]), "val": np.array([0, 2]), "test": np.arange(0)}
    assert Dataset(source(np.array([9.0, 1, 7, 3])), splits).image_weights.tolist() == [1.5, 0.5]
    assert Dataset(source(None), splits).image_weights is None


def test_numbers_are_standardised_by_their_weighted_mean():
    numbers = dataclasses.replace(
        source(np.array([1.0, 1, 3, 1])), task="regression", classes=("age",), targets=np.array([[2.0], [9], [6], [9]])
    )
    splits = {"train": np.array([0, 2]), "val": np.array([1, 3]), "test": np.arange(0)}
    scaling = Dataset(numbers, splits).scaling
    assert scaling is not None and scaling.mean == (5.0,) and scaling.deviation == pytest.approx((3**0.5,))


def test_weights_of_nothing_or_less_are_no_weights():
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(
            DataError, match=r"Weights of drawn must be finite and above 0; leave out pictures of weight 0"
        ):
            source(np.array([1, 1, 1, wrong]))
    with pytest.raises(DataError, match=r"drawn has 4 pictures but 3 weights"):
        source(np.ones(3))


def test_weights_are_no_part_of_what_data_it_is():
    assert source(np.array([1.0, 2, 3, 4])).fingerprint() == source(None).fingerprint()


def test_the_planner_adds_no_class_weights_to_weights_of_images():
    assert choose_class_weights("classification", 50.0, has_weights=True) == (
        "none", {"recipe.class_weights": "each picture was given a weight of its own"},
    )  # fmt: skip


def test_a_teacher_and_weights_are_refused_together():
    plan = Plan(data=DataSettings(), distill=DistillSettings(teacher="cnn", steps=5))
    check_teacher(plan, Dataset(source(None), {}))
    with pytest.raises(UsageError, match=r"weights of their own cannot be learnt from a teacher"):
        check_teacher(plan, Dataset(source(np.ones(4)), {}))
