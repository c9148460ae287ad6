"""The parts of a model as rows: what each is, the shape of its output, its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..formatting import format_count
from .config import ViTConfig


class PartRow(NamedTuple):
    """One part of a model."""

    name: str
    """Its name in the model, which begins the names of its parameters."""
    kind: str
    """What it is, such as "12 x Block, ..."; empty if the model does not have it."""
    shape: str
    """Shape of its output, such as "[B, 197, 192]"."""
    parameters: int
    """Trainable numbers."""


def list_parts(config: ViTConfig, parameters: Mapping[str, int]) -> list[PartRow]:
    """Every part in the order of the forward pass; all blocks are one row.

    Args:
        parameters: counts by the names of parameters, or by those of whole parts.
    """
    tokens = f"[B, {config.tokens}, {config.width}]"
    normed = f"[B, {config.tokens}, {config.width * config.pool_blocks}]"
    pooled = config.pooled_width * (2 if config.distillation_head else 1)
    prefix = f" behind {config.describe_prefix}" if config.prefix else ""
    positions: list[str] = [config.positions] * (config.positions != "none")
    positions += ["relative"] * bool(config.relative)
    block = (
        f"{config.depth} x Block: {config.heads} heads of {config.head_dim}, {config.mlp} MLP of {config.mlp_width} "
        f"with {config.activation}"
    )
    pool = "class and distillation token" if config.distillation_head else config.pool
    kinds = {
        "tokens": (f"{config.patches} patches of {config.patch[0]} x {config.patch[1]}{prefix}", tokens),
        "positions": (" and ".join(positions), tokens),
        "rotary": (f"rotary {config.rotary}" * (config.rotary != "none"), ""),
        "encoder.pre_norm": (config.norm * config.pre_norm, tokens),
        "encoder.blocks": (block * bool(config.depth), tokens),
        "encoder.norm": (config.norm * config.final_norm, normed),
        "pool": (
            f"{pool} and {config.norm}" if config.pooled_norm else pool,
            f"[B, {config.input_grid.patches}, {pooled}]" if config.pool == "patches" else f"[B, {pooled}]",
        ),
        "head": ("", "")
        if not config.outputs
        else (
            f"bank of {format_count(config.bank_size, 'patch', 'patches')}" if config.head == "bank" else config.head,
            f"[B, {config.input_grid.patches}, {config.head_outputs}]" if config.is_dense else f"[B, {config.outputs}]",
        ),
    }
    return [
        PartRow(
            name, kind, shape,
            sum(count for part, count in parameters.items() if part == name or part.startswith(f"{name}.")),
        )
        for name, (kind, shape) in kinds.items()
    ]  # fmt: skip


def format_parts(title: str, config: ViTConfig, rows: Sequence[PartRow]) -> str:
    """The sizes of a model in one line, then a line for each part that it has."""
    height, width = config.input_size
    shown = [row for row in rows if row.kind or row.parameters]
    total = sum(row.parameters for row in rows)
    lines = [f"{title}: images [B, {config.channels}, {height}, {width}] -> {shown[-1].shape}, {total:,} parameters"]
    texts = [(row.name, row.kind, row.shape) for row in shown]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for text, row in zip(texts, shown, strict=True):
        name, kind, shape = (word.ljust(size) for word, size in zip(text, widths, strict=True))
        lines.append(f"  {name}  {kind}  {shape}  {row.parameters:>11,}")
    return "\n".join(lines)
