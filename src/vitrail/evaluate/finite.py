"""Answers that are numbers, which everything measured rests on."""

from __future__ import annotations

import numpy as np

from ..errors import DataError


def refuse_not_finite(answers: np.ndarray) -> None:
    """Refuse to measure answers that are no numbers.

    Raises:
        DataError: how many there are.
    """
    if bad := int(np.count_nonzero(~np.isfinite(answers))):
        raise DataError(
            f"{bad:,} of {answers.size:,} answers are NaN or infinite, so they cannot be measured. The model is "
            "damaged or has diverged; train it again with lower rates."
        )
