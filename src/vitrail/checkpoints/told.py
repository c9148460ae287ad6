"""What a file cannot say about itself: told by the caller, by the config.json beside it, or by the family's card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..model.config import Pool
from .cards import card

Match = Literal["original", "timm", "transformers"]


@dataclass(frozen=True, kw_only=True)
class Told:
    """Everything that a layout's `describe` may ask beside the tensors."""

    heads: int | None = None
    """Attention heads; to be compared with what the file says, or used where it says nothing."""
    image_size: tuple[int, int] | None = None
    """The picture size that the caller wants. Where a file tells its own, `describe` gives that one, and the engine
    resamples the positions afterwards; where the file cannot say, this is the file's own."""
    channels: int | None = None
    """Channels of the file's pictures; None where the file tells them and they are to be adapted afterwards."""
    pool: Pool | None = None
    """The pooling that the caller wants; the engine replaces it afterwards where `describe` gives another."""
    match: Match | None = None
    """Whose numerics: the authors', or those that timm or transformers run; the layout's own where nobody said."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ViTConfig that the caller says; the engine lays them over what `describe` gives."""
    foreign: Mapping[str, Any] = field(default_factory=dict)
    """The config.json beside the file, or nothing."""

    def numerics(self, name: str) -> dict[str, Any]:
        """The fields of ViTConfig on the card of that name for this match, and over them those that the caller says."""
        return {**card(name).numerics(self.match), **self.settings}
