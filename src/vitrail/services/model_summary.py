"""Summary of a model: images, tokens, parts with their parameters, numerics and licence, as values and as text."""

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
from ..formatting import format_count
from ..model.part_table import list_parts
from ..model.tokens import pad_to_patches
from ..model.vit import ViT
from .open_model import ModelInfo


def summarize_model(model_info: ModelInfo) -> dict[str, Any]:
    """Sizes, tokens and parameters as plain values, without allocating weights."""
    shape = model_info.config
    with torch.device("meta"):
        model = ViT(shape)
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters()}
    buffers = sum(buffer.numel() for buffer in model.buffers())
    return {
        "parameters": sum(parameters.values()),
        "fixed_numbers": buffers,
        "tokens": shape.tokens,
        "grid": list(shape.grid),
        "parts": {row.name: row.parameters for row in list_parts(shape, parameters)},
        "architecture": config.write(shape),
        "image": config.write(model_info.spec),
        "classes": list(model_info.classes),
    }


def format_model_summary(model_info: ModelInfo, facts: Mapping[str, Any], title: str) -> str:
    """The summary as a table for people, below its title."""
    shape, spec = model_info.config, model_info.spec
    rows, columns = facts["grid"]
    prefix = f"{shape.describe_prefix} and " if shape.prefix else ""
    fixed = f", and {format_count(facts['fixed_numbers'], 'fixed number')}" if facts["fixed_numbers"] else ""
    channels = {1: "grey", 3: "colour"}.get(spec.channels, f"{format_count(spec.channels, 'channel')}")
    fit = str(spec.fit)
    if spec.crop_fraction != 1:
        side = "both sides" if fit == "squash" else "the short side"
        fit += f", the middle {spec.crop_fraction:.4g} of {side}"
    depth = " in 16 bits" if spec.bit_depth == 16 else ""
    names = model_info.classes
    classes = f": {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}" if names else ""
    lines = [
        title,
        f"  parameters  {facts['parameters']:,}{fixed}",
        f"  pictures    {spec.height} x {spec.width} pixels (height x width), {channels}, {fit}",
        (
            f"  values      {spec.low:g} to {spec.high:g}{depth}; mean {_format_numbers(spec.mean)}, "
            f"deviation {_format_numbers(spec.std)}"
        ),
        f"  patches     {shape.patch[0]} x {shape.patch[1]} pixels, {rows} rows x {columns} columns",
        f"  tokens      {facts['tokens']} ({prefix}{shape.grid.patches} patches), {shape.width} numbers each",
        f"  blocks      {shape.depth}: {shape.heads} heads of {shape.head_dim}, MLP {shape.mlp_width}",
        f"  places      positions {shape.positions}, rotary {shape.rotary}{', relative biases' * shape.relative_bias}",
        f"  answer      {shape.pool} pooling, {shape.head} head, {shape.outputs} outputs{classes}",
        "",
    ]
    rows = [row for row in list_parts(shape, facts["parts"]) if row.kind or row.parameters]
    width = max(len(row.shape) for row in rows)
    lines += [f"  {'part':<15}  {'output':<{width}}  parameters"]
    lines += [f"  {row.name:<15}  {row.shape:<{width}}  {row.parameters:>10,}" for row in rows]
    return "\n".join(lines)


def preview_model_input(model_info: ModelInfo, image_path: Path) -> UInt8[np.ndarray, "H W C"]:
    """An image as the model sees it: its channels and size, with zero padding to whole patches if the model pads.

    Raises:
        DataError: the image cannot be read.
    """
    image = fit_array_to_tensor(read_image(image_path, model_info.spec.channels), model_info.spec)[None]
    if model_info.config.pad:
        image = pad_to_patches(image.float(), model_info.config.patch).to(torch.uint8)
    return np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())


def _format_numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# -- Provenance of foreign weights: numerics, origin and licence.


def provenance_to_json(model_info: ModelInfo) -> dict[str, Any]:
    """Numerics, origin and licence as plain values; empty if unknown."""
    shape = model_info.config
    return {
        "numerics": {
            "norm": shape.norm,
            "norm_eps": shape.norm_eps,
            "activation": shape.activation,
            "pool": shape.pool,
            "final_norm": shape.final_norm,
            "resample": shape.resample if shape.positions in ("learned", "indexed") else None,
        },
        "interpolation": model_info.spec.interpolation,
        "licence": model_info.licence,
        "repository": model_info.repository,
        "notes": list(model_info.notes),
    }


def format_provenance(model_info: ModelInfo) -> list[str]:
    """Numerics, origin and licence for people, one fact a line, aligned with the model summary."""
    shape = model_info.config
    order = "the final norm, then " if shape.final_norm else ""
    positions = f"; positions {shape.resample}" if shape.positions in ("learned", "indexed") else ""
    licence = model_info.licence or "not stated"
    if model_info.licence and model_info.repository:
        certain = "of the weights" if model_info.origin_is_stated else "if these are weights"
        licence += f", {certain} that {model_info.repository} published"
    rows = [
        ("numerics", f"{shape.norm} eps {shape.norm_eps:g}, {shape.activation}; {order}{shape.pool} pooling"),
        ("resize", f"pictures {model_info.spec.interpolation}, to fit: {model_info.spec.fit}{positions}"),
        ("licence", licence),
    ]
    rows += [("from", model_info.repository)] if model_info.repository and model_info.origin_is_stated else []
    rows += [("note" if not place else "", note) for place, note in enumerate(model_info.notes)]
    return [f"  {name:<11} {text}" for name, text in rows]


def format_licence(model_info: ModelInfo) -> str:
    """The licence of the published weights and their repository; empty if unknown.

    A file does not tell whether it holds those weights or others of the same architecture that were trained anew.
    """
    whose = f" that {model_info.repository} published" if model_info.repository else ""
    certain = "licence of the weights" if model_info.origin_is_stated else "licence, if these are weights"
    return f"{certain}{whose}: {model_info.licence}" if model_info.licence else ""
