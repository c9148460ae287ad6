"""Recipes with weighted, fading and bounded losses train: they move the weights, and differently from the plain one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.loader import InMemoryImageStore
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec
from vitrail.train.loop import build_train_state, train_steps
from vitrail.train.plan import Plan, Recipe

MODEL = ViTConfig(
    image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=1, heads=2, mlp_width=16, outputs=3,
    class_token=False, pool="mean", positions="none",
)  # fmt: skip
IMAGES = torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
CLASSES = np.repeat([0, 1, 2], [16, 6, 2])
CELLS = np.eye(3, dtype=np.float32)[CLASSES] + np.where(np.arange(24) % 5 == 0, np.nan, 0.0).astype(np.float32)[:, None]


def trained(task: str, targets: np.ndarray, change: dict[str, object]) -> tuple[list[float], list[torch.Tensor]]:
    recipe = Recipe(steps=4, batch_size=8, **change)
    plan = Plan(model=MODEL, image=ImageSpec(height=8, width=8, channels=1), recipe=recipe)
    learner = build_train_state(create_model(MODEL, 0), plan)
    losses = [step.loss for step in train_steps(learner, InMemoryImageStore(IMAGES), targets, plan, task=task)]
    return losses, [parameter.detach().clone() for parameter in learner.model.parameters()]


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("classification", {"class_weights": "balanced"}),
        ("classification", {"class_weights": "root", "label_smoothing": 0.1, "mixup": 0.4}),
        ("multilabel", {"max_pos_weight": 10.0}),
        ("multilabel", {"asl_gamma_neg": 4.0, "asl_gamma_pos": 1.0, "asl_margin": 0.05}),
        ("regression", {"huber_delta": 0.2}),
    ],
)
def test_a_recipe_trains_with_its_loss(task, change):
    targets = CLASSES if task == "classification" else CELLS
    losses, weights = trained(task, targets, change)
    again, same = trained(task, targets, change)
    plain = {name: value for name, value in change.items() if name in ("label_smoothing", "mixup")}
    others, different = trained(task, targets, plain)
    assert np.isfinite(losses).all() and losses == again and losses != others
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights, different, strict=True))


def test_weights_of_a_single_class_size_change_nothing_but_rounding():
    even = np.repeat([0, 1, 2], 8)
    (plain, _), (weighted, _) = (
        trained("classification", even, {"class_weights": kind}) for kind in ("none", "balanced")
    )
    assert weighted == pytest.approx(plain, rel=1e-3)
