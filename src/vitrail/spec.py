"""`ImageSpec`, how images are preprocessed for a model, and `Grid`, the patch grid.

They are on the lowest floor because data, checkpoints, prediction and export all use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from .argument_types import check_construction
from .errors import UsageError

Interpolation = Literal["bicubic", "bilinear"]
ResizeMode = Literal["squash", "crop", "pad"]
CropStart = Literal["down", "even"]
DicomWindowMode = Literal["none", "file"]
BitDepth = Literal[8, 16]
MAX_PIXELS = 50_000_000


class Grid(NamedTuple):
    """Rows and columns of patches, always in this order."""

    rows: int
    columns: int

    @property
    def patches(self) -> int:
        return self.rows * self.columns


@check_construction
@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """Preprocessing of images, the same for training, prediction and export."""

    height: int = 224
    """Rows of pixels that the model reads."""
    width: int = 224
    """Columns of pixels that the model reads."""
    channels: int = 3
    """1 for grey, 3 for RGB; other counts are read from arrays as they are."""
    low: float = 0.0
    """Stored value that becomes black (0); decided once on the training set."""
    high: float = 255.0
    """Stored value that becomes white (255, or 65535 at a bit depth of 16); 65535 for full 16-bit films."""
    bit_depth: BitDepth = 8
    """Bits of a prepared pixel: 8 for levels 0..255, 16 for 0..65535, which films and other deep files need."""
    mean: tuple[float, ...] = (0.5,)
    """Mean per channel in 0..1, subtracted; one number serves all channels."""
    std: tuple[float, ...] = (0.5,)
    """Deviation per channel in 0..1, divided by; one number serves all channels."""
    interpolation: Interpolation = "bicubic"
    """Method of the resize."""
    antialias: bool = True
    """Average over all pixels that a smaller image's pixel covers; families that came from TensorFlow do not."""
    fit: ResizeMode = "squash"
    """squash: both sides to the size; crop: short side to it, then the centre; pad: long side, then a black border."""
    crop_fraction: float = 1.0
    """With crop and squash: the part of the resized sides that is kept; 0.875 resizes to 256, keeps the middle 224."""
    crop_start: CropStart = "down"
    """Where the crop begins after half an odd number: rounded down, as transformers; to even, as torchvision, timm."""
    window: DicomWindowMode = "none"
    """DICOM: file applies the window that each film carries, none leaves the stored values to low and high."""
    page: int = 0
    """Which page of a TIFF or frame of a DICOM file is read, from 1; 0 refuses files that have several."""
    max_pixels: int = MAX_PIXELS
    """Larger images are refused before they are decoded."""

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.channels) < 1:
            raise UsageError(
                "Image height, width and channels must be at least 1. "
                f"Got height={self.height}, width={self.width}, channels={self.channels}."
            )
        if not self.low < self.high:
            raise UsageError(f"The value range must rise. Got low={self.low}, high={self.high}.")
        if not 0.01 <= self.crop_fraction <= 1:
            raise UsageError(f"crop_fraction must lie in 0.01..1. Got {self.crop_fraction}.")
        if self.crop_fraction < 1 and self.fit == "pad":
            raise UsageError(f'crop_fraction={self.crop_fraction} needs fit="crop" or fit="squash". Got fit="pad".')
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise UsageError(
                    f"{name} must hold 1 number or one per channel ({self.channels}). Got {len(values)}: {values}."
                )
        if self.page < 0 or self.max_pixels < 1:
            raise UsageError(
                f"page must be 0 or more and max_pixels 1 or more. Got page={self.page}, max_pixels={self.max_pixels}."
            )
        if not (min(self.std) >= 1e-6 and max(self.std) <= 1e6):
            raise UsageError(f"std must be positive, from 1e-6 to 1e6. Got {self.std}.")
        if not max(map(abs, self.mean)) <= 1e6:
            raise UsageError(f"mean must lie in -1e6..1e6. Got {self.mean}.")

    @cached_property
    def white(self) -> int:
        """The level of white in prepared images: 255 or 65535."""
        return 2**self.bit_depth - 1

    @cached_property
    def dtype(self) -> Literal["uint8", "uint16"]:
        """NumPy's name of the type of prepared images."""
        return "uint8" if self.bit_depth == 8 else "uint16"

    @cached_property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.height, self.width

    @cached_property
    def resize_size(self) -> tuple[int, int]:
        """(height, width) that a resized image must cover (crop) or has (squash) before the centre crop."""
        return int(self.height / self.crop_fraction + 1e-6), int(self.width / self.crop_fraction + 1e-6)

    def map_area(self, height: int, width: int) -> float:
        """How many of an image's own pixels a whole class map covers, the border of `pad` with them."""
        rows, columns = self.resized(height, width)
        return height * width * self.height * self.width / (rows * columns)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) to which an image is resized, before the centre crop or the padding.

        crop: the longer side is truncated, as torchvision and transformers do; where the model's image is not square,
        both sides are rounded, as timm does.
        """
        if self.fit == "squash":
            return self.resize_size
        if self.fit == "crop":
            cover = self.resize_size
            if cover[0] == cover[1]:
                short = min(height, width)
                return cover[0] * height // short, cover[1] * width // short
            scale = max(cover[0] / height, cover[1] / width)
            return max(cover[0], round(height * scale)), max(cover[1], round(width * scale))
        scale = min(self.height / height, self.width / width)
        return min(self.height, max(1, round(height * scale))), min(self.width, max(1, round(width * scale)))

    def start(self, resized: int, side: int) -> int:
        """The first row or column of a resized image that the model sees; negative where the image is padded.

        Padding: an odd pixel goes to the end.
        """
        if resized < side:
            return -((side - resized) // 2)
        return round((resized - side) / 2) if self.crop_start == "even" else (resized - side) // 2
