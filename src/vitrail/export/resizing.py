"""The resize inside a graph: pictures of any size to that of the model, by two products with weights made on the way.

Antialiased, it computes as the uint8 kernel of `data/transforms` does: whole-numbered weights, columns first, rounded
in between. Sums are made in float32, which now and then turns a value that lies between two grey levels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ..spec import ImageSpec, Interpolation

REACH: dict[Interpolation, float] = {"bilinear": 1.0, "bicubic": 2.0}
"""How far a pixel's weight goes to either side, in pixels of the smaller picture."""
SIXTEEN_BITS = 1 << 15
"""Weights are whole numbers below this."""
BITS = 22
"""Behind the point of a weight, at most."""


class Resizing(nn.Module):
    """uint8 [B, H, W, C] to uint8 [B, H', W', C] of the spec's size, by its way of fitting."""

    def __init__(self, spec: ImageSpec):
        super().__init__()
        self.spec = spec

    def forward(self, images: UInt8[Tensor, "B H W C"]) -> UInt8[Tensor, "B h w C"]:
        x = images.permute(0, 3, 1, 2).float()  # [B, C, H, W]
        rows, columns = (torch.arange(side, dtype=torch.float64) for side in x.shape[-2:])
        height, width = rows[-1] + 1, columns[-1] + 1
        inner = self._inner(height, width)
        x = self._through(x, columns, width, inner[1], self.spec.width)  # [B, C, H, w]
        x = self._through(x.transpose(-1, -2), rows, height, inner[0], self.spec.height)  # [B, C, w, h]
        return x.permute(0, 3, 2, 1).round().clamp(0, 255).to(torch.uint8)

    def _inner(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """The size before the centre is cut out or a border laid around, known only when the graph runs."""
        spec, cover = self.spec, self.spec.cover
        if spec.fit == "squash":
            return torch.full_like(height, cover[0]), torch.full_like(width, cover[1])
        if spec.fit == "crop":
            scale = torch.maximum(cover[0] / height, cover[1] / width)
            return (height * scale).round().clamp(min=cover[0]), (width * scale).round().clamp(min=cover[1])
        scale = torch.minimum(spec.height / height, spec.width / width)
        return (height * scale).round().clamp(1, spec.height), (width * scale).round().clamp(1, spec.width)

    def _through(self, x: Tensor, places: Tensor, old: Tensor, inner: Tensor, size: int) -> Tensor:
        """The last axis, of so many pixels as `places`, resized to `inner` ones of which the middle `size` are kept."""
        shift = ((inner - size) / 2).floor() if self.spec.fit != "pad" else -((size - inner) / 2).floor()
        new = torch.arange(size, dtype=torch.float64) + shift
        if not self.spec.antialias:
            weights = looked_up(new, places, old, inner, self.spec.interpolation)
            return x @ _inside(weights, new, inner).float().T
        all_new = torch.cat([new, torch.zeros_like(inner)[None], inner[None] - 1])  # the largest weights are at an edge
        weights = covering(all_new, places, old, inner, self.spec.interpolation)
        whole, one = whole_numbers(_inside(weights, all_new, inner))
        return (x @ whole[:size].float().T / one + 0.5).floor().clamp(0, 255)


def covering(new: Tensor, places: Tensor, old: Tensor, inner: Tensor, way: Interpolation) -> Float[Tensor, "n N"]:
    """Weights of all old pixels in each new one that covers several; each row sums to 1."""
    scale = old / inner
    wide = scale.clamp(min=1)
    centre = (scale * (new + 0.5))[:, None]
    reach = REACH[way] * wide
    first, beyond = (centre - reach + 0.5).trunc(), (centre + reach + 0.5).trunc()
    weights = _kernel(((places - centre + 0.5) / wide).abs(), way, -0.5) * ((places >= first) & (places < beyond))
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def whole_numbers(weights: Float[Tensor, "n N"]) -> tuple[Tensor, Tensor]:
    """The weights as whole numbers, and what 1 has become: as many bits behind the point as fit 16."""
    powers = 2.0 ** torch.arange(1, BITS + 1, dtype=torch.float64)
    fits = ((weights.max() * powers + 0.5).floor() < SIXTEEN_BITS).to(torch.float64)
    one = 2.0 ** fits.sum()
    scaled = weights * one
    return (scaled.abs() + 0.5).floor() * scaled.sign(), one.float()


def looked_up(new: Tensor, places: Tensor, old: Tensor, inner: Tensor, way: Interpolation) -> Float[Tensor, "n N"]:
    """Weights of the nearest old pixels in each new one; those beyond the edge are the edge."""
    place = (new + 0.5) * (old / inner) - 0.5
    place = place.clamp(min=0) if way == "bilinear" else place
    first, near = place.floor(), int(REACH[way])
    weights = torch.zeros_like(first[:, None] * places)
    for tap in range(1 - near, near + 1):
        weight = _kernel((place - first - tap).abs(), way, -0.75)
        pixel = torch.minimum((first + tap).clamp(min=0), old - 1)
        weights = weights + weight[:, None] * (pixel[:, None] == places)
    return weights


def _inside(weights: Tensor, new: Tensor, inner: Tensor) -> Tensor:
    """Zeros for new pixels of the border that is laid around a picture."""
    return weights * ((new >= 0) & (new < inner))[:, None]


def _kernel(distance: Tensor, way: Interpolation, a: float) -> Tensor:
    """The weight of a pixel so far away."""
    if way == "bilinear":
        return (1 - distance).clamp(min=0)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
