"""A ViT with a bank of patches: distances and scores against forty lines of NumPy, and what a configuration may say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.flops import flops_by_part
from vitrail.model.patch_bank import ROWS_AT_ONCE, mean_largest, nearest_distances, normalize_patches
from vitrail.model.vit import ViT, create_model, feature_names, parameter_count

CONFIG = ViTConfig(
    image_size=(24, 32), patch=(4, 4), width=16, depth=3, heads=2, mlp_width=32, outputs=1, pool="patches",
    pool_blocks=2, head="bank", bank_size=20,
)  # fmt: skip


@pytest.fixture
def model() -> ViT:
    model = create_model(CONFIG, 1).eval()
    assert model.head.bank is not None
    rows = normalize_patches(torch.randn(20, 32, generator=torch.Generator().manual_seed(2)), 2)
    model.head.bank.rows.copy_(rows)
    return model


def reference_score(tokens: list[np.ndarray], bank: np.ndarray, fraction: float = 0.01) -> tuple[np.ndarray, float]:
    """Distances [N] and score of one image from the normalised tokens of each block [N, D], as the method is published.

    Every patch: its cosine to every patch of the bank, block by block; 1 less the largest mean of them.
    """
    width = tokens[0].shape[1]
    distances = np.empty(len(tokens[0]))
    for i in range(len(distances)):
        best = -np.inf
        for row in bank:
            cosines = []
            for block, features in enumerate(tokens):
                mine, theirs = features[i], row[block * width : (block + 1) * width]
                # the bank holds parts of length 1 / sqrt(blocks)
                cosines.append(mine @ theirs / np.linalg.norm(mine) * np.sqrt(len(tokens)))
            best = max(best, float(np.mean(cosines)))
        distances[i] = 1 - best
    largest = np.sort(distances)[::-1][: max(1, round(fraction * len(distances)))]
    return distances, float(largest.mean())


@torch.no_grad()
def test_distances_and_scores_are_those_of_the_published_method(model: ViT):
    images = torch.randn(3, 3, 24, 32, generator=torch.Generator().manual_seed(3))
    kept = model.features(images, keep=("blocks.1", "blocks.2", "distances", "outputs"))
    assert model.head.bank is not None
    bank = model.head.bank.rows.double().numpy()
    blocks = [model.encoder.norm(kept[name])[:, 1:].double().numpy() for name in ("blocks.1", "blocks.2")]
    for image in range(3):
        distances, score = reference_score([tokens[image] for tokens in blocks], bank)
        np.testing.assert_allclose(kept["distances"][image].reshape(-1).numpy(), distances, atol=1e-5)
        assert abs(float(kept["outputs"][image, 0]) - score) < 1e-5
    torch.testing.assert_close(model(images), kept["outputs"])
    assert kept["distances"].shape == (3, 6, 8)


@torch.no_grad()
def test_an_image_of_another_size_has_a_map_of_its_own_grid(model: ViT):
    assert model.features(torch.zeros(1, 3, 16, 40), keep=("distances",))["distances"].shape == (1, 4, 10)


def test_a_patch_of_the_bank_has_no_distance_however_many_others_there_are():
    rows = normalize_patches(torch.randn(ROWS_AT_ONCE + 7, 8), 2)
    distances = nearest_distances(rows[[0, -1]], rows)
    torch.testing.assert_close(distances, torch.zeros(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("patches", "counted"), [(1, 1), (64, 1), (256, 3), (1024, 10)])
def test_the_score_is_the_mean_of_the_largest_hundredth(patches: int, counted: int):
    distances = torch.arange(patches, dtype=torch.float32)[None]
    assert float(mean_largest(distances)) == pytest.approx(patches - (counted + 1) / 2)


@torch.no_grad()
def test_distances_are_of_full_precision_in_a_fast_number_format(model: ViT):
    images = torch.randn(2, 3, 24, 32)
    tokens = model.features(images, keep=("pooled",))["pooled"]
    assert model.head.bank is not None
    with torch.autocast("cpu", torch.bfloat16):
        fast = model.head.bank(tokens)
    torch.testing.assert_close(fast, model.head.bank(tokens))
    assert fast.dtype == torch.float32


def test_names_of_features_have_distances_only_with_a_bank(model: ViT):
    assert "distances" in feature_names(model)
    plain = create_model(ViTConfig(image_size=(8, 8), patch=(4, 4), width=8, depth=1, heads=2, mlp_width=8))
    assert "distances" not in feature_names(plain)
    with pytest.raises(UsageError, match="no features called 'distances'"):
        plain.features(torch.zeros(1, 3, 8, 8), keep=("distances",))


def test_a_bank_has_no_parameters_and_is_stored_as_float16(model: ViT):
    stored: Tensor = model.state_dict()["head.bank.rows"]
    assert stored.dtype == torch.float16 and stored.shape == (20, 32)
    without = dataclasses.replace(CONFIG, head="linear", outputs=0, bank_size=0)
    assert parameter_count(CONFIG) == parameter_count(without)
    assert parameter_count(CONFIG, include_buffers=True) == parameter_count(without, include_buffers=True) + 640
    assert flops_by_part(CONFIG)["head"] == 2 * 48 * 32 * 20
    assert "bank of 20 patches" in repr(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bank_size": 0}, r'head="bank" has a bank_size'),
        ({"bank_size": -1}, "bank_size and queries must be 0 or more. Got bank_size=-1, queries=0"),
        ({"head": "linear"}, r'no other head. Got head="linear", 20'),
        ({"outputs": 2}, r'needs pool="patches" and outputs=1, the score. Got pool="patches" and outputs=2'),
        ({"pool": "mean"}, r'Got pool="mean" and outputs=1'),
        ({"head": "tanh", "bank_size": 0}, r'pool="patches" needs head="bank" or "linear", or outputs=0'),
    ],
)
def test_a_configuration_says_what_a_bank_needs(changes: dict, message: str):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(CONFIG, **changes)
