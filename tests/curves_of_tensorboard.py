"""Reads event files with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Curves = dict[str, list[tuple[int, float]]]


def curves(folder: Path) -> Curves:
    """Name -> (step, value) of every point, values as float32 keeps them."""
    read = _read(folder)
    return {
        name: [(event.step, _nearest(event.value)) for event in read.Scalars(name)] for name in read.Tags()["scalars"]
    }


def texts(folder: Path) -> dict[str, str]:
    """Name -> text."""
    read = _read(folder)
    found = {name: read.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in read.Tags()["tensors"]}
    return {name.removesuffix("/text_summary"): text for name, text in found.items()}


def _read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def _nearest(value: float) -> float:
    """The shortest number that is this float32."""
    return float(str(np.float32(value)))
