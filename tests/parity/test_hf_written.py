"""Folders that Vitrail writes for transformers, opened there by its Auto classes with equal numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.writers.to_transformers import write_transformers_folder
from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.spec import ImageSpec

from .designs import random_images, random_model
from .differences import record

TINY = ViTConfig(image_size=(24, 24), patch=(4, 4), width=32, depth=2, heads=4, mlp_width=64, outputs=5)
PLAIN = ViTConfig(**{**TINY.__dict__, "outputs": 0})
FREE: dict[str, Any] = {"class_token": False, "pool": "mean"}
CLIP: dict[str, Any] = {"pre_norm": True, "patch_bias": False, "final_norm": False, "activation": "QuickGELU"}
ROTARY: dict[str, Any] = {"positions": "none", "rotary": "dinov3", "registers": 4, "layer_scale": 0.1}
CLASSIFIERS = {
    "ViTForImageClassification": TINY,
    "ViTForImageClassification, rectangle": replace(TINY, image_size=(16, 40), patch=(4, 8)),
    "ViTForImageClassification, less biases": replace(
        TINY, qkv_bias=False, out_bias=False, mlp_bias=False, head_bias=False
    ),
    "ViTForImageClassification, matrix and waves": replace(TINY, patches="linear", positions="sincos2d"),
    "ViTForImageClassification, no class row": replace(TINY, class_position=False, key_bias=False, pad=True),
    "DeiTForImageClassification": replace(TINY, distillation_token=True),
    "DeiTForImageClassificationWithTeacher": replace(TINY, distillation_token=True, distillation_head=True),
    "IJepaForImageClassification": replace(TINY, **FREE, activation="GELUTanh", norm_eps=1e-5),
    "Dinov2ForImageClassification": replace(TINY, pool="class+mean", layer_scale=0.1),
    "Dinov2ForImageClassification, class": replace(TINY, layer_scale=0.1),
    "Dinov2ForImageClassification, mean": replace(TINY, pool="mean"),
    "Dinov2ForImageClassification, gated": replace(
        TINY, pool="class+mean", mlp="gated", mlp_width=88, activation="SiLU"
    ),
    "Dinov2WithRegistersForImageClassification": replace(TINY, registers=3, class_position=False, pool="class+mean"),
    "Dinov2WithRegistersForImageClassification, packed": replace(
        TINY, registers=3, mlp="gated-packed", mlp_width=88, activation="SiLU"
    ),
    "CLIPForImageClassification": replace(TINY, **CLIP, pool="mean"),
}
FEATURES = {
    "ViTModel": replace(PLAIN, head="tanh"),
    "ViTMSNModel": PLAIN,
    "DeiTModel": replace(PLAIN, distillation_token=True, head="tanh"),
    "IJepaModel": replace(PLAIN, **FREE),
    "Dinov2Model": replace(PLAIN, layer_scale=0.1),
    "Dinov2WithRegistersModel": replace(PLAIN, registers=4),
    "SiglipVisionModel": replace(PLAIN, class_token=False, pool="attention", activation="GELUTanh", qkv_bias=False),
    "SiglipVisionModel, matrix": replace(PLAIN, class_token=False, pool="attention", patches="linear"),
    "CLIPVisionModel": replace(PLAIN, **CLIP, pooled_norm=True),
    "DINOv3ViTModel": replace(PLAIN, **ROTARY, key_bias=False),
    "DINOv3ViTModel, packed": replace(
        PLAIN, **ROTARY, qkv_bias=False, mlp="gated-packed", activation="SiLU", image_size=(16, 40)
    ),
}


def spec_of(config: ViTConfig, **fields: Any) -> ImageSpec:
    return ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels, **fields)


def written(model: ViT, folder: Path, task: str = "classification", **fields: Any) -> Path:
    names = tuple(f"kind {number}" for number in range(model.config.outputs))
    write_transformers_folder(folder, model, spec_of(model.config, **fields), task, names)
    return folder


@pytest.mark.parametrize("name", CLASSIFIERS)
@torch.no_grad()
def test_a_classifier_opens_with_equal_logits_and_its_class_names(name: str, tmp_path: Path) -> None:
    model = random_model(CLASSIFIERS[name])
    folder = written(model, tmp_path / "there")
    theirs, report = hf.AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert type(theirs).__name__ == name.partition(",")[0]
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    pictures = random_images(model.config)
    ours = model(pictures)
    difference = (theirs.eval()(pictures).logits - ours).abs().max().item()
    record(f"transformers:{name}", "written", difference)
    assert ours.std() > 0.01 and difference < 1e-5
    assert theirs.config.id2label == {number: f"kind {number}" for number in range(5)}
    again = load_checkpoint(folder)
    assert again.classes == tuple(f"kind {number}" for number in range(5))
    assert (again.model(pictures) - ours).abs().max() < 1e-5


@pytest.mark.parametrize("name", FEATURES)
@torch.no_grad()
def test_features_open_with_equal_tokens_and_pooled_vectors(name: str, tmp_path: Path) -> None:
    model = random_model(FEATURES[name])
    folder = written(model, tmp_path / "there")
    theirs, report = hf.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert type(theirs).__name__ == name.partition(",")[0]
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    pictures = random_images(model.config)
    out, ours = theirs.eval()(pictures), model.features(pictures, keep=("tokens", "outputs"))
    difference = (out.last_hidden_state - ours["tokens"]).abs().max().item()
    if out.get("pooler_output") is not None:
        difference = max(difference, (out.pooler_output - ours["outputs"]).abs().max().item())
    record(f"transformers:{name}", "written", difference)
    assert difference < 1e-5
    settings = {"head": "tanh"} if model.config.head == "tanh" else {}
    assert (
        load_checkpoint(folder, LoadOptions(settings=settings)).model(pictures) - ours["outputs"]
    ).abs().max() < 1e-5


@torch.no_grad()
def test_a_projected_clip_opens_with_its_projection(tmp_path: Path) -> None:
    model = random_model(replace(TINY, **CLIP, pooled_norm=True, head_bias=False))
    folder = written(model, tmp_path / "there")
    theirs = hf.CLIPVisionModelWithProjection.from_pretrained(folder).eval()
    pictures = random_images(model.config)
    assert (theirs(pictures).image_embeds - model(pictures)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TINY, rotary="axial"), r"nearest, ViTForImageClassification, cannot express rotary='axial'\."),
        (replace(TINY, norm="RMSNorm", qk_norm=True), r"qk_norm=True nor norm='RMSNorm'"),
        (replace(TINY, **FREE, pooled_norm=True), r"IJepaForImageClassification, cannot express pooled_norm=True"),
        (replace(TINY, class_token=False, pool="attention"), r"cannot express pool='attention'"),
        (replace(TINY, head="tanh"), r"ViTForImageClassification, cannot express head='tanh'"),
        (replace(TINY, activation="ELU"), r"cannot express activation='ELU'"),
        (
            replace(TINY, layer_scale=0.1, image_size=(16, 40)),
            r"image_size=\(16, 40\), which is not square|layer_scale",
        ),
        (replace(TINY, layer_scale=0.1, mlp_width=70), r"mlp_width=70 beside width=32|layer_scale"),
        (replace(TINY, relative=2), r"cannot express relative=2"),
    ],
)
def test_what_transformers_lacks_is_named(config: ViTConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        written(random_model(config), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_rotary_periods_that_transformers_would_compute_otherwise_are_named(tmp_path: Path) -> None:
    model = random_model(FEATURES["DINOv3ViTModel"])
    model.rotary.periods.mul_(1.001)
    with pytest.raises(UsageError, match=r"rotary periods that are not 100\^\(4i/d\)"):
        written(model, tmp_path / "there")


@pytest.mark.parametrize(
    ("task", "word"),
    [
        ("classification", "single_label_classification"),
        ("multilabel", "multi_label_classification"),
        ("regression", "regression"),
    ],
)
def test_the_task_comes_along(task: str, word: str, tmp_path: Path) -> None:
    folder = written(random_model(TINY), tmp_path / "there", task)
    assert hf.AutoConfig.from_pretrained(folder).problem_type == word and load_checkpoint(folder).task == task


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
@pytest.mark.parametrize("size", [(24, 24), (60, 41), (17, 90)])
def test_the_processor_prepares_pictures_as_we_do(fit: str, size: tuple[int, int], tmp_path: Path) -> None:
    config = replace(TINY, image_size=(24, 24))
    folder = written(random_model(config), tmp_path / "there", fit=fit, mean=(0.4, 0.5, 0.6), interpolation="bilinear")
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    rows, columns = np.mgrid[: size[0], : size[1]] / 10
    picture = np.stack([np.sin(rows + k) * np.cos(columns) for k in range(3)], axis=-1) * 120 + 128
    theirs = processor(Image.fromarray(picture.astype(np.uint8)), return_tensors="pt")["pixel_values"]
    spec = spec_of(config, fit=fit, mean=(0.4, 0.5, 0.6), std=(0.5, 0.5, 0.5), interpolation="bilinear")
    ours = normalize(preprocess_image(picture.astype(np.uint8), spec)[None], spec)
    assert theirs.shape == ours.shape
    most = 1e-6 if size == (24, 24) else 0.1 if fit == "pad" else 0.02  # of a padded one a row more or less is picture
    assert (theirs - ours).abs().mean() < most


def test_a_crop_that_is_not_square_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot cut 16x40 out of the middle"):
        written(random_model(CLASSIFIERS["ViTForImageClassification, rectangle"]), tmp_path / "there", fit="crop")
