"""The one resize, crop and normalisation: from decoded pixels to what the ImageSpec describes.

Everything up to `normalise` is uint8, so that a prepared picture is the same bytes wherever it was prepared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from ..spec import ImageSpec, Interpolation
from .decode import decode, to_bytes
from .source import Picture

STRIP = 6
"""A side so many times the other is too long to be drawn in its own shape."""


def prepare(picture: Picture | bytes, spec: ImageSpec) -> UInt8[Tensor, "C h w"]:
    """Decode one picture and fit it to the spec.

    Raises:
        DataError: see `decode`.
    """
    return fit_one(decode(picture, spec), spec)


def fit_one(values: UInt8[np.ndarray, "H W C"], spec: ImageSpec) -> UInt8[Tensor, "C h w"]:
    """Fit one decoded picture to the spec; of a large one no copy is made on the way."""
    return fit(channels_first(values), spec)[0].contiguous()


def channels_first(values: UInt8[np.ndarray, "H W C"]) -> UInt8[Tensor, "1 C H W"]:
    """A view in the layout that is resized fastest."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"])).permute(2, 0, 1)[None]


def prepare_stack(pictures: Shaped[np.ndarray, "B H W"] | Shaped[np.ndarray, "B H W c"], spec: ImageSpec) -> Tensor:
    """Many pictures of one shape at once: uint8 [B, C, h, w], the same bytes as `prepare` of each."""
    values = pictures[..., None] if pictures.ndim == 3 else pictures
    return fit(to_tensor(to_bytes(values, None, spec.channels, spec.low, spec.high)), spec)


def to_tensor(values: UInt8[np.ndarray, "B H W C"]) -> UInt8[Tensor, "B C H W"]:
    """Channels come first, in one block of memory; a copy is made only where the layout or read-only memory asks."""
    return torch.from_numpy(np.require(values.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def fit(images: UInt8[Tensor, "B C H W"], spec: ImageSpec) -> UInt8[Tensor, "B C h w"]:
    """Bring pictures to the spec's size by its way of fitting.

    squash: both sides to the size over the spec's crop_fraction, then the centre. crop: the smallest picture that
    covers the same, then its centre. pad: the largest picture that the size contains, in the middle of black. Odd
    pixels go to the lower right.
    """
    if images.shape[-2:] == spec.size and spec.crop_fraction == 1:
        return images
    if spec.fit == "squash":
        return _centre(resize(images, spec.cover, spec.interpolation, spec.antialias), spec)
    height, width = images.shape[-2:]
    if spec.fit == "crop":
        cover = spec.cover
        scale = max(cover[0] / height, cover[1] / width)
        inner = (max(cover[0], round(height * scale)), max(cover[1], round(width * scale)))
        return _centre(resize(images, inner, spec.interpolation, spec.antialias), spec)
    scale = min(spec.height / height, spec.width / width)
    inner = (min(spec.height, max(1, round(height * scale))), min(spec.width, max(1, round(width * scale))))
    top, left = (spec.height - inner[0]) // 2, (spec.width - inner[1]) // 2
    border = (left, spec.width - inner[1] - left, top, spec.height - inner[0] - top)
    return F.pad(resize(images, inner, spec.interpolation, spec.antialias), border)


def seen(height: int, width: int, spec: ImageSpec) -> tuple[float, float]:
    """How many rows and columns of a picture's own pixels the model's rows and columns stand for.

    squash: as many as the picture has, less what crop_fraction leaves out; a strip that nobody could draw, one side
    more than six times the other, stands for the model's own. crop: less. pad: more, for the border.
    """
    if spec.fit == "squash":
        if max(height, width) > STRIP * min(height, width):
            return float(spec.height), float(spec.width)
        return height * spec.height / spec.cover[0], width * spec.width / spec.cover[1]
    if spec.fit == "crop":
        scale = max(spec.cover[0] / height, spec.cover[1] / width)
    else:
        scale = min(spec.height / height, spec.width / width)
    return spec.height / scale, spec.width / scale


def fit_for_eyes(values: UInt8[np.ndarray, "H W C"], spec: ImageSpec, shorter: int) -> UInt8[np.ndarray, "h w C"]:
    """The part of a picture that the model sees, in the picture's own shape and pixels, never enlarged.

    Args:
        shorter: pixels of its shorter side at most.
    """
    rows, columns = seen(values.shape[0], values.shape[1], spec)
    scale = min(1.0, shorter / min(rows, columns))
    size = max(1, round(rows * scale)), max(1, round(columns * scale))
    wanted = replace(spec, height=size[0], width=size[1], antialias=True)
    return np.ascontiguousarray(fit_one(values, wanted).permute(1, 2, 0).numpy())


def _centre(images: UInt8[Tensor, "B C H W"], spec: ImageSpec) -> UInt8[Tensor, "B C h w"]:
    top, left = (images.shape[-2] - spec.height) // 2, (images.shape[-1] - spec.width) // 2
    return images[:, :, top : top + spec.height, left : left + spec.width].contiguous()


def resize(
    images: UInt8[Tensor, "B C H W"], size: tuple[int, int], interpolation: Interpolation, antialias: bool = True
) -> UInt8[Tensor, "B C h w"]:
    """Resize uint8 pictures; an equal size returns them untouched.

    Antialiased: columns first, then rows, rounding to whole grey levels in between, as Pillow before 13 always did and
    as every published checkpoint was trained. Bilinear stays within 1 grey level of it; bicubic too, but for a few
    values in 100,000, mostly in enlarged pictures, which are 2 away. torchvision's v2 gives the same bytes as this.
    (Pillow 13 goes rows first where that is less work, which on noise moves single pixels by up to 25.)

    Not antialiased: every pixel from the two (bilinear) or four (bicubic) nearest rows and columns, however much
    smaller the picture gets, rounded once. Bilinear, this is what TensorFlow calls resize; its bicubic weighs the
    neighbours a little otherwise (a = -0.5) than torch does (a = -0.75).
    """
    if images.shape[-2:] == size:
        return images
    if not antialias:
        resized = F.interpolate(images.float(), size=size, mode=interpolation, align_corners=False, antialias=False)
        return resized.round_().clamp_(0, 255).to(torch.uint8)
    # channels_last is the fast path, and the plain layout trips over columns of one pixel (torch 2.13)
    images = images.contiguous(memory_format=torch.channels_last)
    return F.interpolate(images, size=size, mode=interpolation, antialias=True).contiguous()


def normalise(images: UInt8[Tensor, "B C H W"], spec: ImageSpec) -> Float[Tensor, "B C H W"]:
    """To float32: 0..255 becomes 0..1, then (x - mean) / std per channel."""
    std = torch.tensor(spec.std, device=images.device).view(1, -1, 1, 1)
    mean = torch.tensor(spec.mean, device=images.device).view(1, -1, 1, 1)
    return images.float().mul_(1 / (255 * std)).sub_(mean / std)
