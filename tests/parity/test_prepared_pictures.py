"""Pictures of every shape are prepared as timm, transformers and torchvision prepare them, to the pixel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
import transformers
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

from vitrail.checkpoints.foreign_folder import ForeignFolder
from vitrail.checkpoints.image_spec import make_image_spec
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.data.preprocess import preprocess_image
from vitrail.model.config import ViTConfig
from vitrail.spec import ImageSpec

SIDE = 57
CONFIG = ViTConfig(image_size=(SIDE, SIDE), patch=(19, 19), outputs=2)
SHAPES = [tuple(shape) for shape in np.random.default_rng(0).integers(SIDE, 180, (40, 2)).tolist()]
"""Heights and widths; of half of them the longer side is not a whole number of pixels after the resize."""
MOST = 0.5 / 255
"""Half a grey level, in the mean of noise, in which a row or column more or less is tens of levels away. Pillow clips
other values in between than torch."""


def spec_of(config: dict[str, Any], preprocessor: dict[str, Any] | None = None) -> ImageSpec:
    folder = ForeignFolder(path=Path("folder"), config=config, preprocessor=preprocessor or {})
    return make_image_spec(CONFIG, None, LayoutHints(), folder)[0]


def mean_difference(spec: ImageSpec, theirs: Callable[[Image.Image], torch.Tensor]) -> float:
    """Of the values 0..1 of a picture, the largest of all shapes."""
    generator = np.random.default_rng(1)
    worst = 0.0
    for height, width in SHAPES:
        picture = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        ours = preprocess_image(picture, spec).float() / 255
        worst = max(worst, float((theirs(Image.fromarray(picture)) - ours).abs().mean()))
    return worst


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("fraction", [0.875, 0.9, 0.95, 0.97, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_timm(mode: str, fraction: float, interpolation: str) -> None:
    described: dict[str, Any] = {"crop_pct": fraction, "crop_mode": mode, "interpolation": interpolation}
    theirs = timm.data.create_transform(input_size=(3, SIDE, SIDE), mean=(0, 0, 0), std=(1, 1, 1), **described)
    spec = spec_of({"pretrained_cfg": {"mean": (0, 0, 0), "std": (1, 1, 1), **described}})
    assert mean_difference(spec, theirs) < MOST


@pytest.mark.parametrize("name", ["CLIPImageProcessor", "CLIPImageProcessorPil"])
@pytest.mark.parametrize("short", [57, 58, 60, 64])
def test_transformers(name: str, short: int) -> None:
    described = {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": short}, "do_center_crop": True,
        "crop_size": {"height": SIDE, "width": SIDE}, "do_normalize": False, "resample": 3,
    }  # fmt: skip
    processor = getattr(transformers, name).from_dict(described)

    def theirs(picture: Image.Image) -> torch.Tensor:
        return torch.as_tensor(processor(picture, return_tensors="pt")["pixel_values"][0])

    assert mean_difference(spec_of({"model_type": "clip"}, described), theirs) < MOST


@pytest.mark.parametrize("short", [57, 58, 60, 64])
def test_torchvision(short: int) -> None:
    theirs = ImageClassification(
        crop_size=SIDE, resize_size=short, mean=(0, 0, 0), std=(1, 1, 1), interpolation=InterpolationMode.BILINEAR
    )
    spec = ImageSpec(
        height=SIDE, width=SIDE, interpolation="bilinear", fit="crop", crop_fraction=SIDE / short, crop_start="even"
    )
    assert mean_difference(spec, theirs) < MOST
