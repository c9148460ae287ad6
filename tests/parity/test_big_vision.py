"""big_vision: what its own code computed, timm's own loader of these files, older names, every damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from parity.differences import record
from parity.negative import refuses_every_damage
from parity.outside import answers, furthest, pictures
from parity.reference import reference
from vitrail.checkpoints.families.flax import describe_big_vision
from vitrail.checkpoints.layouts import LayoutHints, Match
from vitrail.checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError

PARTS = {
    "class": ("cls", "pos_embedding"),
    "attention": ("MAPHead_0", "pos_embedding"),
    "scan": ("pos_embedding",),
    "hidden": ("pre_logits",),
}
"""What each of the models that share one fixture has beside the blocks, the patches and the head."""
ALWAYS = ("embedding", "Transformer", "head")


def npz(path: Path, weights: dict[str, Tensor]) -> Path:
    np.savez(path, **{name: tensor.numpy() for name, tensor in weights.items()})
    return path


def weights(kind: str) -> dict[str, Tensor]:
    """The file of one of the models."""
    if kind == "naflex":
        return reference("big_vision_naflex").weights
    own = {
        name: tensor
        for name, tensor in reference("big_vision").weights.items()
        if name.partition("/")[0] in (*ALWAYS, *PARTS[kind])
    }
    return stacked(own) if kind == "scan" else own


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All blocks on one axis, as a scan leaves them."""
    found = {name: tensor for name, tensor in tensors.items() if "encoderblock_" not in name}
    for name, first in tensors.items():
        if "encoderblock_0" in name:
            both = torch.stack([first, tensors[name.replace("encoderblock_0", "encoderblock_1")]])
            found[name.replace("encoderblock_0", "encoderblock")] = both
    return found


def opened(kind: str, folder: Path, **options: Any) -> LoadedModel:
    if kind == "hidden" and "image_size" not in options:
        options["image_size"] = 12
    return load_checkpoint(npz(folder / "model.npz", weights(kind)), LoadOptions(**options))


