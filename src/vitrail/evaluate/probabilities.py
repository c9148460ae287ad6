"""Logits to probabilities, in float64; no torch, so that stored predictions are read without it."""

from __future__ import annotations

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row, computed in float64, returned as float32 [n, K]."""
    if not logits.size:
        return logits.astype(np.float32)
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).astype(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Sigmoid of each logit, computed in float64, returned as float32 [n, K]."""
    from scipy.special import expit

    return np.asarray(expit(logits.astype(np.float64))).astype(np.float32)
