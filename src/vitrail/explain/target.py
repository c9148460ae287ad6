"""Which output of a model is explained, picture by picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT

Of = int | Sequence[int] | None
"""One output for all pictures, one for each, or None: the largest of each."""


def chosen(outputs: Float[Tensor, "B K"], of: Of) -> Int[Tensor, " B"]:
    """The number of the output that each picture's map explains.

    Raises:
        UsageError: an output that the model does not have, or not one number per picture.
    """
    pictures, count = outputs.shape
    if of is None:
        return outputs.detach().argmax(1)
    numbers = [of] * pictures if isinstance(of, int) else list(of)
    if len(numbers) != pictures:
        raise UsageError(f"One output to explain per picture is needed, {pictures}. Got {len(numbers)}.")
    if wrong := sorted({int(number) for number in numbers if not 0 <= number < count}):
        raise UsageError(f"The model has outputs 0 to {count - 1}. Got {', '.join(map(str, wrong))} to explain.")
    return torch.tensor(numbers, device=outputs.device)


def scores(outputs: Float[Tensor, "B K"], of: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The explained output of each picture: a logit, or a number as it was learnt."""
    return outputs.gather(1, of[:, None])[:, 0]


def refuse_features(model: ViT, method: str) -> None:
    """Raise UsageError if the model has no outputs, only features, of which none is there to explain."""
    if not model.config.outputs:
        raise UsageError(
            f"{method} explains an output, and this model has none: it gives features. Choose attention, rollout or "
            "similarity, or train a head on it first."
        )


def numbers(of: Int[Tensor, " B"]) -> tuple[int, ...]:
    """As plain values."""
    return tuple(int(number) for number in of.tolist())
