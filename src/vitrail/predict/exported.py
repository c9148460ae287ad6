"""Metadata of exported files: task, classes, preprocessing and names of the outputs. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .. import config
from ..errors import DamagedFileError
from ..spec import ImageSpec

METADATA_PREFIX = "vitrail."
"""Prefix of our keys in a file's metadata."""
INPUT_NAME = "images"
"""The only input: [B, H, W, C], uint8, or uint16 at a bit depth of 16."""
PROBABILITIES, VALUES, LOGITS, DECISIONS, ABSTAINED, DISTANCES, MASKS, CASE_SCORES = (
    "probabilities", "values", "logits", "decisions", "abstained", "distances", "masks", "case_scores",
)  # fmt: skip
ABSTENTION_REASONS = ("", "unsure", "unlike")
"""Reasons of abstention, by their number in the output `abstained`."""
ExportedSize = Literal["model", "any"]
DECISION_NOTE = "Answers by the kept decision {}."
"""Note for answers by another decision than the training's own."""
METADATA_VERSION = 1
"""Increased when older files can no longer be read."""


@dataclass(frozen=True, kw_only=True)
class ExportMetadata:
    """The metadata of an exported file."""

    format: int = METADATA_VERSION
    task: Literal["classification", "multilabel", "regression", "anomaly", "segmentation"]
    classes: tuple[str, ...]
    """Names of the classes, labels or columns, in the order of the outputs."""
    image: ImageSpec
    """How images are preprocessed."""
    size: ExportedSize = "model"
    """model: images come at the model's size; any: the graph resizes them."""
    outputs: tuple[str, ...]
    """Names of the outputs, in order."""
    number_format: str = "float32"
    """Precision of the products."""
    version: str
    """Of Vitrail, which wrote the file."""
    sha256: str
    """Of the weights that were exported."""
    decision: str = ""
    """Name of the kept decision that answers; empty for that of the training."""
    pixel_size: float = 0.0
    """Of segmentation, as `data.pixel_size`."""

    def to_metadata(self) -> dict[str, str]:
        """As a file stores them: each value as JSON."""
        return {f"{METADATA_PREFIX}{name}": json.dumps(value) for name, value in config.write(self).items()}


def list_output_names(task: str, has_distances: bool, has_scores: bool = False) -> tuple[str, ...]:
    """Names of the outputs of a file.

    Args:
        has_distances: whether it computes out-of-distribution distances.
        has_scores: whether it computes attention scores of images in their cases.
    """
    if task == "segmentation":
        return MASKS, ABSTAINED
    names = (VALUES, LOGITS) if task == "regression" else (PROBABILITIES, LOGITS, DECISIONS)
    return (*names, ABSTAINED, *((DISTANCES,) if has_distances else ()), *((CASE_SCORES,) if has_scores else ()))


def parse_metadata(notes: Mapping[str, str], where: str) -> ExportMetadata:
    """Read the metadata of a file.

    Raises:
        DamagedFileError: none of ours, invalid values, or a newer format.
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
        version = values.get("format")
        if isinstance(version, int) and version > METADATA_VERSION:
            raise DamagedFileError(
                f"{where} is of format {version}, expected at most {METADATA_VERSION}. Install a newer vitrail."
            )
        return config.read(ExportMetadata, values, where)
    except ValueError as error:
        raise DamagedFileError(f"What {where} notes cannot be: {error} Export it again.") from error
