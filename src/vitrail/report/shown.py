"""A picture on the page with a few lines below it, as labels and numbers need them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import thumbnails


class Line(NamedTuple):
    """One line below a picture; only the name is set in bold."""

    before: str
    name: str
    after: str = ""
    wrong: bool = False


class Shown(NamedTuple):
    """One picture."""

    uri: str
    path: str
    small: bool
    """Drawn with sharp pixels."""
    lines: tuple[Line, ...]

    @property
    def alt(self) -> str:
        """What a screen reader says."""
        return ", ".join(f"{line.before} {line.name}{line.after}".strip() for line in self.lines)


def shown(image: np.ndarray, path: str, lines: tuple[Line, ...]) -> Shown:
    """A stored thumbnail, uint8 [H, W, C], with its lines."""
    return Shown(thumbnails.data_uri(image), path, max(image.shape[:2]) < thumbnails.SHARP, lines)
