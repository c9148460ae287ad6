"""What timm's code knows of its architectures and no file says: our reading of their names and of config.json."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from parity.timm_models import pictures, randomise, saved, saved_bare
from vitrail.checkpoints.families import timm_config
from vitrail.checkpoints.families.timm import choose_timm_card
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError
from vitrail.model.config import ViTConfig

OTHERS = ("_dwee_", "_dpwee_", "_dlittle_", "sapiens2", "naflexvit.*radio", "_par_", "_parfac_")
"""Architectures that Vitrail does not read, by a pattern of their names."""
TINY_PLAIN = {"img_size": 32, "embed_dim": 64, "depth": 1, "num_heads": 1}
TINY_CLIP = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
NAMES = tuple(
    name
    for module in ("vision_transformer", "deit", "eva", "naflexvit", "beit")
    for name in timm.list_models(module=module)
    if not any(re.search(word, name) for word in OTHERS)
)


def test_all_of_timms_plain_architectures_are_known_by_their_names() -> None:
    assert len(NAMES) > 200
    wrong = {name: found for name in NAMES if (found := differing(name))}
    assert not wrong


def differing(name: str) -> dict[str, tuple[object, object]]:
    """What we say about an architecture and what timm builds, where they differ."""
    with torch.device("meta"):
        model = timm.create_model(name, depth=1)
    hints = LayoutHints(foreign_config=timm_config.describe_published_model(name) or {"architecture": name})
    block = model.blocks[0]
    if hasattr(block, "attns"):
        norm, attention, mlp = block.attns[0].norm, block.attns[0].attn, block.ffns[0].mlp
    else:
        norm = block.norm1 if hasattr(block, "norm1") else block.in_norm
        attention, mlp = getattr(block, "attn", block), getattr(block, "mlp", None)
    gated = type(mlp).__name__ in ("GluMlp", "SwiGLU")
    probe, pooled_norm = getattr(model, "attn_pool", None), not isinstance(model.fc_norm, nn.Identity)
    usual = timm_config.default_eva_pool(hints) if timm_config.is_eva(hints) else "class"
    has_class = model.cls_token is not None if hasattr(model, "cls_token") else model.embeds.cls_token is not None
    lacks_norm = isinstance(model.norm, nn.Identity) and not pooled_norm
    ours = {
        "heads": timm_config.read_timm_heads(hints, model.embed_dim, 1, 1, gated),
        "norm_eps": timm_config.choose_norm_eps(hints, pre_norm=not isinstance(norm_before(model), nn.Identity)),
        "activation": timm_config.choose_activation(hints, pre_norm=False, gated=gated),
        "pool": timm_config.choose_pool(hints, probe is not None, has_class, pooled_norm, usual),
        "rotary": timm_config.choose_rotary(hints, bare=None),
        "post_norm": timm_config.read_post_norm(hints, ambiguous=False, names=""),
        "pool_heads": None if probe is None else timm_config.read_probe_heads(hints) or attention.num_heads,
        "eva": timm_config.is_eva(hints),
        "no final norm": timm_config.lacks_final_norm(hints),
    }
    theirs = {
        "heads": attention.num_heads,
        "norm_eps": norm.eps,
        "activation": type(block.mlp_act if mlp is None else mlp.act).__name__,
        "pool": timm_config.TIMM_POOLS[model.global_pool],
        "rotary": rotary_of(model),
        "post_norm": "Post" in type(block).__name__,
        "pool_heads": None if probe is None else probe.num_heads,
        "eva": type(model).__name__ == "Eva",
        "no final norm": lacks_norm,
    }
    return {word: (ours[word], theirs[word]) for word in ours if ours[word] != theirs[word]}


def norm_before(model: nn.Module) -> nn.Module:
    """The norm before the blocks; `Beit` has none."""
    return getattr(model, "norm_pre", nn.Identity())


def rotary_of(model: nn.Module) -> dict[str, Any]:
    """timm's rotary positions in our words."""
    rope = getattr(model, "rope", None)
    kind = type(rope).__name__
    if kind in ("NoneType", "RotaryEmbeddingDinoV3", "RotaryEmbeddingMixed"):
        return {"rotary": {"NoneType": "none", "RotaryEmbeddingDinoV3": "dinov3"}.get(kind, "mixed")}
    words = {("ij", 0.0): "eva02", ("xy", 0.0): "rope-vit", ("xy", 1.0): "pe"}
    ours = words[rope.grid_indexing, float(rope.grid_offset)]
    usual = {"rope-vit": 100.0}.get(ours, 10000.0)
    reference = None if rope.ref_feat_shape is None else tuple(rope.ref_feat_shape)
    base = None if rope.temperature == usual else float(rope.temperature)
    return {"rotary": ours, "rotary_base": base, "rotary_grid": reference}


