"""How a training begins: from random values, or from a checkpoint whose features are probed first and then tuned."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ...errors import UsageError

Method = Literal["probe", "full", "lora"]
ChannelsPolicy = Literal["none", "sum", "mean", "tile"]
ONLY_FOR: dict[str, tuple[Method, ...]] = {
    "frozen_blocks": ("full",),
    "layer_decay": ("full", "lora"),
    "lora_rank": ("lora",),
    "lora_mlp": ("lora",),
    "average": ("full", "lora"),
}
"""Fields that mean nothing with another method."""

MOST_JUDGED = 5000
"""Validation pictures on which the start, the tuned weights and their means are compared; where there are more, the
best of them and the start are compared on all."""


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """What the weights are at the first step. Without a checkpoint the other fields have no use and must stay."""

    weights: str = "none"
    """A weights file, folder, bundle, run or hf:OWNER/NAME; none begins from random values."""
    digest: str = ""
    """Beginning of the SHA-256 of its tensors as they were read, so that a plan never follows another file; empty for
    any."""
    channels_policy: ChannelsPolicy = "none"
    """How a checkpoint of another number of channels is adapted: sum, mean or tile; none refuses it."""
    method: Method = "full"
    """After the linear probe, which becomes the head: probe trains no more; full tunes the blocks above
    `frozen_blocks`; lora tunes adapters beside the matrices, which then become part of them."""
    frozen_blocks: int = 0
    """So many of the first blocks, and the embeddings below them, stay as they are; 0 tunes everything."""
    layer_decay: float = 1.0
    """Every block learns at this fraction of the rate of the block above it."""
    lora_rank: int = 8
    """Rank of each adapter."""
    lora_mlp: bool = False
    """Adapters on the matrices of the MLPs too."""
    average: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """Shares of the tuned weights in the means with the start that are tried on the validation pictures; the start
    itself, 0, always is."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise UsageError('start.weights must name a checkpoint or be "none". Got nothing.')
        if self.frozen_blocks < 0:
            raise UsageError(f"start.frozen_blocks must be 0 or more. Got {self.frozen_blocks}.")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"start.layer_decay must lie in 0 < fraction <= 1. Got {self.layer_decay}.")
        if self.lora_rank < 1:
            raise UsageError(f"start.lora_rank must be at least 1. Got {self.lora_rank}.")
        if not self.average or not all(0 < share <= 1 for share in self.average):
            raise UsageError(
                "start.average must list shares of the tuned weights, one or more in 0 < share <= 1. "
                f"Got {self.average or 'none, with which the training would be for nothing'}."
            )
        if self.weights == "none" and any(vars(self)[one.name] != one.default for one in fields(self)):
            raise UsageError(
                "Fields of [start] only have a meaning with a checkpoint, and start.weights is none. "
                "Give one by --weights, or leave the fields out."
            )
        for one in fields(self):
            methods = ONLY_FOR.get(one.name, (self.method,))
            if self.method not in methods and getattr(self, one.name) != one.default:
                raise UsageError(
                    f"start.{one.name} has no meaning with start.method {self.method}. "
                    f"Leave it out, or give --start.method {' or '.join(methods)}."
                )

    @property
    def from_checkpoint(self) -> bool:
        """Whether there is a checkpoint."""
        return self.weights != "none"
