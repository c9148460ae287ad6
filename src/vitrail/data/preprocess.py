"""Preprocess images: resize, crop and normalise to an ImageSpec, and the faster decoding that training may use.

In training, an image is read, cropped to a box if there is one, and resized once; a JPEG is decoded at the largest
reduction that leaves at least as many pixels as the model reads. Everything up to `normalize` is uint8, or uint16 at a
bit depth of 16, so that a preprocessed image is the same bytes wherever it was prepared. torch has few operations on
uint16: batches that are augmented are int32 then, of the same levels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Integer, Shaped, UInt, UInt8
from torch import Tensor

from ..errors import DataError
from ..spec import ImageSpec, Interpolation
from .decoding.decode import convert_image, decode_image, read_file_bytes, to_levels
from .decoding.decoded_image import DecodedImage
from .decoding.jpeg import ReducibleJpeg, choose_reduction, open_reducible_jpeg
from .random_crop import RandomResizedCrop
from .source import ImageInput, Source

TORCH_DTYPES = {"uint8": torch.uint8, "uint16": torch.uint16}
CHECKSUM_TAIL_BYTES = 4096  # bytes at the end of a file that identify its contents


class CropBox(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int
    is_flipped: bool = False
    """Whether the resized crop is flipped horizontally."""


class Preprocessor:
    """Decodes and resizes rows of a source; thread-safe.

    Args:
        cut: a random crop of each image; for training.
        training: allow the reduced decoding, and refuse files that change between two readings.
    """

    def __init__(
        self, source: Source, spec: ImageSpec, random_crop: RandomResizedCrop | None = None, training: bool = False
    ):
        self._images = source.images
        self._spec = spec
        self._random_crop = random_crop
        self._training = training or random_crop is not None
        self._checksums = np.zeros(len(source) if self._training else 0, np.uint64)  # of each row's file, first reading

    def fill_batch(
        self,
        images: UInt[np.ndarray, "B C h w"],
        positions: range,
        rows: Int64[np.ndarray, " B"],
        keys: Int64[np.ndarray, " B"],
        epoch: int,
    ) -> dict[int, DataError]:
        """Write the image of `rows[place]` to `images[place]` for each place; return what cannot be read.

        Args:
            keys: keys of the random crops.
        """
        failed: dict[int, DataError] = {}
        encoded: dict[int, ReducibleJpeg] = {}
        for place in positions:
            try:
                opened = self._open_image(int(rows[place]))
                if isinstance(opened, ReducibleJpeg):
                    encoded[place] = opened
                elif isinstance(opened, Tensor):
                    images[place] = opened.numpy()
                else:
                    box = self._draw_boxes(keys[[place]], epoch, [(opened.shape[0], opened.shape[1])])[0]
                    images[place] = self._crop_and_resize(opened, box)
            except DataError as error:
                failed[place] = error
        sizes = [(jpeg.height, jpeg.width) for jpeg in encoded.values()]
        boxes = self._draw_boxes(keys[list(encoded)], epoch, sizes)  # in one call, which costs as much as for one image
        for (place, jpeg), box in zip(encoded.items(), boxes, strict=True):
            try:
                images[place] = self._decode_reduced(jpeg, box, self._images[int(rows[place])])
            except DataError as error:
                failed[place] = error
        return failed

    def _open_image(self, row: int) -> Integer[Tensor, "C h w"] | ReducibleJpeg | UInt[np.ndarray, "H W C"]:
        """The preprocessed image outside training; in training a JPEG still encoded, or decoded values."""
        image = self._images[row]
        if not self._training:
            return preprocess_image(image, self._spec)
        if isinstance(image, np.ndarray):
            return decode_image(image, self._spec)
        content = read_file_bytes(image) if isinstance(image, Path) else image.fetch()
        if isinstance(content, bytes):
            self._check_unchanged(row, content, image)
            jpeg = open_reducible_jpeg(content, self._spec.max_pixels)
            if jpeg is not None:
                return jpeg
        return _decode_values(content, self._spec, image)

    def _check_unchanged(self, row: int, content: bytes, image: ImageInput) -> None:
        """Refuse a file that changed since it was first read: its label may belong to the old contents."""
        mark = np.uint64(len(content) << 32 | crc32(content[-CHECKSUM_TAIL_BYTES:]))
        if self._checksums[row] not in (0, mark):
            before = int(self._checksums[row]) >> 32
            raise DataError(
                f"{_image_name(image)}: was changed while it was being trained on ({before:,} bytes before, "
                f"{len(content):,} now)."
            )
        self._checksums[row] = mark

    def _draw_boxes(
        self, keys: Int64[np.ndarray, " n"], epoch: int, sizes: list[tuple[int, int]]
    ) -> list[CropBox] | list[None]:
        if self._random_crop is None or not sizes:
            return [None] * len(sizes)
        boxes = self._random_crop.boxes(keys, epoch, np.array(sizes, dtype=np.int64)).tolist()
        return [
            CropBox(*box)._replace(is_flipped=way)
            for box, way in zip(boxes, self._random_crop.draw_flips(keys, epoch).tolist(), strict=True)
        ]

    def _decode_reduced(self, jpeg: ReducibleJpeg, box: CropBox | None, image: ImageInput) -> UInt[np.ndarray, "C h w"]:
        """The JPEG decoded no larger than needed, cut and resized."""
        by = choose_reduction(_oversampling(jpeg, box, self._spec))
        try:
            values = jpeg.decode(by)
        except ValueError:  # the full decoder decides whether it can be used
            return self._crop_and_resize(_decode_values(jpeg.data, self._spec, image), box)
        if box is not None:
            box = scale_box(box, by)
            values = values[box.top : box.top + box.height, box.left : box.left + box.width]
            box = CropBox(0, 0, box.height, box.width, box.is_flipped)
        return self._crop_and_resize(_decode_values(DecodedImage(values, kind="JPEG"), self._spec, image), box)

    def _crop_and_resize(self, values: UInt[np.ndarray, "H W C"], box: CropBox | None) -> UInt[np.ndarray, "C h w"]:
        """Resize the box of decoded values, or fit the whole image."""
        if box is None:
            return fit_array_to_tensor(values, self._spec).numpy()
        cut = values[box.top : box.top + box.height, box.left : box.left + box.width]
        spec = self._spec
        resized = resize_batch(to_channels_first(cut), spec.size, spec.interpolation, spec.antialias)[0].numpy()
        return resized[..., ::-1] if box.is_flipped else resized


def scale_box(box: CropBox, factor: int) -> CropBox:
    """Scale a box to an image whose sides are divided by `factor`, to the nearest pixel."""
    top, left, bottom, right = (
        (2 * edge + factor) // (2 * factor) for edge in (box.top, box.left, box.top + box.height, box.left + box.width)
    )
    return CropBox(top, left, bottom - top, right - left, box.is_flipped)


def _oversampling(jpeg: ReducibleJpeg, box: CropBox | None, spec: ImageSpec) -> float:
    """Ratio of available to needed pixels along the side where it is smaller."""
    if not spec.antialias:  # single pixels are sampled: averaging beforehand would change them
        return 1.0
    if box is not None:
        return min(box.height / spec.height, box.width / spec.width)
    rooms = jpeg.height / spec.resize_size[0], jpeg.width / spec.resize_size[1]
    return max(rooms) if spec.fit == "pad" else min(rooms)


def _decode_values(
    content: bytes | np.ndarray | DecodedImage, spec: ImageSpec, image: ImageInput
) -> UInt[np.ndarray, "H W C"]:
    """Decode with the model's channels and range; an error names the image."""
    try:
        return convert_image(content, spec) if isinstance(content, DecodedImage) else decode_image(content, spec)
    except DataError as error:
        raise DataError(f"{_image_name(image)}: {error}") from error.__cause__


