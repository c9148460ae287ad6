"""One library with one setting, in a process of its own: it builds a model, then times what its parent asks for.

    python benchmarks/making/contestant.py '{"library": "timm", "fused": false, "shape": "ti16", ...}'

It reads words from standard input, one a line, and answers each with a line of JSON: `warm`, `time SECONDS` (steps for
about so long), `limit SECONDS` (the model's own matrix products for about so long), `end`. So the parent lets one
contestant work at a time, in turn, and each one's memory is its own.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.bench import measure
from vitrail.model import flops
from vitrail.model.config import ViTConfig
from vitrail.model.registry import config_from_name
from vitrail.runtime import keep_freed_memory

CLASSES = 1000
Job = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """A ViT and the pictures that it is timed on."""

    name: str
    """As `vitrail.model.registry.config_from_name` and timm read it."""
    batch: int
    outputs: int = CLASSES


SHAPES = {
    "Ti 32/4": Shape("vit_tiny_patch4_32", 128, 10),
    "Ti/16": Shape("vit_tiny_patch16_224", 16),
    "S/16": Shape("vit_small_patch16_224", 16),
    "B/16": Shape("vit_base_patch16_224", 8),
    "DINOv2-S/14 518": Shape("vit_small_patch14_dinov2", 1, 0),
    "quick": Shape("vit_tiny_patch16_32", 2, 10),
}


def main() -> None:
    """Build what is asked for, then obey."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked["threads"])
    torch.manual_seed(0)
    if asked.get("keep", False):
        keep_freed_memory()
    shape, dtype = SHAPES[asked["shape"]], {"float32": torch.float32, "bfloat16": torch.bfloat16}[asked["format"]]
    config = peer_config(shape)
    if asked["library"] != "vitrail":
        declare()
    build = LIBRARIES[asked["library"]]
    rehearse(build, dtype, asked)
    before = resident()
    model = build(config, asked)
    count = sum(parameter.numel() for parameter in model.parameters())
    job = (training if asked["mode"] == "training" else inference)(model, config, shape, dtype, asked)
    calls = Calls()
    bound: measure.HardwareLimit | None = None
    measure.reset_peak_memory("cpu")
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "end":
            return
        answer: dict[str, Any] = {"parameters": count}
        if word == "warm":
            outputs = job()
            if isinstance(outputs, Tensor) and not outputs.isfinite().all():
                raise SystemExit("its outputs are not finite numbers")
            answer["seconds"] = calls.seconds(job, 0.0)
            answer["memory"] = measure.read_peak_memory("cpu") - before
        elif word == "time":
            answer["seconds"] = calls.seconds(job, float(numbers[0]))
        elif word == "limit":
            bound = bound or measure.make_block_limit(config, shape.batch, dtype, "cpu", asked["mode"] == "training")
            answer["rate"] = bound.amount / calls.seconds(bound.job, float(numbers[0]))
            answer["flops"] = shape.batch * (
                flops.training_flops(config) if asked["mode"] == "training" else flops.forward_flops(config)
            )
        print(json.dumps(answer), flush=True)


def rehearse(
    build: Callable[[ViTConfig, dict[str, Any]], nn.Module], dtype: torch.dtype, asked: dict[str, Any]
) -> None:
    """Two whole steps of the same kind on a tiny model: what libraries load at the first step is not the model's."""
    shape = SHAPES["quick"]
    config = peer_config(shape)
    told = {**asked, "compiled": False}
    job = (training if asked["mode"] == "training" else inference)(build(config, told), config, shape, dtype, told)
    job()
    job()
    del job
    gc.collect()
    torch.manual_seed(0)


