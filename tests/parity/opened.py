"""Classifiers as a user of timm or transformers opens them from a folder, with that library's own preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL.Image import Image


class Classifier(NamedTuple):
    """A model of another library."""

    logits: Callable[[Sequence[Image]], np.ndarray]
    """Pictures to [B, K], resized and normalised as that library does it."""
    classes: tuple[str, ...]


def with_timm(folder: Path) -> Classifier:
    """`timm.create_model` and the transform of the folder's own data configuration."""
    import timm
    from timm.data import create_transform, resolve_data_config

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = create_transform(**resolve_data_config({}, model=model))

    def logits(pictures: Sequence[Image]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.stack([transform(picture) for picture in pictures])).numpy()

    return Classifier(logits, tuple(model.pretrained_cfg["label_names"]))


def with_transformers(folder: Path) -> Classifier:
    """`AutoModelForImageClassification` and `AutoImageProcessor`."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder)

    def logits(pictures: Sequence[Image]) -> np.ndarray:
        with torch.inference_mode():
            return model(**processor(images=list(pictures), return_tensors="pt")).logits.numpy()

    return Classifier(logits, tuple(model.config.id2label[k] for k in range(model.config.num_labels)))


CLASSIFIERS = {"timm": with_timm, "transformers": with_transformers}