def _image_name(image: ImageInput) -> str:
    return str(image) if isinstance(image, Path | np.ndarray) else image.name


# -- Resize, crop and normalise decoded pixels.

MAX_ASPECT_RATIO = 6
"""Aspect ratio from which an image is not drawn in its own shape."""


def preprocess_image(image: ImageInput | bytes, spec: ImageSpec) -> Integer[Tensor, "C h w"]:
    """Decode one image and fit it to the spec.

    Raises:
        DataError: see `decode_image`.
    """
    return fit_array_to_tensor(decode_image(image, spec), spec)


def fit_array_to_tensor(values: UInt[np.ndarray, "H W C"], spec: ImageSpec) -> Integer[Tensor, "C h w"]:
    """Fit one decoded image to the spec, without a copy of a large one."""
    return fit_images(to_channels_first(values), spec)[0].contiguous()


def to_channels_first(values: UInt[np.ndarray, "H W C"]) -> Integer[Tensor, "1 C H W"]:
    """A view in the layout that torch resizes fastest."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"])).permute(2, 0, 1)[None]


def preprocess_stack(images: Shaped[np.ndarray, "B H W"] | Shaped[np.ndarray, "B H W c"], spec: ImageSpec) -> Tensor:
    """Preprocess images of one shape at once to levels [B, C, h, w], the same bytes as `preprocess_image` of each."""
    values = images[..., None] if images.ndim == 3 else images
    levels = to_levels(values, None, spec.channels, spec.low, spec.high, spec.bit_depth)
    return fit_images(to_batch_tensor(levels), spec)


def to_batch_tensor(values: UInt[np.ndarray, "B H W C"]) -> Integer[Tensor, "B C H W"]:
    """Convert to a tensor [B, C, H, W]; copies only where the layout or read-only memory requires it."""
    return torch.from_numpy(np.require(values.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def fit_images(images: Integer[Tensor, "B C H W"], spec: ImageSpec) -> Integer[Tensor, "B C h w"]:
    """Fit images to the spec's size.

    squash: resize both sides to the size over the spec's crop_fraction, then centre crop. crop: keep the aspect ratio
    and cover that size, then centre crop. pad: keep the aspect ratio inside the size, centred on black; an odd pixel
    goes to the lower right.
    """
    if images.shape[-2:] == spec.size and spec.crop_fraction == 1:
        return images
    inner = spec.resized(images.shape[-2], images.shape[-1])
    if spec.fit != "pad":
        return _center_crop(resize_batch(images, inner, spec.interpolation, spec.antialias), spec)
    top, left = (spec.height - inner[0]) // 2, (spec.width - inner[1]) // 2
    border = (left, spec.width - inner[1] - left, top, spec.height - inner[0] - top)
    return F.pad(resize_batch(images, inner, spec.interpolation, spec.antialias), border)


def fit_mask(mask: UInt8[np.ndarray, "H W"], spec: ImageSpec, border: int) -> UInt8[np.ndarray, "h w"]:
    """Move a mask as `fit_images` moves its image, every pixel from the nearest one.

    Args:
        border: the value beside the image where it is padded.
    """
    size = mask.shape[0], mask.shape[1]
    return _pick_pixels(mask, _inner_places(size, spec), size, border)


def unfit_mask(
    mask: UInt8[np.ndarray, "h w"], size: tuple[int, int], spec: ImageSpec, border: int
) -> UInt8[np.ndarray, "H W"]:
    """The inverse of `fit_mask`: a mask of the model's size as one of the image's, every pixel from the nearest one.

    Args:
        size: height and width of the image.
        border: the value of pixels that the model does not see.
    """
    places = []
    for own, small, side in zip(size, spec.resized(*size), spec.size, strict=True):
        inside = ((2 * np.arange(own) + 1) * small) // (2 * own)
        places.append(inside - spec.start(small, side))
    return _pick_pixels(mask, places, spec.size, border)


def _inner_places(size: tuple[int, int], spec: ImageSpec) -> list[Int64[np.ndarray, " _"]]:
    """The row and column of an image from which each row and column of the model's size comes; outside of it -1."""
    places = []
    for own, small, side in zip(size, spec.resized(*size), spec.size, strict=True):
        inside = np.arange(side) + spec.start(small, side)
        found = ((2 * inside + 1) * own) // (2 * small)
        places.append(np.where((inside >= 0) & (inside < small), found, -1))
    return places


