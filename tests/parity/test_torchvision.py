"""torchvision's own class: its files read and written, both namings, another grid by its own helper, every damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from kinds import TINY
from parity.designs import random_images, random_model
from parity.differences import record
from parity.negative import refuses_every_damage
from parity.outside import answers, furthest, furthest_gradient, pictures, randomised
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.save import save_model
from vitrail.errors import UsageError
from vitrail.files import safetensors_file as files
from vitrail.model.config import ViTConfig
from vitrail.spec import ImageSpec

SHAPE = {"patch_size": 4, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48, "num_classes": 5}
OLD = {".mlp.0.": ".mlp.linear_1.", ".mlp.3.": ".mlp.linear_2."}
OURS = replace(TINY, image_size=(12, 12), patch=(4, 4), channels=3)
EXPRESSED = {
    "as it is": OURS,
    "tanh head": replace(OURS, head="tanh"),
    "features": replace(OURS, outputs=0),
    "no biases": replace(OURS, qkv_bias=False, out_bias=False, mlp_bias=False, patch_bias=False, head_bias=False),
    "keys without bias": replace(OURS, key_bias=False),
    "no row for the class token": replace(OURS, class_position=False),
    "computed positions": replace(OURS, positions="sincos2d"),
    "no positions": replace(OURS, positions="none"),
    "a matrix of patches": replace(OURS, patches="linear"),
}


def reference(image_size: int = 16, hidden: int | None = None) -> nn.Module:
    return randomised(VisionTransformer(image_size=image_size, representation_size=hidden, **SHAPE))


def run(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    return answers(model, list(model.encoder.layers), images)


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors.items():
        for new, old in OLD.items():
            name = name.replace(new, old)
        found[name] = tensor
    return found


@pytest.mark.parametrize("hidden", [None, 32])
@pytest.mark.parametrize("ending", ["pth", "safetensors", "old names"])
def test_its_files_give_its_answers_and_its_gradients(ending: str, hidden: int | None, tmp_path: Path) -> None:
    model, path = reference(hidden=hidden), tmp_path / "weights.pth"
    if ending == "safetensors":
        path = path.with_suffix(".safetensors")
        files.save_tensors(path, model.state_dict(), {})
    else:
        torch.save(renamed(model.state_dict()) if ending == "old names" else model.state_dict(), path)
    loaded, images = load_checkpoint(path, LoadOptions(heads=4)), pictures(16, 16)
    layout = "torchvision:old-names" if ending == "old names" else "torchvision"
    assert loaded.audit.layout == "torchvision" and loaded.audit.variant == layout.partition(":")[2]
    difference = furthest(loaded.model, run(model, images), images)
    record(layout, "read, native grid", difference)
    assert difference <= 1e-5
    gap = furthest_gradient(loaded.model, model, images, "torchvision")
    record(layout, "gradients", gap)
    assert gap <= 1e-4


@pytest.mark.parametrize("side", [8, 24, 36])
def test_another_square_is_that_of_its_own_helper(side: int, tmp_path: Path) -> None:
    model, path = reference(), tmp_path / "weights.pth"
    torch.save(model.state_dict(), path)
    other = VisionTransformer(image_size=side, **SHAPE).eval()
    other.load_state_dict(interpolate_embeddings(side, 4, dict(model.state_dict())))
    images = pictures(side, side)
    theirs = run(other, images)
    difference = max(
        furthest(load_checkpoint(path, LoadOptions(heads=4, image_size=size)).model, theirs, images)
        for size in (None, side)
    )
    record("torchvision", f"read, {side // 4}x{side // 4} grid", difference)
    assert difference <= 1e-5


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("kind", EXPRESSED)
def test_what_we_write_is_loaded_by_torchvision_and_by_us(kind: str, suffix: str, tmp_path: Path) -> None:
    config, path = EXPRESSED[kind], tmp_path / f"written{suffix}"
    ours = random_model(config)
    save_model(path, ours, ImageSpec(height=12, width=12), tuple("abc") if config.outputs else (), "torchvision")
    theirs = VisionTransformer(
        image_size=12, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24,
        num_classes=3, representation_size=16 if config.head == "tanh" else None,
    ).eval()  # fmt: skip
    if not config.outputs:
        theirs.heads = nn.Sequential()
    theirs.load_state_dict(torch.load(path) if suffix == ".pth" else files.load_tensors(path), strict=True)
    images = random_images(config)
    with torch.no_grad():
        difference = (theirs(images) - ours(images)).abs().max().item()
        again = (load_checkpoint(path, LoadOptions(heads=2)).model(images) - ours(images)).abs().max().item()
    record("torchvision", "written", difference)
    assert difference <= 1e-5 and again <= 1e-6


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (replace(OURS, registers=2), r"registers=2"),
        (replace(OURS, layer_scale=1.0, pre_norm=True), r"pre_norm=true, nor for layer_scale"),
        (replace(OURS, pool="mean"), r'pool="mean"'),
        (replace(OURS, channels=1), r"channels=1"),
        (replace(OURS, image_size=(12, 8)), r"pictures that are not square \(12x8\)"),
        (replace(OURS, patch=(4, 2)), r"patches that are not square \(4x2\)"),
        (replace(OURS, rotary="axial", positions="none"), r'rotary="axial"'),
        (replace(OURS, head_width=4), r"head_width=4"),
        (replace(OURS, activation="GELUTanh"), r"activation='GELU', the model has activation='GELUTanh'"),
        (replace(OURS, norm_eps=1e-5), r"norm_eps=1e-06, the model has norm_eps=1e-05"),
    ],
)
def test_a_part_that_torchvision_lacks_is_named(config: ViTConfig, part: str, tmp_path: Path) -> None:
    height, width = config.image_size
    spec = ImageSpec(height=height, width=width, channels=config.channels)
    with pytest.raises(UsageError, match=part):
        save_model(tmp_path / "written.pth", random_model(config), spec, tuple("abc"), "torchvision")
    assert not (tmp_path / "written.pth").exists()


@pytest.mark.wide
def test_every_damage_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"

    def from_tensors(tensors: dict[str, Tensor]) -> None:
        files.save_tensors(path, tensors, {})
        load_checkpoint(path, LoadOptions(heads=4))

    assert refuses_every_damage(reference(hidden=32).state_dict(), from_tensors) > 150


def test_heads_are_asked_for_where_the_width_does_not_tell_them(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(reference().state_dict(), path)
    with pytest.raises(UsageError, match=r"torchvision does not say heads\. Pass heads=; .* 768 wide 12"):
        load_checkpoint(path)


@pytest.mark.wide
def test_swag_has_its_own_licence(tmp_path: Path) -> None:
    model = VisionTransformer(
        image_size=384, patch_size=192, num_layers=1, num_heads=12, hidden_dim=768, mlp_dim=8, num_classes=1000
    )
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    loaded = load_checkpoint(tmp_path / "weights.pth")
    assert loaded.licence == "CC-BY-NC-4.0" and loaded.spec.interpolation == "bicubic"
    torch.save(reference().state_dict(), tmp_path / "mine.pth")
    assert load_checkpoint(tmp_path / "mine.pth", LoadOptions(heads=4)).licence == "BSD-3-Clause"


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("file", "width", "size", "patch", "outputs", "licence", "ways"),
    [
        ("weights.pth", 768, 224, 16, 1000, "BSD-3-Clause, or CC-BY-NC-4.0", ("bilinear", 256)),
        ("weights.pth", 1024, 224, 16, 0, "BSD-3-Clause, or CC-BY-NC-4.0", ("bilinear", 242)),
        ("vit_b_16-c867db91.pth", 768, 224, 16, 1000, "BSD-3-Clause", ("bilinear", 256)),
        ("vit_l_16-852ce7e3.pth", 1024, 224, 16, 1000, "BSD-3-Clause", ("bilinear", 242)),
        ("vit_l_16_lc_swag-4d563306.pth", 1024, 224, 16, 1000, "CC-BY-NC-4.0", ("bicubic", 224)),
        ("weights.pth", 768, 224, 32, 1000, "BSD-3-Clause", ("bilinear", 256)),
        ("weights.pth", 1280, 224, 112, 1000, "CC-BY-NC-4.0", ("bicubic", 224)),
        ("weights.pth", 1280, 518, 259, 0, "CC-BY-NC-4.0", ("bicubic", 518)),
        ("weights.pth", 768, 224, 16, 10, "BSD-3-Clause", ("bilinear", 256)),
    ],
)
def test_every_published_size_has_its_licence_and_its_pictures(
    file: str, width: int, size: int, patch: int, outputs: int, licence: str, ways: tuple[str, int], tmp_path: Path
) -> None:
    model = VisionTransformer(
        image_size=size, patch_size=patch, num_layers=1, num_heads=width // 64, hidden_dim=width, mlp_dim=8,
        num_classes=max(outputs, 1),
    )  # fmt: skip
    kept = {name: tensor for name, tensor in model.state_dict().items() if outputs or not name.startswith("heads.")}
    torch.save(kept, tmp_path / file)
    loaded = load_checkpoint(tmp_path / file)
    assert loaded.licence.startswith(licence) and (" or " in loaded.licence) == (" or " in licence)
    assert (loaded.spec.fit, loaded.spec.interpolation, loaded.spec.resize_size[0]) == ("crop", *ways)
    assert any("lc_swag" in note for note in loaded.notes) == (" or " in licence)
