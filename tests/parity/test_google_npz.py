"""Google's `.npz`: what vit_jax itself computed, timm's own loader of these files, scipy's zoom, every damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from kinds import TINY
from parity.designs import random_images, random_model
from parity.differences import record
from parity.negative import refuses_every_damage
from parity.outside import answers, furthest, furthest_gradient, pictures
from parity.reference import reference
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.save import save_model
from vitrail.errors import DamagedFileError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.positions import resample_table
from vitrail.spec import Grid, ImageSpec

LINEN = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
OURS = replace(TINY, image_size=(12, 12), patch=(4, 4), channels=3, activation="GELUTanh")
EXPRESSED = {
    "as it is": OURS,
    "exact GELU": replace(OURS, activation="GELU"),
    "tanh head": replace(OURS, head="tanh"),
    "features": replace(OURS, outputs=0),
    "mean": replace(OURS, class_token=False, pool="mean"),
    "one channel": replace(OURS, channels=1),
    "a rectangle": replace(OURS, image_size=(8, 20)),
    "patches that are not square": replace(OURS, patch=(4, 2)),
    "no biases": replace(OURS, qkv_bias=False, out_bias=False, mlp_bias=False, patch_bias=False, head_bias=False),
    "computed positions without a class row": replace(OURS, positions="sincos2d", class_position=False),
}


def npz(path: Path, weights: dict[str, Tensor], container: str = "") -> Path:
    np.savez(path, **{container + name: tensor.numpy() for name, tensor in weights.items()})
    return path


def weights(hidden: bool = False) -> dict[str, Tensor]:
    """The file of a fixture, with the hidden layer of the head or without it."""
    found = reference("google_npz").weights
    return {name: tensor for name, tensor in found.items() if hidden or "pre_logits" not in name}


@pytest.mark.parametrize("kind", ["pretrained", "finetuned"])
def test_it_is_the_function_of_googles_own_code(kind: str, tmp_path: Path) -> None:
    known = reference("google_npz")
    path = npz(tmp_path / "vit.npz", weights(hidden=kind == "pretrained"))
    native, larger = known.runs[kind], known.runs[f"{kind}-larger"]
    images, gradient = native.pop("images"), native.pop("gradient")
    loaded = load_checkpoint(path)
    assert loaded.config.activation == "GELUTanh" and loaded.config.resample == "bilinear-corners"
    difference = furthest(loaded.model, native, images)
    record("google-npz", "read, native grid", difference)
    assert difference <= 1e-5
    images.requires_grad_()
    loaded.model(images).square().sum().backward()
    gap = (images.grad - gradient).abs().max().item() / gradient.abs().max().item()
    record("google-npz", "gradients", gap)
    assert gap <= 1e-4
    images = larger.pop("images")
    for size in (None, 20):
        difference = furthest(load_checkpoint(path, LoadOptions(image_size=size)).model, larger, images)
        record("google-npz", "read, 5x5 grid", difference)
        assert difference <= 1e-5


@pytest.mark.parametrize("new", [(5, 5), (2, 2), (3, 7), (1, 4), (16, 16)])
def test_positions_stretch_as_scipys_zoom_stretches_them(new: tuple[int, int]) -> None:
    old = Grid(4, 4)
    table = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    zoom = scipy.ndimage.zoom(table.reshape(4, 4, 6).numpy(), (new[0] / 4, new[1] / 4, 1), order=1)
    ours = resample_table(table, old, Grid(*new), "bilinear-corners")
    assert (ours - torch.from_numpy(zoom).reshape(-1, 6)).abs().max() <= 2e-6


@pytest.mark.parametrize("container", ["", "opt/target/", "params/"])
@pytest.mark.parametrize("names", ["published", "linen"])
def test_timm_reads_the_same_file_to_the_same_function(container: str, names: str, tmp_path: Path) -> None:
    model = VisionTransformer(
        img_size=12, patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=3
    )
    published = npz(tmp_path / "published.npz", weights(), container if container != "params/" else "")
    model.load_pretrained(str(published))
    path = npz(tmp_path / "vit.npz", weights() if names == "published" else linen(weights()), container)
    loaded, images = load_checkpoint(path, LoadOptions(match="timm")), pictures(12, 12)
    assert loaded.config.activation == "GELU"
    difference = furthest(loaded.model, answers(model.eval(), list(model.blocks), images), images)
    record("google-npz", "read as timm, native grid", difference)
    assert difference <= 1e-5


@pytest.mark.parametrize("size", [(24, 24), (12, 20)])
def test_timm_stretches_positions_of_such_a_file_to_the_same_function(size: tuple[int, int], tmp_path: Path) -> None:
    model = VisionTransformer(
        img_size=size, patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=3
    )
    path = npz(tmp_path / "vit.npz", weights())
    model.load_pretrained(str(path))
    images = pictures(*size)
    difference = furthest(
        load_checkpoint(path, LoadOptions(match="timm")).model,
        answers(model.eval(), list(model.blocks), images),
        images,
    )
    record("google-npz", "read as timm, other grids", difference)
    assert difference <= 1e-5


def test_match_transformers_is_its_epsilon_and_activation(tmp_path: Path) -> None:
    config = load_checkpoint(npz(tmp_path / "vit.npz", weights()), LoadOptions(match="transformers")).config
    assert (config.norm_eps, config.activation, config.resample) == (1e-12, "GELU", "bicubic")


def test_what_stands_beside_the_model_is_left_aside_with_its_reason(tmp_path: Path) -> None:
    inside = {f"opt/target/{name}": tensor for name, tensor in weights().items()}
    more = {"opt/state/step": torch.ones(1), "opt/state/param_states/cls/grad_ema": torch.ones(1, 1, 16)}
    loaded = load_checkpoint(npz(tmp_path / "run.npz", {**inside, **more}))
    assert loaded.audit.format_summary().endswith("42 tensors, 40 loaded, 2 dropped")
    assert {row.ours for row in loaded.audit.rows if row.action == "dropped"} == {"the optimizer's state"}


def test_a_hybrid_is_refused_by_what_makes_it_one(tmp_path: Path) -> None:
    path = npz(tmp_path / "r50.npz", {**weights(), "conv_root/kernel": torch.ones(7, 7, 3, 64)})
    with pytest.raises(UsageError, match=r"has conv_root/kernel: a hybrid, whose patches come out of a ResNet"):
        load_checkpoint(path)


def test_one_tensor_inside_and_outside_the_container_is_refused(tmp_path: Path) -> None:
    inside = {f"params/{name}": tensor for name, tensor in weights().items()}
    with pytest.raises(DamagedFileError, match=r"has cls twice, within params/ and outside"):
        load_checkpoint(npz(tmp_path / "twice.npz", {**inside, "cls": inside["params/cls"]}))


def test_bfloat16_which_numpy_has_no_name_for_is_read(tmp_path: Path) -> None:
    halves = {name: tensor.bfloat16() for name, tensor in weights().items()}
    raw = {name: tensor.view(torch.int16).numpy().view("V2") for name, tensor in halves.items()}
    np.savez(tmp_path / "half.npz", **raw)
    images = pictures(12, 12)
    expected = load_checkpoint(
        npz(tmp_path / "vit.npz", {name: tensor.float() for name, tensor in halves.items()})
    ).model(images)
    assert torch.equal(load_checkpoint(tmp_path / "half.npz").model(images), expected)


@pytest.mark.parametrize("kind", EXPRESSED)
def test_what_we_write_is_loaded_by_timm_and_by_us(kind: str, tmp_path: Path) -> None:
    config, path = EXPRESSED[kind], tmp_path / "written.npz"
    ours, images = random_model(config), random_images(config)
    height, width = config.image_size
    spec = ImageSpec(height=height, width=width, channels=config.channels)
    save_model(path, ours, spec, tuple("abc") if config.outputs else (), "google-npz")
    match = "timm" if config.activation == "GELU" else "original"
    settings = {"patch": config.patch} if config.patch != (4, 4) else {}
    again = load_checkpoint(path, LoadOptions(image_size=config.image_size, match=match, settings=settings))
    with torch.no_grad():
        assert (again.model(images) - ours(images)).abs().max() <= 1e-6
    if config.head == "tanh":  # timm leaves that layer out
        return
    theirs = of_timm(config)
    theirs.load_pretrained(str(path))
    with torch.no_grad():
        difference = (theirs.eval()(images) - ours(images)).abs().max().item()
    record("google-npz", "written", difference)
    assert difference <= 1e-5


def of_timm(config: ViTConfig) -> VisionTransformer:
    return VisionTransformer(
        img_size=config.image_size, patch_size=config.patch, in_chans=config.channels, num_classes=config.outputs,
        embed_dim=16, depth=2, num_heads=2, mlp_ratio=1.5, class_token=config.class_token, fc_norm=False,
        global_pool="token" if config.class_token else "avg",
        act_layer="gelu_tanh" if config.activation == "GELUTanh" else "gelu",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (replace(OURS, pool="mean"), r'pool="mean" with a class token'),
        (replace(OURS, distillation_token=True, registers=1), r"distillation_token=true, nor for registers=1"),
        (replace(OURS, activation="ReLU"), r"activation='GELUTanh', the model has activation='ReLU'"),
        (replace(OURS, norm_eps=1e-5), r"norm_eps=1e-06, the model has norm_eps=1e-05"),
        (replace(OURS, mlp="gated"), r'mlp="gated"'),
    ],
)
def test_a_part_that_these_files_lack_is_named(config: ViTConfig, part: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=part):
        save_model(
            tmp_path / "written.npz", random_model(config), ImageSpec(height=12, width=12), tuple("abc"), "google-npz"
        )
    assert not (tmp_path / "written.npz").exists()


def test_gradients_on_every_weight_are_those_of_timm(tmp_path: Path) -> None:
    ours = load_checkpoint(npz(tmp_path / "vit.npz", weights()), LoadOptions(match="timm")).model
    model = of_timm(replace(OURS, activation="GELU")).eval()
    model.load_pretrained(str(tmp_path / "vit.npz"))
    gap = furthest_gradient(ours, model, pictures(12, 12), "timm", heads=2)
    record("google-npz", "gradients as timm", gap)
    assert gap <= 1e-4


@pytest.mark.wide
def test_every_damage_is_refused_by_name(tmp_path: Path) -> None:
    def from_tensors(tensors: dict[str, Tensor]) -> None:
        load_checkpoint(npz(tmp_path / "damaged.npz", tensors), LoadOptions(layout="google-npz"))

    assert refuses_every_damage(weights(hidden=True), from_tensors) > 200


def linen(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names that today's flax gives to the same layers."""
    return {"/".join(LINEN.get(part, part) for part in name.split("/")): tensor for name, tensor in tensors.items()}
