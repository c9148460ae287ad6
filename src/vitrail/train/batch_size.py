"""The batch size for so many pictures."""

from __future__ import annotations

import math


def batch_for(count: int) -> int:
    """Pictures per step for so many of them: about a twelfth, a power of two of 16 to 128."""
    return min(128, max(16, 2 ** round(math.log2(max(count, 1) / 12))))