def test_the_pictures_of_a_published_name_are_those_of_some_of_its_weights() -> None:
    weights: dict[str, set[tuple[tuple[float, ...], tuple[float, ...]]]] = {}
    for full in timm.list_models(pretrained=True):
        published = timm.get_pretrained_cfg(full)
        weights.setdefault(full.partition(".")[0], set()).add((tuple(published.mean), tuple(published.std)))
    wrong = {}
    for name in NAMES:
        described = timm_config.describe_published_model(name).get("pretrained_cfg")
        if described and name in weights:
            found = tuple(described["mean"]), tuple(described["std"])
            wrong |= {} if found in weights[name] else {name: weights[name]}
    assert not wrong


def test_a_bare_file_of_a_published_size_needs_no_heads(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=2)
    assert load_checkpoint(saved_bare(model, tmp_path / "w.safetensors")).config.heads == 3


def test_a_bare_file_of_another_size_needs_heads(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=2, depth=3)
    with pytest.raises(UsageError, match=r"does not say heads.*heads="):
        load_checkpoint(saved_bare(model, tmp_path / "w.safetensors"))


def test_the_heads_of_a_name_are_noted_for_a_bare_file_and_others_can_be_given(tmp_path: Path) -> None:
    name, size = "vit_small_patch16_rope_224", {"img_size": 32, "embed_dim": 64, "depth": 1, "num_classes": 2}
    model = randomise(timm.create_model(name, **size, num_heads=4))
    path = saved_bare(model, tmp_path / "w.safetensors")
    assumed = load_checkpoint(path, LoadOptions(network=name, image_size=(32, 32)))
    assert assumed.config.heads == 1 and "heads=1: those of its name are taken" in " ".join(assumed.notes)
    loaded = load_checkpoint(path, LoadOptions(network=name, image_size=(32, 32), heads=4))
    images = pictures(3, 32, 32)
    assert torch.allclose(loaded.model(images), model(images), atol=1e-5) and "heads" not in " ".join(loaded.notes)


