"""Models whose answers can be written down: sums and means of the brightness of the patches that are there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model

PATCH = (2, 3)


def averaging(rows: int = 2, columns: int = 3) -> ViT:
    """Output 0 is the mean brightness of the patches that are there, output 1 its negative: mean pooling, no block."""
    return _filled(create_model(_config(rows, columns, depth=0, class_token=False, pool="mean")))


def summing(rows: int = 2, columns: int = 3, registers: int = 0) -> ViT:
    """Output 0 is the sum of the patches that are there over the number of tokens: a class token and dark registers
    that look at all tokens alike."""
    model = create_model(_config(rows, columns, depth=1, class_token=True, pool="class", registers=registers))
    block = model.encoder.blocks[0]
    block.norm1 = nn.Identity()
    with torch.no_grad():
        for parameter in (model.tokens.cls, *block.attention.parameters(), *block.mlp.parameters()):
            parameter.zero_()
        if model.tokens.registers is not None:
            model.tokens.registers.zero_()
        block.attention.qkv.weight[2] = 1  # values as they are; queries and keys of nothing: equal weights
        block.attention.out.weight.fill_(1)
    return _filled(model)


def pictures(values: np.ndarray, rows: int, columns: int) -> Tensor:
    """Pictures [B, 1, H, W] whose patches are as bright as the values [B, N] say."""
    cells = torch.from_numpy(np.asarray(values, np.float32)).view(-1, 1, rows, columns)
    return cells.repeat_interleave(PATCH[0], 2).repeat_interleave(PATCH[1], 3)


def shuffled_values(count: int, patches: int) -> np.ndarray:
    """0 .. N-1 in another order for each picture: [B, N]."""
    generator = np.random.default_rng(0)
    return np.stack([generator.permutation(patches) for _ in range(count)]).astype(np.float64)


def _config(rows: int, columns: int, depth: int, class_token: bool, pool: str, registers: int = 0) -> ViTConfig:
    return ViTConfig(
        image_size=(rows * PATCH[0], columns * PATCH[1]), patch=PATCH, channels=1, width=1, depth=depth, heads=1,
        mlp_width=1, outputs=2, positions="none", final_norm=False, class_token=class_token, pool=pool,
        registers=registers,
    )  # fmt: skip


def _filled(model: ViT) -> ViT:
    """Tokens are the patches' brightness, the outputs it and its negative."""
    with torch.no_grad():
        model.tokens.patches.weight.fill_(1 / (PATCH[0] * PATCH[1]))
        model.tokens.patches.bias.zero_()
        model.head.linear.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.head.linear.bias.zero_()
    return model.eval()
