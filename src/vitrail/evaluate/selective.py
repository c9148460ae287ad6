"""What a model is worth if it may stay silent: the error of its answers by the share of pictures it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from ..errors import UsageError


@dataclass(frozen=True)
class RiskCoverage:
    """Pictures in the order of their confidence, the surest first; where several are equally sure, their mean error."""

    coverage: Float64[np.ndarray, " n"]
    """Shares of pictures answered, 1/n to 1."""
    risk: Float64[np.ndarray, " n"]
    """Mean error of those."""

    @property
    def area(self) -> float:
        """Mean risk over all coverages (AURC); the lower the better."""
        return float(self.risk.mean())

    @property
    def excess(self) -> float:
        """That area less what the best order of the same errors would have (E-AURC): 0 if confidence knows its errors.

        Source: Geifman, Uziel and El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep neural classifiers".
        """
        n = len(self.risk)
        wrong = round(float(self.risk[-1]) * n)  # errors of 0 and 1, which is what this is for
        best = np.maximum(0, np.arange(1, n + 1) - (n - wrong)) / np.arange(1, n + 1)
        return self.area - float(best.mean())

    def coverage_at(self, risk: float) -> float:
        """The largest share of pictures that can be answered with at most this mean error; 0 if none can."""
        fits = np.flatnonzero(self.risk <= risk)
        return float(self.coverage[fits[-1]]) if len(fits) else 0.0

    def risk_at(self, coverage: float) -> float:
        """Mean error if this share of pictures is answered, at least one."""
        return float(self.risk[max(0, int(np.ceil(coverage * len(self.risk) - 1e-9)) - 1)])


def risk_coverage(confidences: Float[np.ndarray, " n"], errors: Float[np.ndarray, " n"]) -> RiskCoverage:
    """Risk by coverage.

    Args:
        errors: of each answer, 0 or 1 for classes.

    Raises:
        UsageError: no pictures, or a confidence that is no finite number.

    Source: El-Yaniv and Wiener 2010, "On the foundations of noise-free selective classification".
    """
    if not len(confidences) or not np.isfinite(confidences).all():
        raise UsageError(f"Risk by coverage needs finite confidences. Got {len(confidences)} pictures.")
    order = np.argsort(-confidences, kind="stable")
    _, numbers, sizes = np.unique(-confidences[order], return_inverse=True, return_counts=True)
    means = np.bincount(numbers, errors[order].astype(np.float64)) / sizes  # of those equally sure
    n = np.arange(1, len(order) + 1)
    return RiskCoverage(coverage=n / len(order), risk=np.cumsum(means[numbers]) / n)
