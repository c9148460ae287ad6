"""A made-up model inside a training module: beginnings of names, heads, and what is no plain ViT."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from in_memory import load_from_tensors
from vitrail.checkpoints import identify
from vitrail.checkpoints.identify import LAYOUTS
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.rules import write_with_layout
from vitrail.checkpoints.wrapped_model import (
    MAX_BEGINNINGS,
    OTHER_DESIGNS,
    describe_other_design,
    rename_replaced_head,
    take_known_network,
)
from vitrail.errors import DamagedFileError, UsageError

from .toy import CONFIG, TOY, model


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "LAYOUTS", {"toy": replace(TOY, head="classifier")})


def tensors(beginning: str = "") -> dict[str, Tensor]:
    written = write_with_layout(model().state_dict(), CONFIG, TOY)
    return {beginning + name: tensor for name, tensor in written.items()}


def named(*names: str) -> dict[str, Tensor]:
    return dict.fromkeys(names, torch.ones(2))


def headless() -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors().items() if not name.startswith("classifier.")}


@pytest.mark.parametrize("beginning", ["", "model.", "a.b.c."])
def test_a_beginning_that_all_names_share_is_taken_off(beginning: str) -> None:
    loaded = load_from_tensors(tensors(beginning), "f")
    note = f"every name in the file begins with {beginning}, which was taken off"
    assert loaded.config == CONFIG and (note in loaded.notes) == bool(beginning)


def test_what_lies_beside_a_network_is_named_and_counted() -> None:
    beside = named("fc.weight", "a", "b", "c", "d")
    with pytest.raises(UsageError, match=r"layout toy under model, beside it fc\.weight, a, b and 2 more: .*='model'"):
        load_from_tensors(tensors("model.") | beside, "f")


def test_several_networks_are_listed_and_the_outermost_of_one_is_meant() -> None:
    with pytest.raises(UsageError, match=r"holds 2 networks, a and b\.c\. Name one: network='a'"):
        load_from_tensors(tensors("b.c.") | tensors("a."), "f")
    inner = {f"model.{name}": tensor for name, tensor in tensors().items()} | named("model.toy.x")
    with pytest.raises(DamagedFileError, match=r"1 without a rule: toy\.x"):
        load_from_tensors(inner, "f")


def test_a_file_that_fits_as_it_is_keeps_its_names() -> None:
    given, notes = tensors() | named("model.cls", "model.stem.weight"), list[str]()
    assert take_known_network(given, None, {}, notes) is given and not notes


def test_beginnings_beyond_a_limit_are_not_tried() -> None:
    many = {f"{'x' * 50}{i}.cls": torch.ones(1) for i in range(20_000)}
    start = time.process_time()
    assert take_known_network(many, None, {}, []) is many
    assert time.process_time() - start < 5 and MAX_BEGINNINGS < 100


@pytest.mark.parametrize("stem", ["classifier.1", "classifier.dense", "classifier.0.out"])
def test_the_only_linear_layer_of_a_head_is_the_head(stem: str) -> None:
    file = headless() | {f"{stem}.weight": torch.ones(4, 8), f"{stem}.bias": torch.zeros(4)}
    loaded = load_from_tensors(file, "f")
    assert loaded.config.outputs == 4 and torch.equal(loaded.model.head.linear.weight, torch.ones(4, 8))
    assert f"{stem} was read as the head; layers without tensors beside it were taken for dropout" in loaded.notes


@pytest.mark.parametrize(
    "head",
    [
        {"classifier.0.weight": (4, 8), "classifier.2.weight": (3, 4)},
        {"classifier.0.weight": (8,), "classifier.1.weight": (3, 8)},
        {"classifier.1.weight": (3, 8), "classifier.1.scale": (3,)},
        {"classifier.1.weight": (3, 8, 1)},
        {"classifier.1.bias": (3,)},
    ],
)
def test_any_other_head_is_refused_and_left_out_where_another_is_asked_for(head: dict[str, tuple[int, ...]]) -> None:
    file = headless() | {name: torch.ones(shape) for name, shape in head.items()}
    layout, notes = replace(TOY, head="classifier"), list[str]()
    with pytest.raises(
        UsageError, match=r"not a single linear layer: .*classifier\.\d.* Pass outputs=0 for the features"
    ):
        rename_replaced_head(dict(file), layout, None, notes)
    for outputs in (0, 3):
        assert rename_replaced_head(dict(file), layout, outputs, notes).keys() == headless().keys()
    assert notes[0].startswith("the file's own head was left out: classifier.")


def test_a_head_with_a_name_of_the_layout_is_left_as_it_is() -> None:
    layout = replace(TOY, head="classifier")
    for beside in ({}, named("classifier.weight_copy", "classifier.1.weight")):
        given = tensors() | beside
        assert rename_replaced_head(given, layout, None, []) is given
    given = headless() | {"classifier.1.weight": torch.ones(3, 8)}
    assert rename_replaced_head(given, TOY, None, []) is given


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layers.0.blocks.0.attn.relative_position_bias_table", "as Swin has it"),
        ("visual.trunk.blocks.0.attn.rel_pos.mlp.fc1.weight", "under timm's own names only"),
        ("visual.attn_pool.probe", "Perception Encoder's own repository"),
        ("visual.attn_pool.query", "as CoCa has it"),
        ("vision_model.pre_layernorm.weight", "OWL-ViT, a detector"),
        ("blocks.0.attn.lambda_q1", "differential attention"),
        ("blocks.0.lambda_q1", "differential attention"),
        ("blocks.0.mlp.ffn_ln.weight", "BAAI's EVA-02"),
        ("blocks.0.attn.rel_pos_h", "as SAM"),
        ("model.patch_embed.backbone.conv.weight", "a hybrid"),
        ("bn1.running_mean", "batch normalisation"),
        ("blocks.1.proj.weight", "as Hiera"),
        ("stages.0.blocks.0.norm1.weight", "stages of different sizes"),
        ("blocks.0.attn.qkv.lora_A.default.weight", "merge_and_unload"),
        ("blocks.0.attn.qkv.parametrizations.weight.original0", "remove the parametrisations"),
        ("_flat_param", "FULL_STATE_DICT"),
        ("backbone.layers.0.ffn.layers.0.0.weight", "MMPretrain"),
        ("vit.patch_embedding.patch_embeddings.1.weight", "MONAI"),
    ],
)
def test_a_file_of_another_design_is_named_with_exit_code_2(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=rf"f: It is no plain Vision Transformer .*{words}.*\({name}\)"):
        load_from_tensors(named("stem.weight", name), "f")


def test_a_perception_encoder_without_a_last_norm_is_named() -> None:
    names = ("conv1.weight", "positional_embedding", "ln_pre.weight", "transformer.resblocks.0.ln_1.weight")
    assert "Perception Encoder's own repository" in describe_other_design(names, {})
    assert describe_other_design((*names, "ln_post.bias"), {}) == ""  # a CLIP that lacks a tensor


def test_what_a_config_calls_the_model_decides_before_its_sizes() -> None:
    hiera = {"architecture": "hiera_tiny_224", "num_heads": [1, 2]}
    assert describe_other_design(["blocks.0.norm1.weight"], hiera) == (
        "hiera_tiny_224 is no plain Vision Transformer: Hiera pools tokens between its stages."
    )
    assert describe_other_design(["blocks.0.norm1.weight"], {"architecture": "vit_tiny_patch16_224"}) == ""
    mobile = {"model_cfg": {"vision_cfg": {"timm_model_name": "vit_base_mci_224"}}}
    assert describe_other_design(["visual.trunk.norm.weight"], mobile) == (
        "vit_base_mci_224 is no plain Vision Transformer: its patches come out of a convolutional network (a hybrid)."
    )
    assert describe_other_design(["visual.proj"], {"model_cfg": {"vision_cfg": {"width": 32}}}) == ""
    assert describe_other_design(["stages.0.norm.weight"], {"architecture": "newnet_small"}) == (
        "config.json says that the model is a newnet_small, which is not a plain Vision Transformer known here: "
        "it has stages of different sizes, as Hiera, PVT and other pyramids have them (stages.0.norm.weight)."
    )
    with pytest.raises(UsageError, match=r"f: swin is no plain Vision Transformer: Swin attends within shifted"):
        load_from_tensors(tensors(), "f", hints=LayoutHints(foreign_config={"model_type": "swin"}))


def test_a_file_whose_tensors_no_layout_knows_is_another_architecture() -> None:
    with pytest.raises(UsageError, match=r"of its 2 tensors \(conv1, fc\) no layout knows any"):
        load_from_tensors(named("conv1", "fc"), "f")
    strange = named("net.stem.weight", "net.a", "net.b", "net.c")
    with pytest.raises(UsageError, match=r"of its 4 tensors \(stem\.weight, a, b\) the nearest layout, toy, knows 1"):
        load_from_tensors(strange, "f")


def test_a_tensor_more_or_less_in_every_block_is_another_design_and_in_one_a_damage() -> None:
    more = {f"toy.layer.{i}.gate.weight": torch.ones(2) for i in range(CONFIG.depth)}
    for file in (tensors() | more, {name: t for name, t in tensors().items() if not name.endswith("norm2.bias")}):
        with pytest.raises(UsageError, match=r"f does not fit the layout toy: .* It is the same in every block"):
            load_from_tensors(file, "f")
    with pytest.raises(DamagedFileError, match=r"1 without a rule: toy\.layer\.0\.gate\.weight"):
        load_from_tensors(tensors() | dict([*more.items()][:1]), "f")
    broken = tensors() | more
    del broken["toy.cls"]
    with pytest.raises(
        UsageError, match=r"every block has a tensor such as .*layer\.0\.gate\.weight, which .* toy lacks"
    ):
        load_from_tensors(broken, "f")


def test_a_head_says_nothing_of_the_design_of_an_encoder() -> None:
    assert describe_other_design(["head.0.running_mean", "model.classifier.0.running_mean"], {}) == ""
    with pytest.raises(DamagedFileError, match=r"1 without a rule: stem\.bias"):
        load_from_tensors(tensors() | {"stem.bias": torch.ones(8, 1)}, "f")


def test_no_layout_has_a_name_by_which_another_design_is_known() -> None:
    for layout in LAYOUTS.values():
        for rule in layout.rules:
            names = rule.theirs if isinstance(rule.theirs, tuple) else (rule.theirs,)
            filled = [name.format(i=0, p="weight") for name in names]
            assert describe_other_design(filled, {}) == "", (layout.key, filled)
    assert OTHER_DESIGNS
