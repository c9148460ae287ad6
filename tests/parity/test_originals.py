"""Files of the original repositories: outputs, every block and gradients equal what those repositories computed."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from in_memory import load_from_tensors
from vitrail.checkpoints.families import dinov2_dinov3
from vitrail.checkpoints.identify import LAYOUTS, identify_layout
from vitrail.checkpoints.layouts import LayoutHints, Match
from vitrail.checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from vitrail.checkpoints.rules import write_with_layout
from vitrail.errors import DamagedFileError, UsageError

from .differences import record
from .negative import refuses_every_damage
from .reference import SIZES, Reference, gradient_difference, largest_difference, reference

LAYOUT_OF = {
    "dino": "dino",
    "dinov2": "dinov2",
    "dinov2_registers": "dinov2:registers",
    "dinov2_gated": "dinov2:gated",
    "dinov3": "dinov3",
    "dinov3_gated": "dinov3:gated",
    "mae": "mae:autoencoder",
    "mae_finetuned": "mae",
    "ijepa": "ijepa",
    "t2t_performer": "t2t:performer",
    "t2t_transformer": "t2t:transformer",
}
"""Fixture -> the layout that a person names; `name` alone also means its one variant without a word."""
HEADS = 2
RUNS = [(name, size) for name in LAYOUT_OF for size in SIZES if size in reference(name).runs]


@cache
def known(name: str) -> Reference:
    return reference(name)


def bare(name: str) -> dict[str, Tensor]:
    """The weights without what data-parallel training and DINO's wrapper put around them."""
    weights = known(name).weights
    weights = {key.removeprefix("module."): tensor for key, tensor in weights.items()}
    if name != "dino":
        return weights
    return {key.removeprefix("backbone."): tensor for key, tensor in weights.items() if not key.startswith("head.")}


def cleaned(name: str) -> dict[str, Tensor]:
    """The same without the numbers of chunks."""
    clean = LAYOUTS[LAYOUT_OF[name]].clean
    return bare(name) if clean is None else clean(bare(name))


def read(tensors: dict[str, Tensor], layout: str | None) -> LoadedModel:
    hints = LayoutHints(heads=None if layout and layout.startswith("dinov3") else HEADS)
    return load_from_tensors(dict(tensors), "here", layout, hints)


@cache
def model_of(name: str) -> LoadedModel:
    return read(bare(name), LAYOUT_OF[name])


@pytest.mark.parametrize(("name", "size"), RUNS)
def test_every_block_and_the_outputs_are_those_of_the_repository(name: str, size: str) -> None:
    model, run = model_of(name).model, known(name).runs[size]
    difference = largest_difference(model, run)
    record(LAYOUT_OF[name], f"read, {size} grid", difference)
    assert difference < 1e-5


@pytest.mark.parametrize("name", LAYOUT_OF)
def test_gradients_are_those_of_the_repository(name: str) -> None:
    difference = gradient_difference(model_of(name).model, known(name).runs["native"])
    record(LAYOUT_OF[name], "gradients", difference)
    assert difference < 1e-4


@pytest.mark.parametrize(("name", "size"), [run for run in RUNS if run[1] != "native" and "dinov3" not in run[0]])
def test_a_size_asked_for_while_loading_gives_the_same(name: str, size: str) -> None:
    run = known(name).runs[size]
    hints = LayoutHints(heads=HEADS, image_size=(run["images"].shape[-2], run["images"].shape[-1]))
    loaded = load_from_tensors(bare(name), "here", LAYOUT_OF[name], hints)
    assert loaded.config.image_size == hints.image_size
    assert any("resampled" in note for note in loaded.notes)
    assert largest_difference(loaded.model, run) < 1e-5


@pytest.mark.parametrize("name", LAYOUT_OF)
def test_writing_gives_back_the_same_tensors(name: str) -> None:
    loaded, layout = model_of(name), LAYOUTS[LAYOUT_OF[name]]
    written = write_with_layout(loaded.model.state_dict(), loaded.config, layout)
    given = cleaned(name)
    assert not set(written) - set(given)
    same = [key for key in written if key != "mask_token" and not key.endswith("qkv.bias")]
    assert all(torch.equal(written[key], given[key]) for key in same)
    again = read(written, LAYOUT_OF[name]) if name != "mae" else read(written, "mae")
    images = known(name).runs["native"]["images"]
    with torch.no_grad():
        assert torch.equal(again.model(images), loaded.model(images))


@pytest.mark.first(1)
@pytest.mark.parametrize("name", LAYOUT_OF)
def test_every_damage_is_refused_by_name(name: str) -> None:
    ignored = ("local_cls_norm.*", "decoder_*", *(("mask_token",) if name == "mae" else ()))
    loader = partial(read, layout=LAYOUT_OF[name])
    assert refuses_every_damage(cleaned(name), loader, optional=("mask_token",), ignored=ignored) > 100


RECOGNISED = {name: layout for name, layout in LAYOUT_OF.items() if name not in ("dino", "mae_finetuned", "ijepa")}


@pytest.mark.parametrize("name", RECOGNISED)
def test_the_layout_is_recognised_by_the_names_of_the_tensors(name: str) -> None:
    assert identify_layout(bare(name)) == RECOGNISED[name].partition(":")[0]
    assert read(bare(name), None).audit.layout == RECOGNISED[name].partition(":")[0]


