"""Every method against its definition, written out in NumPy and plain autograd on a model written out once more."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

import plain
from kinds import TINY, images_for
from vitrail.explain.attention_maps import attention_by_head, attention_map, attention_rollout
from vitrail.explain.gradients import gradcam, integrated_gradients, legrad, relevance_map
from vitrail.explain.occlusion import occlusion_map
from vitrail.explain.patch_features import patch_lens, patch_similarity
from vitrail.model.vit import ViT, create_model

THREE = dataclasses.replace(TINY, depth=3, qkv_bias=True)
MODELS = {
    "class token": THREE,
    "class token, registers": dataclasses.replace(THREE, registers=2),
    "mean": dataclasses.replace(THREE, class_token=False, pool="mean"),
    "class and mean": dataclasses.replace(THREE, registers=1, pool="class+mean"),
    "probe": dataclasses.replace(THREE, class_token=False, pool="attention"),
}
OF = (2, 0, 1)
"""The output that is explained of each of three pictures."""
every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


def made(config) -> tuple[ViT, Tensor]:
    return create_model(config, seed=3).eval(), images_for(config)


def touches(config, model: ViT, images: Tensor) -> list[Tensor]:
    """Zeros to add to the weights of every block, and of a probe."""
    B, T = len(images), config.tokens
    shapes = [(B, config.heads, T, T)] * config.depth + [(B, config.heads, 1, T)]
    return [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def shares(config, answer: plain.Answer) -> np.ndarray:
    """What the answer is read from [B, T]."""
    B, T, R = len(answer.outputs), config.tokens, config.prefix
    found = np.zeros((B, T))
    if config.pool == "attention":
        return answer.weights[-1].detach().numpy().mean(1)[:, 0]
    if config.pool != "mean":
        found[:, 0] = 1
    if config.pool != "class":
        found[:, R:] += 1 / (T - R)
    return found / found.sum(1, keepdims=True)


def grid(config, tokens: np.ndarray) -> np.ndarray:
    return tokens[..., config.prefix :].reshape(*tokens.shape[:-1], *config.grid)


def score(answer: plain.Answer) -> Tensor:
    return answer.outputs[[0, 1, 2], list(OF)].sum()


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == np.float32 and found.shape == wanted.shape
    assert np.abs(wanted).max() > 1e-4, "nothing to compare"
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found / np.abs(wanted).max(), wanted / np.abs(wanted).max(), atol=2e-4, rtol=0)


@every_model
def test_the_model_written_out_is_the_model(config):
    model, images = made(config)
    torch.testing.assert_close(plain.answer(model, images).outputs.float(), model(images), atol=1e-5, rtol=0)


@every_model
@pytest.mark.parametrize("room", [2**29, 0], ids=["kept", "computed again"])
def test_X2_relevance(config, room):
    model, images = made(config)
    touch = touches(config, model, images)
    answer = plain.answer(model, images, touch)
    gradients = torch.autograd.grad(score(answer), touch[: config.depth])
    product = identity = np.eye(config.tokens)
    for weights, gradient in zip(answer.weights, gradients, strict=False):
        raised = np.maximum(0, (weights.detach() * gradient).numpy()).mean(1)
        product = product + raised @ product
    wanted = np.einsum("bt,bts->bs", shares(config, answer), product - identity)
    found = relevance_map(model, images, OF, memory_limit=room)
    close(found.values, grid(config, wanted))
    assert found.targets == OF


@every_model
@pytest.mark.parametrize("room", [2**29, 0], ids=["kept", "computed again"])
def test_X2_legrad(config, room):
    model, images = made(config)
    wanted = 0
    for depth in range(1, config.depth + 1):
        touch = touches(config, model, images)
        last = touch[-1] if config.pool == "attention" else touch[depth - 1]
        (gradient,) = torch.autograd.grad(score(plain.answer(model, images, touch, depth=depth)), last)
        wanted = wanted + np.maximum(0, gradient.numpy()).mean((1, 2)) / config.depth
    close(legrad(model, images, OF, memory_limit=room).values, grid(config, wanted))


@every_model
def test_X2_rollout(config):
    model, images = made(config)
    answer = plain.answer(model, images)
    product = bare = np.eye(config.tokens)
    for weights in answer.weights[: config.depth]:
        mean = weights.numpy().mean(1)
        product = (mean + np.eye(config.tokens)) / 2 @ product
        bare = mean @ bare
    wanted = np.einsum("bt,bts->bs", shares(config, answer), product)
    np.testing.assert_allclose(wanted.sum(1), 1)
    close(attention_rollout(model, images).values, grid(config, wanted))
    wanted = np.einsum("bt,bts->bs", shares(config, answer), bare)
    close(attention_rollout(model, images, residual=False).values, grid(config, wanted))


@every_model
@pytest.mark.parametrize("layer", [None, 0, 2])
def test_X2_attention_of_every_head(config, layer):
    model, images = made(config)
    answer = plain.answer(model, images)
    if config.pool == "attention" and layer is None:
        wanted = answer.weights[-1].numpy()[:, :, 0]
    else:
        weights = answer.weights[2 if layer is None else layer].numpy()
        wanted = np.einsum("bt,bats->bas", shares(config, answer), weights)
    close(attention_by_head(model, images, layer).numpy(), grid(config, wanted))
    close(attention_by_head(model, images, layer, heads=[1]).numpy(), grid(config, wanted[:, 1:]))
    close(attention_map(model, images, layer).values, grid(config, wanted.mean(1)))


@every_model
def test_X2_grad_cam(config):
    model, images = made(config)
    moved = torch.zeros(3, config.tokens, config.width, dtype=torch.float64, requires_grad=True)
    answer = plain.answer(model, images, moved=moved)
    (gradient,) = torch.autograd.grad(score(answer), moved)
    factors = gradient[:, config.prefix :].mean(1, keepdim=True)
    wanted = np.maximum(0, (factors * answer.normal.detach()).sum(-1).numpy())
    close(gradcam(model, images, OF).values, grid(config, wanted))


@pytest.mark.first(1)
@every_model
def test_X10_integrated_gradients_and_their_completeness(config):
    model, images = made(config)
    start = torch.full((1, *images.shape[1:]), 0.3)
    steps = 200
    places = ((torch.arange(steps) + 0.5) / steps).double().view(-1, 1, 1, 1, 1)
    points = (start + places * (images - start)).flatten(0, 1).requires_grad_()  # [steps * 3, C, H, W]
    reached = plain.answer(model, points).outputs.unflatten(0, (steps, 3))[:, [0, 1, 2], list(OF)].sum()
    total = torch.autograd.grad(reached, points)[0].unflatten(0, (steps, 3)).sum(0)
    wanted = ((images - start) * total / steps).sum(1).numpy()
    found = integrated_gradients(model, images, OF, start, steps=64)
    close(found.pixels, wanted)
    rows, columns = config.grid
    patches = wanted.reshape(3, rows, config.patch[0], columns, config.patch[1]).sum((2, 4))
    close(found.values, patches)
    change = plain.answer(model, images).outputs - plain.answer(model, start.expand_as(images)).outputs
    np.testing.assert_allclose(found.values.sum((1, 2)), change[[0, 1, 2], list(OF)].numpy(), atol=1e-5)


@pytest.mark.first(1)
@every_model
@pytest.mark.parametrize("window", [1, 2])
def test_occlusion_is_the_mean_fall_over_windows(config, window):
    """As captum's Occlusion with windows of whole patches, one patch apart."""
    model, images = made(config)
    rows, columns = config.grid
    whole = plain.answer(model, images).outputs[[0, 1, 2], list(OF)].numpy()
    total, count = np.zeros((3, rows, columns)), np.zeros((rows, columns))
    for row in range(rows - window + 1):
        for column in range(columns - window + 1):
            hidden = images.clone()
            top, left = row * config.patch[0], column * config.patch[1]
            hidden[:, :, top : top + window * config.patch[0], left : left + window * config.patch[1]] = 0.25
            fall = whole - plain.answer(model, hidden).outputs[[0, 1, 2], list(OF)].numpy()
            total[:, row : row + window, column : column + window] += fall[:, None, None]
            count[row : row + window, column : column + window] += 1
    cover = torch.full((1, *images.shape[1:]), 0.25)
    close(occlusion_map(model, images, OF, window, cover).values, total / count)