def kept(run: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the reference made of its pictures."""
    return {name: tensor for name, tensor in run.items() if name not in ("images", "gradient")}


@pytest.mark.parametrize("kind", PARTS)
def test_it_is_the_function_of_big_visions_own_code(kind: str, tmp_path: Path) -> None:
    known = reference("big_vision").runs
    native, larger = known[kind], known[f"{kind}-larger"]
    loaded = opened(kind, tmp_path)
    difference = furthest(loaded.model, kept(native), native["images"])
    record(f"big-vision, {kind}", "read, native grid", difference)
    assert difference <= 1e-5
    images = native["images"].requires_grad_()
    loaded.model(images).square().sum().backward()
    gap = (images.grad - native["gradient"]).abs().max().item() / native["gradient"].abs().max().item()
    record(f"big-vision, {kind}", "gradients", gap)
    assert gap <= 1e-4
    for size in (12, 20):
        resized = opened(kind, tmp_path, image_size=size)
        difference = furthest(resized.model, kept(larger), larger["images"])
        record(f"big-vision, {kind}", "read, 5x5 grid", difference)
        assert difference <= 1e-5


@pytest.mark.parametrize("run", ["native", "tall", "wide"])
def test_naflex_reads_pictures_of_any_shape_as_its_own_code_does(run: str, tmp_path: Path) -> None:
    known = reference("big_vision_naflex").runs[run]
    images = known["images"]
    rows, columns = images.shape[2] // 4, images.shape[3] // 4
    for size in (None, (images.shape[2], images.shape[3])):
        loaded = opened("naflex", tmp_path, image_size=size)
        difference = furthest(loaded.model, kept(known), images)
        record("big-vision, naflex", f"read, {rows}x{columns} grid", difference)
        assert difference <= 1e-5


def test_timm_reads_siglip_to_the_same_function(tmp_path: Path) -> None:
    model = VisionTransformer(
        img_size=12, patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=3,
        class_token=False, global_pool="map",
    )  # fmt: skip
    path = npz(tmp_path / "siglip.npz", weights("attention"))
    model.load_pretrained(str(path))
    images = pictures(12, 12)
    difference = furthest(
        load_checkpoint(path, LoadOptions(match="timm")).model,
        answers(model.eval(), list(model.blocks), images),
        images,
    )
    record("big-vision, attention", "read as timm, native grid", difference)
    assert difference <= 1e-5


@pytest.mark.parametrize("kind", ["class", "attention", "scan"])
def test_the_picture_tower_is_taken_out_of_a_model_of_pictures_and_words(kind: str, tmp_path: Path) -> None:
    tower = {f"params/img/{name}": tensor for name, tensor in weights(kind).items()}
    words = {"params/txt/Embed_0/embedding": torch.ones(9, 16), "params/txt/head/kernel": torch.ones(16, 3)}
    scalars = {"params/t": torch.ones(1), "params/b": torch.ones(1)}
    path = npz(tmp_path / "both.npz", {**tower, **words, **scalars})
    loaded, images = load_checkpoint(path), pictures(12, 12)
    assert torch.equal(loaded.model(images), opened(kind, tmp_path).model(images))
    dropped = {row.theirs: row.ours for row in loaded.audit.rows if row.action == "dropped"}
    assert len(dropped) == 4 and dropped["txt/head/kernel"] == "the text tower"


def test_older_names_and_a_class_row_are_read(tmp_path: Path) -> None:
    new, images = weights("class"), pictures(12, 12)
    row = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(0))
    old = {name: tensor for name, tensor in new.items() if name != "pos_embedding"}
    old["cls"] = new["cls"] - row
    old["Transformer/pos_embedding"] = torch.cat([row, new["pos_embedding"]], dim=1)
    expected = opened("class", tmp_path).model(images)
    found = load_checkpoint(npz(tmp_path / "old.npz", old))
    assert found.config.class_position and (found.model(images) - expected).abs().max() <= 1e-6
    inlined = {name.removeprefix("MAPHead_0/"): tensor for name, tensor in weights("attention").items()}
    assert torch.equal(
        load_checkpoint(npz(tmp_path / "old.npz", inlined)).model(images), opened("attention", tmp_path).model(images)
    )


def test_computed_positions_ask_for_the_picture_size_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"without pos_embedding, whose positions are computed, does not say image_size"
    ):
        load_checkpoint(npz(tmp_path / "model.npz", weights("hidden")))


@pytest.mark.parametrize(
    ("match", "width", "patch", "activation"),
    [
        ("timm", 768, 16, "GELU"),
        ("timm", 768, 32, "GELUTanh"),
        ("timm", 1536, 16, "GELUTanh"),
        (None, 768, 16, "GELUTanh"),
    ],
)
def test_timm_runs_gelu_by_tanh_only_in_sizes_that_came_with_siglip_2(
    match: Match | None, width: int, patch: int, activation: str
) -> None:
    tensors = {
        "embedding/kernel": torch.empty(patch, patch, 3, width),
        "pos_embedding": torch.empty(1, 4, width),
        "MAPHead_0/probe": torch.empty(1, 1, width),
        "Transformer/encoder_norm/scale": torch.empty(width),
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/bias": torch.empty(12, width // 12),
        "Transformer/encoderblock_0/MlpBlock_0/Dense_0/bias": torch.empty(8),
    }
    assert describe_big_vision(tensors, LayoutHints(match=match)).activation == activation


def test_each_model_has_the_card_of_its_kind(tmp_path: Path) -> None:
    assert opened("attention", tmp_path).spec.fit == "squash"
    assert opened("hidden", tmp_path).spec.fit == "crop"
    assert opened("naflex", tmp_path).config.resample == "bilinear-antialias"


@pytest.mark.wide
@pytest.mark.parametrize("kind", [*PARTS, "naflex"])
def test_every_damage_is_refused(kind: str, tmp_path: Path) -> None:
    def from_tensors(tensors: dict[str, Tensor]) -> None:
        size = 12 if kind == "hidden" else None
        load_checkpoint(npz(tmp_path / "damaged.npz", tensors), LoadOptions(layout="big-vision", image_size=size))

    optional = ("cls",) if kind == "class" else ()  # without it the file is that of a model that takes the mean
    decides = ("Transformer/encoderblock/*",) if kind == "scan" else ()  # messages name the blocks one by one
    assert refuses_every_damage(weights(kind), from_tensors, optional, decides=decides) > 100


def test_a_class_token_beside_a_probe_is_refused(tmp_path: Path) -> None:
    both = {**weights("attention"), "cls": weights("class")["cls"]}
    with pytest.raises(DamagedFileError, match=r"cls and MAPHead_0, a class token and a probe"):
        load_checkpoint(npz(tmp_path / "both.npz", both))
