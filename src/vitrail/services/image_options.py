"""How a trained model opens files, where that is no part of what it learnt: which page, and how large at most."""

from __future__ import annotations

from collections.abc import Mapping

from .. import config
from ..errors import UsageError
from ..spec import ImageSpec

IMAGE_OPTIONS = ("image.page", "image.max_pixels")
"""Fields that say how a file is opened, not what the model reads."""


def override_image_options(spec: ImageSpec, changes: Mapping[str, str]) -> ImageSpec:
    """The same images from files that are opened in another way.

    Args:
        changes: "image.page" and "image.max_pixels", as text.

    Raises:
        UsageError: any other name, for what an image means to the model was settled by its training.
    """
    for name in changes:
        if name not in IMAGE_OPTIONS:
            raise UsageError(
                f"--{name} was settled when the model was trained. Only --{' and --'.join(IMAGE_OPTIONS)} can be "
                f"said with a "
                "trained model."
            )
    return config.override(spec, {name.removeprefix("image."): text for name, text in changes.items()})