@pytest.mark.parametrize("name", ["dino", "mae_finetuned", "ijepa"])
def test_a_file_without_a_sign_of_its_origin_passes_for_one_of_timm(name: str) -> None:
    unnamed, named = read(bare(name), None), model_of(name)
    assert unnamed.audit.layout == "timm" and unnamed.config.resample != named.config.resample
    assert largest_difference(unnamed.model, known(name).runs["native"]) < 1e-5


def saved(tmp_path: Path, content: dict[str, object]) -> Path:
    path = tmp_path / "checkpoint.pth"
    torch.save(content, path)
    return path


def test_of_a_dino_training_the_teacher_is_read(tmp_path: Path) -> None:
    teacher = known("dino").weights
    student = {name: tensor + 1 for name, tensor in teacher.items()}
    path = saved(tmp_path, {"student": student, "teacher": teacher, "epoch": 3})
    loaded = load_checkpoint(path, LoadOptions(layout="dino", heads=HEADS))
    assert any("teacher" in note for note in loaded.notes)
    assert largest_difference(loaded.model, known("dino").runs["native"]) < 1e-5


def test_a_teacher_of_dino_with_its_head_is_recognised() -> None:
    tensors = {name.removeprefix("module."): tensor for name, tensor in known("dino").weights.items()}
    loaded = read(tensors, None)
    assert (loaded.audit.layout, loaded.audit.variant) == ("dino", "training")
    assert sum(row.action == "dropped" for row in loaded.audit.rows) == 8
    assert largest_difference(loaded.model, known("dino").runs["rectangle"]) < 1e-5


def test_blocks_within_chunks_are_counted_through() -> None:
    assert any(name.startswith("blocks.1.1.") for name in known("dinov2_registers").weights)
    assert model_of("dinov2_registers").config.depth == 2


def test_of_an_ijepa_training_the_target_encoder_is_read(tmp_path: Path) -> None:
    target = known("ijepa").weights
    other = {name: tensor + 1 for name, tensor in target.items()}
    path = saved(tmp_path, {"encoder": other, "predictor": {}, "target_encoder": target, "epoch": 3})
    loaded = load_checkpoint(path, LoadOptions(layout="ijepa", heads=HEADS))
    assert largest_difference(loaded.model, known("ijepa").runs["native"]) < 1e-5
    first = load_checkpoint(path, LoadOptions(layout="ijepa", heads=HEADS, network="encoder"))
    assert largest_difference(first.model, known("ijepa").runs["native"]) > 0.1


def test_a_dinov2_classifier_reads_the_class_token_beside_the_mean() -> None:
    backbone = {f"backbone.{name}": tensor for name, tensor in bare("dinov2").items()}
    head = {"linear_head.weight": torch.randn(5, 64), "linear_head.bias": torch.randn(5)}
    loaded, run = read({**backbone, **head}, "dinov2"), known("dinov2").runs["native"]
    pooled = torch.cat([run["tokens"][:, 0], run["tokens"][:, 1:].mean(dim=1)], dim=1)
    expected = pooled @ head["linear_head.weight"].T + head["linear_head.bias"]
    with torch.no_grad():
        assert (loaded.model(run["images"]) - expected).abs().max() < 1e-5
    four = {**backbone, "linear_head.weight": torch.randn(5, 160), "linear_head.bias": torch.randn(5)}
    with pytest.raises(UsageError, match="last four layers"):
        read(four, "dinov2")


def test_the_periods_of_dinov3_are_those_of_the_file() -> None:
    periods = model_of("dinov3").model.rotary.periods
    exact = 100 ** (torch.arange(4) / 4)
    assert torch.equal(periods, exact.bfloat16().float()) and not torch.equal(periods, exact)
    run = known("dinov3").runs["square"]
    with torch.no_grad():
        model = read(bare("dinov3"), "dinov3").model
        model.rotary.periods.copy_(exact)
    assert 1e-4 < largest_difference(model, run) < 0.1


def test_a_bias_of_keys_that_stays_on_is_refused() -> None:
    tensors = bare("dinov3")
    tensors["blocks.1.attn.qkv.bias_mask"] = torch.ones(96)
    with pytest.raises(DamagedFileError, match=r"bias_mask must switch off.* 32 numbers"):
        read(tensors, "dinov3")


@pytest.mark.parametrize("name", ["dino", "dinov2", "mae", "ijepa"])
def test_unknown_widths_need_their_heads(name: str) -> None:
    with pytest.raises(UsageError, match="does not say heads"):
        load_from_tensors(bare(name), "here", LAYOUT_OF[name])


def test_another_code_stretches_positions_by_its_own_rule() -> None:
    def rule(name: str, match: Match) -> str:
        return load_from_tensors(
            bare(name), "here", LAYOUT_OF[name], LayoutHints(heads=HEADS, match=match)
        ).config.resample

    assert rule("dinov2", "original") == "bicubic-offset"
    assert rule("dinov2", "timm") == "bicubic-antialias"
    assert rule("dinov2", "transformers") == "bicubic"
    assert rule("dinov2_registers", "original") == "bicubic-antialias"


def test_one_block_in_two_chunks_is_refused_by_name() -> None:
    twice = {"blocks.0.3.norm1.bias": torch.zeros(1), "blocks.1.3.norm1.bias": torch.ones(1)}
    with pytest.raises(DamagedFileError, match=r"has blocks\.3\.norm1\.bias in two chunks, .* as blocks\.1\.3\.norm1"):
        dinov2_dinov3.clean_dinov2(twice)
