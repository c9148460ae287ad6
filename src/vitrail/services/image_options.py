"""Options for opening image files with a trained model: page and size limit, which are no part of the model."""

from __future__ import annotations

from collections.abc import Mapping

from .. import config
from ..errors import UsageError
from ..spec import ImageSpec

IMAGE_OPTIONS = ("image.page", "image.max_pixels")
"""Fields of `ImageSpec` that may be changed for a trained model."""


def override_image_options(spec: ImageSpec, changes: Mapping[str, str]) -> ImageSpec:
    """The specification with other options for opening files.

    Args:
        changes: "image.page" and "image.max_pixels", as text.

    Raises:
        UsageError: any other name: the other fields were fixed by the training.
    """
    for name in changes:
        if name not in IMAGE_OPTIONS:
            raise UsageError(
                f"--{name} was settled when the model was trained. Only --{' and --'.join(IMAGE_OPTIONS)} can be said "
                "with a trained model."
            )
    return config.override(spec, {name.removeprefix("image."): text for name, text in changes.items()})
