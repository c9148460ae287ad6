"""What an exported file says about itself: whose answers it gives, to which images, and what its numbers are called.

Nothing here needs torch, so that a file can be opened without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .. import config
from ..errors import DamagedFileError
from ..spec import ImageSpec

METADATA_PREFIX = "vitrail."
"""Before every name in a file's notes."""
INPUT_NAME = "images"
"""The only input: uint8 [B, H, W, C]."""
PROBABILITIES, VALUES, LOGITS, DECISIONS, ABSTAINED, DISTANCES = (
    "probabilities", "values", "logits", "decisions", "abstained", "distances",
)  # fmt: skip
ABSTENTION_REASONS = ("", "unsure", "unlike")
"""Why an image is not answered, by the number that stands in `abstained`."""
ExportedSize = Literal["model", "any"]
METADATA_VERSION = 1
"""Raised when files of an older version can no longer be read as they are."""


@dataclass(frozen=True, kw_only=True)
class ExportMetadata:
    """The notes of an exported file."""

    format: int = METADATA_VERSION
    task: Literal["classes", "labels", "number"]
    classes: tuple[str, ...]
    """Names of the classes, labels or columns, in the order of the outputs."""
    image: ImageSpec
    """How an image is brought to the model."""
    size: ExportedSize = "model"
    """model: images come at the model's size; any: the graph resizes them."""
    outputs: tuple[str, ...]
    """Names of the outputs, in order."""
    number_format: str = "float32"
    """In which the model computes."""
    version: str
    """Of Vitrail, which wrote the file."""
    sha256: str
    """Of the weights that were exported."""

    def to_metadata(self) -> dict[str, str]:
        """As a file keeps them: words, each value as JSON."""
        return {f"{METADATA_PREFIX}{name}": json.dumps(value) for name, value in config.write(self).items()}


def list_output_names(task: str, has_distances: bool) -> tuple[str, ...]:
    """Names of the outputs of a file.

    Args:
        has_distances: whether it knows how far images lie from those of the training.
    """
    answers = (VALUES, LOGITS) if task == "number" else (PROBABILITIES, LOGITS, DECISIONS)
    return (*answers, ABSTAINED, *((DISTANCES,) if has_distances else ()))


def parse_metadata(notes: Mapping[str, str], where: str) -> ExportMetadata:
    """What a file has noted.

    Raises:
        DamagedFileError: nothing, something that cannot be, or what only a newer version writes.
    """
    ours = {
        name.removeprefix(METADATA_PREFIX): text for name, text in notes.items() if name.startswith(METADATA_PREFIX)
    }
    if not ours:
        raise DamagedFileError(
            f"{where} says nothing of its classes and pictures, so Vitrail has not written it. Give a file that "
            "`vitrail export` made."
        )
    try:
        values = {name: json.loads(text) for name, text in ours.items()}
        found = values.get("format")
        if isinstance(found, int) and found > METADATA_VERSION:
            raise DamagedFileError(
                f"{where} is of format {found}, expected at most {METADATA_VERSION}. Install a newer vitrail."
            )
        return config.read(ExportMetadata, values, where)
    except ValueError as error:
        raise DamagedFileError(f"What {where} notes cannot be: {error} Export it again.") from error
