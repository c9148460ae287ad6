"""Answers by the most similar training pictures: what frozen features know before anything is fitted to them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Shaped

from ..data.source import Task

COUNTS = (10, 20, 100)
"""How many neighbours are asked."""
TEMPERATURE = 0.07
CHUNK = 512
SMALLEST = 1e-6


def answers(
    known: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    asked: Float32[np.ndarray, "m P"],
    task: Task,
    outputs: int,
    neighbours: int,
) -> Float32[np.ndarray, "m K"]:
    """The mean of the nearest training targets, each weighed by exp(cosine similarity / 0.07), as a model's outputs.

    They are logarithms of chances for classes, logits for labels, and the mean itself for numbers; a cell of which
    no neighbour knows anything is 0.

    Args:
        targets: class numbers [n] or chances [n, K]; labels 0..1 and numbers float32 [n, K], NaN where unknown.

    Source: Wu et al. 2018, section 3.4; Caron et al. 2021.
    """
    first, queries = (F.normalize(torch.from_numpy(each), dim=1) for each in (known, asked))
    values = torch.from_numpy(targets)
    values = F.one_hot(values, outputs).float() if values.ndim == 1 else values.float()
    known_cells = ~values.isnan()
    filled, parts = torch.where(known_cells, values, 0.0), []
    for start in range(0, len(queries), CHUNK):
        similar, rows = (queries[start : start + CHUNK] @ first.T).topk(min(neighbours, len(first)), dim=1)
        weights = (similar / TEMPERATURE).softmax(1)[..., None] * known_cells[rows]  # [c, k, K]
        parts.append((weights * filled[rows]).sum(1) / weights.sum(1).clamp(min=1e-12))
    mean = torch.cat(parts) if parts else torch.zeros(0, outputs)
    if task == "classes":
        return mean.clamp(min=SMALLEST).log().numpy()
    return (torch.logit(mean, eps=SMALLEST) if task == "labels" else mean).numpy()
