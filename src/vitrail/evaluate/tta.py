"""The views of a picture that its answer is averaged over: itself, its mirror image, and both a little moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DamagedFileError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

MIRROR_KEY, SHIFT_KEY = "mirror", "shift"
"""What the notes of a bundle call them."""


@dataclass(frozen=True)
class TtaViews:
    """Which views of a picture are looked at; none but the picture itself unless told otherwise.

    Raises:
        UsageError: a negative shift.

    Source: Krizhevsky et al. 2012, section 4.1, who averaged over crops and their mirror images.
    """

    flip: bool = False
    """Every view's mirror image too."""
    shift: int = 0
    """The picture moved left and right by so many pixels too, its edge repeated; 0 moves nothing."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise UsageError(f"A shift must be 0 or more pixels. Got {self.shift}.")

    @classmethod
    def from_notes(cls, info: Mapping[str, object], where: str) -> TtaViews:
        """The views that the notes of a bundle speak of.

        Raises:
            DamagedFileError: they speak of a shift that is not a whole number of pixels, 0 or more.
        """
        shift = info.get(SHIFT_KEY, 0)
        if not isinstance(shift, int) or isinstance(shift, bool) or shift < 0:
            raise DamagedFileError(f"{where} notes a shift of {shift!r}; expected a whole number of pixels, 0 or more.")
        return cls(bool(info.get(MIRROR_KEY, False)), shift)

    def to_notes(self) -> dict[str, object]:
        """What `of` reads."""
        return {MIRROR_KEY: self.flip, SHIFT_KEY: self.shift}

    @property
    def num_views(self) -> int:
        """How many there are."""
        return (2 if self.flip else 1) * (3 if self.shift else 1)

    def iter_views(self, images: Tensor) -> Iterator[Tensor]:
        """Pictures [B, C, H, W] as they are, then each other view of all of them, one after another.

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
