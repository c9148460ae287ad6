"""Rollout, heads and distance: against slow loops, closed forms, and every kind of model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from kinds import KINDS, TINY, images_for
from vitrail.errors import UsageError
from vitrail.explain.attention_maps import attention_rollout
from vitrail.explain.attribution import token_weights
from vitrail.explain.paper_figures.attention_figures import (
    head_attention_maps,
    mean_attention_distances,
    patch_distances,
    smallest_mask_with_mass,
)
from vitrail.model.vit import create_model
from vitrail.spec import Grid

every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


def attention_of(model, images) -> list[np.ndarray]:
    """Weights of every block by the other way, `features`."""
    names = tuple(f"blocks.{i}.attention" for i in range(model.config.depth))
    with torch.no_grad():
        return [kept.double().numpy() for kept in model.features(images, keep=names).values()]


@every_kind
def test_X12_distances_are_those_of_a_slow_loop(config):
    model, images = create_model(config, seed=1).eval(), images_for(config, batch=2)
    rows, columns = config.grid
    for renormalise in (True, False):
        found = mean_attention_distances(model, images, renormalise)
        for block, weights in enumerate(attention_of(model, images)):
            for head in range(config.heads):
                total = 0.0
                for picture in range(2):
                    for query in range(rows * columns):
                        looks = weights[picture, head, config.prefix + query, config.prefix :]
                        looks = looks / looks.sum() if renormalise else looks
                        for key in range(rows * columns):
                            down = (query // columns - key // columns) * config.patch[0]
                            across = (query % columns - key % columns) * config.patch[1]
                            total += looks[key] * math.hypot(down, across)
                assert found[block, head] == pytest.approx(total / (2 * rows * columns), abs=1e-5)


def indifferent(config):
    """A model whose heads look everywhere alike."""
    model = create_model(config, seed=1).eval()
    with torch.no_grad():
        for block in model.encoder.blocks:
            for parameter in block.attention.qkv.parameters():
                parameter[: 2 * config.attention_width] = 0
    return model


def test_X12_a_head_that_looks_everywhere_alike_has_the_mean_distance_of_all_places():
    model, images = indifferent(TINY), images_for(TINY)
    even = patch_distances(Grid(3, 4), (4, 2)).mean()
    np.testing.assert_allclose(mean_attention_distances(model, images, True), even, atol=1e-6)
    np.testing.assert_allclose(mean_attention_distances(model, images, False), even * 12 / 13, atol=1e-6)
    line = patch_distances(Grid(1, 5), (9, 2))
    assert line.mean() == pytest.approx(2 * (25 - 1) / (3 * 5)), "on a line of n places (n * n - 1) / 3n steps"


def test_rollout_is_the_product_of_the_blocks_matrices():
    config = KINDS["registers, layer scale, packed gate"]
    model, images = create_model(config, seed=1).eval(), images_for(config)
    weights = [one.mean(1) for one in attention_of(model, images)]
    tokens = config.tokens
    for residual in (True, False):
        for picture in range(3):
            product = np.eye(tokens)
            for one in weights:
                matrix = one[picture] + np.eye(tokens) if residual else one[picture]
                product = matrix / matrix.sum(1, keepdims=True) @ product
            read = np.zeros(tokens)
            read[0], read[3:] = 0.5, 0.5 / 12
            expected = (read @ product)[3:].reshape(3, 4)
            found = attention_rollout(model, images[picture][None], residual=residual).values[0]
            np.testing.assert_allclose(found, expected, atol=1e-6)


@every_kind
def test_rollout_of_indifferent_heads_is_even_and_what_is_read_sums_to_one(config):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    with torch.no_grad():
        weights = token_weights(model, model.features(images)["tokens"])
        torch.testing.assert_close(weights.sum(1), torch.ones(3))
    if not config.relative and not config.qk_norm and config.key_bias:
        found = attention_rollout(indifferent(config), images[:1], residual=False).values[0]
        np.testing.assert_allclose(found, 1 / config.tokens, atol=1e-6)


def test_the_probes_weights_are_those_that_make_the_pooled_vector():
    config = KINDS["probe, no class token"]
    model, images = create_model(config, seed=1).eval(), images_for(config)
    probe = model.pool.attention
    with torch.no_grad():  # what the probe reads is linear in the values: put them in place of the rest
        probe.kv.weight[config.width :] = torch.eye(config.width)
        probe.kv.bias[config.width :] = 0
        probe.kv.weight[: config.width] = probe.kv.weight[: config.width // 2].repeat(2, 1)  # both heads alike
        probe.kv.bias[: config.width] = 0
        half = config.width // 2
        probe.q.weight[half:], probe.q.bias[half:] = probe.q.weight[:half], probe.q.bias[:half]
        probe.out.weight.copy_(torch.eye(config.width))
        probe.out.bias.zero_()
        probe.mlp = nn.Sequential()
        probe.norm = ZEROS
        tokens = model.features(images)["tokens"]
        torch.testing.assert_close(torch.einsum("bt,btd->bd", token_weights(model, tokens), tokens), probe(tokens))


class _Zeros(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


ZEROS = _Zeros()


def test_heads_are_the_class_tokens_rows_and_their_shares_sum_to_one():
    model, images = create_model(TINY, seed=1).eval(), images_for(TINY)
    found = head_attention_maps(model, images, 1)
    rows = attention_of(model, images)[1][:, :, 0, 1:]
    np.testing.assert_allclose(found, (rows / rows.sum(-1, keepdims=True)).reshape(3, 2, 3, 4), atol=1e-6)


def test_masks_hold_a_share_with_the_fewest_patches():
    one = np.array([[0.1, 0.4], [0.3, 0.2]])
    assert smallest_mask_with_mass(one, 0.6).tolist() == [[False, True], [True, False]]
    assert smallest_mask_with_mass(one, 0.7).tolist() == [[False, True], [True, False]]
    assert smallest_mask_with_mass(one, 0.71).tolist() == [[False, True], [True, True]]
    with pytest.raises(UsageError, match=r"between 0 and 1, for example 0\.6\. Got 1\.0"):
        smallest_mask_with_mass(one, 1.0)
