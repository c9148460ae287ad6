"""A model from its configuration and its tensors, without initialising anything twice."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.config import ViTConfig
from ..model.positions import dinov3_periods, fixed_table
from ..model.vit import ViT
from .expand import computed


def on_meta(config: ViTConfig) -> ViT:
    """The model without memory: names, shapes and number formats."""
    with torch.device("meta"):
        return ViT(config)


def build(config: ViTConfig, values: Mapping[str, Tensor]) -> ViT:
    """The model with these tensors as its own, in evaluation mode; what the configuration alone tells is computed."""
    model, values = on_meta(config), dict(values)
    for name in computed(config):
        if name not in values:
            values[name] = _computed(name, config)
    model.load_state_dict(values, strict=True, assign=True)
    return model.eval()


def _computed(name: str, config: ViTConfig) -> Tensor:
    if name == "rotary.periods":
        return dinov3_periods(config.head_numbers)
    return fixed_table(config.positions, config.grid, config.width, config.table_prefix)
