"""The training pictures as the plan must know them, read as far as somebody has said how to read them."""

from __future__ import annotations

from collections.abc import Mapping

from ... import config
from ...data.settings import DataSettings
from ...spec import ImageSpec
from ..dataset import Dataset
from ..plan import Plan
from .fingerprint import fingerprint
from .wishes import Fingerprint

SAID = ("image.window", "image.page", "image.max_pixels")
OWN_RANGE = ("image.window", "image.low", "image.high")
"""Whoever sets one of these, or data.range, means stored values: no film's own window is put before them."""


def look(dataset: Dataset, settings: DataSettings, overrides: Mapping[str, str], seed: int) -> Fingerprint:
    """What the training pictures are like.

    Args:
        overrides: the plan's fields that were asked for, by their dotted names.

    Raises:
        DataError: none of the sampled pictures can be read.
    """
    said = {name: text for name, text in overrides.items() if name in SAID}
    spec: ImageSpec = config.override(Plan(), said).image
    choose = settings.range == "auto" and not any(name in overrides for name in OWN_RANGE)
    return fingerprint(dataset.source, dataset.splits["train"], seed, spec, settings.range, choose_window=choose)
