"""The walk runs the model's own parts: same outputs, real shapes, files that exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.errors import UsageError
from vitrail.explain.figures import SAMPLE_IMAGE
from vitrail.explain.trace import format_trace, trace_forward
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=60, width=100, channels=1)
PARTS = [
    {},
    {"class_token": False, "pool": "mean", "positions": "none", "rotary": "axial"},
    {"patches": "linear", "final_norm": False, "positions": "none", "rotary": "from-one", "head": "tanh"},
]


def config(**parts) -> ViTConfig:
    shape = {"image_size": (60, 100), "patch": (20, 20), "channels": 1, "width": 16, "depth": 2, "heads": 2}
    return ViTConfig(**{**shape, "mlp_width": 32, "outputs": 3, "init": "torch", "dropout": 0.5, **parts})


@pytest.mark.parametrize("parts", PARTS)
def test_the_last_step_is_the_models_own_answer(parts):
    model = create_model(config(**parts), seed=1).train()
    steps = trace_forward(model, SPEC, SAMPLE_IMAGE)
    assert model.training
    with torch.no_grad():
        logits = model.eval()(normalize(preprocess_image(SAMPLE_IMAGE, SPEC)[None], SPEC))
    best = int(logits.argmax())
    assert f"output {best} of 0..2 is largest: {logits[0, best]:.3f}" in steps[-1].note


def test_shapes_are_those_of_the_article():
    steps = trace_forward(create_model(config()), SPEC, SAMPLE_IMAGE)
    assert [(step.name, step.shape) for step in steps] == [
        ("decode", (60, 100, 1)),
        ("fit", (1, 1, 60, 100)),
        ("normalise", (1, 1, 60, 100)),
        ("patches", (1, 15, 400)),
        ("tokens", (1, 16, 16)),
        ("positions", (1, 16, 16)),
        ("block 0", (1, 16, 16)),
        ("block 1", (1, 16, 16)),
        ("norm", (1, 16, 16)),
        ("pool", (1, 16)),
        ("head", (1, 3)),
    ]
    assert steps[3].note == "15 patches (3 rows of 5) of 20x20x1 = 400 numbers"


@pytest.mark.parametrize("parts", PARTS)
def test_every_file_is_in_the_package(parts):
    package = Path(vitrail.__path__[0])
    steps = trace_forward(create_model(config(**parts)), SPEC, SAMPLE_IMAGE)
    assert all((package / step.file).is_file() for step in steps)
    assert [step.file for step in steps[:4]] == [
        "data/decoding/decode.py", "data/preprocess.py", "data/preprocess.py", "model/tokens.py",
    ]  # fmt: skip


def test_rotation_has_a_step_of_its_own():
    steps = trace_forward(create_model(config(**PARTS[1])), SPEC, SAMPLE_IMAGE)
    assert [step.shape for step in steps if step.name == "rotary"] == [(15, 8)]
    assert "rotation tells places" in next(step.note for step in steps if step.name == "positions")


def test_an_array_of_another_size_is_fitted_and_padded_models_walk_too():
    picture = np.random.default_rng(0).integers(0, 256, (30, 40), dtype=np.uint8)
    steps = trace_forward(create_model(config()), SPEC, picture)
    assert steps[1].note == "channels first, squash, bicubic, antialiased"
    padded = trace_forward(create_model(config(patch=(16, 16), pad=True)), SPEC, picture)
    assert {step.name: step.shape for step in padded}["patches"] == (1, 28, 256)


def test_the_table_has_a_line_per_step_in_columns():
    steps = trace_forward(create_model(config()), SPEC, SAMPLE_IMAGE)
    lines = format_trace(steps).splitlines()
    assert len(lines) == len(steps)
    assert lines[0].startswith(" 1  decode     [60, 100, 1]     data/decoding/decode.py  uint8")
    assert len({line.index(step.file) for line, step in zip(lines, steps, strict=True)}) == 1


def test_a_size_that_no_patch_divides_is_refused():
    with pytest.raises(UsageError, match="image height 50 is not a multiple of the patch height 20"):
        trace_forward(create_model(config()), ImageSpec(height=50, width=100, channels=1), SAMPLE_IMAGE)
