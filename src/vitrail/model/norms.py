"""Normalisation over the numbers of one token, by its torch name."""

from __future__ import annotations

from torch import nn

from .config import ViTConfig

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


def make_norm(config: ViTConfig, width: int | None = None) -> nn.Module:
    """A norm of the configured class over so many numbers; over the width of a token unless told."""
    return NORMS[config.norm](config.width if width is None else width, eps=config.norm_eps)
