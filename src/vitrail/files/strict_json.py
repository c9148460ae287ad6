"""Untrusted JSON: size, depth and number of values are limited before parsing, and duplicate names are refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedFileError

MAX_JSON_BYTES = 16 * 2**20
"""Longest JSON file that is read; the class names of ImageNet-21k take one sixteenth of it."""
MAX_DEPTH = 64
"""Deepest nesting of brackets; model configs have about six."""
MAX_MARKS = 500_000
"""Most brackets, commas and colons together."""
MAX_DIGITS = 19
"""Digits of the longest integer, those of 2^63."""


def read_json(path: Path, size: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        DamagedFileError: the file is missing, larger than `size` bytes, or refused by `parse_json`.
    """
    path = Path(path)
    try:
        length = path.stat().st_size
        data = b"" if length > size else path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} is missing or cannot be read ({error.strerror}). Check the path.") from error
    if length > size:
        raise DamagedFileError(f"{path} has {length} bytes; at most {size} are read of a JSON file. {_ADVICE}")
    return parse_json(data, str(path))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Parse JSON text in UTF-8 that holds an object; `where` begins every message.

    Raises:
        DamagedFileError: not JSON, not an object, nested deeper than MAX_DEPTH, more than MAX_MARKS marks, a duplicate
            name in one object, NaN or infinity, or an integer of more than MAX_DIGITS digits.
    """
    _check_structure(data, where)
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except _UnsafeJsonError as error:
        raise DamagedFileError(f"{where} {error}. {_ADVICE}") from error
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise DamagedFileError(f"{where} is not JSON text ({reason}). {_ADVICE}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{where} must hold a JSON object. Got a {type(value).__name__}. {_ADVICE}")
    return value


class _UnsafeJsonError(Exception):
    """Well-formed JSON that is refused; the text follows the file name."""


_ADVICE = "Use another copy of it."
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},:]', re.DOTALL)
"""A string, or one structural character. It cannot fail inside a string, so that the scan is linear."""


def _check_structure(data: bytes, where: str) -> None:
    """Refuse too many or too deeply nested values before any object is made."""
    depth = marks = 0
    for mark in _MARK.finditer(data):
        character = data[mark.start()]
        if character == 0x22:  # a string
            continue
        marks += 1
        depth += (character in b"[{") - (character in b"]}")
        if depth > MAX_DEPTH:
            raise DamagedFileError(f"{where} is nested deeper than {MAX_DEPTH} brackets. {_ADVICE}")
        if marks > MAX_MARKS:
            raise DamagedFileError(f"{where} holds more than {MAX_MARKS // 2} values. {_ADVICE}")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _UnsafeJsonError(f"says {name[:80]!r} twice")
        fields[name] = value
    return fields


def _reject_constant(word: str) -> Any:
    raise _UnsafeJsonError(f"holds {word}, which JSON has no word for")


def _parse_float(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise _UnsafeJsonError(f"holds {text[:20]}, which is too large for a number")


def _parse_int(text: str) -> int:
    if len(text.lstrip("-")) <= MAX_DIGITS:
        return int(text)
    raise _UnsafeJsonError(f"holds a whole number of {len(text)} digits; at most {MAX_DIGITS} are read")


# -- The `config.json` of foreign weights: sizes are limited before anything is built from it, its code is never run.

FIELD_RANGES: Mapping[str, tuple[float, float]] = {
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
"""Field -> smallest and largest value; the largest published ViT has width 6,144 and depth 64."""
LIST_FIELDS = ("image_size", "img_size", "input_size", "patch_size")
"""Fields that may be a list of up to three numbers; one number per stage is not a plain ViT."""
CODE_FIELDS = (
    "auto_map",
    "trust_remote_code",
    "custom_pipelines",
    "custom_code",
    "chat_template",
    "pipeline_class_name",
)
"""Fields that make a reader fetch or run foreign code."""


class ForeignConfig(NamedTuple):
    """A validated config."""

    fields: dict[str, Any]
    """Without CODE_FIELDS."""
    notes: tuple[str, ...]
    """What was ignored, as sentences without a full stop."""
    fault: str = ""
    """What makes the description of a plain ViT unusable: a size outside its range. Other architectures may have it."""


def read_foreign_config(path: Path) -> ForeignConfig:
    """Read a `config.json` of transformers, timm or OpenCLIP.

    Raises:
        DamagedFileError: the file is missing or refused by `parse_json`.
    """
    path = Path(path)
    fields = read_json(path)
    notes: tuple[str, ...] = ()
    if ignored := [name for name in CODE_FIELDS if name in fields]:
        notes = (f"{path} asks for code ({', '.join(ignored)}); that is ignored, no code of a checkpoint is ever run",)
    plain = {name: value for name, value in fields.items() if name not in CODE_FIELDS}
    return ForeignConfig(plain, notes, _find_size_outside(fields, "", path))


def _find_size_outside(fields: Mapping[str, Any], prefix: str, path: Path) -> str:
    """The first known size outside its range, for a message that names field and range; empty if there is none.

    Groups such as vision_config are checked too; `parse_json` limits their depth.
    """
    for name, value in fields.items():
        if isinstance(value, dict):
            if fault := _find_size_outside(value, f"{prefix}{name}.", path):
                return fault
        elif name in FIELD_RANGES and value is not None:  # None: not given
            low, high = FIELD_RANGES[name]
            is_list = isinstance(value, list) and name in LIST_FIELDS and 1 <= len(value) <= 3
            for number in value if is_list else [value]:
                if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
                    return (
                        f"{path}: {prefix}{name} must be a number from {_format_bound(low)} to {_format_bound(high)}. "
                        f"Got {repr(number)[:40]}. Use another copy of the file."
                    )
    return ""


def _format_bound(limit: float) -> str:
    return f"{limit:,}" if math.isclose(limit, round(limit)) else f"{limit:g}"
