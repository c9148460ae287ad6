"""Matrices that are cast once answer with the bits of those that are cast on every pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.model.config import ViTConfig
from vitrail.model.layers import cast_linear_weights
from vitrail.model.vit import create_model

KINDS = {
    "class": {},
    "mean, rotary, no table": {"pool": "mean", "rotary": "axial", "positions": "none"},
    "probe, gated": {"pool": "attention", "mlp": "gated", "layer_scale": 0.1},
    "no key bias, norms of queries and keys": {"key_bias": False, "qk_norm": True},
    "soft splits": {"patches": "t2t-performer", "patch": (16, 16), "image_size": (32, 32)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_the_same_and_the_model_keeps_its_own(kind):
    plain = {"image_size": (16, 16), "patch": (8, 8), "channels": 3, "width": 16, "depth": 2, "heads": 2, "outputs": 3}
    model = create_model(ViTConfig(**{**plain, **KINDS[kind]})).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cast = cast_linear_weights(model, torch.bfloat16)
    images = torch.randn(2, 3, *model.config.image_size)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cast(images), model(images))
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, before[name]), name
    kinds = {name: module for name, module in cast.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    assert kinds and all(module.weight.dtype == torch.bfloat16 for module in kinds.values())
    assert cast.encoder.norm.weight is model.encoder.norm.weight, "what is not cast is shared"
