"""Options that a file of transformers needs, values from the config.json beside it, and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from in_memory import load_from_tensors
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files import safetensors_file as files

from .hf import MLP, SHAPE, SIZES, VIT, images, largest_difference, randomised, saved
from .hf_cases import CASES
from .negative import refuses_every_damage

QUICK = {"activation": "QuickGELU"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit classifier", {}),
        ("deit with teacher", {}),
        ("mae pre-training", {}),
        ("ijepa", {}),
        ("dinov2 gated", {}),
        ("dinov2 with registers", {}),
        ("dinov3 gated", {"image_size": 24}),
        ("siglip with text", {}),
        ("siglip2 naflex", {}),
        ("clip with text", {"settings": QUICK}),
    ],
)
@pytest.mark.parametrize("memory", [False, True])
def test_a_file_without_its_config_loads_when_the_heads_are_said(
    name: str, memory: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    reference = randomised(CASES[name].build())
    path = saved(reference, tmp_path / "there", memory, bare=True)
    with pytest.raises(
        UsageError, match=r"transformers without its config\.json does not say heads\. Pass heads=; publ"
    ):
        load_checkpoint(path, LoadOptions(**options))
    loaded = load_checkpoint(path, LoadOptions(heads=4, **options))
    pictures = images(SIZES["native grid"])
    with torch.no_grad():
        assert largest_difference(loaded.model, CASES[name].run(reference, pictures), pictures) < 1e-5
    assert loaded.config.image_size == (24, 24) and loaded.audit.layout == "transformers"


def test_a_published_width_tells_the_heads(tmp_path: Path) -> None:
    shape = {**VIT, "hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 1}
    path = saved(randomised(hf.ViTModel(hf.ViTConfig(**shape))), tmp_path / "there", memory=False, bare=True)
    assert load_checkpoint(path).config.heads == 3
    assert load_checkpoint(path, LoadOptions(heads=6)).config.heads == 6


def test_a_clip_without_its_config_asks_for_the_activation(tmp_path: Path) -> None:
    path = saved(randomised(CASES["clip"].build()), tmp_path / "there", memory=False, bare=True)
    with pytest.raises(UsageError, match=r'does not say its activation\. Pass settings=\{"activation": "QuickGELU"\}'):
        load_checkpoint(path, LoadOptions(heads=4))
    assert load_checkpoint(path, LoadOptions(heads=4, settings={"activation": "GELU"})).config.activation == "GELU"


@pytest.mark.parametrize("memory", [False, True])
def test_the_tanh_layer_of_a_bare_vit_is_kept_when_asked_for(memory: bool, tmp_path: Path) -> None:
    reference = randomised(CASES["vit"].build())
    folder = saved(reference, tmp_path / "there", memory)
    dropped = [row for row in load_checkpoint(folder).audit.rows if row.theirs.startswith("pooler.")]
    assert {row.action for row in dropped} == {"dropped"} and "tanh layer" in dropped[0].ours
    kept = load_checkpoint(folder, LoadOptions(settings={"head": "tanh"}))
    pictures = images(SIZES["16x40"])
    with torch.no_grad():
        pooled = reference(pictures, interpolate_pos_encoding=True).pooler_output
        assert (kept.model(pictures) - pooled).abs().max() < 1e-6


def test_match_chooses_whose_numerics(tmp_path: Path) -> None:
    folder = saved(randomised(CASES["vit classifier"].build()), tmp_path / "there", memory=False)
    theirs, timm, original = (
        load_checkpoint(folder, LoadOptions(match=match)).config for match in ("transformers", "timm", "original")
    )
    assert (theirs.norm_eps, theirs.activation, theirs.resample) == (1e-12, "GELU", "bicubic")
    assert (timm.norm_eps, timm.activation, timm.resample) == (1e-6, "GELU", "bicubic-antialias")
    assert (original.norm_eps, original.activation, original.resample) == (1e-6, "GELUTanh", "bilinear-corners")
    assert load_checkpoint(folder).config == theirs


def test_a_rectangular_vit_knows_its_size_from_config_or_from_the_caller(tmp_path: Path) -> None:
    shape = {**SHAPE, **MLP, "image_size": [16, 40], "num_labels": 3}
    reference = randomised(hf.ViTForImageClassification(hf.ViTConfig(**shape)))
    folder = saved(reference, tmp_path / "there", memory=False)
    pictures = images((16, 40))
    with torch.no_grad():
        outputs = reference(pictures).logits
        assert (load_checkpoint(folder).model(pictures) - outputs).abs().max() < 1e-6
        path = saved(reference, tmp_path / "bare", memory=False, bare=True)
        with pytest.raises(UsageError, match=r"40 patches, which fill no square. Pass image_size="):
            load_checkpoint(path, LoadOptions(heads=4))
        assert (
            load_checkpoint(path, LoadOptions(heads=4, image_size=(16, 40))).model(pictures) - outputs
        ).abs().max() < 1e-6


def test_loading_at_another_size_resamples_once_by_the_familys_rule(tmp_path: Path) -> None:
    reference = randomised(CASES["dinov2"].build())
    loaded = load_checkpoint(saved(reference, tmp_path / "there", memory=False), LoadOptions(image_size=(16, 40)))
    pictures = images((16, 40))
    with torch.no_grad():
        theirs = CASES["dinov2"].run(reference, pictures)
    assert loaded.config.image_size == (16, 40) and largest_difference(loaded.model, theirs, pictures) < 1e-5


def test_old_files_with_lists_of_positions_load(tmp_path: Path) -> None:
    folder = saved(randomised(CASES["clip"].build()), tmp_path / "there", memory=False)
    tensors = {f"vision_model.{n}": t for n, t in files.load_tensors(folder / "model.safetensors").items()}
    tensors["vision_model.embeddings.position_ids"] = torch.arange(37)[None]
    (folder / "model.safetensors").unlink()
    files.save_tensors(folder / "model.safetensors", tensors, {})
    row = next(row for row in load_checkpoint(folder).audit.rows if row.theirs.endswith("position_ids"))
    assert row.action == "dropped" and "old versions" in row.ours


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        (
            "vit",
            {"image_size": 32},
            r"image_size=\(32, 32\), 64 patches of 4x4, but embeddings\.position_embeddings has 37",
        ),
        ("vit", {"hidden_act": "sinc"}, r"hidden_act='sinc', an activation that is not known here"),
        ("vit", {"layer_norm_eps": -1}, r"layer_norm_eps must be a number from 0 to 1\. Got -1"),
        ("vit", {"num_attention_heads": "4"}, r"num_attention_heads must be a number from 1 to 1,024\. Got '4'"),
        ("dinov3", {"rope_theta": 50}, r"rope_theta=50\. Published DINOv3 models have 100; others are not read"),
        ("dinov2", {"image_size": [1, 2, 3]}, r"must say image_size as one or two whole numbers\. Got \[1, 2, 3\]"),
    ],
)
def test_a_config_that_makes_no_sense_is_an_error(
    name: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = saved(randomised(CASES[name].build()), tmp_path / "there", memory=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises((DamagedFileError, UsageError), match=message):
        load_checkpoint(folder)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "memory", "prefix"),
    [
        ("deit with teacher", False, "deit."),
        ("dinov2 with registers, gated classifier", True, "dinov2_with_registers."),
        ("siglip", False, ""),
        ("clip classifier", False, "vision_model."),
    ],
)
def test_every_damage_to_every_tensor_is_refused_by_name(name: str, memory: bool, prefix: str, tmp_path: Path) -> None:
    folder = saved(randomised(CASES[name].build()), tmp_path / "there", memory)
    tensors = files.load_tensors(folder / "model.safetensors")

    def from_memory(damaged: dict[str, Tensor]) -> object:
        return load_from_tensors(damaged, "the file", "transformers", LayoutHints(heads=4, settings=QUICK))

    first_norm = ("vision_model.encoder.layers.0.layer_norm1.weight",)  # named with both spellings of its block
    assert refuses_every_damage(tensors, from_memory, ("*mask_token",), decides=first_norm, prefix=prefix) > 100


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_a_clip_has_the_activation_that_it_was_trained_with_whoever_runs_it(activation: str, tmp_path: Path) -> None:
    reference = randomised(hf.CLIPVisionModel(hf.CLIPVisionConfig(**VIT, hidden_act=activation)))
    folder = saved(reference, tmp_path / "there", memory=False)
    ours = {
        load_checkpoint(folder, LoadOptions(match=match)).config.activation
        for match in ("transformers", "timm", "original")
    }
    assert ours == {"GELU" if activation == "gelu" else "QuickGELU"}
    assert (
        load_checkpoint(folder, LoadOptions(match="original", settings={"activation": "SiLU"})).config.activation
        == "SiLU"
    )


def test_heads_that_only_the_width_tells_are_noted(tmp_path: Path) -> None:
    reference = randomised(hf.ViTModel(hf.ViTConfig(**{**VIT, "hidden_size": 192, "num_attention_heads": 12})))
    path = saved(reference, tmp_path / "there", memory=False, bare=True)
    words = "heads=3 is that of the published model of this width; the file does not say it: heads= changes it"
    assert words in load_checkpoint(path).notes and words not in load_checkpoint(path, LoadOptions(heads=12)).notes


def test_whose_numerics_a_vit_gets_is_noted_where_the_folder_may_be_dinos(tmp_path: Path) -> None:
    folder = saved(randomised(CASES["vit"].build()), tmp_path / "there", memory=False)
    words = "taken for Google's ViT; for DINO's own numerics load the original file with layout=dino"
    assert words in load_checkpoint(folder, LoadOptions(match="original")).notes
    assert (
        words not in load_checkpoint(folder).notes
        and words not in load_checkpoint(folder, LoadOptions(match="timm")).notes
    )
