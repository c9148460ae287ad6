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
from .open_model import ModelInfo

SUMMARY_PARTS = ("tokens", "positions", "encoder.pre_norm", "encoder.blocks", "encoder.norm", "pool", "head")


def summarize_model(found: ModelInfo) -> dict[str, Any]:
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
            part: sum(count for name, count in parameters.items() if name.startswith(f"{part}."))
            for part in SUMMARY_PARTS
        },
        "architecture": config.write(shape),
        "image": config.write(found.spec),
        "classes": list(found.classes),
    }


def format_model_summary(found: ModelInfo, facts: Mapping[str, Any]) -> str:
    """The same for people."""
    shape, spec = found.config, found.spec
    rows, columns = facts["grid"]
    prefix = f"{shape.describe_prefix} and " if shape.prefix else ""
    lines = [
        f"{facts['model']} ({found.kind})",
        f"  parameters  {facts['parameters']:,}" + _describe_buffers(facts["fixed_numbers"]),
        f"  pictures    {spec.height} x {spec.width} pixels (height x width), {_describe_channels(spec.channels)}, "
        f"{_describe_resize(spec)}",
        f"  values      {spec.low:g} to {spec.high:g}; mean {_format_numbers(spec.mean)}, deviation "
        f"{_format_numbers(spec.std)}",
        f"  patches     {shape.patch[0]} x {shape.patch[1]} pixels, {rows} rows x {columns} columns",
        f"  tokens      {facts['tokens']} ({prefix}{shape.grid.patches} patches), {shape.width} numbers each",
        f"  blocks      {shape.depth}: {shape.heads} heads of {shape.head_dim}, MLP {shape.mlp_width}",
        f"  places      positions {shape.positions}, rotary {shape.rotary}",
        f"  answer      {shape.pool} pooling, {shape.head} head, {shape.outputs} "
        f"outputs{_describe_classes(found.classes)}",
        "",
        "  part             parameters",
    ]
    lines += [f"  {part:<15}  {count:>10,}" for part, count in facts["parts"].items() if count]
    return "\n".join(lines)


def preview_model_input(found: ModelInfo, picture: Path) -> UInt8[np.ndarray, "H W C"]:
    """A picture as the model sees it: its channels, its size, and zeros up to whole patches if it pads.

    Raises:
        DataError: the picture cannot be read.
    """
    image = fit_array_to_tensor(read_image(picture, found.spec.channels), found.spec)[None]
    if found.config.pad:
        image = pad_to_patches(image.float(), found.config.patch).to(torch.uint8)
    return np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())


def _describe_resize(spec: ImageSpec) -> str:
    if spec.crop_fraction == 1:
        return spec.fit
    of = "both sides" if spec.fit == "squash" else "the short side"
    return f"{spec.fit}, the middle {spec.crop_fraction:.4g} of {of}"


def _describe_buffers(count: int) -> str:
    return f", and {count:,} fixed numbers" if count else ""


def _format_numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _describe_channels(count: int) -> str:
    return {1: "grey", 3: "colour"}.get(count, f"{count} channels")


def _describe_classes(classes: tuple[str, ...]) -> str:
    if not classes:
        return ""
    return f": {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}"


# What to know of weights that somebody else has trained: their numerics, where they come from, under which licence.


def provenance_to_json(found: ModelInfo) -> dict[str, Any]:
    """The same as plain values; what nobody has said is empty."""
    shape = found.config
    return {
        "numerics": {
            "norm": shape.norm,
            "norm_eps": shape.norm_eps,
            "activation": shape.activation,
            "pool": shape.pool,
            "final_norm": shape.final_norm,
            "resample": shape.resample if shape.positions in ("learned", "indexed") else None,
        },
        "interpolation": found.spec.interpolation,
        "licence": found.licence,
        "repository": found.repository,
        "notes": list(found.notes),
    }


def format_provenance(found: ModelInfo) -> list[str]:
    """For people, one fact a line, in the columns of the table of a model's shape."""
    shape = found.config
    order = "the final norm, then " if shape.final_norm else ""
    rows = [
        ("numerics", f"{shape.norm} eps {shape.norm_eps:g}, {shape.activation}; {order}{shape.pool} pooling"),
        (
            "resize",
            f"pictures {found.spec.interpolation}, to fit: {found.spec.fit}{_describe_position_resampling(found)}",
        ),
        ("licence", _describe_licence(found)),
    ]
    rows += [("from", found.repository)] if found.repository else []
    rows += [("note" if not place else "", note) for place, note in enumerate(found.notes)]
    return [f"  {name:<11} {text}" for name, text in rows]


def format_licence(found: ModelInfo) -> str:
    """Under which licence whose weights were published; empty where nobody says it.

    A file cannot say whether it holds those weights, or others of the same kind that somebody trained anew.
    """
    whose = f" that {found.repository} published" if found.repository else ""
    return f"licence of the weights{whose}: {found.licence}" if found.licence else ""


def _describe_licence(found: ModelInfo) -> str:
    if not found.licence or not found.repository:
        return found.licence or "nobody says"
    return f"{found.licence}, of the weights that {found.repository} published"


def _describe_position_resampling(found: ModelInfo) -> str:
    return f"; positions {found.config.resample}" if found.config.positions in ("learned", "indexed") else ""