def _pick_pixels(
    mask: UInt8[np.ndarray, "H W"], places: list[Int64[np.ndarray, " _"]], size: tuple[int, int], border: int
) -> UInt8[np.ndarray, "h w"]:
    rows, columns = (np.clip(each, 0, side - 1) for each, side in zip(places, size, strict=True))
    picked = mask[rows[:, None], columns]
    inside = [(each >= 0) & (each < side) for each, side in zip(places, size, strict=True)]
    return np.where(inside[0][:, None] & inside[1], picked, np.uint8(border))


def visible_size(height: int, width: int, spec: ImageSpec) -> tuple[float, float]:
    """Rows and columns of an image's own pixels that the model's rows and columns correspond to.

    squash: those of the image, less what crop_fraction leaves out; the model's own for a strip with one side more than
    six times the other, which is too long to be drawn. crop: fewer. pad: more, for the border.
    """
    if spec.fit == "squash":
        if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            return float(spec.height), float(spec.width)
        return height * spec.height / spec.resize_size[0], width * spec.width / spec.resize_size[1]
    if spec.fit == "crop":
        scale = max(spec.resize_size[0] / height, spec.resize_size[1] / width)
    else:
        scale = min(spec.height / height, spec.width / width)
    return spec.height / scale, spec.width / scale


