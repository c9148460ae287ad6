"""DeiT's and DeiT-III's original files: their names, their numerics, and what timm's `Eva` calls the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from in_memory import load_from_tensors
from parity.differences import record
from parity.negative import refuses_every_damage
from parity.timm_models import furthest, pictures, reference
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import UsageError

CASES = {"class": "deit", "distilled": "deit", "DeiT-III": "deit3"}


def original(case: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and its weights under the names of the repository, whose models timm's classes run."""
    model = reference(case)
    names = {name: re.sub(r"ls([12])\.gamma", r"gamma_\1", name) for name in model.state_dict()}
    return model, {names[name]: tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("case", CASES)
def test_every_block_is_equal_at_the_native_size(case: str, tmp_path: Path) -> None:
    model, tensors = original(case)
    torch.save({"model": tensors}, tmp_path / "w.pth")
    loaded = load_checkpoint(tmp_path / "w.pth", LoadOptions(layout=CASES[case], heads=4))
    assert loaded.audit.layout == CASES[case] and loaded.repository == "facebookresearch/deit"
    assert loaded.config.norm_eps == 1e-6 and loaded.config.resample == "bicubic"
    difference = furthest(loaded.model, model, pictures(3, 16, 16))
    record(CASES[case], "read, native grid", difference)
    assert difference < 1e-5


@pytest.mark.parametrize("size", [(24, 24), (12, 20)], ids=["square", "rectangle"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_positions_stretch_as_in_the_repository(case: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Its fine-tuning interpolates bicubically without antialiasing, and leaves the tokens' rows as they are."""
    model, tensors = original(case)
    grid = (size[0] // 4, size[1] // 4)
    resized = reference(case, img_size=size)
    prefix = model.pos_embed.shape[1] - 16
    old = model.pos_embed[:, prefix:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
    new = F.interpolate(old, size=grid, mode="bicubic", align_corners=False).flatten(2).transpose(1, 2)
    table = torch.cat([model.pos_embed[:, :prefix], new], dim=1)
    resized.load_state_dict({**model.state_dict(), "pos_embed": table})
    torch.save({"model": tensors}, tmp_path / "w.pth")
    loaded = load_checkpoint(tmp_path / "w.pth", LoadOptions(layout=CASES[case], heads=4))
    difference = furthest(loaded.model, resized, pictures(3, *size))
    record(CASES[case], f"read, {grid[0]}x{grid[1]} grid", difference)
    assert difference < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_equal(case: str) -> None:
    model, tensors = original(case)
    loaded = load_from_tensors(dict(tensors), "file", CASES[case], LayoutHints(heads=4))
    images = pictures(3, 16, 16)
    of_theirs, of_ours = images.clone().requires_grad_(), images.clone().requires_grad_()
    model(of_theirs).square().sum().backward()
    loaded.model(of_ours).square().sum().backward()
    pairs = [(of_theirs, of_ours), (model.cls_token, loaded.model.tokens.cls)]
    pairs.append((model.blocks[0].attn.qkv.weight, loaded.model.encoder.blocks[0].attention.qkv.weight))
    difference = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
    record(CASES[case], "gradients", difference)
    assert difference < 1e-4


@pytest.mark.first(1)
@pytest.mark.parametrize("case", CASES)
def test_every_damage_is_refused_by_name(case: str) -> None:
    _, tensors = original(case)
    layout = CASES[case]
    decides = ("dist_token",)
    assert refuses_every_damage(
        tensors, lambda some: load_from_tensors(some, "file", layout, LayoutHints(heads=4)), decides=decides
    )


def test_a_deit_iii_file_needs_its_layout_and_a_deit_file_is_timms() -> None:
    """RoPE-ViT with a table has the same names and shapes, and other outputs."""
    with pytest.raises(UsageError, match=r'tensors of DeiT-III and of models with rotary positions.*layout="deit3"'):
        load_from_tensors(original("DeiT-III")[1], "file", hints=LayoutHints(heads=4))
    named = load_from_tensors(original("DeiT-III")[1], "file", "deit3", LayoutHints(heads=4))
    assert named.audit.layout == "deit3"
    assert load_from_tensors(original("class")[1], "file", hints=LayoutHints(heads=4)).audit.layout == "timm"


def test_timm_numerics_of_the_same_file_may_be_asked_for() -> None:
    loaded = load_from_tensors(original("class")[1], "file", "deit", LayoutHints(heads=4, match="timm"))
    assert loaded.config.resample == "bicubic-antialias"


def test_a_width_that_deit_never_had_needs_heads() -> None:
    with pytest.raises(UsageError, match="heads"):
        load_from_tensors(original("class")[1], "file", "deit")
