"""What a model says of one output, as one number a picture: the height of every curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...data.source import Task
from ...model.vit import ViT

Score = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, K], classes [B]) to one number a picture [B]."""


def probability(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The share of the softmax that the class has: for one of K classes."""
    return output(outputs.softmax(dim=1), classes)


def chance(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The label's own probability, whatever the others say: for any of K labels."""
    return output(outputs.sigmoid(), classes)


def output(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The output itself, as the head gives it: for numbers."""
    return outputs.gather(1, classes[:, None])[:, 0]


SCORES: dict[Task, Score] = {"classes": probability, "labels": chance, "number": output}
"""The score of each task."""


@contextmanager
def asked(model: ViT) -> Iterator[None]:
    """Nothing is dropped at random and nothing is kept for gradients; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
