"""The angles of DINOv3 against the two libraries that run its models."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kinds import TINY
from vitrail.model.positions import Rotary, dinov3_periods
from vitrail.spec import Grid

GRIDS = [Grid(1, 1), Grid(3, 4), Grid(14, 14), Grid(16, 24)]


def ours(grid: Grid, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every number; the sign that ours carries in the first half is taken back."""
    config = dataclasses.replace(
        TINY, positions="none", rotary="dinov3", head_width=head, class_token=False, pool="mean"
    )
    part = Rotary(config)
    part.periods = dinov3_periods(head)
    tables = part(grid, torch.zeros(1))
    sign = torch.cat([-torch.ones(head // 2), torch.ones(head // 2)])
    return tables.cos, tables.sin * sign


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("head", [16, 64, 128])
def test_the_angles_are_those_of_transformers(grid, head):
    from transformers import DINOv3ViTConfig
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding

    theirs = DINOv3ViTRopePositionEmbedding(
        DINOv3ViTConfig(hidden_size=head * 2, num_attention_heads=2, patch_size=4, rope_theta=100.0)
    ).eval()
    cos, sin = theirs(torch.zeros(1, 3, grid.rows * 4, grid.columns * 4))
    torch.testing.assert_close(ours(grid, head)[0], cos, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours(grid, head)[1], sin, atol=1e-6, rtol=0)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("head", [16, 64, 128])
def test_the_angles_are_those_of_timm(grid, head):
    from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3

    sin, cos = RotaryEmbeddingDinoV3(head, feat_shape=None).eval().get_embed(list(grid)).chunk(2, dim=-1)
    torch.testing.assert_close(ours(grid, head)[0], cos, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours(grid, head)[1], sin, atol=1e-6, rtol=0)
