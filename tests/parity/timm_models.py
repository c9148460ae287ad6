"""Tiny models of timm with every parameter random, how to run one block by block, and how its users save it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.layers import SwiGLU
from timm.models import save_for_hf
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitrail.model.vit import ViT

SIZE: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
NAFLEX: dict[str, Any] = {**{name: SIZE[name] for name in SIZE if name != "img_size"}, "pos_embed_grid_size": (4, 4)}
PLAIN = "vit_base_patch16_224"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "class": (PLAIN, {}),
    "mean, normed after": (PLAIN, {"global_pool": "avg"}),
    "mean, normed before": (PLAIN, {"global_pool": "avg", "fc_norm": False}),
    "class, normed after": (PLAIN, {"fc_norm": True}),
    "no norm": (PLAIN, {"final_norm": False}),
    "attention pool": ("vit_base_patch16_siglip_224", {"num_heads": 2}),
    "attention pool, tanh": ("vit_so400m_patch16_siglip_256", {}),
    "attention pool over prefix": (PLAIN, {"global_pool": "map", "pool_include_prefix": True}),
    "CLIP": ("vit_base_patch16_clip_224", {}),
    "CLIP of OpenAI": ("vit_base_patch16_clip_quickgelu_224", {}),
    "registers": ("vit_base_patch14_reg4_dinov2", {}),
    "registers with rows": ("vit_so150m_patch16_reg4_gap_256", {"mlp_ratio": 2.5}),
    "class and registers with rows": (PLAIN, {"reg_tokens": 3}),
    "DINOv2 without a head": ("vit_base_patch14_dinov2", {"num_classes": 0}),
    "DINOv2 g": ("vit_giant_patch14_dinov2", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "distilled without heads": ("deit_tiny_distilled_patch16_224", {"num_classes": 0}),
    "DeiT-III": ("deit3_small_patch16_224", {}),
    "normed queries": (PLAIN, {"qk_norm": True}),
    "no bias of queries": (PLAIN, {"qkv_bias": False}),
    "no output biases": (PLAIN, {"proj_bias": False}),
    "RMSNorm": (PLAIN, {"norm_layer": "rmsnorm"}),
    "ReLU": (PLAIN, {"act_layer": "relu"}),
    "no table": (PLAIN, {"pos_embed": "none"}),
    "one channel": (PLAIN, {"in_chans": 1}),
    "patches that are not square": (PLAIN, {"patch_size": (4, 2)}),
    "parallel": ("vit_base_patch16_xp_224", {}),
    "parallel with biases": ("vit_pwee_patch16_reg1_gap_256", {}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "DINOv3 by class token": ("vit_small_patch16_dinov3", {"global_pool": "token"}),
    "DINOv3 with biases": ("vit_base_patch16_dinov3_qkvb", {}),
    "DINOv3 with gates": ("vit_small_plus_patch16_dinov3_qkvb", {"mlp_ratio": 4}),
    "EVA": ("eva_giant_patch14_224", {"mlp_ratio": 2}),
    "NaFlex": ("naflexvit_base_patch16_gap", NAFLEX),
    "NaFlex SigLIP": ("naflexvit_base_patch16_siglip", NAFLEX),
}
"""Architectures by what is particular about them, with what is changed beside the size."""


def reference(case: str, **more: Any) -> nn.Module:
    """The model of a case, in evaluation mode."""
    name, changes = CASES[case]
    size = {} if name.startswith("naflex") else SIZE
    return randomise(timm.create_model(name, **{**size, **changes, **more}))


def split_gate(**more: Any) -> nn.Module:
    """A `VisionTransformer` whose gate is a matrix of its own, which no string of timm asks for."""
    return randomise(VisionTransformer(**{**SIZE, "mlp_layer": SwiGLU, "act_layer": nn.SiLU, **more}))


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter random, and no activation near a constant."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.8 * parameter.shape[1:].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.3
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
            if ("norm" in name and name.endswith("weight")) or "gamma" in name:
                parameter += 1
    return model.eval()


def saved(model: nn.Module, folder: Path) -> Path:
    """A folder as timm puts it on the Hub."""
    save_for_hf(model, str(folder), safe_serialization=True)
    return folder


def saved_bare(model: nn.Module, path: Path) -> Path:
    """The weights alone."""
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


def pictures(channels: int, height: int, width: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(5))


def theirs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What every block and the whole model give, by our names."""
    found: dict[str, Tensor] = {}
    hooks = [block.register_forward_hook(partial(_keep, found, f"blocks.{i}")) for i, block in enumerate(model.blocks)]
    found["outputs"] = model(images)
    for hook in hooks:
        hook.remove()
    return found


def _keep(found: dict[str, Tensor], name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
    found[name] = output


@torch.no_grad()
def furthest(ours: ViT, model: nn.Module, images: Tensor) -> float:
    """The largest difference over every block and the outputs."""
    wanted = theirs(model, images)
    got = ours.features(images, keep=tuple(wanted))
    for name, tensor in wanted.items():
        assert got[name].shape == tensor.shape and tensor.std() > 0.02, name
    return max((got[name] - tensor).abs().max().item() for name, tensor in wanted.items())
