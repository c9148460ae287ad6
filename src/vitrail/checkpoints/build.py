"""A model from its configuration and its tensors, without initialising anything twice."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.config import ViTConfig
from ..model.positions import fixed_table
from ..model.vit import ViT


def on_meta(config: ViTConfig) -> ViT:
    """The model without memory: names, shapes and number formats."""
    with torch.device("meta"):
        return ViT(config)


def build(config: ViTConfig, values: Mapping[str, Tensor]) -> ViT:
    """The model with these tensors as its own, in evaluation mode; a fixed position table is computed if not given."""
    model, values = on_meta(config), dict(values)
    if config.positions in ("sinusoid", "sincos2d") and "positions.table" not in values:
        class_row = config.class_token and config.class_position
        values["positions.table"] = fixed_table(config.positions, config.grid, config.width, class_row)
    model.load_state_dict(values, strict=True, assign=True)
    return model.eval()
