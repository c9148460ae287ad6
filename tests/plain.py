"""A ViT written out once more, in float64 and a few lines, to which something can be added on the way.

It knows plain blocks, learned positions, registers and every pooling. What is added to the attention weights has the
gradient of these weights, and so on: that is how oracles of explanations get theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT

Weights = dict[str, Tensor]


class Answer(NamedTuple):
    """What a pass has computed."""

    outputs: Tensor
    weights: list[Tensor]
    """Attention [B, A, T, T] of every block, and last of the probe if there is one."""
    tokens: list[Tensor]
    """After every block, normed."""
    normal: Tensor
    """What the last block reads after its first norm."""


def answer(
    model: ViT,
    images: Tensor,
    touch: list[Tensor] | None = None,
    moved: Tensor | None = None,
    depth: int | None = None,
) -> Answer:
    """One pass through the first `depth` blocks. `touch` is added to the weights, `moved` to `normal`."""
    config, w = model.config, weights_of(model)
    depth = config.depth if depth is None else depth
    x, looked, tokens = _tokens(config, w, images.double()), [], []
    for i in range(depth):
        b = f"encoder.blocks.{i}."
        normal = _norm(config, w, b + "norm1", x)
        normal = normal + moved if moved is not None and i == depth - 1 else normal
        q, k, v = _split(config, _linear(w, b + "attention.qkv", normal), 3)
        a = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        a = a if touch is None else a + touch[i]
        looked.append(a)
        x = x + _linear(w, b + "attention.out", (a @ v).transpose(1, 2).flatten(2))
        x = x + _mlp(w, b + "mlp.", _norm(config, w, b + "norm2", x))
        tokens.append(_norm(config, w, "encoder.norm", x))
    outputs, probed = head(config, w, tokens[-1], None if touch is None else touch[-1])
    return Answer(outputs, looked if probed is None else [*looked, probed], tokens, normal)


def weights_of(model: ViT) -> Weights:
    return {name: value.detach().double() for name, value in model.state_dict().items()}


def head(config: ViTConfig, w: Weights, x: Tensor, touch: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Pooling and head of normed tokens, and how much a probe looks at each."""
    probed = None
    if config.pool == "class":
        pooled = x[:, 0]
    elif config.pool == "mean":
        pooled = x[:, config.prefix :].mean(1)
    elif config.pool == "mean-all":
        pooled = x.mean(1)
    elif config.pool == "class+mean":
        pooled = torch.cat([x[:, 0], x[:, config.prefix :].mean(1)], 1)
    else:
        pooled, probed = _probed(config, w, x, touch)
    return _linear(w, "head.linear", pooled), probed


def _probed(config: ViTConfig, w: Weights, x: Tensor, touch: Tensor | None) -> tuple[Tensor, Tensor]:
    p = "pool.attention."
    (q,) = _split(config, _linear(w, p + "q", w[p + "probe"].expand(len(x), -1, -1)), 1)
    k, v = _split(config, _linear(w, p + "kv", x), 2)
    a = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
    a = a if touch is None else a + touch
    y = _linear(w, p + "out", (a @ v).transpose(1, 2).flatten(2))
    return (y + _mlp(w, p + "mlp.", _norm(config, w, p + "norm", y)))[:, 0], a


def _tokens(config: ViTConfig, w: Weights, images: Tensor) -> Tensor:
    cut = torch.nn.functional.unfold(images, config.patch, stride=config.patch).mT  # [B, N, C * p * p]
    x = cut @ w["tokens.patches.weight"].flatten(1).T + w["tokens.patches.bias"]
    table, first = w["positions.table"], int(config.class_token)
    x = x + table[first:]
    if config.registers:
        x = torch.cat([w["tokens.registers"].expand(len(x), -1, -1), x], 1)
    return torch.cat([(w["tokens.cls"] + table[:1]).expand(len(x), -1, -1), x], 1) if first else x


def _split(config: ViTConfig, x: Tensor, parts: int) -> list[Tensor]:
    return [part.unflatten(-1, (config.heads, -1)).transpose(1, 2) for part in x.chunk(parts, -1)]


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def _norm(config: ViTConfig, w: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    length = (centred.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
    return centred / length * w[name + ".weight"] + w[name + ".bias"]


def _mlp(w: Weights, name: str, x: Tensor) -> Tensor:
    return _linear(w, name + "fc2", torch.nn.functional.gelu(_linear(w, name + "fc1", x)))
