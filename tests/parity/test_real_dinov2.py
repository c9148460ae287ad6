"""Published weights: a DINOv2 ViT-S/14, in the folder of VITRAIL_DINOV2 that benchmarks/making/real_dinov2.py makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import vitrail
from parity.differences import record
from vitrail.checkpoints.load import LoadOptions
from vitrail.services.open_model import find_model

pytestmark = pytest.mark.needs_real_dinov2

FOLDER = Path(os.environ.get("VITRAIL_DINOV2", "absent"))
SIZES = [(518, 518), (224, 224), (224, 336)]


@pytest.fixture(scope="module")
def theirs() -> torch.nn.Module:
    from transformers import Dinov2Model

    return Dinov2Model.from_pretrained(FOLDER).eval()


def images(size: tuple[int, int]) -> torch.Tensor:
    return torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))


def way_of(size: tuple[int, int]) -> str:
    return "read, native grid" if size == SIZES[0] else f"read, {size[0] // 14}x{size[1] // 14} grid"


@pytest.mark.first(1)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["loaded at this size", "loaded as it is"])
def test_it_equals_transformers(theirs, size, way):
    ours = vitrail.load(FOLDER, image_size=size if way == "loaded at this size" else None, match="transformers")
    with torch.inference_mode():
        expected = theirs(images(size), output_hidden_states=True)
        blocks = tuple(f"blocks.{i}" for i in range(12))
        found = ours.features(images(size), keep=("embedded", *blocks, "tokens", "pooled"))
    gaps = {
        name: (found[name] - state).abs().max().item()
        for name, state in zip(("embedded", *blocks), expected.hidden_states, strict=True)
    }
    gaps["tokens"] = (found["tokens"] - expected.last_hidden_state).abs().max().item()
    gaps["pooled"] = (found["pooled"] - expected.pooler_output).abs().max().item()
    assert max(gaps["tokens"], gaps["pooled"]) < 1e-4, gaps
    assert all(gap < 1e-3 for gap in gaps.values()), gaps  # inside, single channels are in the hundreds
    record("transformers:dinov2, real ViT-S/14", way_of(size), max(gaps["tokens"], gaps["pooled"]))


def test_every_number_of_the_file_is_there():
    found = find_model(str(FOLDER))
    assert sum(parameter.numel() for parameter in found.model.parameters()) == 22_056_192  # without the mask token
    assert found.audit is not None
    assert [row.theirs for row in found.audit.rows if row.action == "dropped"] == ["embeddings.mask_token"]
    assert found.config.grid == (37, 37) and "Apache-2.0" in found.licence


@pytest.mark.wide
def test_timm_reads_what_we_write_of_it(tmp_path):
    """timm stretches positions with antialiasing, so that the comparison at 224 follows its rule."""
    import timm

    from vitrail.services.conversion import convert_model

    convert_model(find_model(str(FOLDER), LoadOptions(match="timm")), "timm", tmp_path / "timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True, dynamic_img_size=True).eval()
    ours = vitrail.load(FOLDER, match="timm")
    for size in ((518, 518), (224, 336)):
        with torch.inference_mode():
            gap = (model.forward_features(images(size)) - ours.features(images(size))["tokens"]).abs().max().item()
        assert gap < 1e-4
        record("timm, real ViT-S/14", f"written, run at {size[0]}x{size[1]}", gap)