def crop_for_display(values: UInt[np.ndarray, "H W C"], spec: ImageSpec, shorter: int) -> UInt[np.ndarray, "h w C"]:
    """Crop to the part of an image that the model sees, in its own aspect ratio, never enlarged.

    Args:
        shorter: largest length of the shorter side, in pixels.
    """
    rows, columns = visible_size(values.shape[0], values.shape[1], spec)
    scale = min(1.0, shorter / min(rows, columns))
    size = max(1, round(rows * scale)), max(1, round(columns * scale))
    wanted = replace(spec, height=size[0], width=size[1], antialias=True)
    return np.ascontiguousarray(fit_array_to_tensor(values, wanted).permute(1, 2, 0).numpy())


def _center_crop(images: Integer[Tensor, "B C H W"], spec: ImageSpec) -> Integer[Tensor, "B C h w"]:
    top, left = spec.start(images.shape[-2], spec.height), spec.start(images.shape[-1], spec.width)
    return images[:, :, top : top + spec.height, left : left + spec.width].contiguous()


def resize_batch(
    images: Integer[Tensor, "B C H W"], size: tuple[int, int], interpolation: Interpolation, antialias: bool = True
) -> Integer[Tensor, "B C h w"]:
    """Resize images; an equal size returns them untouched.

    8 bits, antialiased: columns first, then rows, rounding to whole levels in between, as Pillow before 13 always did
    and as every published checkpoint was trained. Bilinear stays within 1 grey level of it; bicubic too, but for a few
    values in 100,000, mostly in enlarged images, which are 2 away. torchvision's v2 gives the same bytes as this.
    (Pillow 13 goes rows first where that is less work, which on noise moves single pixels by up to 25.)

    Not antialiased: every pixel from the two (bilinear) or four (bicubic) nearest rows and columns, however much
    smaller the image gets, rounded once. Bilinear, this is what TensorFlow calls resize; its bicubic weighs the
    neighbours a little otherwise (a = -0.5) than torch does (a = -0.75).

    Deeper images are computed in float64 by the same weights and rounded once to one of 65,536 levels.
    """
    if images.shape[-2:] == size:
        return images
    if not antialias or images.dtype != torch.uint8:
        exact = images.to(torch.float32 if images.dtype == torch.uint8 else float_type(images))
        resized = F.interpolate(exact, size=size, mode=interpolation, align_corners=False, antialias=antialias)
        return resized.round_().clamp_(0, white_level(images)).to(images.dtype)
    # channels_last is the fast path, and the plain layout fails for images of one column (torch 2.13)
    images = images.contiguous(memory_format=torch.channels_last)
    return F.interpolate(images, size=size, mode=interpolation, antialias=True).contiguous()


def normalize(images: Integer[Tensor, "B C H W"], spec: ImageSpec) -> Float[Tensor, "B C H W"]:
    """To float32: 0..255, or 0..65535 at a bit depth of 16, becomes 0..1, then (x - mean) / std per channel."""
    std = torch.tensor(spec.std, device=images.device).view(1, -1, 1, 1)
    mean = torch.tensor(spec.mean, device=images.device).view(1, -1, 1, 1)
    return images.float().mul_(1 / (spec.white * std)).sub_(mean / std)


def white_level(images: Integer[Tensor, "*B C H W"]) -> int:
    """The level of white by the type of images: 255 of uint8, 65535 of uint16 and int32."""
    return 255 if images.dtype == torch.uint8 else 65535


def widen(images: Integer[Tensor, "*B C H W"]) -> Integer[Tensor, "*B C H W"]:
    """uint16 images as int32, on which torch can compute; others are returned unchanged."""
    return images.to(torch.int32) if images.dtype == torch.uint16 else images


def float_type(images: Integer[Tensor, "*B C H W"]) -> torch.dtype:
    """The type in which weighted sums of levels in units of 2**-15 are exact; Apple's GPUs have no float64."""
    return torch.float32 if images.dtype == torch.uint8 or images.device.type == "mps" else torch.float64
