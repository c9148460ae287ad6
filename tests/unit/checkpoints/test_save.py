"""Saving under a name: dispatched to the right writer, never over something, with what a bundle keeps beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.checkpoints import bundle
from vitrail.checkpoints.load import load_checkpoint
from vitrail.checkpoints.save import SAVE_TARGETS, save_model
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec

CONFIG = ViTConfig(image_size=(32, 32), patch=(16, 16), width=128, depth=1, heads=2, mlp_width=16, outputs=2)
SPEC = ImageSpec(height=32, width=32)
NAMES = ("cat", "dog")


def test_a_bundle_keeps_licence_and_origin_and_gives_them_back(tmp_path: Path) -> None:
    info = {"licence": "Apache-2.0", "repository": "somebody/something"}
    save_model(tmp_path / "out", create_model(CONFIG), SPEC, NAMES, "bundle", task="multilabel", info=info)
    loaded = load_checkpoint(tmp_path / "out")
    assert (loaded.licence, loaded.repository, loaded.task) == ("Apache-2.0", "somebody/something", "multilabel")
    assert (loaded.spec, loaded.classes) == (SPEC, NAMES)
    assert bundle.read_bundle_info(tmp_path / "out").architecture == CONFIG


@pytest.mark.parametrize("target", ["timm", "transformers"])
@torch.no_grad()
def test_a_folder_of_another_library_is_written_and_read_back(target: str, tmp_path: Path) -> None:
    model = create_model(CONFIG).eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    save_model(tmp_path / "out", model, SPEC, NAMES, target)
    loaded = load_checkpoint(tmp_path / "out")
    images = torch.randn(2, 3, 32, 32)
    assert (loaded.model(images) - model(images)).abs().max() < 1e-5
    start = "even" if target == "timm" else "down"
    assert loaded.classes == NAMES
    assert loaded.spec == replace(SPEC, mean=(0.5,) * 3, std=(0.5,) * 3, crop_start=start)


def test_nothing_is_overwritten_and_an_unknown_target_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already and is not overwritten"):
        save_model(tmp_path, create_model(CONFIG), SPEC, NAMES, "bundle")
    with pytest.raises(UsageError, match=r"written as bundle, timm, .*google-npz\. Got 'onnx'"):
        save_model(tmp_path / "out", create_model(CONFIG), SPEC, NAMES, "onnx")
    assert SAVE_TARGETS[0] == "bundle"
