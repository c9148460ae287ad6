"""Principal components and what is made of them: numpy's SVD, signs that stay, foregrounds that are planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinds import KINDS, TINY
from vitrail.errors import UsageError
from vitrail.explain.paper_figures.feature_figures import (
    fit_principal_components,
    majority_filter,
    orient_to_center,
    otsu_threshold,
    patch_filter_components,
    pca_colors_dinov2,
    pca_colors_dinov3,
    token_norms_by_block,
)
from vitrail.explain.paper_figures.position_figures import position_cosines, rotary_kernel_by_offset
from vitrail.explain.patch_features import outlier_limit
from vitrail.model.config import ViTConfig
from vitrail.model.positions import apply_rotary
from vitrail.model.vit import create_model
from vitrail.spec import Grid


@pytest.mark.parametrize("shape", [(50, 7), (7, 50), (6, 6)])
def test_components_are_those_of_numpys_svd(shape):
    rows = np.random.default_rng(0).normal(size=shape) * np.linspace(1, 3, shape[1])
    found = fit_principal_components(rows, 3)
    u, s, vt = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    signs = np.sign((found.axes * vt[:3]).sum(1))
    np.testing.assert_allclose(found.axes, vt[:3] * signs[:, None], atol=1e-8)
    np.testing.assert_allclose(found.scores, (u * s)[:, :3] * signs, atol=1e-8)
    np.testing.assert_allclose(found.explained_variance_ratio, s[:3] ** 2 / (s**2).sum())
    np.testing.assert_allclose(found.score_stds, s[:3] / np.sqrt(shape[0] - 1))


def test_X12_scores_stay_when_features_change_their_signs_or_their_basis():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(40, 8)) * np.arange(1, 9)
    expected = fit_principal_components(rows, 3).scores
    turned, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    for other in (-rows, rows * np.where(np.arange(8) % 2, -1, 1), rows @ turned, rows + 5):
        np.testing.assert_allclose(fit_principal_components(other, 3).scores, expected, atol=1e-8)
    assert (np.take_along_axis(expected, np.abs(expected).argmax(0)[None], 0) > 0).all()


def scene() -> tuple[np.ndarray, np.ndarray]:
    """Features of two pictures: an object in the middle whose parts differ, on a background of noise."""
    generator = np.random.default_rng(2)
    inside = np.zeros((2, 10, 12), bool)
    inside[0, 3:7, 4:9] = inside[1, 2:8, 5:8] = True
    features = generator.normal(0, 0.3, (2, 10, 12, 20))
    features[inside] += 6 * np.eye(20)[0]
    features[inside] += np.linspace(-2, 2, inside.sum())[:, None] * np.eye(20)[1]
    return features, inside


@pytest.mark.parametrize("paint", [pca_colors_dinov2, pca_colors_dinov3])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_foreground_is_the_object_whatever_the_sign_and_one_basis_serves_all(paint, sign):
    features, inside = scene()
    found = paint(sign * features)
    share = (found.foreground & inside).sum() / (found.foreground | inside).sum()
    assert share > (0.99 if paint is pca_colors_dinov2 else 0.7)  # the median rounds corners
    assert (found.rgb[~found.foreground] == 0).all()
    assert found.rgb.min() >= 0 and found.rgb.max() <= 1
    np.testing.assert_allclose(found.rgb, paint(features).rgb, atol=1e-8)
    scores = (sign * features - found.mean)[found.foreground] @ found.axes.T
    red = found.rgb[found.foreground][:, 0]
    assert np.corrcoef(scores[:, 0], red)[0, 1] > 0.9
    place = np.linspace(-2, 2, inside.sum())[found.foreground[inside]]
    assert abs(np.corrcoef(place, red[inside[found.foreground]])[0, 1]) > 0.9, "the part that varies is the colour"


def test_pictures_of_unlike_things_have_foregrounds_of_their_own():
    features, inside = scene()
    features[1] += 40  # another world: together, the pictures themselves differ most
    assert not np.array_equal(pca_colors_dinov2(features).foreground, inside)
    np.testing.assert_array_equal(pca_colors_dinov2(features, joint=False).foreground, inside)
    apart = pca_colors_dinov3(features, joint=False).foreground
    assert (apart & inside).sum() / (apart | inside).sum() > 0.7


def test_too_little_foreground_is_refused():
    with pytest.raises(UsageError, match=r"at least 4 patches of foreground\. Got 0 of 240\. Lower the threshold"):
        pca_colors_dinov2(scene()[0], threshold=50)


def test_colours_span_what_there_is_and_whitened_ones_are_a_sigmoid_of_twice_the_deviations():
    features, _ = scene()
    spanned = pca_colors_dinov2(features)
    inside = spanned.rgb[spanned.foreground]
    np.testing.assert_allclose(inside.min(0), 0, atol=1e-12)
    np.testing.assert_allclose(inside.max(0), 1)
    whitened = pca_colors_dinov3(features)
    rows = features[whitened.foreground]
    u, _, vt = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    z = u[:, :3] * np.sqrt(len(rows) - 1) * np.sign((vt[:3] * whitened.axes).sum(1))
    np.testing.assert_allclose(whitened.rgb[whitened.foreground], 1 / (1 + np.exp(-2 * z)), atol=1e-7)


def test_otsu_parts_two_kinds_as_trying_every_threshold_does():
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.normal(0, 1, 70), generator.normal(5, 1, 30)])

    def spread_within(at: float) -> float:
        return sum(part.var() * len(part) for part in (values[values <= at], values[values > at]))

    best = min(sorted(values)[:-1], key=spread_within)
    assert np.array_equal(values > otsu_threshold(values), values > best)
    assert abs((values > otsu_threshold(values)).sum() - 30) <= 2


def test_the_sign_is_towards_the_middle_and_single_patches_follow_their_neighbours():
    scores = -np.ones((1, 5, 5))
    scores[0, 1:4, 1:4] = 2
    assert np.array_equal(orient_to_center(scores), scores) and np.array_equal(orient_to_center(-scores), scores)
    mask = np.zeros((5, 5), bool)
    mask[2, 2] = True
    assert not majority_filter(mask).any() and majority_filter(~mask).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_X12_filters_of_a_convolution_and_of_a_matrix_are_the_same_pictures(channels):
    shape = replace(TINY, channels=channels, width=24, heads=2)
    as_conv, as_matrix = create_model(shape, seed=1), create_model(replace(shape, patches="linear"), seed=2)
    with torch.no_grad():
        as_matrix.tokens.patches.weight.copy_(as_conv.tokens.patches.weight.flatten(1))
    filters, shares = patch_filter_components(as_conv)
    assert filters.shape == (min(24, channels * 8), channels, 4, 2)
    np.testing.assert_array_equal(filters, patch_filter_components(as_matrix)[0])
    weight = as_conv.tokens.patches.weight.detach().double().flatten(1).numpy()
    _, s, vt = np.linalg.svd(weight - weight.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(filters[0].ravel()), np.abs(vt[0]), atol=1e-6)
    np.testing.assert_allclose(shares, (s**2 / (s**2).sum())[: len(shares)], atol=1e-6)
    flat = filters.reshape(len(filters), -1)
    assert (np.take_along_axis(flat, np.abs(flat).argmax(1)[:, None], 1) > 0).all()
    with pytest.raises(UsageError, match="soft splits: it has no patch filters"):
        patch_filter_components(create_model(KINDS["soft splits"]))


@pytest.mark.parametrize("kind", ["learned", "sincos2d", "sinusoid"])
def test_similarity_is_the_plain_cosine_of_the_patches_rows(kind):
    model = create_model(replace(TINY, positions=kind), seed=1)
    table = model.positions.table.detach().double().numpy()[1:]
    found = position_cosines(model, Grid(3, 4))
    for i in range(12):
        for j in range(12):
            expected = table[i] @ table[j] / (np.linalg.norm(table[i]) * np.linalg.norm(table[j]))
            assert found[i, j] == pytest.approx(expected, abs=1e-6)
    if kind == "sincos2d":
        np.testing.assert_allclose(found, found[::-1, ::-1], atol=1e-6)


@pytest.mark.parametrize("kind", ["axial", "from-one", "dinov3"])
def test_the_kernel_is_the_product_of_rotated_equal_queries_and_keys(kind):
    config = ViTConfig(
        image_size=(12, 20), patch=(4, 4), channels=1, width=32, depth=1, heads=2, mlp_width=8, outputs=2,
        positions="none", rotary=kind,
    )  # fmt: skip
    model = create_model(config)
    found = rotary_kernel_by_offset(model, Grid(3, 5)).mean(0)
    tables = model.rotary(Grid(3, 5), torch.zeros(1, dtype=torch.float64))
    vector = torch.full((1, 16, 1, 1, 16), 1 / 4, dtype=torch.float64)
    turned = apply_rotary(vector, tables)[0, 1:, 0, 0].numpy()  # [15, 16]
    for query in range(15):
        for key in range(15):
            down, across = query // 5 - key // 5, query % 5 - key % 5
            assert found[2 + down, 4 + across] == pytest.approx(turned[query] @ turned[key], abs=1e-5)
    assert found[2, 4] == pytest.approx(1)


def test_models_without_a_table_or_rotation_point_to_the_other_figure():
    turning = create_model(replace(TINY, positions="none", rotary="axial"))
    with pytest.raises(UsageError, match=r"adds no position table; rotation tells its places: see the figure rotary"):
        position_cosines(turning, Grid(3, 4))
    with pytest.raises(UsageError, match=r"not tell places by rotation.*figure position-similarity"):
        rotary_kernel_by_offset(create_model(TINY), Grid(3, 4))
    with pytest.raises(UsageError, match=r"it knows offsets only"):
        position_cosines(create_model(KINDS["relative, normed patches"]), Grid(3, 4))


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_lengths_are_those_of_the_patch_tokens_after_every_block(config):
    model = create_model(config, seed=1).eval()
    images = torch.randn(2, config.channels, *config.image_size)
    found = token_norms_by_block(model, images)
    assert found.shape == (2, 2, *config.grid)
    with torch.no_grad():
        tokens = model.features(images, keep=("blocks.0",))["blocks.0"][:, config.prefix :].numpy()
    np.testing.assert_allclose(found[0].reshape(2, -1), np.sqrt((tokens.astype(np.float64) ** 2).sum(-1)), rtol=1e-5)


def test_planted_outliers_lie_beyond_the_limit_and_hardly_anything_else_does():
    generator = np.random.default_rng(0)
    ordinary = generator.normal(50, 4, 100_000)
    assert (ordinary > outlier_limit(ordinary)).mean() <= 1e-3
    mixed = np.concatenate([ordinary, generator.normal(200, 20, 2_000)])
    beyond = mixed > outlier_limit(mixed)
    assert beyond[100_000:].mean() >= 0.99 and beyond[:100_000].mean() <= 1e-3
    assert outlier_limit(np.array([1.0, 2, 3, 4, 100])) == 3 + 6 * 1
    assert outlier_limit(np.array([50.0, 50, 50, 51])) == 100
