"""X3, X5, X7: small pictures whose evidence is one known patch, learnt by models of every head kind in moments.

A picture is noise, a class's sign in one patch of 4 x 4 pixels, and a decoy, as strong, in another. After some seconds
of plain training the most relevant patch must be the sign, whoever carries the answer.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explain.methods import METHODS, Options, default_method, explain
from vitrail.explain.truth.localisation import correlation
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create

SHAPE = ViTConfig(
    image_size=(16, 24), patch=(4, 4), channels=1, width=32, depth=2, heads=2, mlp_width=64, outputs=3, init="torch"
)
HEADS = {
    "class token": SHAPE,
    "class token, registers": dataclasses.replace(SHAPE, registers=2),
    "class and distillation token": dataclasses.replace(SHAPE, distillation_token=True, distillation_head=True),
    "mean of the patches": dataclasses.replace(SHAPE, class_token=False, pool="mean"),
    "class token and mean": dataclasses.replace(SHAPE, pool="class+mean"),
    "a learned probe": dataclasses.replace(SHAPE, class_token=False, pool="attention"),
    "mean, rotary, three channels": dataclasses.replace(
        SHAPE, class_token=False, pool="mean", rotary="axial", channels=3
    ),
}
every_head = pytest.mark.parametrize("name", HEADS)
SIGNS = torch.sign(torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(7)))
"""Three classes' signs, and last the decoy's."""
STEPS, BATCH = 250, 64


def drawn(count: int, seed: int, channels: int = 1, pairs: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures [n, C, 16, 24], the classes of sign and decoy [n, 2], and the patches where both lie [n, 2].

    Args:
        pairs: the sign of another class stands in the place of the decoy.
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(3, (count,), generator=generator)
    second = (first + 1 + torch.randint(2, (count,), generator=generator)) % 3 if pairs else torch.full((count,), 3)
    places = torch.rand(count, 24, generator=generator).argsort(1)[:, :2]
    patches = 0.3 * torch.randn(count, 24, 4, 4, generator=generator)
    for kind, place in ((first, places[:, 0]), (second, places[:, 1])):
        patches[torch.arange(count), place] += SIGNS[kind]
    pictures = patches.view(count, 4, 6, 4, 4).transpose(2, 3).reshape(count, 1, 16, 24)
    return pictures.expand(-1, channels, -1, -1), torch.stack([first, second], 1), places


def learnt(config: ViTConfig, shuffled: bool = False) -> ViT:
    """A model after some steps of Adam; with `shuffled` the classes are drawn anew and say nothing."""
    model = create(config, seed=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        pictures, classes, _ = drawn(BATCH, 1000 + step, config.channels)
        targets = classes[:, 0].roll(1) if shuffled else classes[:, 0]
        optimizer.zero_grad()
        F.cross_entropy(model(pictures), targets).backward()
        optimizer.step()
    return model.eval()


@cache
def trained(name: str) -> ViT:
    return learnt(HEADS[name])


def pointing(model: ViT, at: int = 0, count: int = 200) -> float:
    """How often the most relevant patch is the sign's, or (1) the decoy's."""
    pictures, classes, places = drawn(count, 5, model.config.channels)
    run = METHODS[default_method(model.config)].run
    found = run(model, pictures, classes[:, 0].tolist(), Options()).values.reshape(count, -1)
    return float((found.argmax(1) == places[:, at].numpy()).mean())


@every_head
def test_X3_whatever_carries_the_answer_the_default_map_points_at_the_evidence(name):
    model = trained(name)
    pictures, classes, _ = drawn(200, 6, model.config.channels)
    with torch.no_grad():
        assert (model(pictures).argmax(1) == classes[:, 0]).float().mean() > 0.97, "it has not learnt"
    assert pointing(model) >= 0.95


@every_head
def test_X5_of_two_classes_in_one_picture_each_has_its_map_on_its_own_sign(name):
    model = trained(name)
    pictures, classes, places = drawn(100, 8, model.config.channels, pairs=True)
    rows = np.arange(100)
    maps = [explain(model, pictures, of=classes[:, k].tolist()).values.reshape(100, -1) for k in range(2)]
    for own, found in enumerate(maps):
        on = np.stack([found[rows, places[:, k].numpy()] for k in range(2)])
        assert (on[own] / on.sum(0)).mean() > 0.8
    assert correlation(*(one.astype(np.float64) for one in maps)).mean() < 0.2


def test_X7_a_model_that_was_taught_nothing_points_at_the_sign_no_more_than_at_the_decoy():
    model = learnt(SHAPE, shuffled=True)
    pictures, classes, _ = drawn(300, 6)
    with torch.no_grad():
        assert (model(pictures).argmax(1) == classes[:, 0]).float().mean() < 0.5
    assert pointing(model, count=300) < pointing(model, at=1, count=300) + 0.15
    taught = trained("class token")
    assert pointing(taught, count=300) > pointing(taught, at=1, count=300) + 0.85
