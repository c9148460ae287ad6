"""A folder as timm's models on the Hub are: `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import UsageError
from ...files import atomic, safetensors_file
from ...model.config import ViTConfig
from ...model.vit import ViT
from ...spec import ImageSpec
from ..folders import signed
from ..rules import write as write_tensors
from .timm_homes import POOL_WORDS, Arguments, Home, choose

CROP_MODES = {"squash": "squash", "crop": "center", "pad": "border"}
"""Our words for fitting a picture into the model's size, and timm's."""


def write(
    folder: Path,
    model: ViT,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    info: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write `model.safetensors` and `config.json`, whole or not at all.

    Args:
        task: what the outputs mean; timm has no word for it.
        info: what a bundle keeps; where the weights are from is taken from it.

    Raises:
        UsageError: timm has no place for a part of the model, the pictures or names are not the model's, or the folder
            exists.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    _check_fits(model.config, spec, classes)
    home = choose(model.config)
    layout = home.layout(model.config)
    state = dict(model.state_dict())
    assert layout.express is not None
    expressed, _ = layout.express(model.config, state)
    weights = write_tensors(state, model.config, layout, _said_beside(expressed))
    with atomic.write_folder(Path(folder)) as inside:
        safetensors_file.save_tensors(inside / "model.safetensors", weights, {"format": "pt"}, checksum=True)
        atomic.write_json(inside / "config.json", {**description(expressed, home, spec, classes), **signed(info)})


def description(config: ViTConfig, home: Home, spec: ImageSpec, classes: tuple[str, ...]) -> dict[str, Any]:
    """The content of `config.json`."""
    arguments: Arguments = home.arguments(config)
    if home.norm_layer is not None:
        arguments["norm_layer"] = home.norm_layer
    named = {"label_names": list(classes)} if classes else {}
    return {
        "architecture": home.architecture,
        "num_classes": config.outputs,
        "num_features": config.width,
        "global_pool": POOL_WORDS[config.pool],
        **named,
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": not arguments["dynamic_img_size"],
            "interpolation": spec.interpolation,
            "crop_pct": crop_pct(spec),
            "crop_mode": CROP_MODES[spec.fit],
            "mean": _per_channel(spec.mean, spec.channels),
            "std": _per_channel(spec.std, spec.channels),
            "num_classes": config.outputs,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_head else "head",
        },
    }


def crop_pct(spec: ImageSpec) -> float:
    """The fraction for which timm, which rounds down, resizes as far as we do: 33 / (33 / 54) is less than 54."""
    fraction = spec.crop_fraction
    return fraction if math.floor(spec.height / fraction) == spec.cover[0] else math.nextafter(fraction, 0)


def _said_beside(config: ViTConfig) -> dict[str, Any]:
    """Settings that `config.json` says and no tensor does."""
    numbers = ("norm_eps", "activation", "image_size", "positions", "rotary")
    parts = ("norm", "pad", "pool", "final_norm")
    return {name: getattr(config, name) for name in (*numbers, *parts)}


def _check_fits(config: ViTConfig, spec: ImageSpec, classes: tuple[str, ...]) -> None:
    if (spec.size, spec.channels) != (config.image_size, config.channels):
        raise UsageError(
            f"The pictures must be what the model reads: {config.image_size} pixels and {config.channels} channels. "
            f"Got {spec.size} and {spec.channels}."
        )
    if classes and len(classes) != config.outputs:
        raise UsageError(f"Every one of the model's {config.outputs} outputs needs a name. Got {len(classes)} names.")


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values * channels if len(values) == 1 else values)
