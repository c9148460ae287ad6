"""The plan's section [teacher]: whom the model follows beside the labels, and how far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...errors import UsageError

CNN = "cnn"


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Distillation (Hinton et al. 2015). Without a teacher the other fields have no use and must stay."""

    model: str = ""
    """Whom to follow: a run, a bundle or a weights file with the same outputs; cnn, a small network that is trained
    first on the same pictures; with `kind` features any ViT that can be loaded; empty for nobody."""
    kind: Literal["logits", "features"] = "logits"
    """logits: its answers are in the loss; features: before the training the model learns to give its features."""
    weight: float = 0.5
    """Part of the loss that follows its answers; the labels have the rest."""
    temperature: float = 2.0
    """Both answers are softened by this factor before they are compared."""
    share: float = 0.0
    """Fraction of the minutes (without minutes: of all steps) for what comes first: training the CNN, or learning
    features."""
    steps: int = 0
    """Steps of what comes first; 0 takes as many as `share` allows."""
    width: int = 24
    """Channels of the CNN's first stage; the second and third have two and four times as many."""

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise UsageError(f"teacher.weight must lie in 0 < share <= 1. Got {self.weight}.")
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"teacher.temperature must be above 0. Got {self.temperature}.")
        if not 0 <= self.share < 1:
            raise UsageError(
                f"teacher.share must lie in 0 <= fraction < 1: the rest is the training. Got {self.share}."
            )
        if self.steps < 0 or self.width < 1:
            raise UsageError(
                f"teacher.steps must be 0 or more and teacher.width at least 1. Got {self.steps} and {self.width}."
            )

    @property
    def wanted(self) -> bool:
        """Whether there is one."""
        return bool(self.model)

    @property
    def first(self) -> bool:
        """Whether something comes before the training."""
        return self.wanted and (self.model == CNN or self.kind == "features")