@every_model
def test_dropped_patches_are_really_gone(config):
    model, images = made(config)
    found = occlusion_map(model, images, OF, drop=True).values.reshape(3, -1)
    left = torch.tensor([[i for i in range(config.grid.patches) if i != 5]] * 3)
    fall = (model(images) - model(images, left))[[0, 1, 2], list(OF)].detach().numpy()
    np.testing.assert_allclose(found[:, 5], fall, atol=1e-5)
    other = images.clone()
    other[:, :, 4:8, 2:4] = 100.0  # patch 5, which is not there
    torch.testing.assert_close(model(other, left), model(images, left))


@every_model
def test_the_lens_reads_every_patch_alone(config):
    model, images = made(config)
    answer, w = plain.answer(model, images), plain.weights_of(model)
    for layer, tokens in enumerate(answer.tokens):
        wanted = np.zeros((3, config.tokens))
        for t in range(config.prefix, config.tokens):
            alone = tokens[:, t, None].expand(-1, config.prefix + 1, -1)
            wanted[:, t] = plain.head(config, w, alone)[0][[0, 1, 2], list(OF)].numpy()
        close(patch_lens(model, images, OF, layer).values, grid(config, wanted))


@every_model
def test_similarity_is_the_cosine_to_one_patch(config):
    model, images = made(config)
    tokens = plain.answer(model, images).tokens[-1][:, config.prefix :].numpy()
    lengths = np.linalg.norm(tokens, axis=-1)
    wanted = np.einsum("bnd,bd->bn", tokens, tokens[:, 6]) / lengths / lengths[:, 6, None]
    found = patch_similarity(model, images, patch=7)
    close(found.values, wanted.reshape(3, *config.grid))
    assert "row 2, column 3" in found.description
