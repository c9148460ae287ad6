"""Test-time augmentation: predictions are averaged over an image, its mirror image, and shifted versions of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DamagedFileError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

MIRROR_KEY, SHIFT_KEY = "mirror", "shift"
"""Their keys in the notes of a bundle."""


@dataclass(frozen=True)
class TtaViews:
    """The views of test-time augmentation; by default only the image itself.

    Raises:
        UsageError: a negative shift.

    Source: Krizhevsky et al. 2012, section 4.1, who averaged over crops and their mirror images.
    """

    flip: bool = False
    """Add the mirror image of every view."""
    shift: int = 0
    """Add the image shifted left and right by this many pixels, with its edge repeated; 0 adds none."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise UsageError(f"A shift must be 0 or more pixels. Got {self.shift}.")

    @classmethod
    def from_notes(cls, info: Mapping[str, object], where: str) -> TtaViews:
        """Read the views from the notes of a bundle.

        Raises:
            DamagedFileError: the shift is no whole number of pixels, 0 or more.
        """
        shift = info.get(SHIFT_KEY, 0)
        if not isinstance(shift, int) or isinstance(shift, bool) or shift < 0:
            raise DamagedFileError(f"{where} notes a shift of {shift!r}; expected a whole number of pixels, 0 or more.")
        return cls(bool(info.get(MIRROR_KEY, False)), shift)

    def to_notes(self) -> dict[str, object]:
        """As `from_notes` reads them."""
        return {MIRROR_KEY: self.flip, SHIFT_KEY: self.shift}

    @property
    def num_views(self) -> int:
        """Number of views."""
        return (2 if self.flip else 1) * (3 if self.shift else 1)

    def iter_views(self, images: Tensor) -> Iterator[Tensor]:
        """The images [B, C, H, W] themselves, then each other view of all of them.

        Raises:
            UsageError: a shift of the whole width or more.
        """
        for moved in (images, *self._shifted_images(images)):
            yield moved
            if self.flip:
                yield moved.flip(-1)

    def _shifted_images(self, images: Tensor) -> tuple[Tensor, ...]:
        import torch.nn.functional as F

        if not self.shift:
            return ()
        W = images.shape[-1]
        if self.shift >= W:
            raise UsageError(f"A shift must be below the width of the pictures, {W} pixels. Got {self.shift}.")
        wide = F.pad(images, (self.shift, self.shift, 0, 0), mode="replicate")  # [B, C, H, W + 2 shift]
        return wide[..., :W], wide[..., -W:]
