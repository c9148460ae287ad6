"""The plan's section [pretrain]: whether, how long and how the encoder learns from pictures without their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import UsageError

HEAD = 32
"""Numbers per head of the decoder."""


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Masked autoencoding (He et al. 2021) before the training; there is none while `share` and `steps` are 0."""

    share: float = 0.0
    """Fraction of the minutes (without minutes: of all steps) spent on masked autoencoding; 0 does none."""
    steps: int = 0
    """Optimiser steps of masked autoencoding; 0 takes as many as `share` allows."""
    pictures: str = ""
    """A folder, or any SOURCE, of further pictures to learn from; labels are not needed and not looked at."""
    batch: int = 0
    """Pictures per step; 0 takes as many as suit their number."""
    mask: float = 0.75
    """Fraction of the patches that are hidden from the encoder and painted by the decoder."""
    decoder_depth: int = 2
    """Blocks of the decoder, which is thrown away afterwards."""
    decoder_width: int = 64
    """Numbers per token of the decoder; a multiple of 32."""
    normalise: bool = True
    """What is to be painted is each patch with its own mean 0 and deviation 1, not the pixels as they are."""
    rate: float = 1.0
    """Learning rates, as a multiple of those of [recipe]."""
    warmup: float = 0.05
    """Fraction of these steps in which the rate rises from 0; then it falls as a cosine."""
    crop_scale: float = 0.5
    """Smallest area of a random part of each picture that is cut out and resized, as a fraction; 0 cuts none out."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError(
                f"pretrain.share must lie in 0 <= fraction < 1: the rest is the training. Got {self.share}."
            )
        if self.steps < 0 or self.batch < 0:
            raise UsageError(f"pretrain.steps and pretrain.batch must be 0 or more. Got {self.steps} and {self.batch}.")
        if not 0 < self.mask < 1:
            raise UsageError(f"pretrain.mask must lie in 0 < fraction < 1. Got {self.mask}.")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"pretrain.warmup must lie in 0 <= fraction < 1. Got {self.warmup}.")
        if not 0 <= self.crop_scale <= 1:
            raise UsageError(f"pretrain.crop_scale must lie in 0..1. Got {self.crop_scale}.")
        if not 0 < self.rate < math.inf:
            raise UsageError(f"pretrain.rate must be above 0: with {self.rate} nothing would be learnt.")
        if self.decoder_depth < 1 or self.decoder_width < HEAD or self.decoder_width % HEAD:
            raise UsageError(
                f"The decoder needs at least one block and a width that is a multiple of {HEAD}. "
                f"Got pretrain.decoder_depth={self.decoder_depth}, pretrain.decoder_width={self.decoder_width}."
            )

    @property
    def wanted(self) -> bool:
        """Whether there is such a phase."""
        return self.share > 0 or self.steps > 0

    def visible(self, patches: int) -> int:
        """How many of a picture's patches the encoder sees: at least one, and never all."""
        return min(max(1, round((1 - self.mask) * patches)), patches - 1)
