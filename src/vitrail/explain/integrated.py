"""Integrated gradients: what each pixel adds to a score on the way from an empty picture, and how exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT
from .map import EmptyMapError, Map
from .opening import looking
from .reading import by_patch, grid_of
from .target import Of, chosen, numbers, refuse_features, scores

TRIED = (32, 64, 128, 256)
"""Steps on the way, more and more of them until the gap is small enough."""
GAP = 0.01
"""Largest share of the score's change that may be missing before more steps are tried."""
LOT = 16
"""Pictures in one pass."""


def integrated(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    of: Of = None,
    start: Float[Tensor, "b C H W"] | None = None,
    steps: int | None = None,
) -> Map:
    """Gradients averaged on a straight way from an empty picture, times the change of each pixel.

    Summed over channels for every pixel, and over each patch for the values. All together they are the score less that
    of the empty picture, but for the gap that the sum over steps leaves; the notes tell it. Points and weights of the
    sum are those of Gauss and Legendre.

    Args:
        of: the output to explain, see `target.Of`.
        start: the empty picture, normalised as the images are; None is zeros, the mean of the training pictures.
        steps: points on the way; None takes 32, and twice as many while a gap is above 1 % of the change, up to 256.

    Raises:
        UsageError: an output that the model does not have, no outputs at all, or steps below 1.
        EmptyMapError: a picture equals the empty one.

    Source: Sundararajan, Taly and Yan 2017, section 3.
    """
    refuse_features(model, "integrated")
    if steps is not None and steps < 1:
        raise UsageError(f"steps must be at least 1. Got {steps}.")
    empty = torch.zeros_like(images) if start is None else start.expand_as(images)
    if same := [place + 1 for place, one in enumerate((images == empty).flatten(1).all(1).tolist()) if one]:
        raise EmptyMapError(
            f"Picture {same[0]} of {len(images)} equals the empty picture, so nothing is added on the way."
        )
    with looking(model):
        with torch.no_grad():
            outputs = model(images)
            target = chosen(outputs, of)
            change = (scores(outputs, target) - scores(model(empty), target)).double()  # [B]
        for count in TRIED if steps is None else (steps,):
            pixels = ((images - empty) * _mean_gradient(model, images, empty, target, count)).sum(1)  # [B, H, W]
            gap = (pixels.double().sum((1, 2)) - change).abs()
            if bool((gap <= GAP * change.abs()).all()):
                break
    return Map(
        values=by_patch(pixels, model.config.patch, grid_of(model, images)).numpy(force=True),
        pixels=pixels.numpy(force=True),
        method="integrated",
        of=numbers(target),
        layer="pixels",
        unit="added to the score",
        line="What each patch adds to this score, or takes from it, on the way from an empty picture.",
        scale="signed",
        notes=tuple(_told(*pair, count) for pair in zip(gap.tolist(), change.tolist(), strict=True)),
    )


def _mean_gradient(model: ViT, images: Tensor, empty: Tensor, target: Tensor, steps: int) -> Float[Tensor, "B C H W"]:
    """The gradient of the score, averaged over the way."""
    found = torch.zeros_like(images)
    for part, weights, rows in _points(images, empty, steps):
        part.requires_grad_()
        (gradient,) = torch.autograd.grad(scores(model(part), target[rows]).sum(), part)
        found.index_add_(0, rows, gradient * weights[:, None, None, None])
    return found


def _points(images: Tensor, empty: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pictures on the way, their weights in the sum (1 for each picture in all), and whose way it is; LOT at a time."""
    places, weights = np.polynomial.legendre.leggauss(steps)  # on -1 .. 1
    lots = [(b, i) for i in range(steps) for b in range(len(images))]
    for first in range(0, len(lots), LOT):
        rows = torch.tensor([b for b, _ in lots[first : first + LOT]], device=images.device)
        here = [i for _, i in lots[first : first + LOT]]
        share = torch.tensor((places[here] + 1) / 2, dtype=images.dtype, device=images.device)
        weight = torch.tensor(weights[here] / 2, dtype=images.dtype, device=images.device)
        yield empty[rows] + share[:, None, None, None] * (images[rows] - empty[rows]), weight, rows


def _told(gap: float, change: float, steps: int) -> str:
    share = f"{gap / abs(change):.2%}" if change else f"{gap:.2g}"
    return f"{steps} steps leave a gap of {share} of the score's change, {change:+.3g}."
