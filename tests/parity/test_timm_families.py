"""Families of timm beyond the plain ViT: each equals timm's own module in every block and the outputs, from a folder,
from a bare file with its published name, and at other sizes; a bare file alone is exact, asked about, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from parity.differences import record
from parity.timm_models import SIZE, furthest, pictures, randomise, saved, saved_bare
from vitrail.checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError

FAMILIES: dict[str, dict[str, Any]] = {
    "vit_small_patch16_rope_224": {},
    "vit_base_patch16_rope_ape_224": {},
    "vit_small_patch16_rope_mixed_224": {},
    "vit_large_patch16_rope_mixed_ape_224": {},
    "vit_betwixt_patch16_rope_reg4_gap_256": {},
    "vit_mediumd_patch16_rope_reg1_gap_256": {},
    "vit_small_patch16_lingbot": {},
    "vit_giant_patch16_lingbot": {},
    "eva_giant_patch14_clip_224": {"mlp_ratio": 2},
    "eva02_tiny_patch14_336": {},
    "eva02_base_patch14_224": {},
    "eva02_large_patch14_clip_336": {},
    "eva02_enormous_patch14_clip_224": {"mlp_ratio": 3},
    "vit_pe_core_small_patch16_384": {},
    "vit_pe_core_gigantic_patch14_448": {"mlp_ratio": 5},
    "vit_pe_lang_large_patch14_448": {},
    "vit_pe_lang_gigantic_patch14_448": {},
    "vit_pe_spatial_base_patch16_512": {},
    "beit_base_patch16_384": {},
    "beitv2_large_patch16_224": {"mlp_ratio": 2},
    "beit3_base_patch16_224": {},
    "aimv2_large_patch14_224": {},
    "vit_base_patch16_radio_v3": {},
    "vit_huge_patch16_radio_v4": {},
    "vit_intern300m_patch14_448": {},
    "vit_small_patch16_18x2_224": {},
    "vit_base_patch16_rpn_224": {},
    "vit_so150m2_patch16_reg1_gap_256": {},
    "vit_base_patch16_gap_224": {},
    "vit_relpos_small_patch16_224": {},
    "vit_srelpos_medium_patch16_224": {},
    "vit_relpos_medium_patch16_cls_224": {},
    "vit_relpos_base_patch16_clsgap_224": {},
    "vit_relpos_medium_patch16_rpn_224": {},
}
"""Published names, one for each design, with what is changed beside the size."""
FIXED_SIZE = ("beit_", "beitv2_", "vit_relpos_", "vit_srelpos_")
"""Families whose module takes pictures of one size; another is asked for when it is made."""


def tiny(name: str, **more: Any) -> nn.Module:
    return randomise(timm.create_model(name, **{**SIZE, **FAMILIES[name], **more}))


def compare(loaded: LoadedModel, model: nn.Module, height: int, width: int) -> None:
    """Every block and the outputs are equal for pictures of a size."""
    difference = furthest(loaded.model, model, pictures(3, height, width))
    grid = "native" if (height, width) == (16, 16) else f"{height // 4}x{width // 4}"
    record(f"{loaded.audit.layout}:{loaded.audit.variant}".removesuffix(":"), f"read, {grid} grid", difference)
    assert difference < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_and_a_bare_file_with_its_name_are_exact(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    loaded = load_checkpoint(saved(model, tmp_path / "folder"))
    compare(loaded, model, 16, 16)
    named = LoadOptions(network=name, heads=8 if "18x2" in name else 4, image_size=16)
    bare = load_checkpoint(saved_bare(model, tmp_path / "bare.safetensors"), named)
    assert furthest(bare.model, model, pictures(3, 16, 16)) < 1e-5 and bare.config == loaded.config
    assert bare.spec.mean == pytest.approx(timm.get_pretrained_cfg(name).mean)


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith(FIXED_SIZE)])
def test_other_sizes_are_exact(name: str, tmp_path: Path) -> None:
    model = tiny(name, dynamic_img_size=True)
    loaded = load_checkpoint(saved(model, tmp_path))
    for height, width in ((24, 24), (12, 20)):
        compare(loaded, model, height, width)


@pytest.mark.parametrize("name", ["vit_srelpos_medium_patch16_224", "vit_relpos_medium_patch16_cls_224"])
def test_a_network_of_biases_answers_for_the_size_that_is_wanted(name: str, tmp_path: Path) -> None:
    folder = saved(tiny(name), tmp_path)
    resized = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=(12, 20)).eval()
    compare(load_checkpoint(folder, LoadOptions(image_size=(12, 20))), resized, 12, 20)


@pytest.mark.filterwarnings("ignore:.*searchsorted", "ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("size", [(24, 24), (12, 20), (8, 16)])
def test_relative_biases_are_resampled_as_timm_does_it(size: tuple[int, int], tmp_path: Path) -> None:
    folder = saved(tiny("beitv2_large_patch16_224"), tmp_path)
    resized = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=size).eval()
    loaded = load_checkpoint(folder, LoadOptions(image_size=size))
    compare(loaded, resized, *size)
    assert any("relative biases resampled" in note for note in loaded.notes)
    native = load_checkpoint(folder)
    assert (native.model(pictures(3, *size)) - resized(pictures(3, *size))).abs().max() < 1e-5


def test_a_rectangular_beit_needs_its_size_and_no_heads(tmp_path: Path) -> None:
    model = tiny("beit_base_patch16_384", img_size=(12, 20))
    assert furthest(load_checkpoint(saved(model, tmp_path / "folder")).model, model, pictures(3, 12, 20)) < 1e-5
    path = saved_bare(model, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=r"offsets, which are those of no square of patches\. Pass image_size="):
        load_checkpoint(path)
    loaded = load_checkpoint(path, LoadOptions(image_size=(12, 20)))
    assert loaded.config.heads == 4 and furthest(loaded.model, model, pictures(3, 12, 20)) < 1e-5


def test_one_table_for_all_blocks_and_the_index_of_original_files_are_read(tmp_path: Path) -> None:
    model = tiny("beit_base_patch16_384", use_rel_pos_bias=False, use_shared_rel_pos_bias=True)
    index = model.rel_pos_bias.relative_position_index
    path = tmp_path / "beit.pth"
    torch.save({"model": {**model.state_dict(), "rel_pos_bias.relative_position_index": index}}, path)
    loaded = load_checkpoint(path)
    assert loaded.audit.variant == "beit-shared"
    compare(loaded, model, 16, 16)


EXACT = {
    "beit_base_patch16_384": None,
    "beitv2_large_patch16_224": None,
    "beit3_base_patch16_224": 4,
    "aimv2_large_patch14_224": 4,
    "eva02_base_patch14_224": 4,
    "eva02_large_patch14_clip_336": 4,
    "vit_small_patch16_rope_mixed_224": None,
    "vit_large_patch16_rope_mixed_ape_224": None,
    "vit_small_patch16_18x2_224": 8,
    "vit_base_patch16_gap_224": 4,
    "vit_so150m2_patch16_reg1_gap_256": 4,
}
"""Bare files that say everything but heads, and how many to give."""


@pytest.mark.parametrize("name", EXACT)
def test_a_bare_file_that_says_enough_is_exact(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    loaded = load_checkpoint(saved_bare(model, tmp_path / "w.safetensors"), LoadOptions(heads=EXACT[name]))
    assert furthest(loaded.model, model, pictures(3, 16, 16)) < 1e-5


ASKED = {
    "vit_small_patch16_rope_224": 'such as network="vit_small_patch16_rope_224"; or',
    "vit_base_patch16_rope_ape_224": r'layout="deit3".*network="vit_small_patch16_rope_ape_224"',
    "vit_betwixt_patch16_rope_reg4_gap_256": 'network="vit_base_patch16_rope_reg1_gap_256" or',
    "vit_mediumd_patch16_rope_reg1_gap_256": 'network="vit_base_patch16_rope_reg1_gap_256" or',
    "vit_small_patch16_lingbot": r'does not say pool.*"class" for vit_small_patch16_lingbot',
    "eva_giant_patch14_clip_224": 'network="eva_giant_patch14_224" or',
    "eva02_tiny_patch14_336": 'or "eva02_tiny_patch14_224"; or pass settings',
    "eva02_enormous_patch14_clip_224": 'network="eva_giant_patch14_224" or',
    "vit_pe_core_small_patch16_384": 'network="vit_pe_core_base_patch16_224" or',
    "vit_pe_lang_large_patch14_448": 'network="vit_small_patch16_rope_ape_224"',
    "vit_pe_spatial_base_patch16_512": r'no norm after its blocks.*network="NAME"',
    "vit_base_patch16_radio_v3": "no norm after its blocks",
    "vit_intern300m_patch14_448": "no norm after its blocks",
    "vit_base_patch16_rpn_224": r"does not say post_norm.*vit_base_patch16_rpn_224",
}
"""Bare files of which two readings fit, and the question."""


@pytest.mark.parametrize("name", ASKED)
def test_a_bare_file_of_which_two_readings_fit_is_asked_about(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=ASKED[name]):
        load_checkpoint(saved_bare(tiny(name), tmp_path / "w.safetensors"), LoadOptions(heads=4))


ANSWERS: dict[str, dict[str, Any]] = {
    "vit_small_patch16_rope_224": {"settings": {"rotary": "rope-vit"}},
    "vit_betwixt_patch16_rope_reg4_gap_256": {"settings": {"rotary": "eva02", "rotary_grid": (16, 16)}},
    "vit_small_patch16_lingbot": {"pool": "class"},
    "eva_giant_patch14_clip_224": {"settings": {"rotary": "none"}},
    "vit_base_patch16_radio_v3": {"settings": {"final_norm": False}},
    "vit_base_patch16_rpn_224": {"settings": {"post_norm": True}},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_to_the_question_reads_the_bare_file(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    answered = LoadOptions(heads=4, **ANSWERS[name])
    compare(load_checkpoint(saved_bare(model, tmp_path / "w.safetensors"), answered), model, 16, 16)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "changes", "activation"),
    [
        ("vit_base_patch32_siglip_256", {"patch_size": 32, "img_size": 64}, "GELUTanh"),
        (
            "vit_so400m_patch16_siglip_256",
            {"embed_dim": 1152, "num_heads": 16, "patch_size": 16, "depth": 1},
            "GELUTanh",
        ),
        ("vit_base_patch16_siglip_224", {}, None),
    ],
)
def test_a_bare_siglip_of_a_size_with_the_tanh_form_is_asked_about(
    name: str, changes: dict[str, Any], activation: str | None, tmp_path: Path
) -> None:
    model = randomise(timm.create_model(name, **{**SIZE, "mlp_ratio": 1, **changes}))
    path, heads = saved_bare(model, tmp_path / "w.safetensors"), changes.get("num_heads", 4)
    if activation is not None:
        with pytest.raises(UsageError, match=r'does not say activation.*"GELUTanh" for SigLIP'):
            load_checkpoint(path, LoadOptions(heads=heads))
    settings = {} if activation is None else {"activation": activation}
    loaded = load_checkpoint(path, LoadOptions(heads=heads, settings=settings))
    assert furthest(loaded.model, model, pictures(3, *loaded.config.image_size)) < 1e-5


REFUSED = {
    "vit_dlittle_patch16_reg1_gap_256": "differential attention",
    "vit_dwee_patch16_reg1_gap_256": "differential attention",
    "vit_dpwee_patch16_reg1_gap_256": "differential attention",
    "vit_base_patch16_sapiens2": "queries that share keys and values",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_vitrail_lacks_is_refused_by_its_name_with_the_reason(name: str, tmp_path: Path) -> None:
    size = {**SIZE, "num_kv_heads": 2} if "sapiens2" in name else SIZE
    model = timm.create_model(name, **size)
    with pytest.raises(UsageError, match=f"{name} has {REFUSED[name]}"):
        load_checkpoint(saved(model, tmp_path / "folder"))
    with pytest.raises(UsageError, match=f"it has {REFUSED[name]}"):
        load_checkpoint(saved_bare(model, tmp_path / "w.safetensors"), LoadOptions(heads=4))


@pytest.mark.parametrize(
    ("lost", "message"),
    [("blocks.1.attns.1.norm.weight", "no tensor"), ("blocks.0.ffns.1.mlp.fc2.weight", "no tensor")],
)
def test_a_branch_without_a_tensor_is_damaged(lost: str, message: str, tmp_path: Path) -> None:
    tensors = tiny("vit_small_patch16_18x2_224").state_dict()
    del tensors[lost]
    torch.save(tensors, tmp_path / "w.pth")
    with pytest.raises(DamagedFileError, match=f"{message}.*{lost}"):
        load_checkpoint(tmp_path / "w.pth", LoadOptions(heads=8))


def test_a_name_beside_a_folder_is_no_network(tmp_path: Path) -> None:
    folder = saved(tiny("vit_small_patch16_rope_224"), tmp_path)
    with pytest.raises(UsageError, match="holds one model"):
        load_checkpoint(folder, LoadOptions(network="vit_small_patch16_rope_224"))
