"""Small members to export: of every kind of part and task, with everything that can be decided."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kinds import KINDS
from vitrail.evaluate.calibration import TargetScaling
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.inference import InferenceSettings
from vitrail.evaluate.ood import fit_feature_stats
from vitrail.evaluate.tta import TtaViews
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.predict.predictor import PredictorMember
from vitrail.spec import ImageSpec

BOTH = TtaViews(flip=True, shift=1, vertical=True)
NAMES = ("cat", "dog", "fish")
DECIDED = {
    "nothing": Decisions(),
    "calibrated": Decisions(temperature=(0.7,)),
    "unsure": Decisions(temperature=(1.3,), sure=0.36),
    "unlike": Decisions(sure=0.36, unlike=14.0),
    "labels": Decisions(temperature=(0.5, 1.0, 2.0), thresholds=(0.45, 0.5, 0.55), chosen=(True, True, True)),
    "positive": Decisions(temperature=(1.1,), thresholds=(0.52,), chosen=(True,), positive="dog"),
}
"""What a bundle may have decided, of three names; "positive" is of two."""


def spec_of(config: ViTConfig) -> ImageSpec:
    height, width = config.image_size
    return ImageSpec(height=height, width=width, channels=config.channels, mean=(0.4,), std=(0.3,))


def member(
    kind: str = "class token, learned",
    task: str = "classification",
    decided: str = "nothing",
    views: TtaViews = BOTH,
) -> PredictorMember:
    """A model with outputs that differ from picture to picture."""
    names = NAMES[:2] if decided == "positive" else NAMES
    config = dataclasses.replace(KINDS[kind], outputs=len(names))
    model = create_model(config, seed=3).eval()
    generator = torch.Generator().manual_seed(4)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.35, generator=generator)
    found = PredictorMember(
        model=model, spec=spec_of(config), classes=names, task=task, settings=InferenceSettings(views=views),
        scaling=TargetScaling((20.0, 30.0, 40.0), (5.0, 1.0, 0.1)) if task == "regression" else None,
    )  # fmt: skip
    decisions = DECIDED[decided]
    if decisions.unlike is None:
        return dataclasses.replace(found, decisions=decisions)
    seen = np.random.default_rng(5).normal(size=(200, config.width)).astype(np.float32)
    return dataclasses.replace(found, decisions=decisions, feature_stats=fit_feature_stats(seen, None))


def pictures(spec: ImageSpec, count: int = 12, seed: int = 0) -> np.ndarray:
    """uint8 [n, H, W, C]: noise over a ramp."""
    generator = np.random.default_rng(seed)
    ramp = np.linspace(0, 120, spec.height)[None, :, None, None] * generator.uniform(size=(count, 1, 1, spec.channels))
    noise = generator.uniform(0, 130, (count, spec.height, spec.width, spec.channels))
    return np.rint(ramp + noise).astype(np.uint8)
