"""Arguments of timm's classes that a fuzz of random configurations found to be read wrong or called damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from parity.timm_models import SIZE, furthest, pictures, randomise, saved, saved_bare
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError

NAFLEX: dict[str, Any] = {"img_size": None, "pos_embed_grid_size": (4, 4)}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "distilled, whose table no argument turns off": ("deit_small_distilled_patch16_224", {"pos_embed": "none"}),
    "queries, keys and values apart with biases": ("eva02_base_patch14_224", {"attn_type": "rope"}),
    "queries, keys and values apart, no gate": ("eva02_base_patch14_224", {"swiglu_mlp": False, "num_reg_tokens": 2}),
    "learned angles without scales": (
        "vit_small_patch16_rope_mixed_224",
        {"init_values": None, "attn_type": "rope"},
    ),
    "registers with rows, no class token": ("vit_pe_lang_gigantic_patch14_448", {"num_reg_tokens": 2}),
    "a table for all blocks beside their own": ("beit_base_patch16_224", {"use_shared_rel_pos_bias": True}),
    "side by side with RMSNorm": ("vit_small_patch16_18x2_224", {"norm_layer": "rmsnorm"}),
    "side by side without biases": ("vit_small_patch16_18x2_224", {"proj_bias": False, "qkv_bias": False}),
    "NaFlex without positions": ("naflexvit_base_patch16_gap", {**NAFLEX, "pos_embed": "none"}),
    "NaFlex with oblong patches": ("naflexvit_base_patch16_gap", {**NAFLEX, "patch_size": (4, 8)}),
    "NaFlex with a mean of all tokens": ("naflexvit_base_patch16_gap", {**NAFLEX, "pool_include_prefix": True}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "patches are normalised by LayerNorm with 1e-06, its blocks by RMSNorm": (
        "aimv2_large_patch14_224",
        {"embed_norm_layer": "layernorm"},
    ),
    "MLP of its probe has GELU and those of its blocks SiLU": ("eva02_base_patch14_448", {"global_pool": "map"}),
    "no use for its reg_token": ("deit_small_distilled_patch16_224", {"reg_tokens": 2}),
    "NaFlex model has rotary positions": ("naflexvit_base_patch16_gap", {**NAFLEX, "rope_type": "mixed"}),
    "a LayerScale of attention alone": ("vit_small_patch16_dinov3", {"attn_only_layer_scale": True}),
}


def made(name: str, **changes: Any) -> nn.Module:
    size = {word: value for word, value in {**SIZE, **changes}.items() if value is not None or word == "init_values"}
    return randomise(timm.create_model(name, **size))


def difference(path: Path, model: nn.Module, **options: Any) -> float:
    return furthest(load_checkpoint(path, LoadOptions(**options)).model, model, pictures(3, 16, 16))


@pytest.mark.parametrize("case", EXACT)
def test_a_folder_of_these_is_exact(case: str, tmp_path: Path) -> None:
    name, changes = EXACT[case]
    model = made(name, **changes)
    assert difference(saved(model, tmp_path), model) < 1e-5


@pytest.mark.parametrize("reason", REFUSED)
def test_a_folder_of_these_is_refused_with_the_reason(reason: str, tmp_path: Path) -> None:
    name, changes = REFUSED[reason]
    with pytest.raises(UsageError, match=reason):
        load_checkpoint(saved(made(name, **changes), tmp_path))


BARE: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    r'no tensor pos_embed.*"positions": "none"': (
        "vit_base_patch16_224", {"pos_embed": "none"},
        {}, {"settings": {"positions": "none", "rotary": "none"}},
    ),
    r'"rotary": \.\.\.': (
        "vit_base_patch16_224", {"pos_embed": "none"},
        {"settings": {"positions": "none"}}, {"settings": {"positions": "none", "rotary": "none"}},
    ),
    r'looks at its class and register tokens.*pass pool="attention"': (
        "vit_base_patch16_224", {"global_pool": "map", "pool_include_prefix": True}, {}, {"pool": "attention"},
    ),
    r'activation of its blocks.*"activation": "SiLU"': (
        "vit_giant_patch14_dinov2", {"global_pool": "map", "pool_include_prefix": True, "num_heads": 4},
        {"pool": "attention"}, {"pool": "attention", "settings": {"activation": "SiLU"}},
    ),
    r'tensors of DeiT-III.*layout="deit3".*network=.*settings={"rotary"': (
        "eva02_tiny_patch14_336", {"init_values": 0.1, "attn_type": "rope"},
        {}, {"settings": {"rotary": "eva02", "rotary_grid": (16, 16)}},
    ),
    r"10 rows, one more than a square.*pass image_size=": (
        "vit_pe_lang_gigantic_patch14_448", {"num_reg_tokens": 2, "patch_size": (4, 8)},
        {"settings": {"rotary": "rope-vit", "final_norm": False, "activation": "GELU"}},
        {
            "image_size": 16,
            "settings": {
                "rotary": "rope-vit", "rotary_base": 10000.0, "rotary_grid": (32, 32), "final_norm": False,
                "activation": "GELU", "norm_eps": 1e-5, "pool": "mean",
            },
        },
    ),
    r'channels= if there are others, or settings={"patch"': (
        "naflexvit_base_patch16_gap", {**NAFLEX, "patch_size": (4, 8)}, {}, {"settings": {"patch": (4, 8)}},
    ),
}  # fmt: skip
"""Question -> model, what is said before the question, and what answers it."""


@pytest.mark.parametrize("question", BARE)
def test_a_bare_file_is_asked_about_and_exact_with_the_answer(question: str, tmp_path: Path) -> None:
    name, changes, before, answer = BARE[question]
    model = made(name, **changes)
    path = saved_bare(model, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=question):
        load_checkpoint(path, LoadOptions(heads=4, **before))
    assert difference(path, model, heads=4, **answer) < 1e-5


def test_the_pooling_of_a_bare_file_is_what_the_caller_says(tmp_path: Path) -> None:
    model = made("vit_base_patch16_224", global_pool="avg", fc_norm=False)
    path = saved_bare(model, tmp_path / "w.safetensors")
    loaded = load_checkpoint(path, LoadOptions(heads=4))
    assert "pool=class" in loaded.assumed[0] and "rotary=none, post_norm=false" in loaded.assumed[0]
    said = load_checkpoint(path, LoadOptions(heads=4, pool="mean"))
    assert furthest(said.model, model, pictures(3, 16, 16)) < 1e-5 and "pool=" not in said.assumed[0]
    for pool, message in (("class+mean", "contradicts the file: its head"), ("attention", "contradicts the file")):
        with pytest.raises(UsageError, match=message):
            load_checkpoint(path, LoadOptions(heads=4, pool=pool))
    folder = saved(model, tmp_path / "folder")
    with pytest.raises(UsageError, match="contradicts the file: its head"):
        load_checkpoint(folder, LoadOptions(pool="class"))


def test_rotary_positions_and_norms_behind_the_branches_are_noted_where_no_tensor_shows_them(tmp_path: Path) -> None:
    model = made("eva02_enormous_patch14_clip_224", mlp_ratio=3)
    path = saved_bare(model, tmp_path / "w.safetensors")
    (note, *_) = load_checkpoint(path, LoadOptions(heads=4, settings={"rotary": "none"})).assumed
    assert "post_norm=false" in note and "rotary" not in note
    assert difference(path, model, heads=4, settings={"rotary": "none", "post_norm": True}) < 1e-5
    model = made("eva02_base_patch14_224")
    (note, *_) = load_checkpoint(saved_bare(model, path), LoadOptions(heads=4)).assumed
    assert "rotary=eva02, rotary_base=10000, rotary_grid=16x16, post_norm=false" in note


def test_heads_of_a_probe_are_noted_where_no_tensor_shows_them(tmp_path: Path) -> None:
    model = made("vit_pe_core_small_patch16_384")
    path = saved_bare(model, tmp_path / "w.safetensors")
    answers: dict[str, Any] = {"rotary": "pe", "rotary_grid": (24, 24), "activation": "GELU"}
    said = LoadOptions(heads=4, pool="attention", settings=answers)
    assert "post_norm=false, pool_heads=4" in load_checkpoint(path, said).assumed[0]
    answers |= {"pool_heads": 8}
    assert difference(path, model, heads=4, pool="attention", settings=answers) < 1e-5


def test_the_order_in_a_flat_patch_is_noted(tmp_path: Path) -> None:
    model = made("naflexvit_base_patch16_gap", **NAFLEX)
    path = saved_bare(model, tmp_path / "w.safetensors")
    notes = load_checkpoint(path, LoadOptions(heads=4)).notes
    assert any("by row, column, channel (patchify_channels_last=True" in note for note in notes)


def test_a_table_under_another_name_is_a_damage_and_no_question(tmp_path: Path) -> None:
    tensors = made("vit_base_patch16_224").state_dict()
    save_file({name.replace("pos_embed", "pos_embedd"): t for name, t in tensors.items()}, tmp_path / "w.safetensors")
    with pytest.raises(DamagedFileError, match=r"no tensor pos_embed \(nearest name in the file: pos_embedd\)"):
        load_checkpoint(tmp_path / "w.safetensors", LoadOptions(heads=4))


def test_heads_side_by_side_are_asked_for_as_a_sum(tmp_path: Path) -> None:
    path = saved_bare(made("vit_small_patch16_18x2_224"), tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="for each of its 2 attentions side by side; pass the sum"):
        load_checkpoint(path)


@pytest.mark.parametrize("lost", ["blocks.1.attns.1.norm.bias", "blocks.0.ffns.1.mlp.fc2.bias"])
def test_a_bias_that_one_branch_lacks_is_damaged(lost: str, tmp_path: Path) -> None:
    tensors = made("vit_small_patch16_18x2_224").state_dict()
    del tensors[lost]
    torch.save(tensors, tmp_path / "w.pth")
    with pytest.raises(DamagedFileError, match=f"no tensor.*{lost}"):
        load_checkpoint(tmp_path / "w.pth", LoadOptions(heads=8))