def resident() -> int:
    """Bytes that this process holds now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


class Calls:
    """Times a job for about so long."""

    def __init__(self) -> None:
        self.known: dict[Job, float] = {}

    def seconds(self, job: Job, least: float) -> float:
        """Mean seconds of a call."""
        count = max(1, math.ceil(least / self.known.get(job, math.inf)))
        began = time.perf_counter()
        for _ in range(count):
            job()
        self.known[job] = (time.perf_counter() - began) / count
        return self.known[job]


def peer_config(shape: Shape) -> ViTConfig:
    """The shape as ours."""
    return dataclasses.replace(config_from_name(shape.name), outputs=shape.outputs)


def inference(model: nn.Module, config: ViTConfig, shape: Shape, dtype: torch.dtype, asked: dict[str, Any]) -> Job:
    """Outputs of a batch; in bfloat16 by autocast, or with the weights cast once; or as `vitrail predict` asks."""
    model.eval()
    if asked["own"]:
        return our_answers(model, config, shape, dtype, asked)
    images = torch.randn(shape.batch, config.channels, *config.image_size)
    cast = dtype != torch.float32 and asked["cast"]
    if cast:
        model, images = model.to(dtype), images.to(dtype)
    answer = torch.compile(model) if asked["compiled"] else model

    def job() -> Tensor:
        automatic = dtype != torch.float32 and not cast
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=automatic):
            return outputs_in(answer(images)).float()

    return job


def training(model: nn.Module, config: ViTConfig, shape: Shape, dtype: torch.dtype, asked: dict[str, Any]) -> Job:
    """Forward, cross entropy, backward, fused AdamW: the same lines for every library, but for our own loop."""
    if asked["own"]:
        return our_loop(config, shape, asked)
    model.train()
    images = torch.randn(shape.batch, config.channels, *config.image_size)
    targets = torch.arange(shape.batch) % shape.outputs
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def measure(images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
            outputs = outputs_in(model(images))
        return F.cross_entropy(outputs.float(), targets)

    loss_of = torch.compile(measure) if asked["compiled"] else measure

    def job() -> None:
        loss_of(images).backward()
        optimizer.step()
        optimizer.zero_grad()

    return job


def our_answers(model: nn.Module, config: ViTConfig, shape: Shape, dtype: torch.dtype, asked: dict[str, Any]) -> Job:
    """What `vitrail predict` does with prepared bytes: normalised, in parts, weights cast once, memory kept."""
    from vitrail.bench import measure
    from vitrail.model.layers import cast_linear_weights
    from vitrail.spec import ImageSpec

    spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
    ready = model if dtype == torch.float32 else cast_linear_weights(model, dtype)
    return measure.make_inference_job(ready, spec, shape.batch, "cpu", asked["format"])


def our_loop(config: ViTConfig, shape: Shape, asked: dict[str, Any]) -> Job:
    """`vitrail train`'s own loop with AdamW: pictures from bytes, normalised, guards, clipping's norm and all."""
    from vitrail.bench import measure
    from vitrail.model.vit import create_model
    from vitrail.spec import ImageSpec
    from vitrail.train.loop import build_train_state
    from vitrail.train.plan import ComputeSettings, Plan, Recipe

    spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
    recipe = Recipe(steps=1_000_000, batch_size=shape.batch, optimizer="adamw", warmup=0.0, lr=1e-4)
    compute = ComputeSettings(precision=asked["format"], compile=asked["compiled"])
    plan = Plan(model=config, image=spec, recipe=recipe, compute=compute)
    return measure.make_training_job(build_train_state(create_model(config, 0), plan), plan)


def outputs_in(answer: Any) -> Tensor:
    """The outputs in what a library gives."""
    if isinstance(answer, Tensor):
        return answer
    return answer.logits if hasattr(answer, "logits") else answer.pooler_output


def of_vitrail(config: ViTConfig, asked: dict[str, Any]) -> nn.Module:
    """Ours."""
    from vitrail.model.vit import create_model

    path, twice = asked.get("attention", "auto"), asked.get("recompute", False)
    return create_model(dataclasses.replace(config, attention=path, grad_checkpointing=twice), 0)


def of_timm(config: ViTConfig, asked: dict[str, Any]) -> nn.Module:
    """timm's VisionTransformer; its fused attention is on unless it is told otherwise."""
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(asked["fused"])
    model: nn.Module = timm.models.vision_transformer.VisionTransformer(
        img_size=config.image_size, patch_size=config.patch, num_classes=config.outputs, embed_dim=config.width,
        depth=config.depth, num_heads=config.heads, mlp_ratio=config.mlp_width / config.width,
        init_values=config.layer_scale,
    )  # fmt: skip
    if asked.get("recompute", False):
        model.set_grad_checkpointing(True)
    return model


def of_transformers(config: ViTConfig, asked: dict[str, Any]) -> nn.Module:
    """transformers' ViT with a classifier, or its DINOv2; sdpa is its default, eager its other attention."""
    import transformers

    names = {
        "hidden_size": config.width, "num_hidden_layers": config.depth, "num_attention_heads": config.heads,
        "image_size": config.image_size[0], "patch_size": config.patch[0],
    }  # fmt: skip
    attention = "sdpa" if asked["fused"] else "eager"
    if config.layer_scale is not None:
        ratio = config.mlp_width // config.width
        told = transformers.Dinov2Config(**names, mlp_ratio=ratio, attn_implementation=attention)
        return transformers.Dinov2Model(told)
    told = transformers.ViTConfig(
        **names, intermediate_size=config.mlp_width, num_labels=config.outputs, attn_implementation=attention
    )
    return transformers.ViTForImageClassification(told)


def of_torchvision(config: ViTConfig, asked: dict[str, Any]) -> nn.Module:
    """torchvision's VisionTransformer; its attention is torch's own layer."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=config.image_size[0], patch_size=config.patch[0], num_layers=config.depth, num_heads=config.heads,
        hidden_dim=config.width, mlp_dim=config.mlp_width, num_classes=config.outputs or CLASSES,
    )  # fmt: skip


def of_vit_pytorch(config: ViTConfig, asked: dict[str, Any]) -> nn.Module:
    """vit-pytorch's plain ViT: always two products and a softmax."""
    from vit_pytorch import ViT

    return ViT(
        image_size=config.image_size[0], patch_size=config.patch[0], num_classes=config.outputs, dim=config.width,
        depth=config.depth, heads=config.heads, mlp_dim=config.mlp_width, dim_head=config.head_dim,
    )  # fmt: skip


def declare() -> None:
    """Let a torchvision for CUDA be imported beside a torch for CPUs."""
    from making.full_size import declare_torchvision

    declare_torchvision()


LIBRARIES: dict[str, Callable[[ViTConfig, dict[str, Any]], nn.Module]] = {
    "vitrail": of_vitrail,
    "timm": of_timm,
    "transformers": of_transformers,
    "torchvision": of_torchvision,
    "vit-pytorch": of_vit_pytorch,
}


if __name__ == "__main__":
    main()
