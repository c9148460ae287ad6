"""The handwritten digits that come with scikit-learn: 1,797 pictures of 8 x 8, there without any download."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from ..source import Source

WHITE = 16  # the largest value stored


def open_digits() -> Source:
    """All digits, without an official split; the stored values 0..16 are scaled to 0..255 and rounded.

    Source: E. Alpaydin and C. Kaynak 1998, "Optical Recognition of Handwritten Digits", test part.
    """
    stored, targets = load_digits(return_X_y=True)
    return Source(
        name="digits",
        classes=tuple("0123456789"),
        pictures=np.rint(stored.reshape(-1, 8, 8) * (255 / WHITE)).astype(np.uint8),
        targets=targets.astype(np.int64),
        ids=tuple(f"digits/{row:04d}" for row in range(len(targets))),
    )