def test_a_bare_clip_tower_needs_its_activation(tmp_path: Path) -> None:
    size = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = randomise(timm.create_model("vit_base_patch16_clip_quickgelu_224", **size))
    path = saved_bare(model, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="QuickGELU"):
        load_checkpoint(path, LoadOptions(heads=2))
    loaded = load_checkpoint(path, LoadOptions(heads=2, settings={"activation": "QuickGELU"}))
    images = pictures(3, 32, 32)
    assert (loaded.model(images) - model(images)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        ({"architecture": 3}, "architecture must be a name"),
        ({"architecture": "vit", "model_args": []}, "model_args must hold arguments"),
        ({"architecture": "vit", "model_args": {"img_size": [1, 2, 3]}}, "two whole numbers"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(foreign: dict[str, object], message: str) -> None:
    with pytest.raises(DamagedFileError, match=message):
        timm_config.read_architecture(LayoutHints(foreign_config=foreign))
        timm_config.read_timm_image_size(LayoutHints(foreign_config=foreign))


def test_heads_that_contradict_the_description_are_refused() -> None:
    hints = LayoutHints(heads=4, foreign_config={"architecture": "vit_base_patch16_224"})
    with pytest.raises(UsageError, match="heads=4 contradicts"):
        timm_config.read_timm_heads(hints, 768, 12, 3072, gated=False)


def test_an_unknown_activation_is_refused_by_name() -> None:
    hints = LayoutHints(foreign_config={"architecture": "vit", "model_args": {"act_layer": "hard_mish"}})
    with pytest.raises(UsageError, match="hard_mish"):
        timm_config.choose_activation(hints, pre_norm=False, gated=False)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("vit_base_patch16_clip_224.openai", "QuickGELU"),
        ("vit_base_patch16_clip_quickgelu_224.openai", "QuickGELU"),
        ("vit_base_patch16_clip_quickgelu_224.metaclip_400m", "QuickGELU"),
        ("vit_base_patch16_clip_224.laion2b", "GELU"),
        ("vit_base_patch16_clip_224.openai_ft_in1k", "GELU"),
    ],
)
def test_a_clip_tower_has_the_activation_that_its_authors_trained_it_with(
    name: str, activation: str, tmp_path: Path
) -> None:
    folder = saved(timm.create_model(name, **TINY_CLIP), tmp_path)
    assert load_checkpoint(folder, LoadOptions(match="original")).config.activation == activation
    as_timm = "QuickGELU" if "quickgelu" in name else "GELU"
    assert (
        load_checkpoint(folder).config.activation
        == load_checkpoint(folder, LoadOptions(match="timm")).config.activation
        == as_timm
    )
    assert (
        load_checkpoint(folder, LoadOptions(match="original", settings={"activation": "SiLU"})).config.activation
        == "SiLU"
    )


def test_a_bare_clip_tower_needs_its_activation_for_the_authors_too(tmp_path: Path) -> None:
    path = saved_bare(timm.create_model("vit_base_patch16_clip_224", **TINY_CLIP), tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="QuickGELU"):
        load_checkpoint(path, LoadOptions(heads=2, match="original"))


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("vit_small_patch16_224.dino", "dino"),
        ("vit_small_patch14_dinov2.lvd142m", "timm_dinov2"),
        ("vit_base_patch16_224.mae", "mae"),
        ("vit_huge_patch14_gap_224.in1k_ijepa", "ijepa"),
        ("vit_base_patch16_224.orig_in21k", "google_augreg"),
        ("vit_base_patch16_224.sam_in1k", "google_augreg"),
        ("vit_base_patch16_224.augreg_in21k", "google_augreg"),
        ("deit3_base_patch16_224.fb_in1k", "deit3"),
    ],
)
def test_the_name_with_its_tag_tells_the_authors(name: str, card: str) -> None:
    architecture, _, tag = name.partition(".")
    hints = LayoutHints(match="original", foreign_config={"architecture": architecture, "pretrained_cfg": {"tag": tag}})
    assert choose_timm_card(ViTConfig(), hints) == card


def test_authors_whom_nobody_knows_have_no_numerics(tmp_path: Path) -> None:
    folder = saved(timm.create_model("vit_base_patch16_224.mae", **TINY_PLAIN), tmp_path / "mae")
    ours = load_checkpoint(folder, LoadOptions(match="original")).config
    assert (ours.resample, ours.activation) == ("bicubic", "GELU") and load_checkpoint(
        folder
    ).config.resample != ours.resample
    folder = saved(timm.create_model("vit_medium_patch16_reg4_gap_256.sbb_in1k", **TINY_PLAIN), tmp_path / "sbb")
    words = r"The authors' numerics of vit_medium_patch16_reg4_gap_256\.sbb_in1k are not known\. Leave match= out"
    with pytest.raises(UsageError, match=words):
        load_checkpoint(folder, LoadOptions(match="original"))
    assert load_checkpoint(folder, LoadOptions(match="timm")).config == load_checkpoint(folder).config
