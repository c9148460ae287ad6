"""vit-pytorch's own classes: `ViT` and `SimpleViT`, heads of any width, the identity after one head, every damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vit_pytorch import SimpleViT, ViT

from parity.differences import record
from parity.negative import refuses_every_damage
from parity.outside import furthest, furthest_gradient, pictures, randomised
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError

SHAPE: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "num_classes": 5,
    "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48, "dim_head": 8,
}  # fmt: skip
CASES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "class": (ViT, {}),
    "mean": (ViT, {"pool": "mean"}),
    "heads as wide as usual": (ViT, {"dim_head": 16}),
    "one narrow head": (ViT, {"heads": 1, "dim_head": 24}),
    "one head and the identity": (ViT, {"heads": 1, "dim_head": 32}),
    "a rectangle": (ViT, {"image_size": (8, 24)}),
    "one channel": (ViT, {"channels": 1}),
    "patches that are not square": (ViT, {"patch_size": (4, 2)}),
    "simple": (SimpleViT, {}),
    "simple, a rectangle": (SimpleViT, {"image_size": (12, 20), "dim_head": 16}),
}


def reference(case: str, **more: Any) -> nn.Module:
    build, changes = CASES[case]
    return randomised(build(**{**SHAPE, **changes, **more}))


def options_of(case: str) -> dict[str, Any]:
    """What a file of the case does not say."""
    build, changes = CASES[case]
    arguments: dict[str, Any] = {"heads": changes.get("heads", SHAPE["heads"])}
    if {"image_size", "patch_size"} & set(changes) or build is SimpleViT:
        arguments["image_size"] = changes.get("image_size", SHAPE["image_size"])
    if "channels" in changes:
        arguments["channels"] = changes["channels"]
    if "patch_size" in changes:
        arguments["settings"] = {"patch": changes["patch_size"]}
    return arguments


def saved(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def run(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Every block's sum, which no module of theirs gives out: what goes into the next one, or into the last norm."""
    found: dict[str, Tensor] = {}
    readers = [*(attention for attention, _ in list(model.transformer.layers)[1:]), model.transformer.norm]
    hooks = [
        reader.register_forward_pre_hook(lambda _, inputs, i=i: found.__setitem__(f"blocks.{i}", inputs[0]))
        for i, reader in enumerate(readers)
    ]
    found["outputs"] = model(images)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("case", CASES)
def test_its_files_give_its_answers_and_its_gradients(case: str, tmp_path: Path) -> None:
    model = reference(case)
    loaded = load_checkpoint(saved(model, tmp_path), LoadOptions(**options_of(case)))
    images = pictures(*loaded.config.image_size, loaded.config.channels)
    layout = loaded.audit.layout + (f":{loaded.audit.variant}" if loaded.audit.variant else "")
    difference = furthest(loaded.model, run(model, images), images)
    record(layout, "read, native grid", difference)
    assert difference <= 1e-5
    if "identity" not in case:  # there we have a matrix that they lack
        settings = options_of(case).get("settings", {})
        gap = furthest_gradient(loaded.model, model, images, layout, **settings)
        record(layout, "gradients", gap)
        assert gap <= 1e-4


@pytest.mark.parametrize("size", [(24, 24), (8, 20)])
def test_positions_of_a_simple_one_are_computed_for_any_grid(size: tuple[int, int], tmp_path: Path) -> None:
    model, larger = reference("simple"), reference("simple", image_size=size)
    larger.load_state_dict(model.state_dict())
    images = pictures(*size)
    difference = furthest(
        load_checkpoint(saved(model, tmp_path), LoadOptions(**options_of("simple"))).model, run(larger, images), images
    )
    record("vit-pytorch:simple", f"read, {size[0] // 4}x{size[1] // 4} grid", difference)
    assert difference <= 1e-5


def test_a_file_without_a_head_gives_features(tmp_path: Path) -> None:
    model, images = reference("class", num_classes=0), pictures(16, 16)
    loaded = load_checkpoint(saved(model, tmp_path), LoadOptions(heads=2))
    with torch.no_grad():
        assert (loaded.model(images) - model(images)[:, 0]).abs().max() <= 1e-5


def test_the_identity_after_one_head_tells_that_there_is_one(tmp_path: Path) -> None:
    path = saved(reference("one head and the identity"), tmp_path)
    assert load_checkpoint(path).config.heads == 1
    with pytest.raises(UsageError, match=r"heads=2 contradicts the file: .* says 1"):
        load_checkpoint(path, LoadOptions(heads=2))


def test_what_no_tensor_says_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"vit-pytorch does not say heads\. Pass heads=; .* 64 numbers would be 1"):
        load_checkpoint(saved(reference("class"), tmp_path))
    with pytest.raises(UsageError, match=r"heads=5 contradicts the file: queries are 16 wide"):
        load_checkpoint(saved(reference("class"), tmp_path), LoadOptions(heads=5))
    with pytest.raises(UsageError, match=r"vit-pytorch:simple does not say image_size"):
        load_checkpoint(saved(reference("simple"), tmp_path), LoadOptions(heads=2))
    with pytest.raises(UsageError, match=r"has 16 columns, no 2x2 patch of 3 channels\. Pass channels="):
        load_checkpoint(saved(reference("one channel"), tmp_path), LoadOptions(heads=2))


def test_older_files_are_refused(tmp_path: Path) -> None:
    old = {name.replace("0.to_qkv", "0.fn.to_qkv"): t for name, t in reference("class").state_dict().items()}
    torch.save(old, tmp_path / "old.pt")
    with pytest.raises(
        DamagedFileError, match=r"near vit-pytorch, but has transformer\.layers\.0\.0\.fn\.to_qkv\.weight"
    ):
        load_checkpoint(tmp_path / "old.pt", LoadOptions(heads=2))


@pytest.mark.wide
@pytest.mark.parametrize("case", ["class", "simple"])
def test_every_damage_is_refused_by_name(case: str, tmp_path: Path) -> None:
    def from_tensors(tensors: dict[str, Tensor]) -> None:
        torch.save(tensors, tmp_path / "damaged.pt")
        load_checkpoint(tmp_path / "damaged.pt", LoadOptions(layout="vit-pytorch", **options_of(case)))

    assert refuses_every_damage(reference(case).state_dict(), from_tensors) > 100
