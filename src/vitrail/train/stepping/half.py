"""float16 ends at 6e-8: losses are multiplied before the backward pass so that small gradients are not lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

FIRST, LARGEST = 2.0**16, 2.0**24
STEPS_TO_GROW = 2000


class LossScale:
    """What the loss is multiplied with: half as much after gradients that overflowed, twice after 2,000 that did not.

    All optimisers step or none does; torch's GradScaler asks each by itself.
    Source: Micikevicius et al. 2018, section 3.2.
    """

    def __init__(self) -> None:
        self.factor = FIRST
        """A power of two, so that to multiply by it and to divide again changes no digit."""
        self._good = 0

    def divide(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the factor out of the gradients again."""
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / self.factor)

    def note(self, overflowed: bool) -> None:
        """Learn from a step whether its gradients overflowed."""
        self._good = 0 if overflowed else self._good + 1
        if overflowed:
            self.factor = max(1.0, self.factor / 2)
        elif self._good == STEPS_TO_GROW:
            self.factor, self._good = min(LARGEST, self.factor * 2), 0

    def remembered(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"factor": self.factor, "good": self._good}

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Take over what `remembered` gave."""
        self.factor, self._good = float(facts["factor"]), int(facts["good"])
