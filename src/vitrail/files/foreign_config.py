"""The `config.json` beside somebody else's weights: bounded before anything is built from it, its code never run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedFileError
from . import json_text

RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("image_size", "img_size", "input_size"), (1, 16_384)),
    "patch_size": (1, 1_024),
    **dict.fromkeys(("num_channels", "in_channels", "in_chans"), (1, 1_024)),
    **dict.fromkeys(("hidden_size", "embed_dim", "width", "num_features", "projection_dim"), (1, 65_536)),
    **dict.fromkeys(("num_hidden_layers", "depth", "layers"), (1, 256)),
    **dict.fromkeys(("num_attention_heads", "num_heads", "heads", "head_width"), (1, 1_024)),
    **dict.fromkeys(("intermediate_size", "mlp_dim"), (1, 1_048_576)),
    **dict.fromkeys(("num_register_tokens", "reg_tokens"), (0, 1_024)),
    **dict.fromkeys(("num_classes", "num_labels"), (0, 10_000_000)),
    "num_patches": (1, 1_048_576),
    "mlp_ratio": (1e-3, 64),
    "layer_norm_eps": (0, 1),
    "rope_theta": (1e-3, 1e9),
    "layerscale_value": (-1e3, 1e3),
}
"""Field -> smallest and largest value; the largest published ViT is 6,144 wide and 64 deep."""
LISTS = ("image_size", "img_size", "input_size", "patch_size")
"""Fields that may be a list, of two or three numbers; one number per stage is of no plain ViT."""
CODE = ("auto_map", "trust_remote_code", "custom_pipelines", "custom_code", "chat_template", "pipeline_class_name")
"""Fields that ask a reader to fetch or run somebody's code."""


class ForeignConfig(NamedTuple):
    """A description that has been found plausible."""

    fields: dict[str, Any]
    """Without those of CODE."""
    notes: tuple[str, ...]
    """What was ignored, as sentences without a full stop."""


def read_config(path: Path) -> ForeignConfig:
    """Read a `config.json` in the manner of transformers, timm or OpenCLIP.

    Raises:
        DamagedFileError: the file is missing, no JSON within the bounds of `json_text`, or a size in it lies outside
            its range; the message names field and range.
    """
    path = Path(path)
    fields = json_text.read(path)
    _check(fields, "", path)
    ignored = [name for name in CODE if name in fields]
    notes = (
        [f"{path} asks for code ({', '.join(ignored)}); that is ignored, no code of a checkpoint is ever run"]
        if ignored
        else []
    )
    return ForeignConfig({name: value for name, value in fields.items() if name not in CODE}, tuple(notes))


def _check(fields: Mapping[str, Any], prefix: str, path: Path) -> None:
    """Every known size, also in the parts such as vision_config; how deep they go is bounded by `json_text`."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _check(value, f"{prefix}{name}.", path)
        elif name in RANGES and value is not None:  # None: not said
            is_list = isinstance(value, list) and name in LISTS and 1 <= len(value) <= 3
            for number in value if is_list else [value]:
                _check_number(f"{prefix}{name}", number, RANGES[name], path)


def _check_number(name: str, value: Any, bounds: tuple[float, float], path: Path) -> None:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = repr(value)[:40]
        raise DamagedFileError(
            f"{path}: {name} must be a number from {_words(low)} to {_words(high)}. Got {shown}. "
            "Use another copy of the file."
        )


def _words(number: float) -> str:
    return f"{number:,}" if math.isclose(number, round(number)) else f"{number:g}"
