"""Tokens-to-Token: sizes, and the soft split against the repository and, beyond squares, against a slow restatement.

`naive_*` is an independent restatement of ours, not the repository's code, which lays tokens out in squares only.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from in_memory import load_from_tensors
from vitrail.checkpoints.identify import LAYOUTS
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.rules import write_with_layout
from vitrail.errors import DamagedFileError, UsageError
from vitrail.model.config import Patches, ViTConfig
from vitrail.model.registry import config_from_name
from vitrail.model.soft_split import (
    PerformerBlock,
    SoftSplit,
    TransformerBlock,
    fill_random_features,
    linear_attention,
    positive_features,
)
from vitrail.model.vit import create_model

from .differences import record
from .reference import reference

KINDS: tuple[Patches, ...] = ("t2t-performer", "t2t-transformer")


def tiny(kind: Patches, **changes: object) -> ViTConfig:
    return replace(config_from_name("t2t_vit_7"), patches=kind, width=16, depth=1, heads=2, mlp_width=24, **changes)


def random_split(kind: Patches) -> SoftSplit:
    split = SoftSplit(tiny(kind, channels=2))
    with torch.no_grad():
        for name, tensor in split.state_dict().items():
            fan_in = tensor[0].numel() if tensor.ndim == 2 else 8
            tensor.copy_(torch.randn(tensor.shape) * fan_in**-0.5 + float("norm" in name))
    return split


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(32, 48), (48, 16)])
@torch.no_grad()
def test_a_rectangle_is_split_as_the_slow_restatement_does(kind: Patches, size: tuple[int, int]) -> None:
    split, images = random_split(kind), torch.randn(2, 2, *size)
    difference = (split(images) - naive_split(split, images)).abs().max().item()
    record(f"t2t:{kind.removeprefix('t2t-')}", "soft split, rectangle, restated", difference)
    assert difference < 1e-5


@torch.no_grad()
def naive_split(split: SoftSplit, images: Tensor) -> Tensor:
    x, rows, columns = naive_windows(images, 7, 4, 2)
    x = naive_picture(naive_block(split.attention1, x), rows, columns)
    x, rows, columns = naive_windows(x, 3, 2, 1)
    x = naive_picture(naive_block(split.attention2, x), rows, columns)
    x, rows, columns = naive_windows(x, 3, 2, 1)
    assert (rows, columns) == (images.shape[2] // 16, images.shape[3] // 16)
    return split.project(x)


def naive_windows(picture: Tensor, side: int, step: int, border: int) -> tuple[Tensor, int, int]:
    padded = F.pad(picture, (border, border, border, border))
    rows, columns = ((length - side) // step + 1 for length in padded.shape[2:])
    cut = [
        padded[:, :, i * step : i * step + side, j * step : j * step + side].flatten(1)
        for i in range(rows)
        for j in range(columns)
    ]
    return torch.stack(cut, dim=1), rows, columns


def naive_picture(x: Tensor, rows: int, columns: int) -> Tensor:
    return x.reshape(len(x), rows, columns, -1).permute(0, 3, 1, 2)


def naive_block(block: nn.Module, x: Tensor) -> Tensor:
    normed = block.norm1(x)
    q, k, v = block.qkv(normed).chunk(3, dim=-1)
    if isinstance(block, TransformerBlock):
        weights = (q @ k.transpose(1, 2) / x.shape[-1] ** 0.5).softmax(dim=-1)
    else:
        assert isinstance(block, PerformerBlock)
        of_q, of_k = ((y @ block.features.T - y.square().sum(-1, keepdim=True) / 2).exp() for y in (q, k))
        products = of_q @ of_k.transpose(1, 2) / len(block.features)  # all pairs
        weights = products / (products.sum(dim=-1, keepdim=True) + 1e-8)
    x = v + block.out(weights @ v)
    return x + block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(x))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["native", "square"])
@torch.no_grad()
def test_the_soft_split_gives_the_tokens_of_the_repository(kind: Patches, size: str) -> None:
    known = reference(kind.replace("-", "_"))
    loaded = load_from_tensors(dict(known.weights), "here", None, LayoutHints(heads=2))
    assert loaded.config.patches == kind
    run = known.runs[size]
    assert (loaded.model.tokens.patches(run["images"]) - run["patches"]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_visible_patches_are_taken_after_all_were_looked_at(kind: Patches) -> None:
    split, images = random_split(kind), torch.randn(2, 2, 32, 48)
    visible = torch.tensor([[0, 5, 2], [3, 3, 1]])
    whole = split(images)
    expected = torch.stack([tokens[kept] for tokens, kept in zip(whole, visible, strict=True)])
    torch.testing.assert_close(split(images, visible), expected)


@torch.no_grad()
def test_performers_compute_their_exponents_in_float32_where_training_runs_in_bfloat16() -> None:
    split, images = random_split("t2t-performer"), torch.randn(2, 2, 32, 48)
    exact = split(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = split(images)
    assert 0 < (rounded - exact).abs().max() < 0.02 * exact.abs().max()


def test_other_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"multiples of 16\. Got 32x40"):
        random_split("t2t-performer")(torch.zeros(1, 2, 32, 40))


def test_random_features_are_orthogonal_and_equally_long() -> None:
    features = torch.empty(32, 64)
    fill_random_features(features, torch.Generator().manual_seed(1))
    torch.testing.assert_close(features @ features.T, 32 * torch.eye(32), atol=1e-4, rtol=0)
    again = torch.empty(32, 64)
    fill_random_features(again, torch.Generator().manual_seed(1))
    assert torch.equal(features, again)


def test_linear_attention_estimates_the_softmax_of_short_queries_and_keys() -> None:
    """exp(q . k) over all keys, by 65536 random directions instead of 32."""
    q, k, v = 0.2 * torch.randn(2, 9, 64), 0.2 * torch.randn(2, 9, 64), torch.randn(2, 9, 64)
    directions = torch.randn(65536, 64)
    exact = (q @ k.transpose(1, 2)).softmax(dim=-1) @ v
    estimate = linear_attention(positive_features(q, directions), positive_features(k, directions), v)
    assert exact.abs().max() > 0.5
    torch.testing.assert_close(estimate, exact, atol=0.1, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_fixed_waves_are_written_as_a_table_and_read_as_one(kind: Patches) -> None:
    model = create_model(tiny(kind, image_size=(32, 32), outputs=3)).eval()
    variant = kind.removeprefix("t2t-")
    tensors = write_with_layout(model.state_dict(), model.config, LAYOUTS[f"t2t:{variant}"])
    loaded = load_from_tensors(tensors, "here", None, LayoutHints(heads=2))
    assert (loaded.config.positions, loaded.config.resample) == ("learned", "bicubic")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded.model(images), model(images))


def test_a_first_norm_that_fits_no_channels_is_refused() -> None:
    weights = reference("t2t_performer").weights
    cut = {name: tensor[:100] if "attention1.norm1" in name else tensor for name, tensor in weights.items()}
    with pytest.raises(DamagedFileError, match=r"49 numbers for each channel.* Got 100"):
        load_from_tensors(cut, "here", None, LayoutHints(heads=2))
