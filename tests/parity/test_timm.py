"""Files of timm read by us: every block and the outputs equal timm's, at its size and at others; equal gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from parity import timm_models
from parity.differences import record
from parity.timm_models import CASES, furthest, pictures, reference, saved, saved_bare
from vitrail.checkpoints.identify import find_layout
from vitrail.checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from vitrail.checkpoints.rules import write_with_layout
from vitrail.errors import UsageError

FOLDED = ("registers with rows", "class and registers with rows")
"""Cases whose position table has rows for registers, which become part of the registers."""


@pytest.mark.parametrize("case", CASES)
def test_every_block_and_gradient_equals_timms_at_the_native_size(case: str, tmp_path: Path) -> None:
    model = reference(case)
    loaded = load_checkpoint(saved(model, tmp_path))
    images = pictures(loaded.config.channels, *native(case, loaded))
    difference = furthest(loaded.model, model, images)
    record(key(loaded), "read, native grid", difference)
    assert difference < 1e-5
    compare_gradients(case, model, loaded, images)


@pytest.mark.wide
@pytest.mark.parametrize("case", CASES)
def test_every_block_equals_timms_at_other_sizes(case: str, tmp_path: Path) -> None:
    model = reference(case, **({} if case.startswith("NaFlex") else {"dynamic_img_size": True}))
    loaded = load_checkpoint(saved(model, tmp_path))
    for height, width in ((24, 24), (12, 20)):
        difference = furthest(loaded.model, model, pictures(loaded.config.channels, height, width))
        record(key(loaded), f"read, {height // 4}x{width // 4} grid", difference)
        assert difference < 1e-5


@pytest.mark.parametrize("case", ["class", "registers", "distilled", "DeiT-III", "attention pool", *FOLDED[1:]])
def test_a_table_resampled_when_loading_equals_timms(case: str, tmp_path: Path) -> None:
    folder = saved(reference(case), tmp_path)
    resized = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=(20, 12)).eval()
    loaded = load_checkpoint(folder, LoadOptions(image_size=(20, 12)))
    assert any("resampled from 4x4 to 5x3" in note for note in loaded.notes)
    assert furthest(loaded.model, resized, pictures(3, 20, 12)) < 1e-5


@pytest.mark.parametrize("case", ["class", "registers", "distilled", "CLIP", "mean, normed after"])
def test_a_rectangular_model_loads_with_its_own_table(case: str, tmp_path: Path) -> None:
    model = reference(case, img_size=(12, 20))
    assert furthest(load_checkpoint(saved(model, tmp_path)).model, model, pictures(3, 12, 20)) < 1e-5
    settings = {"activation": "GELU"} if case == "CLIP" else {}
    bare = load_checkpoint(
        saved_bare(model, tmp_path / "w.safetensors"), LoadOptions(heads=4, image_size=(12, 20), settings=settings)
    )
    if case != "mean, normed after":
        assert furthest(bare.model, model, pictures(3, 12, 20)) < 1e-5
    assert bare.config.grid == (3, 5)


def test_a_gate_of_its_own_is_read(tmp_path: Path) -> None:
    model = timm_models.split_gate()
    loaded = load_checkpoint(saved_bare(model, tmp_path / "w.safetensors"), LoadOptions(heads=4))
    assert loaded.config.mlp == "gated" and loaded.config.activation == "SiLU"
    assert furthest(loaded.model, model, pictures(3, 16, 16)) < 1e-5


def test_an_old_files_tanh_layer_is_read(tmp_path: Path) -> None:
    """timm itself throws this layer away; the outputs are those of the model that was trained."""
    model = reference("class")
    hidden = timm_models.randomise(nn.Linear(32, 32))
    extra = {f"pre_logits.fc.{name}": tensor for name, tensor in hidden.state_dict().items()}
    torch.save({**model.state_dict(), **extra}, tmp_path / "w.pth")
    loaded = load_checkpoint(tmp_path / "w.pth", LoadOptions(heads=4))
    images = pictures(3, 16, 16)
    wanted = model.head(torch.tanh(hidden(model.forward_head(model.forward_features(images), pre_logits=True))))
    assert loaded.config.head == "tanh" and (loaded.model(images) - wanted).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit_base_patch16_rope_ape_224", {"rope_grid_offset": 0.5}, "angles that are none of Vitrail's"),
        ("vit_so150m_patch16_reg4_map_256", {}, "over the patches alone"),
        (timm_models.PLAIN, {"global_pool": "avgmax"}, "avgmax"),
    ],
)
def test_what_vitrail_lacks_is_refused_by_name(name: str, changes: dict, message: str, tmp_path: Path) -> None:
    folder = saved(timm.create_model(name, **{**timm_models.SIZE, **changes}), tmp_path)
    with pytest.raises(UsageError, match=message):
        load_checkpoint(folder)


def test_the_mean_of_all_tokens_is_read(tmp_path: Path) -> None:
    arguments = {"global_pool": "avg", "pool_include_prefix": True, "reg_tokens": 3}
    model = timm_models.randomise(timm.create_model(timm_models.PLAIN, **{**timm_models.SIZE, **arguments}))
    loaded = load_checkpoint(saved(model, tmp_path))
    images = pictures(3, 16, 16)
    with torch.no_grad():
        assert loaded.config.pool == "mean-all" and (loaded.model(images) - model(images)).abs().max() < 1e-5


def native(case: str, loaded: LoadedModel) -> tuple[int, int]:
    """The size for which nothing is resampled."""
    assert loaded.config.image_size == (16, 16) or case.startswith("NaFlex")
    return loaded.config.image_size


def compare_gradients(case: str, model: nn.Module, loaded: LoadedModel, images: Tensor) -> None:
    """Of one loss, by the pictures and by every parameter."""
    of_theirs, of_ours = images.clone().requires_grad_(), images.clone().requires_grad_()
    model(of_theirs).square().sum().backward()
    loaded.model(of_ours).square().sum().backward()
    difference = (of_theirs.grad - of_ours.grad).abs().max().item()
    if case not in FOLDED:
        difference = max(difference, parameter_difference(model, loaded))
    record(key(loaded), "gradients", difference)
    assert of_theirs.grad.abs().max() > 1e-3 and difference < 1e-4


def parameter_difference(model: nn.Module, loaded: LoadedModel) -> float:
    """Between timm's gradients and ours under timm's names; ours of a part that timm lacks are not compared."""
    names = list(model.state_dict())
    layout = find_layout(names, foreign={"architecture": loaded.audit.layout})
    ours = {name: torch.zeros_like(tensor) for name, tensor in loaded.model.state_dict().items()}
    ours |= {name: parameter.grad for name, parameter in loaded.model.named_parameters()}
    if loaded.config.rotary == "dinov3":
        ours["rotary.periods"] = loaded.model.state_dict()["rotary.periods"]
    if loaded.config.parallel and loaded.config.layer_scale is not None:
        for i in range(loaded.config.depth):  # one LayerScale of theirs is two of ours
            both = [f"encoder.blocks.{i}.scale{n}" for n in (1, 2)]
            ours |= dict.fromkeys(both, ours[both[0]] + ours[both[1]])
    fields = ("norm_eps", "activation", "pool", "positions", "norm", "rotary", "image_size", "final_norm")
    settings = {name: getattr(loaded.config, name) for name in fields}
    written = write_with_layout(ours, loaded.config, layout, settings)
    theirs = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert theirs.keys() <= written.keys()
    return max((written[name] - gradient).abs().max().item() for name, gradient in theirs.items())


def key(loaded: LoadedModel) -> str:
    """The layout with its variant."""
    return f"{loaded.audit.layout}:{loaded.audit.variant}".removesuffix(":")
