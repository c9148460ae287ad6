"""A picture on the page with a few lines below it, as labels and numbers need them."""

from __future__ import annotations

from typing import NamedTuple

from .thumbnails import Kept


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


def shown(image: Kept, path: str, lines: tuple[Line, ...]) -> Shown:
    """A stored thumbnail with its lines."""
    return Shown(image.uri, path, image.small, lines)
