"""Test-time augmentation: predictions are averaged over an image, its mirror image, and shifted versions of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DamagedFileError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

MIRROR_KEY, SHIFT_KEY, VERTICAL_KEY = "mirror", "shift", "shift_vertical"
"""Their keys in the notes of a bundle."""


@dataclass(frozen=True)
class TtaViews:
    """The views of test-time augmentation; by default only the image itself.

    Raises:
        UsageError: a negative shift, or a vertical one of 0 pixels.

    Source: Krizhevsky et al. 2012, section 4.1, who averaged over crops and their mirror images.
    """

    flip: bool = False
    """Add the mirror image of every view."""
    shift: int = 0
    """Add the image shifted left and right by this many pixels, with its edge repeated; 0 adds none."""
    vertical: bool = False
    """Add it shifted up and down by as many pixels too."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise UsageError(f"A shift must be 0 or more pixels. Got {self.shift}.")
        if self.vertical and not self.shift:
            raise UsageError("Vertical shifts need a shift of 1 pixel or more. Got 0.")

    @classmethod
    def from_notes(cls, info: Mapping[str, object], where: str) -> TtaViews:
        """Read the views from the notes of a bundle; one without a note of vertical shifts has none.

        Raises:
            DamagedFileError: the shift is no whole number of pixels, 0 or more, or a vertical one does not go with it.
        """
        shift = info.get(SHIFT_KEY, 0)
        if not isinstance(shift, int) or isinstance(shift, bool) or shift < 0:
            raise DamagedFileError(f"{where} notes a shift of {shift!r}; expected a whole number of pixels, 0 or more.")
        vertical = info.get(VERTICAL_KEY, False)
        if not isinstance(vertical, bool) or (vertical and not shift):
            raise DamagedFileError(
                f"{where} notes shift_vertical {vertical!r} and a shift of {shift}; expected true or false, and true "
                "only with a shift above 0."
            )
        return cls(bool(info.get(MIRROR_KEY, False)), shift, vertical)

    def to_notes(self) -> dict[str, object]:
        """As `from_notes` reads them."""
        return {MIRROR_KEY: self.flip, SHIFT_KEY: self.shift, VERTICAL_KEY: self.vertical}

    @property
    def num_views(self) -> int:
        """Number of views."""
        return (2 if self.flip else 1) * (1 + 2 * bool(self.shift) + 2 * self.vertical)

    def check_size(self, height: int, width: int, name: str = "A shift") -> None:
        """Check that every shift leaves a part of images of this size.

        Args:
            name: what the shift is called in the message.

        Raises:
            UsageError: a shift of the whole width or more, or, if vertical, of the whole height.
        """
        for side, length in (("width", width), ("height", height))[: 1 + self.vertical]:
            if self.shift >= length:
                raise UsageError(f"{name} must be below the {side} of the pictures, {length} pixels. Got {self.shift}.")

    def iter_views(self, images: Tensor) -> Iterator[Tensor]:
        """The images [B, C, H, W] themselves, then each other view of all of them.

        Raises:
            UsageError: see `check_size`.
        """
        for moved in (images, *self._shifted_images(images)):
            yield moved
            if self.flip:
                yield moved.flip(-1)

    def _shifted_images(self, images: Tensor) -> tuple[Tensor, ...]:
        import torch.nn.functional as F

        if not self.shift:
            return ()
        H, W = images.shape[-2:]
        self.check_size(H, W)
        wide = F.pad(images, (self.shift, self.shift, 0, 0), mode="replicate")  # [B, C, H, W + 2 shift]
        sideways = wide[..., :W], wide[..., -W:]
        if not self.vertical:
            return sideways
        high = F.pad(images, (0, 0, self.shift, self.shift), mode="replicate")  # [B, C, H + 2 shift, W]
        return (*sideways, high[..., :H, :], high[..., -H:, :])
