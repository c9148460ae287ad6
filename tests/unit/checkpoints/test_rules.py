"""The rules engine: steps that undo themselves, complete-or-error, and the report."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from vitrail.checkpoints.adapt import build_model, build_on_meta
from vitrail.checkpoints.identify import LAYOUTS, list_variants
from vitrail.checkpoints.layouts import BATCHED, IDENTITY, KERNEL, MATRIX, Layout, StorageStep, make_name_rules
from vitrail.checkpoints.rules import read_with_layout, write_with_layout
from vitrail.checkpoints.validate import Audit, AuditRow
from vitrail.errors import DamagedFileError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.registry import PRESETS
from vitrail.model.vit import create_model

TINY = ViTConfig(image_size=(4, 6), patch=(2, 3), channels=2, width=8, depth=2, heads=2, mlp_width=12, outputs=3)
BLOG = replace(TINY, norm_eps=1e-5, dropout=0.1, mlp_dropout=0.1, init="torch")


def own_layout(config: ViTConfig) -> Layout:
    table = {name: f"model/{name}" for name in build_on_meta(config).state_dict()}
    rules = make_name_rules({theirs: ours for ours, theirs in table.items()})
    return Layout(name="own", required_names=(), rules=rules, describe=lambda tensors, hints: config)


@pytest.mark.parametrize("step", [IDENTITY, BATCHED, KERNEL, MATRIX])
@pytest.mark.parametrize("shape", [(8, 12), (8, 2, 2, 3)])
def test_every_step_undoes_itself_for_kernels_and_matrices(step: StorageStep, shape: tuple[int, ...]) -> None:
    ours = torch.randn(shape)
    theirs = step.write(ours, TINY)
    assert torch.equal(step.read(theirs, ours), ours)


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_a_model_with_either_kind_of_patches_writes_the_same_file(kind: str) -> None:
    model = create_model(replace(BLOG, patches=kind))
    tensors = write_with_layout(model.state_dict(), model.config, LAYOUTS["blog-conv"])
    assert tensors["patch_embedding.conv.weight"].shape == (8, 2, 2, 3)
    values, _ = read_with_layout(tensors, model.state_dict(), model.config, LAYOUTS["blog-conv"], "memory")
    assert values.keys() == model.state_dict().keys()
    assert all(torch.equal(values[name], tensor) for name, tensor in model.state_dict().items())


def test_what_is_read_has_memory_of_its_own_and_the_models_number_format() -> None:
    model = create_model(TINY)
    tensors = {f"model/{name}": tensor.half() for name, tensor in model.state_dict().items()}
    values, _ = read_with_layout(tensors, build_on_meta(TINY).state_dict(), TINY, own_layout(TINY), "memory")
    assert {value.dtype for value in values.values()} == {torch.float32}
    values["tokens.cls"].fill_(7)
    assert not (tensors["model/tokens.cls"] == 7).any()


def test_a_tied_file_does_not_tie_the_parameters() -> None:
    shared = torch.randn(8)
    tensors = {f"model/{name}": tensor for name, tensor in create_model(TINY).state_dict().items()}
    tensors |= {f"model/encoder.blocks.{i}.norm1.weight": shared for i in range(2)}
    model = build_model(
        TINY, read_with_layout(tensors, build_on_meta(TINY).state_dict(), TINY, own_layout(TINY), "memory")[0]
    )
    first, second = (block.norm1.weight for block in model.encoder.blocks)
    assert first.data_ptr() != second.data_ptr()


def test_unused_norms_are_written_as_fresh_ones() -> None:
    model = create_model(BLOG)
    tensors = write_with_layout(model.state_dict(), model.config, LAYOUTS["blog-conv"])
    assert torch.equal(tensors["vit.1.norm.weight"], torch.ones(8))
    assert torch.equal(tensors["vit.1.norm.bias"], torch.zeros(8))


def test_a_message_names_the_first_faults_of_each_kind_and_counts_the_others() -> None:
    tensors = {f"model/{name}": tensor for name, tensor in create_model(TINY).state_dict().items() if ".1." not in name}
    tensors["model/head.linear.bias"] = torch.zeros(4)
    tensors["strange"] = torch.zeros(2)
    message = (
        r"f\.pt does not fit the layout own: 12 missing: model/encoder\.blocks\.1\.norm1\.weight \[8\], "
        r".*, and 8 more; 1 without a rule: strange \[2\]; 1 of another shape: model/head\.linear\.bias is \[4\], "
        r"expected \[3\]\. Give"
    )
    with pytest.raises(DamagedFileError, match=message):
        read_with_layout(tensors, build_on_meta(TINY).state_dict(), TINY, own_layout(TINY), "f.pt")


def test_a_renamed_tensor_is_shown_beside_its_new_name() -> None:
    tensors = {f"model/{name}": tensor for name, tensor in create_model(TINY).state_dict().items()}
    tensors["model/token.cls"] = tensors.pop("model/tokens.cls")
    message = r"1 missing: model/tokens\.cls \[1, 1, 8\] \(nearest name in the file: model/token\.cls\)"
    with pytest.raises(DamagedFileError, match=message):
        read_with_layout(tensors, build_on_meta(TINY).state_dict(), TINY, own_layout(TINY), "f.pt")


def test_whole_numbers_are_no_weights() -> None:
    tensors = {f"model/{name}": tensor for name, tensor in create_model(TINY).state_dict().items()}
    tensors["model/tokens.cls"] = torch.zeros(1, 1, 8, dtype=torch.int64)
    with pytest.raises(DamagedFileError, match=r"model/tokens\.cls must hold floating-point numbers\. Got int64"):
        read_with_layout(tensors, build_on_meta(TINY).state_dict(), TINY, own_layout(TINY), "f.pt")


def test_a_layout_without_a_place_for_a_part_says_which() -> None:
    model = create_model(replace(BLOG, head="tanh"))
    with pytest.raises(UsageError, match=r"blog-conv has no place for 2 of the model's tensors: head\.hidden\.weight"):
        write_with_layout(model.state_dict(), model.config, LAYOUTS["blog-conv"])


@pytest.mark.parametrize(
    ("layout", "preset", "change", "words"),
    [
        ("blog-conv", "blog_vit_base_patch16_224", {"activation": "ReLU"}, "it means activation='GELU'"),
        ("blog-conv", "blog_vit_base_patch16_224", {"qk_scale": 1.0}, "it means qk_scale=None"),
        ("explained", "explained_vit_patch20_60x100", {"qk_scale": 1.0}, "the model has qk_scale=1.0"),
        ("xray-rope", "xray_vit_patch16_224", {"rotary": "axial"}, "it means rotary='from-one'"),
    ],
)
def test_a_layout_refuses_a_model_that_it_would_read_back_as_another(
    layout: str, preset: str, change: dict[str, object], words: str
) -> None:
    config = replace(PRESETS[preset], depth=1, **change)
    with pytest.raises(UsageError, match=re.escape(f"The layout {layout} cannot hold this model: ") + ".*" + words):
        write_with_layout(build_on_meta(config).state_dict(), config, LAYOUTS[layout])


def test_a_layout_that_does_not_exist_is_an_error_that_lists_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"no layout 'timn'\. Known: bundle, .*blog-conv, .*explained, .*xray-rope"):
        list_variants("timn")


def test_the_report_has_a_line_a_tensor_and_the_sums() -> None:
    rows = (
        AuditRow(theirs="cls_token", shape=(1, 1, 8), action="loaded", ours="tokens.cls"),
        AuditRow(theirs="old", shape=(), action="dropped", ours="never used"),
    )
    audit = Audit(layout="own", rows=rows)
    assert audit.format_table().splitlines() == [
        "in the file  shape           in vitrail",
        "cls_token    1x1x8  loaded   tokens.cls",
        "old          ()     dropped  never used",
        "layout own: 2 tensors, 1 loaded, 1 dropped",
    ]
