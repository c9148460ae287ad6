"""What all files in transformers' naming share: the config.json beside them, their blocks, and how heads are known.

transformers writes a model under two kinds of names: those of the files on the Hub, which `save_pretrained` still
writes, and since its version 5 those of the modules in memory (`state_dict()`, `save_original_format=False`). A family
states both tables; what a config.json leaves out means the default of the class that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import DamagedFileError
from ..cards import card
from ..layouts import Name, Parts, Rule
from ..shapes import agree, given, has, picture_size, vote
from ..steps import STACK
from ..told import Told

ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_python": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "gelu_python_tanh": "GELUTanh",
    "quick_gelu": "QuickGELU",
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "silu": "SiLU",
    "swish": "SiLU",
    "mish": "Mish",
    "tanh": "Tanh",
}
"""transformers' words for activations, and ours."""
OURS = "encoder.blocks.{i}."
"""What stands before our names inside a block."""


FILE_QKV = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
"""The three projections inside a block, as files call them."""
MEMORY_QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
"""The same in memory."""


@dataclass(frozen=True)
class Settings:
    """A config.json of transformers, or the default of its class where it says nothing."""

    said: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def count(self, name: str) -> int:
        """A whole number above 0.

        Raises:
            DamagedFileError: it is something else.
        """
        value = self._value(name)
        if type(value) is not int or value < 1:
            raise DamagedFileError(f"config.json must say {name} as a whole number above 0. Got {value!r}.")
        return value

    def number(self, name: str) -> float:
        """A number above 0.

        Raises:
            DamagedFileError: it is something else.
        """
        value = self._value(name)
        if type(value) not in (int, float) or not value > 0:
            raise DamagedFileError(f"config.json must say {name} as a number above 0. Got {value!r}.")
        return float(value)

    def pair(self, name: str) -> tuple[int, int]:
        """(height, width), which config.json may say as one number.

        Raises:
            DamagedFileError: it is something else.
        """
        value = self._value(name)
        both = [value, value] if type(value) is int else value
        if not isinstance(both, list | tuple) or len(both) != 2 or any(type(n) is not int or n < 1 for n in both):
            raise DamagedFileError(f"config.json must say {name} as one or two whole numbers. Got {value!r}.")
        return both[0], both[1]

    def activation(self, name: str) -> str:
        """An activation, by our word.

        Raises:
            DamagedFileError: it is not one of those known here.
        """
        value = self._value(name)
        if value not in ACTIVATIONS:
            raise DamagedFileError(
                f"config.json says {name}={value!r}, an activation that is not known here: {', '.join(ACTIVATIONS)}."
            )
        return ACTIVATIONS[value]

    def _value(self, name: str) -> Any:
        return self.said.get(name, self.defaults[name])


def settings(told: Told, defaults: Mapping[str, Any]) -> Settings:
    """What stands beside the file about its picture model; a file of pictures and words says it one level deeper."""
    inner = told.foreign.get("vision_config")
    return Settings(inner if isinstance(inner, dict) else told.foreign, defaults)


def block_rules(theirs: str, parts: Mapping[str, str], qkv: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Rules for everything inside the blocks that lie under `theirs`.{i}.

    Args:
        parts: their names inside a block -> ours.
        qkv: their three projections, whose weights and biases in this order make our joint one.
    """
    named = (Name(f"{theirs}.{{i}}.{name}", OURS + part) for name, part in parts.items())
    three = tuple(f"{theirs}.{{i}}.{name}.{{p}}" for name in qkv)
    return (*named, Parts(three, (OURS + "attention.qkv.{p}",), STACK))


def numerics(told: Told, beside: Settings, card_name: str, gated: bool = False) -> dict[str, Any]:
    """Settings that no tensor tells: norm_eps, activation, resample and perhaps pool, as `match` asks.

    A config.json beside the file says what transformers runs; asked for another code's numbers, it does not count.

    Args:
        gated: the MLP has a gate, which everywhere goes with SiLU.
    """
    match = told.match or "transformers"
    known = card(card_name).numerics(match) | ({"activation": "SiLU"} if gated else {})
    if told.foreign and match == "transformers":
        known["norm_eps"] = beside.number("layer_norm_eps")
        known["activation"] = beside.activation("hidden_act")
    return known


def heads(told: Told, beside: Settings, width: int, published: Mapping[int, int]) -> int:
    """Attention heads: config.json says them, else the caller, else the published size of that width.

    Raises:
        UsageError: nobody says them, or the caller contradicts config.json.
    """
    if told.foreign:
        return agree(told.heads, beside.count("num_attention_heads"), "heads", "config.json")
    sizes = ", ".join(f"{width} wide {count}" for width, count in published.items())
    known = published.get(width) if told.heads is None else told.heads
    return given(known, "heads", "transformers without its config.json", f"published sizes have: {sizes}")


def table_size(
    rows: int, prefix: int, patch: tuple[int, int], told: Told, beside: Settings, source: str
) -> tuple[int, int]:
    """The picture size that a learned table belongs to.

    Args:
        rows: of the table.
        prefix: how many of them belong to the class and distillation tokens.
        source: the table's name, for messages.

    Raises:
        DamagedFileError: config.json says a size that the table does not have.
        UsageError: the rows fill no square and no size was given that they fill.
    """
    patches = rows - prefix
    if told.foreign and "image_size" in beside.defaults:
        size = beside.pair("image_size")
        if _patches(size, patch) != patches:
            raise DamagedFileError(
                f"config.json says image_size={size}, {_patches(size, patch)} patches of {patch[0]}x{patch[1]}, but "
                f"{source} has {rows} rows, {patches} of them for patches. One of the two files is not this model's."
            )
        return size
    return picture_size(patches, patch, told, source)


def outputs(tensors: Mapping[str, Tensor], *patterns: str) -> int:
    """How many outputs the classifiers among the patterns have (`{p}` stands for weight and bias); 0 without any."""
    classifiers = [name for name in patterns if "classifier" in name]
    return vote(tensors, "number of outputs", *((name, 0) for name in classifiers)) if has(tensors, *classifiers) else 0


def _patches(size: tuple[int, int], patch: tuple[int, int]) -> int:
    return (size[0] // patch[0]) * (size[1] // patch[1])
