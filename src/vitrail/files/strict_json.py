"""JSON from strangers: its size, depth and number of values are counted before it is parsed, each name stands once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedFileError

MAX_JSON_BYTES = 16 * 2**20
"""Bytes of the longest JSON file that is read; the class names of ImageNet-21k take one sixteenth of it."""
MAX_DEPTH = 64
"""Brackets inside brackets; descriptions of models have about six."""
MAX_MARKS = 500_000
"""Brackets, commas and colons together."""
MAX_DIGITS = 19
"""Digits of the longest whole number, those of 2^63."""


def read_json(path: Path, size: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        DamagedFileError: the file is missing, larger than `size` bytes, or `parse` refuses its text.
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
    """The object that JSON text in UTF-8 spells; `where` opens every message.

    Raises:
        DamagedFileError: not JSON, not an object, nested deeper than DEPTH, more than MARKS values, a name that
            stands twice in one object, NaN or infinity, or a whole number of more than DIGITS digits.
    """
    _check_structure(data, where)
    try:
        found = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except _UnsafeJsonError as error:
        raise DamagedFileError(f"{where} {error}. {_ADVICE}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{where} is not JSON text ({_shorten_error(error)}). {_ADVICE}") from error
    if not isinstance(found, dict):
        raise DamagedFileError(f"{where} must hold a JSON object. Got a {type(found).__name__}. {_ADVICE}")
    return found


class _UnsafeJsonError(Exception):
    """Well-formed JSON that no honest program writes; the text follows the file name."""


_ADVICE = "Use another copy of it."
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},:]', re.DOTALL)
"""A whole string, or one character of structure. It cannot fail inside a string, so that the scan is linear."""


def _check_structure(data: bytes, where: str) -> None:
    """Refuse text that would become too many or too deeply nested objects, without making any."""
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
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _UnsafeJsonError(f"says {twice[:80]!r} twice")
    return found


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


def _shorten_error(error: Exception) -> str:
    return str(error).splitlines()[0][:100] if str(error) else type(error).__name__


# The `config.json` beside foreign weights: bounded before anything is built from it, its code never run.

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
"""Field -> smallest and largest value; the largest published ViT is 6,144 wide and 64 deep."""
LIST_FIELDS = ("image_size", "img_size", "input_size", "patch_size")
"""Fields that may be a list, of two or three numbers; one number per stage is of no plain ViT."""
CODE_FIELDS = (
    "auto_map",
    "trust_remote_code",
    "custom_pipelines",
    "custom_code",
    "chat_template",
    "pipeline_class_name",
)
"""Fields that ask a reader to fetch or run foreign code."""


class ForeignConfig(NamedTuple):
    """A description that has been found plausible."""

    fields: dict[str, Any]
    """Without those of CODE."""
    notes: tuple[str, ...]
    """What was ignored, as sentences without a full stop."""


def read_foreign_config(path: Path) -> ForeignConfig:
    """Read a `config.json` in the manner of transformers, timm or OpenCLIP.

    Raises:
        DamagedFileError: the file is missing, no JSON within the bounds of `json_text`, or a size in it lies outside
            its range; the message names field and range.
    """
    path = Path(path)
    fields = read_json(path)
    _check_ranges(fields, "", path)
    ignored = [name for name in CODE_FIELDS if name in fields]
    notes = (
        [f"{path} asks for code ({', '.join(ignored)}); that is ignored, no code of a checkpoint is ever run"]
        if ignored
        else []
    )
    return ForeignConfig({name: value for name, value in fields.items() if name not in CODE_FIELDS}, tuple(notes))


def _check_ranges(fields: Mapping[str, Any], prefix: str, path: Path) -> None:
    """Every known size, also in the parts such as vision_config; how deep they go is bounded by `json_text`."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _check_ranges(value, f"{prefix}{name}.", path)
        elif name in FIELD_RANGES and value is not None:  # None: not given
            is_list = isinstance(value, list) and name in LIST_FIELDS and 1 <= len(value) <= 3
            for number in value if is_list else [value]:
                _check_number(f"{prefix}{name}", number, FIELD_RANGES[name], path)


def _check_number(name: str, value: Any, bounds: tuple[float, float], path: Path) -> None:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = repr(value)[:40]
        raise DamagedFileError(
            f"{path}: {name} must be a number from {_format_bound(low)} to {_format_bound(high)}. Got {shown}. "
            "Use another copy of the file."
        )


def _format_bound(limit: float) -> str:
    return f"{limit:,}" if math.isclose(limit, round(limit)) else f"{limit:g}"
