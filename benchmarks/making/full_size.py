"""Full-size files of other libraries with random numbers in every parameter, and what their own code answers.

Every case writes its file as its users have it, and gives the answers of the reference to a few random pictures.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """One published architecture in one kind of file."""

    make: Callable[[Path], tuple[Path, Callable[[Tensor], Tensor]]]
    """Writes into a folder; gives the file or folder to load, and the reference from pictures to answers."""
    said: Mapping[str, object] = field(default_factory=dict)
    """What `vitrail.load` is told beside the path."""
    needs: str = ""
    """A repository that must be given, because no package has the reference."""


def declare_torchvision() -> None:
    """Let a torchvision for CUDA be imported beside a torch for CPUs: it looks for two operators when it starts."""
    if torch.version.cuda is None and not importlib.metadata.version("torchvision").endswith("+cpu"):
        torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random numbers of a trained model's size in every parameter, so that none can be forgotten unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.normal_(0, 0.02, generator=generator).add_(float(is_scale))
    return model.eval()


def augreg_npz(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """ViT-B/16 as the AugReg files of Google are, read by timm."""
    import timm

    path = folder / "B_16.npz"
    np.savez(path, **_google_arrays(width=768, depth=12, heads=12, mlp_width=3072, rows=197, outputs=1000))
    model = timm.create_model("vit_base_patch16_224")
    model.load_pretrained(str(path))
    return path, model.eval()


def _google_arrays(
    width: int, depth: int, heads: int, mlp_width: int, rows: int, outputs: int
) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)

    def random(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + 0.02 * draw.standard_normal(shape)).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}/scale": random(width, around=1.0), f"{name}/bias": random(width)}

    def dense(name: str, *shape: int, bias: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {f"{name}/kernel": random(*shape), f"{name}/bias": random(*bias)}

    per_head = (heads, width // heads)
    arrays = dense("embedding", 16, 16, 3, width, bias=(width,)) | dense("head", width, outputs, bias=(outputs,))
    arrays |= {"cls": random(1, 1, width), "Transformer/posembed_input/pos_embedding": random(1, rows, width)}
    arrays |= norm("Transformer/encoder_norm")
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            arrays |= dense(f"{attention}/{part}", width, *per_head, bias=per_head)
        arrays |= dense(f"{attention}/out", *per_head, width, bias=(width,))
        arrays |= norm(f"{block}/LayerNorm_0") | norm(f"{block}/LayerNorm_2")
        arrays |= dense(f"{block}/MlpBlock_3/Dense_0", width, mlp_width, bias=(mlp_width,))
        arrays |= dense(f"{block}/MlpBlock_3/Dense_1", mlp_width, width, bias=(width,))
    return arrays


def siglip(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """SigLIP-B/16 at 224, the vision tower with its attention pooling, by transformers."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    model = randomise(SiglipVisionModel(SiglipVisionConfig()))
    model.save_pretrained(folder / "siglip")
    return folder / "siglip", lambda images: model(images).pooler_output


def clip(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """CLIP ViT-B/16, the vision tower with its projection, by transformers."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(patch_size=16, hidden_size=768, intermediate_size=3072, num_attention_heads=12)
    model = randomise(CLIPVisionModelWithProjection(config))
    model.save_pretrained(folder / "clip")
    return folder / "clip", lambda images: model(images).image_embeds


def dinov3(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """DINOv3 ViT-S/16 with four registers, by transformers."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    model = randomise(DINOv3ViTModel(DINOv3ViTConfig(num_register_tokens=4)))
    model.save_pretrained(folder / "dinov3")
    return folder / "dinov3", lambda images: model(images).pooler_output


def deit(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """DeiT-B distilled as its authors pickled it, by timm."""
    import timm

    model = randomise(timm.create_model("deit_base_distilled_patch16_224"))
    torch.save({"model": model.state_dict()}, folder / "deit.pth")
    return folder / "deit.pth", model


def torchvision_b16(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """ViT-B/16 of torchvision, its state dictionary pickled."""
    import torchvision

    model = randomise(torchvision.models.vit_b_16())
    torch.save(model.state_dict(), folder / "vit_b_16.pth")
    return folder / "vit_b_16.pth", model


def t2t(repository: Path) -> Callable[[Path], tuple[Path, Callable[[Tensor], Tensor]]]:
    """T2T-ViT-14 with its performer, by its authors' code in a clone of yitu-opensource/T2T-ViT."""

    def make(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
        sys.path.insert(0, str(repository))
        model = randomise(importlib.import_module("models.t2t_vit").t2t_vit_14())
        torch.save({"state_dict_ema": model.state_dict()}, folder / "t2t_14.pth.tar")
        return folder / "t2t_14.pth.tar", model

    return make


def cases(t2t_repository: Path | None) -> dict[str, Case]:
    """Every case by its name."""
    return {
        "dinov3-small-transformers": Case(dinov3),
        "b16-augreg-npz": Case(augreg_npz, {"match": "timm"}),
        "siglip-b16-transformers": Case(siglip),
        "clip-b16-transformers": Case(clip),
        "deit-b16-distilled-pth": Case(deit),
        "b16-torchvision-pth": Case(torchvision_b16, {"heads": 12}),
        "t2t-14-pth": Case(t2t(t2t_repository or Path()), needs="" if t2t_repository else "--t2t PATH"),
    }
