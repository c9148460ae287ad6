"""Inputs of a plan: the user's request and the fingerprint of the training images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import config
from ..data.settings import DataSettings
from ..data.source import Task
from ..runtime import RuntimeSettings
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


def request_to_json(request: TrainRequest, settings: RuntimeSettings) -> dict[str, Any]:
    """A request and its runtime settings in JSON types, for `request_from_json`."""
    fields: dict[str, Any] = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    fields |= {"data": config.write(request.data), "overrides": dict(request.overrides)}
    return {"wishes": fields, "settings": config.write(settings)}


def request_from_json(stored: Mapping[str, Any], where: str) -> tuple[TrainRequest, RuntimeSettings]:
    """The request and settings of `request_to_json`; `where` names their file in messages."""
    fields = dict(stored["wishes"])
    data, size = config.read(DataSettings, fields.pop("data"), where), fields.pop("image_size")
    request = TrainRequest(data=data, image_size=None if size is None else tuple(size), **fields)
    return request, config.read(RuntimeSettings, stored["settings"], where)


@dataclass(frozen=True)
class DatasetFingerprint:
    """Statistics of the training images that the planner reads."""

    name: str
    num_images: int
    num_classes: int
    height: int
    width: int
    """Both are medians."""
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
    aspects: tuple[float, float] = (1.0, 1.0)
    """Width over height, 5th and 95th percentile."""


Reasons = dict[str, str]
"""Why a plan field has its value, by dotted name: the comments of plan.toml."""
