"""Models of ours written for timm: `timm.create_model` opens the folder, and every block and the outputs are equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from parity.designs import random_model
from parity.differences import record
from parity.timm_models import furthest
from vitrail.checkpoints.load import load_checkpoint
from vitrail.checkpoints.writers.to_timm import write_timm_folder
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.registry import apply_small_image_defaults
from vitrail.model.vit import ViT
from vitrail.spec import ImageSpec

TINY = ViTConfig(image_size=(12, 16), patch=(4, 4), width=24, depth=2, heads=3, mlp_width=31, outputs=5)
PARTS = {
    "class": TINY,
    "one channel, patches not square": replace(TINY, channels=1, patch=(4, 2)),
    "linear patches without bias": replace(TINY, patches="linear", patch_bias=False, head_bias=False),
    "mean": replace(TINY, class_token=False, pool="mean"),
    "mean beside a class token": replace(TINY, pool="mean"),
    "pooled norm": replace(TINY, pool="mean", final_norm=False, pooled_norm=True),
    "both norms": replace(TINY, pool="mean", pooled_norm=True),
    "neither norm": replace(TINY, final_norm=False),
    "probe": replace(TINY, class_token=False, pool="attention", activation="GELUTanh"),
    "probe over prefix tokens": replace(TINY, pool="attention", registers=2),
    "probe and gate": replace(TINY, class_token=False, pool="attention", mlp="gated", activation="SiLU"),
    "class without a row": replace(TINY, class_position=False),
    "registers behind a class with a row": replace(TINY, registers=3),
    "registers alone": replace(TINY, class_token=False, registers=2, pool="mean"),
    "distillation token without a head": replace(TINY, distillation_token=True, registers=1),
    "two heads": replace(TINY, distillation_token=True, distillation_head=True, class_position=False),
    "two heads without biases": replace(TINY, distillation_token=True, distillation_head=True, head_bias=False),
    "fixed waves": replace(TINY, positions="sincos2d"),
    "indexed": replace(TINY, positions="indexed"),
    "no positions": replace(TINY, positions="none"),
    "no bias of queries": replace(TINY, qkv_bias=False),
    "no bias of keys": replace(TINY, key_bias=False),
    "no output bias": replace(TINY, out_bias=False),
    "no MLP bias": replace(TINY, mlp_bias=False),
    "no biases in blocks": replace(TINY, qkv_bias=False, out_bias=False, mlp_bias=False),
    "normed queries": replace(TINY, qk_norm=True),
    "layer scale": replace(TINY, layer_scale=0.1),
    "layer scale from 0": replace(TINY, layer_scale=0.0),
    "CLIP": replace(TINY, pre_norm=True, patch_bias=False, norm_eps=1e-5, activation="QuickGELU"),
    "RMSNorm": replace(TINY, norm="RMSNorm"),
    "RMSNorm and gate": replace(TINY, norm="RMSNorm", norm_eps=1e-5, mlp="gated-packed", activation="GELU"),
    "gate": replace(TINY, mlp="gated", activation="SiLU"),
    "packed gate": replace(TINY, mlp="gated-packed", activation="ReLU"),
    "gate with eps 1e-5": replace(TINY, mlp="gated", activation="SiLU", norm_eps=1e-5),
    "parallel": replace(TINY, parallel=True, qk_norm=True, norm="RMSNorm"),
    "parallel without biases": replace(TINY, parallel=True, qkv_bias=False, out_bias=False, mlp_bias=False),
    "padded": replace(TINY, image_size=(10, 15), pad=True),
    "no head": replace(TINY, outputs=0),
    "small pictures": apply_small_image_defaults(TINY),
    "small pictures with class token and scales": replace(TINY, rotary="axial", layer_scale=1.0),
    "axial, gated, no bias of keys": replace(TINY, rotary="axial", mlp="gated", activation="SiLU", key_bias=False),
    "axial, scales, no bias of keys": replace(TINY, rotary="axial", layer_scale=1.0, key_bias=False, norm_eps=1e-5),
    "axial, scales, gated": replace(TINY, rotary="axial", layer_scale=1.0, mlp="gated", activation="SiLU"),
    "DINOv3": replace(
        TINY, positions="none", rotary="dinov3", registers=4, layer_scale=1.0, key_bias=False, norm_eps=1e-5
    ),
    "rotation alone": replace(TINY, positions="none", rotary="axial"),
    "EVA-02": replace(
        TINY, rotary="eva02", rotary_grid=(4, 4), mlp="gated", activation="SiLU", mlp_norm=True, attention_norm=True,
        key_bias=False,
    ),
    "RoPE-ViT": replace(TINY, positions="none", rotary="rope-vit", rotary_base=50.0, layer_scale=1.0),
    "RoPE-ViT, mixed": replace(TINY, class_position=False, rotary="mixed", layer_scale=1.0),
    "Perception Encoder": replace(
        TINY, rotary="pe", rotary_grid=(6, 5), pre_norm=True, patch_bias=False, norm_eps=1e-5, pool="attention",
        pool_heads=2, pool_mlp_width=20,
    ),
    "inner norms": replace(TINY, attention_norm=True, mlp_norm=True),
    "packed gate with a norm": replace(TINY, mlp="gated-packed", activation="SiLU", mlp_norm=True),
    "norm of patch tokens": replace(TINY, token_norm=True),
    "AIMv2": replace(
        TINY, token_norm=True, norm="RMSNorm", norm_eps=1e-5, mlp="gated", activation="SiLU", class_token=False,
        pool="mean", qkv_bias=False, out_bias=False, mlp_bias=False,
    ),
    "norms behind the branches": replace(TINY, post_norm=True),
    "RoPE-ViT, mixed, without scales": replace(TINY, positions="none", rotary="mixed"),
    "relative biases": replace(TINY, positions="none", relative_bias=True, out_bias=False),
    "relative biases and a table": replace(
        TINY, class_position=False, relative_bias=True, layer_scale=1.0, mlp_norm=True, pool="mean", final_norm=False,
        pooled_norm=True,
    ),
    "relative biases without others": replace(TINY, positions="none", relative_bias=True, qkv_bias=False),
    "DINOv3 with packed gates": replace(
        TINY, positions="none", rotary="dinov3", registers=1, layer_scale=1.0, mlp="gated-packed", activation="SiLU"
    ),
}  # fmt: skip
MISSING = {
    "norm_eps=1e-12": replace(TINY, norm_eps=1e-12),
    'pool="class\\+mean"': replace(TINY, pool="class+mean"),
    "pool_blocks=2": replace(TINY, pool_blocks=2),
    'head="tanh"': replace(TINY, head="tanh"),
    "relative=2": replace(TINY, relative=2),
    "qk_norm_joint=true": replace(TINY, qk_norm=True, qk_norm_joint=True),
    "rotary_prefix=true": replace(TINY, rotary="eva02", rotary_prefix=True),
    "class_token=false with relative_bias=true": replace(
        TINY, positions="none", relative_bias=True, class_token=False, pool="mean"
    ),
    "pre_norm=true with relative_bias=true": replace(TINY, positions="none", relative_bias=True, pre_norm=True),
    "post_norm=true": replace(TINY, post_norm=True, layer_scale=1.0),
    "patch_norms=true": replace(TINY, patches="linear", patch_norms=True),
    "head_width=12": replace(TINY, head_width=12),
    "qk_scale=1.0": replace(TINY, qk_scale=1.0),
    'rotary="from-one"': replace(TINY, positions="none", rotary="from-one"),
    "patch_bias=true with pre_norm": replace(TINY, pre_norm=True),
    "rotary='axial'": replace(TINY, rotary="axial", activation="ReLU"),
    "parallel=true with a gated MLP": replace(TINY, mlp="gated", parallel=True),
    "distillation_head=True": replace(TINY, mlp="gated", distillation_token=True, distillation_head=True),
}


@pytest.mark.parametrize("parts", PARTS)
def test_timm_opens_the_folder_with_equal_outputs_and_so_do_we(parts: str, tmp_path: Path) -> None:
    model, images = random_model(PARTS[parts]), pictures(PARTS[parts])
    folder = written(model, tmp_path)
    opened = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    outputs = opened(images)
    assert outputs.shape == model(images).shape and outputs.std() > 0.02
    difference = max(furthest(model, opened, images), (model(images) - outputs).abs().max().item())
    record("timm", "written, opened by timm", difference)
    assert difference < 1e-5
    loaded = load_checkpoint(folder)
    assert loaded.classes == names(model.config)
    difference = (loaded.model(images) - model(images)).abs().max().item()
    record("timm", "written, read back", difference)
    assert difference < 1e-5


@pytest.mark.parametrize("message", MISSING)
def test_what_timm_has_no_place_for_is_an_error_that_names_it(message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        written(random_model(MISSING[message]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_layer_scales_that_differ_have_no_place_in_a_parallel_block(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in block 0 the two differ"):
        written(random_model(replace(TINY, parallel=True, layer_scale=0.1)), tmp_path)


def test_rotary_periods_that_timm_would_not_compute_are_refused(tmp_path: Path) -> None:
    model = random_model(PARTS["DINOv3"])
    model.rotary.periods.mul_(1.01)
    with pytest.raises(UsageError, match="rotary periods that are not"):
        written(model, tmp_path)


@pytest.mark.parametrize(("size", "named", "message"), [(16, 5, "12, 16"), (12, 4, "5 outputs needs a name")])
def test_a_description_that_does_not_fit_the_model_is_refused(
    size: int, named: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        write_timm_folder(tmp_path / "timm", random_model(TINY), ImageSpec(height=size, width=16), ("name",) * named)


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
def test_timm_prepares_pictures_as_the_folder_says(fit: str, tmp_path: Path) -> None:
    spec = ImageSpec(height=12, width=16, mean=(0.4, 0.5, 0.6), std=(0.25,), interpolation="bilinear", fit=fit)
    spec = replace(spec, crop_fraction=0.9) if fit == "crop" else spec
    folder = tmp_path / "timm"
    write_timm_folder(folder, random_model(TINY), spec, names(TINY))
    opened = timm.create_model(f"local-dir:{folder}", pretrained=True)
    data_config = timm.data.resolve_model_data_config(opened)
    assert (
        data_config["input_size"] == (3, 12, 16)
        and data_config["crop_pct"] == spec.crop_fraction
        and data_config["interpolation"] == "bilinear"
    )
    assert data_config["crop_mode"] == {"squash": "squash", "crop": "center", "pad": "border"}[fit]
    assert tuple(data_config["mean"]) == (0.4, 0.5, 0.6) and tuple(data_config["std"]) == (0.25, 0.25, 0.25)
    assert load_checkpoint(folder).spec == replace(spec, std=(0.25, 0.25, 0.25), crop_start="even")


def test_the_description_is_that_of_timms_hub_folders(tmp_path: Path) -> None:
    content = json.loads((written(random_model(TINY), tmp_path) / "config.json").read_text())
    assert content["architecture"] == "vit_base_patch16_224"
    assert content["num_classes"] == 5 and content["num_features"] == 24
    assert content["label_names"] == list(names(TINY))
    assert content["pretrained_cfg"]["input_size"] == [3, 12, 16]


def test_timm_may_open_it_for_another_number_of_classes(tmp_path: Path) -> None:
    folder = written(random_model(TINY), tmp_path)
    assert timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=2).head.out_features == 2


def written(model: ViT, folder: Path) -> Path:
    config = model.config
    spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
    write_timm_folder(folder / "timm", model, spec, names(config))
    return folder / "timm"


def names(config: ViTConfig) -> tuple[str, ...]:
    return tuple(f"class {k}" for k in range(config.outputs))


def pictures(config: ViTConfig) -> Tensor:
    return torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(5))
