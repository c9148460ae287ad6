"""How large a described model may be: asked before the first number of it is given memory."""

from __future__ import annotations

from ..errors import DamagedFileError
from ..model.config import ViTConfig

PARAMETERS = 30_000_000_000
"""Numbers of the largest model that is built; the largest published plain ViT has 22 billion."""
TOKENS = 1_048_576
"""Tokens of one picture, a square of 1,024 patches a side."""


def check_budget(config: ViTConfig, where: str) -> None:
    """Refuse a description that nobody meant; `where` (the file) opens the message.

    Raises:
        DamagedFileError: names the field, its range and its value, or how many parameters come out of all of them.
    """
    largest = {
        "image_size": (max(config.image_size), 1_048_576),
        "patch": (max(config.patch), 1_024),
        "channels": (config.channels, 1_024),
        "width": (config.width, 65_536),
        "depth": (config.depth, 256),
        "heads": (config.heads, 1_024),
        "head_width": (config.head_numbers, 65_536),
        "mlp_width": (config.mlp_width, 1_048_576),
        "outputs": (config.outputs, 10_000_000),
        "registers": (config.registers, 1_024),
        "relative": (config.relative, 1_024),
    }
    for name, (value, limit) in largest.items():
        if value > limit:
            raise DamagedFileError(f"{where}: {name} must be at most {limit:,}. Got {value:,}. {_ADVICE}")
    if config.tokens > TOKENS:
        raise DamagedFileError(
            f"{where}: image_size and patch must make at most {TOKENS:,} tokens. Got {config.tokens:,}. {_ADVICE}"
        )
    if (count := _parameters(config)) > PARAMETERS:
        raise DamagedFileError(
            f"{where}: a model may have at most {PARAMETERS:,} parameters. Width, depth, mlp_width and outputs make "
            f"{count:,}. {_ADVICE}"
        )


_ADVICE = "Use another copy of the file."


def _parameters(config: ViTConfig) -> int:
    """The matrices' numbers, without norms and biases."""
    mlp = config.width * config.mlp_width * (2 if config.mlp == "plain" else 3)
    blocks = config.depth * (4 * config.width * config.attention_width + mlp)
    table = config.table_rows * config.width if config.positions != "none" else 0
    return blocks + table + config.patch_numbers * config.width + config.pooled_width * config.outputs
