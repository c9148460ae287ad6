"""The masked autoencoder: its loss, what it may not see, and every kind of model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.train import optim
from vitrail.train.plan import PretrainSettings, Recipe
from vitrail.train.pretrain.mae import (
    MaskedAutoencoder,
    PatchMasks,
    draw_masks,
    make_reconstruction_targets,
    reconstruction_loss,
)

SETTINGS = PretrainSettings(steps=1, decoder_width=32, decoder_depth=1)
PLAIN = ViTConfig(
    image_size=(8, 12), patch=(2, 4), channels=3, width=16, depth=2, heads=2, mlp_width=16, outputs=3,
    class_token=False, pool="mean", init="torch",
)  # fmt: skip
KINDS = {
    "learned": {},
    "indexed": {"positions": "indexed"},
    "sinusoid": {"positions": "sinusoid"},
    "sincos": {"positions": "sincos2d"},
    "moco": {"positions": "sincos2d-moco"},
    "rotary": {"positions": "none", "rotary": "axial"},
    "from one": {"positions": "none", "rotary": "from-one"},
    "dinov3": {"positions": "none", "rotary": "dinov3"},
    "relative": {"positions": "none", "relative": 2, "attention": "open"},
    "class token": {"class_token": True, "pool": "class"},
    "distillation token and registers": {"class_token": True, "distillation_token": True, "registers": 2},
    "no position of the class": {"class_token": True, "class_position": False, "registers": 1},
    "linear patches with norms": {"patches": "linear", "patch_norms": True},
    "attention pool": {"pool": "attention"},
    "parallel": {"parallel": True, "layer_scale": 1.0, "qk_norm": True},
    "padded": {"image_size": (7, 10), "pad": True},
}


def hiding(config: ViTConfig, count: int = 3) -> PatchMasks:
    return draw_masks(0, 0, np.arange(count), config.grid.patches, SETTINGS.num_visible_patches(config.grid.patches))


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_patches_have_no_influence_on_what_is_painted_and_every_parameter_that_sees_learns(kind):
    config = dataclasses.replace(PLAIN, **KINDS[kind])
    autoencoder = MaskedAutoencoder(create_model(config, 0), SETTINGS, 0).eval()
    images, (visible, hidden) = torch.randn(3, 3, *config.image_size), hiding(config)
    painted = autoencoder(images, visible, hidden)
    assert painted.shape == (3, hidden.shape[1], config.patch_dim)
    (h, w), (rows, columns) = config.patch, (hidden // config.grid.columns, hidden % config.grid.columns)
    changed = images.clone()
    for picture in range(3):
        for row, column in zip(rows[picture].tolist(), columns[picture].tolist(), strict=True):
            changed[picture, :, row * h : (row + 1) * h, column * w : (column + 1) * w] += 7
    assert not torch.equal(changed, images)
    assert torch.equal(autoencoder(changed, visible, hidden), painted)
    total, weight = reconstruction_loss(painted, make_reconstruction_targets(images, hidden, config.patch, True))
    (total / weight).backward()
    assert all(parameter.grad is not None for parameter in autoencoder.parameters())


def test_the_loss_is_the_mean_over_hidden_patches_of_the_error_of_normalised_pixels():
    images, (_, hidden) = torch.rand(2, 3, 8, 12), hiding(PLAIN, 2)
    painted = torch.randn(2, hidden.shape[1], 24)
    total, weight = reconstruction_loss(painted, make_reconstruction_targets(images, hidden, (2, 4), True))
    expected = []
    for picture in range(2):
        for place, number in enumerate(hidden[picture].tolist()):
            row, column = divmod(number, 3)
            patch = images[picture, :, 2 * row : 2 * row + 2, 4 * column : 4 * column + 4].flatten().double()
            aim = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
            expected.append(((painted[picture, place].double() - aim) ** 2).mean())
    assert weight == len(expected) == 2 * hidden.shape[1]
    torch.testing.assert_close((total / weight).double(), torch.stack(expected).mean(), rtol=1e-5, atol=1e-6)


def test_without_normalising_the_pixels_themselves_are_painted():
    images, hidden = torch.rand(1, 3, 8, 12), torch.tensor([[4]])
    aims = make_reconstruction_targets(images, hidden, (2, 4), norm_pix_loss=False)
    assert torch.equal(aims[0, 0], images[0, :, 2:4, 4:8].flatten())


def test_masks_are_keyed_by_picture_and_epoch_and_cover_every_patch_once():
    together, alone = draw_masks(3, 5, np.array([4, 7]), 12, 3), draw_masks(3, 5, np.array([7]), 12, 3)
    assert torch.equal(together.visible[1:], alone.visible) and torch.equal(together.hidden[1:], alone.hidden)
    assert sorted(torch.cat([alone.visible, alone.hidden], 1)[0].tolist()) == list(range(12))
    assert not torch.equal(draw_masks(3, 6, np.array([7]), 12, 3).visible, alone.visible)


@pytest.mark.parametrize(("mask", "patches", "seen"), [(0.75, 49, 12), (0.9, 4, 1), (0.01, 4, 3), (0.5, 2, 1)])
def test_at_least_one_patch_is_seen_and_one_hidden(mask, patches, seen):
    assert PretrainSettings(mask_ratio=mask).num_visible_patches(patches) == seen


def test_the_encoder_is_the_models_own_and_learns_by_the_same_groups_as_in_a_training():
    model = create_model(dataclasses.replace(PLAIN, class_token=True), 0)
    autoencoder = MaskedAutoencoder(model, SETTINGS, 0)
    shared = dict(model.named_parameters())
    names = {name for name, parameter in autoencoder.named_parameters() if parameter is shared.get(name)}
    assert names == {name for name in shared if not name.startswith(("pool.", "head."))}
    alone, both = (optim.build_optimizers(module, Recipe(), "cpu") for module in (model, autoencoder))
    undecayed = [{id(p) for p in optimizers[-1].param_groups[-1]["params"]} for optimizers in (alone, both)]
    assert {id(shared["tokens.cls"]), id(shared["positions.table"])} <= undecayed[0] & undecayed[1]


def test_a_decoder_starts_the_same_for_the_same_seed_and_anew_for_another():
    first, second, third = (
        MaskedAutoencoder(create_model(PLAIN, 0), SETTINGS, seed).decoder.embed.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, second) and not torch.equal(first, third)
