"""The four teaching designs once more, as plain functions of a flat dictionary of tensors.

Written from the published descriptions alone, without looking at the package's model, so that an agreement means
something. Dropout is absent: these are the designs in evaluation mode. `t` holds the tensors under the articles' own
names (design B has no published layout; its names here are ours, after torch's modules); `images` is [B, C, H, W].
"""

from __future__ import annotations

from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = dict[str, Tensor]


def blog(t: Tensors, images: Tensor, heads: int) -> Tensor:
    """Design A: convolved patches, class token, learned positions, torch's packed attention."""
    patches = t["patch_embedding.conv.weight"].shape[-2:]
    x = F.conv2d(images, t["patch_embedding.conv.weight"], t["patch_embedding.conv.bias"], stride=patches)
    x = x.flatten(2).transpose(1, 2)  # [B, N, D]
    x = torch.cat([t["class_embedding"].expand(len(x), 1, -1), x], dim=1) + t["position_embedding"]
    for i in range(_blocks(t, "vit")):
        block = f"vit.{i}"
        x = x + _torch_attention(t, f"{block}.attention.attention", _norm(t, f"{block}.attention.layer", x), heads)
        y = _norm(t, f"{block}.mlp.norm", x)
        x = x + _linear(t, f"{block}.mlp.linear2", F.gelu(_linear(t, f"{block}.mlp.linear1", y)))
    return _linear(t, "classifier.1", _norm(t, "classifier.0", x[:, 0]))


def cifar(t: Tensors, images: Tensor, heads: int) -> Tensor:
    """Design B, small and base: unfolded patches, an embedding table, no class token, no final norm, mean of tokens."""
    _, C, H, W = images.shape
    p = isqrt(t["patches.weight"].shape[1] // C)
    cut = [images[:, :, y : y + p, x : x + p].flatten(1) for y in range(0, H, p) for x in range(0, W, p)]
    x = _linear(t, "patches", torch.stack(cut, dim=1))  # [B, N, D]; inside a patch channel, row, column
    x = x + F.embedding(torch.arange(len(cut)), t["positions.weight"])
    for i in range(_blocks(t, "blocks")):
        block = f"blocks.{i}"
        x = x + _torch_attention(t, f"{block}.attention", _norm(t, f"{block}.norm1", x), heads)
        y = _norm(t, f"{block}.norm2", x)
        x = x + _linear(t, f"{block}.mlp.3", F.gelu(_linear(t, f"{block}.mlp.0", y)))
    return _linear(t, "head", x.mean(dim=1))


def explained(t: Tensors, images: Tensor, heads: int, patch: int, qk_scale: float | None = None) -> Tensor:
    """Design C: unfold and project, class token, fixed sinusoid table, final norm, regression on token 0."""
    x = _linear(t, "patch_tokens.project", F.unfold(images, patch, stride=patch).transpose(1, 2))
    x = torch.cat([t["backbone.cls_token"].expand(len(x), 1, -1), x], dim=1)
    B, T, D = x.shape
    table = torch.empty(T, D, dtype=torch.float64)
    for j in range(D):
        angle = torch.arange(T, dtype=torch.float64) / 10000 ** (2 * (j // 2) / D)
        table[:, j] = angle.cos() if j % 2 else angle.sin()
    x = x + table.to(x.dtype)
    scale = (D // heads) ** -0.5 if qk_scale is None else qk_scale
    for i in range(_blocks(t, "backbone.blocks")):
        block = f"backbone.blocks.{i}"
        qkv = _linear(t, f"{block}.attn.qkv", _norm(t, f"{block}.norm1", x))
        q, k, v = (_split(part, heads) for part in qkv.chunk(3, dim=-1))  # [B, A, T, d]
        y = torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v
        x = x + _linear(t, f"{block}.attn.proj", y.transpose(1, 2).reshape(B, T, D))
        y = _norm(t, f"{block}.norm2", x)
        x = x + _linear(t, f"{block}.neuralnet.fc2", F.gelu(_linear(t, f"{block}.neuralnet.fc1", y)))
    return _linear(t, "backbone.head", _norm(t, "backbone.norm", x)[:, 0])


def xray(t: Tensors, images: Tensor, heads: int) -> Tensor:
    """Design D: class token, no position table, 2-D rotary pairs counted from one, no final norm."""
    patch = isqrt(t["patch_embedding.patch_embed.weight"].shape[1] // images.shape[1])
    rows, columns = images.shape[2] // patch, images.shape[3] // patch
    x = _linear(t, "patch_embedding.patch_embed", F.unfold(images, patch, stride=patch).transpose(1, 2))
    x = torch.cat([t["cls_token"].expand(len(x), 1, -1), x], dim=1)
    B, T, D = x.shape
    half = D // heads // 2
    turns = torch.ones(T, half, dtype=torch.complex64)  # one complex number per pair; the class token stays
    for token in range(rows * columns):
        for k in range(half // 2):
            frequency = 10000 ** (-2 * (k + 1) / half)
            across, down = (token % columns + 1) * frequency, (token // columns + 1) * frequency
            turns[token + 1, k] = torch.polar(torch.tensor(1.0), torch.tensor(across))
            turns[token + 1, half // 2 + k] = torch.polar(torch.tensor(1.0), torch.tensor(down))
    for i in range(_blocks(t, "transformer_blocks")):
        block = f"transformer_blocks.{i}"
        qkv = _linear(t, f"{block}.attn.qkv", _norm(t, f"{block}.norm1", x))
        q, k, v = (_split(part, heads) for part in qkv.chunk(3, dim=-1))  # [B, A, T, d]
        q, k = _turn(q, turns), _turn(k, turns)
        y = torch.softmax(q @ k.transpose(-2, -1) / (D // heads) ** 0.5, dim=-1) @ v
        x = x + _linear(t, f"{block}.attn.proj", y.transpose(1, 2).reshape(B, T, D))
        y = _norm(t, f"{block}.norm2", x)
        x = x + _linear(t, f"{block}.mlp.2", F.gelu(_linear(t, f"{block}.mlp.0", y)))
    return _linear(t, "mlp_head", x[:, 0])


def _blocks(t: Tensors, prefix: str) -> int:
    return 1 + max(int(name.removeprefix(prefix + ".").split(".")[0]) for name in t if name.startswith(prefix + "."))


def _linear(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def _norm(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], eps=1e-5)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


def _torch_attention(t: Tensors, name: str, x: Tensor, heads: int) -> Tensor:
    attention = torch.nn.MultiheadAttention(x.shape[-1], heads, batch_first=True).eval()
    own = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    attention.load_state_dict({key: t[f"{name}.{key}"] for key in own})
    with torch.no_grad():
        y: Tensor = attention(x, x, x, need_weights=False)[0]
    return y
