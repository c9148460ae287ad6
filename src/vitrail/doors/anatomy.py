"""What there is to say of a model's shape: pictures, tokens, parts and their parameters, as values and as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from .. import config
from ..data.preprocess import fit_array_to_tensor
from ..explain.figures import read_image
from ..model.tokens import pad_to_patches
from ..model.vit import ViT
from ..spec import ImageSpec
from .models import Found

PARTS = ("tokens", "positions", "encoder.pre_norm", "encoder.blocks", "encoder.norm", "pool", "head")


def anatomy(found: Found) -> dict[str, Any]:
    """Sizes, tokens and parameters as plain values; nothing is allocated for a name."""
    shape = found.config
    with torch.device("meta"):
        model = ViT(shape)
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters()}
    buffers = sum(buffer.numel() for buffer in model.buffers())
    return {
        "parameters": sum(parameters.values()),
        "fixed_numbers": buffers,
        "tokens": shape.tokens,
        "grid": list(shape.grid),
        "parts": {
            part: sum(count for name, count in parameters.items() if name.startswith(f"{part}.")) for part in PARTS
        },
        "architecture": config.write(shape),
        "image": config.write(found.spec),
        "classes": list(found.classes),
    }


def table(found: Found, facts: Mapping[str, Any]) -> str:
    """The same for people."""
    shape, spec = found.config, found.spec
    rows, columns = facts["grid"]
    prefix = f"{shape.prefix_words} and " if shape.prefix else ""
    lines = [
        f"{facts['model']} ({found.kind})",
        f"  parameters  {facts['parameters']:,}" + _fixed(facts["fixed_numbers"]),
        f"  pictures    {spec.height} x {spec.width} pixels (height x width), {_channels(spec.channels)}, {_fit(spec)}",
        f"  values      {spec.low:g} to {spec.high:g}; mean {_numbers(spec.mean)}, deviation {_numbers(spec.std)}",
        f"  patches     {shape.patch[0]} x {shape.patch[1]} pixels, {rows} rows x {columns} columns",
        f"  tokens      {facts['tokens']} ({prefix}{shape.grid.patches} patches), {shape.width} numbers each",
        f"  blocks      {shape.depth}: {shape.heads} heads of {shape.head_numbers}, MLP {shape.mlp_width}",
        f"  places      positions {shape.positions}, rotary {shape.rotary}",
        f"  answer      {shape.pool} pooling, {shape.head} head, {shape.outputs} outputs{_classes(found.classes)}",
        "",
        "  part             parameters",
    ]
    lines += [f"  {part:<15}  {count:>10,}" for part, count in facts["parts"].items() if count]
    return "\n".join(lines)


def seen(found: Found, picture: Path) -> UInt8[np.ndarray, "H W C"]:
    """A picture as the model sees it: its channels, its size, and zeros up to whole patches if it pads.

    Raises:
        DataError: the picture cannot be read.
    """
    image = fit_array_to_tensor(read_image(picture, found.spec.channels), found.spec)[None]
    if found.config.pad:
        image = pad_to_patches(image.float(), found.config.patch).to(torch.uint8)
    return np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())


def _fit(spec: ImageSpec) -> str:
    if spec.crop_fraction == 1:
        return spec.fit
    of = "both sides" if spec.fit == "squash" else "the short side"
    return f"{spec.fit}, the middle {spec.crop_fraction:.4g} of {of}"


def _fixed(count: int) -> str:
    return f", and {count:,} fixed numbers" if count else ""


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _channels(count: int) -> str:
    return {1: "grey", 3: "colour"}.get(count, f"{count} channels")


def _classes(classes: tuple[str, ...]) -> str:
    if not classes:
        return ""
    return f": {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}"
