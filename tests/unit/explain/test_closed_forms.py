"""A model so simple that every map has a formula: one block of even attention, and an answer that is a sum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kinds import TINY, images_for
from vitrail.explain.attention_maps import attention_by_head, attention_rollout
from vitrail.explain.gradients import gradcam, integrated_gradients, legrad, relevance_map
from vitrail.explain.occlusion import occlusion_map
from vitrail.model.vit import ViT, create_model

ONE = dataclasses.replace(TINY, depth=1, heads=1, final_norm=False)
PARTS = {
    "class token": ONE,
    "registers": dataclasses.replace(ONE, registers=3),
    "mean": dataclasses.replace(ONE, class_token=False, pool="mean"),
}
every_part = pytest.mark.parametrize("config", PARTS.values(), ids=PARTS.keys())


def even(config) -> ViT:
    """Queries of zero look everywhere alike; the MLP says nothing."""
    model = create_model(config, seed=5).eval()
    block = model.encoder.blocks[0]
    with torch.no_grad():
        block.attention.qkv.weight[: config.width] = 0
        block.attention.qkv.bias[: config.width] = 0
        block.mlp.fc2.weight.zero_()
        block.mlp.fc2.bias.zero_()
    return model


def said(model: ViT, images: torch.Tensor, of: int) -> np.ndarray:
    """What each token's value would add to the score if all attention were on it, [B, T]."""
    block, width = model.encoder.blocks[0], model.config.width
    with torch.no_grad():
        x, _ = model.embed(images)
        values = block.attention.qkv(block.norm1(x))[..., 2 * width :]
        return (block.attention.out(values) - block.attention.out.bias).numpy() @ model.head.linear.weight[of].numpy()


def grid(model: ViT, tokens: np.ndarray) -> np.ndarray:
    return tokens[:, model.config.prefix :].reshape(-1, *model.config.grid)


@every_part
def test_even_attention_is_seen_evenly(config):
    model, images = even(config), images_for(config)
    np.testing.assert_allclose(attention_by_head(model, images).numpy(), 1 / config.tokens, rtol=1e-6)
    own = 0.0 if config.class_token else 1 / config.grid.patches
    wanted = np.full((3, *config.grid), (1 / config.tokens + own) / 2)
    np.testing.assert_allclose(attention_rollout(model, images).values, wanted, rtol=1e-6)


@every_part
def test_relevance_is_what_each_value_adds(config):
    """A class token looks once; for the mean every token looks, and is read by its share 1 / N of 1 / N."""
    model, images = even(config), images_for(config)
    adds = np.maximum(0, grid(model, said(model, images, 1))) / config.tokens
    wanted = adds if config.class_token else adds / config.tokens
    np.testing.assert_allclose(relevance_map(model, images, 1).values, wanted, atol=1e-7)


@every_part
def test_legrad_is_what_each_value_would_add(config):
    model, images = even(config), images_for(config)
    wanted = np.maximum(0, grid(model, said(model, images, 1))) / config.tokens
    np.testing.assert_allclose(legrad(model, images, 1).values, wanted, atol=1e-7)


def test_of_a_sum_occlusion_and_integrated_gradients_are_its_terms():
    model, images = even(ONE), images_for(ONE)
    empty = torch.full((1, *images.shape[1:]), 0.2)
    terms = (said(model, images, 2) - said(model, empty, 2)) / ONE.tokens
    np.testing.assert_allclose(occlusion_map(model, images, 2, cover=empty).values, grid(model, terms), atol=1e-6)
    np.testing.assert_allclose(
        integrated_gradients(model, images, 2, empty, steps=256).values, grid(model, terms), atol=1e-6
    )


def test_grad_cam_of_a_linear_model_is_the_part_that_reaches_the_class_token():
    model, images = even(ONE), images_for(ONE)
    block = model.encoder.blocks[0]
    with torch.no_grad():
        x, _ = model.embed(images)
        normal = block.norm1(x).numpy()
        values = block.attention.qkv.weight[2 * ONE.width :].numpy()
        row = model.head.linear.weight[0].numpy() @ block.attention.out.weight.numpy() @ values / ONE.tokens
    np.testing.assert_allclose(gradcam(model, images, 0).values, np.maximum(0, grid(model, normal @ row)), atol=1e-6)
