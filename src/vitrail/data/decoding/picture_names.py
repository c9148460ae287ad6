"""Whether a text names a picture file."""

from __future__ import annotations

import os

from .endings import ENDINGS


def names_picture(text: object) -> bool:
    """Whether a text ends like the name of a picture file."""
    return isinstance(text, str) and os.path.splitext(text.strip().lower())[1] in ENDINGS
