"""Inputs of a plan: the user's request and the fingerprint of the training images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..data.settings import DataSettings
from ..data.source import Task
from ..spec import BitDepth, DicomWindowMode

FEW_IMAGES = 5000
"""Below this, a training of minutes sees each image so often that it can overfit."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """The user's request for a training, made once at the edge; None leaves the choice to the planner."""

    data: DataSettings
    model: str | None = None
    minutes: float | None = None
    epochs: float | None = None
    steps: int | None = None
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    pretrain: bool = False
    weights: str = "auto"
    """A checkpoint; auto takes a recommended one if it is on this machine, none begins from random values."""
    seed: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Plan fields by their dotted names, as text."""


@dataclass(frozen=True)
class DatasetFingerprint:
    """Statistics of the training images that the planner reads."""

    name: str
    num_images: int
    num_classes: int
    height: int
    width: int
    channels: int
    low: float
    high: float
    range_reason: str = ""
    bit_depth: BitDepth = 8
    depth_reason: str = ""
    window: DicomWindowMode = "none"
    window_reason: str = ""
    task: Task = "classification"
    imbalance_ratio: float = 1.0
    """Images of the most frequent class per image of the rarest."""
    has_weights: bool = False
    """Whether the images have loss weights of their own."""


Reasons = dict[str, str]
"""Why a plan field has its value, by dotted name: the comments of plan.toml."""
