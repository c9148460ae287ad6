"""vit-pytorch's own classes: `ViT` and `SimpleViT`, heads of any width, the identity after one head, every damage.

Older versions are restated by modules of the newest: where they normalised, what they pooled and how they named it. The
last test compares with version 1.15.7 itself.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.simple_flash_attn_vit import SimpleViT as SimpleFlashViT
from vit_pytorch.simple_vit_with_patch_dropout import SimpleViT as SimpleViTWithPatchDropout
from vit_pytorch.simple_vit_with_register_tokens import SimpleViT as SimpleViTWithRegisters
from vit_pytorch.vit_with_decorr import ViT as DecorrelatedViT

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


@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
def test_register_tokens_of_a_simple_one_are_registers(size: tuple[int, int], tmp_path: Path) -> None:
    model = randomised(SimpleViTWithRegisters(**{**SHAPE, "image_size": size}, num_register_tokens=3))
    loaded = load_checkpoint(saved(model, tmp_path), LoadOptions(heads=2, image_size=size))
    assert (loaded.audit.variant, loaded.config.registers) == ("simple-registers", 3)
    images = pictures(*size)
    theirs = run(model, images)
    blocks = {name: tensor.roll(3, dims=1) for name, tensor in theirs.items() if name != "outputs"}  # ours come first
    difference = furthest(loaded.model, {**theirs, **blocks}, images)
    record("vit-pytorch:simple-registers", "read, native grid", difference)
    assert difference <= 1e-5


@pytest.mark.filterwarnings("ignore:.*sdp_kernel.*:FutureWarning")
@pytest.mark.parametrize(
    ("build", "variant"),
    [
        (SimpleViTWithPatchDropout, "simple"),
        (SimpleFlashViT, "simple-before-1.4"),
        (DecorrelatedViT, "decorrelated"),
    ],
)
def test_classes_that_only_train_otherwise_give_their_outputs(
    build: type[nn.Module], variant: str, tmp_path: Path
) -> None:
    model, images = randomised(build(**SHAPE)), pictures(16, 16)
    pool: dict[str, Any] = {} if variant.startswith("simple") else {"pool": "class"}
    loaded = load_checkpoint(saved(model, tmp_path), LoadOptions(heads=2, image_size=16, **pool))
    assert loaded.audit.variant == variant
    with torch.no_grad():
        theirs = model(images)
        theirs = theirs[0] if isinstance(theirs, tuple) else theirs  # beside a loss of its training
        difference = (loaded.model(images) - theirs).abs().max().item()
    record(f"vit-pytorch:{variant}", "read, native grid", difference)
    assert difference <= 1e-5


ANY_CLASS: dict[str, Any] = {
    **SHAPE, "image_patch_size": 4, "frames": 4, "frame_patch_size": 2, "seq_len": 16, "num_residual_streams": 2,
    "freq_patch_size": 4, "max_tokens_per_depth": (8, 4), "ndim": 2, "input_shape": 16, "cls_depth": 1,
}  # fmt: skip
"""Arguments of every class of the package that takes a ViT's."""
OTHERS = {
    "ats_vit.ViT": "its head normalises", "cait.CaiT": "CaiT", "deepvit.DeepViT": "DeepViT", "jet_vit.JetViT": "JetViT",
    "jumbo_vit.JumboViT": "JumboViT", "learnable_memory_vit.ViT": "reads more tokens", "local_vit.LocalViT": "LocalViT",
    "looped_vit.LoopedViT": "LoopedViT", "na_vit.NaViT": "NaViT", "na_vit_nested_tensor.NaViT": "NaViT",
    "parallel_vit.ViT": "parallel ViT", "simple_uvit.SimpleUViT": "SimpleUViT",
    "simple_vit_attn_residual.SimpleViTAttnResidual": "attention residuals",
    "attn_residual_with_dca_simple_vit.SimpleViT": "attention residuals",
    "simple_vit_orthog_residual_update.SimpleViT": "orthogonal", "simple_vit_with_fft.SimpleViT": "FFT",
    "simple_vit_with_hyper_connections.SimpleViT": "hyper-connections", "simple_vit_with_qk_norm.SimpleViT": "QK norm",
    "simple_vit_with_relative_proj_pos_bias.SimpleViT": "relative positions",
    "simple_vit_with_sparse_gating.SimpleViTWithSparseGating": "sparse gating",
    "simple_vit_with_specialized_cls.SimpleViT": "specialised",
    "simple_vit_with_value_residual.SimpleViT": "first block",
    "vit_1d.ViT": "its head normalises", "vit_3d.ViT": "its head normalises", "vit_detpool.ViTDetPool": "ViTDetPool",
    "vit_for_small_dataset.ViT": "small data sets", "vit_nd.ViTND": "ViTND", "vit_nd_pope.ViTND": "polar",
    "vit_nd_rotary.ViTND": "rotary", "vit_with_keel_post_ln.ViT": "Keel", "vit_with_patch_dropout.ViT": "its head norm",
    "vit_with_patch_merger.ViT": "patch merger", "xcit.XCiT": "XCiT",
}  # fmt: skip
"""The other classes, and a part of what is said of their files."""


@pytest.mark.parametrize("which", OTHERS)
def test_the_other_classes_are_refused_by_name(which: str, tmp_path: Path) -> None:
    module, _, name = which.partition(".")
    build = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)
    known = inspect.signature(build.__init__).parameters
    model = build(**{word: value for word, value in ANY_CLASS.items() if word in known})
    for outputs in (None, 0):
        with pytest.raises(UsageError, match=OTHERS[which]):
            load_checkpoint(saved(model, tmp_path), LoadOptions(heads=2, image_size=16, pool="class", outputs=outputs))


# -- Older versions

RENAMED = (
    (r"\.0\.to_", ".0.fn.to_"),
    (r"\.1\.net\.0\.", ".1.norm."),
    (r"\.1\.net\.1\.", ".1.fn.net.0."),
    (r"\.1\.net\.4\.", ".1.fn.net.3."),
)
"""Names inside the blocks of `ViT`, today's and those before version 1.4."""


def as_old_version(model: nn.Module, version: str) -> dict[str, Tensor]:
    """Make a model of today's class compute what that version computed, and return the file that it saved.

    Args:
        version: 1.15, 1.3 or 0.27, the first one without norms of patches.
    """
    if version != "1.15":
        model.transformer.norm, model.to_latent = nn.Identity(), model.transformer.norm
    if version == "0.27":
        model.to_patch_embedding[1] = model.to_patch_embedding[3] = nn.Identity()
    file = {}
    for name, tensor in model.state_dict().items():
        if version != "1.15":
            name = re.sub(r"^(mlp_head|linear_head)\.", r"\1.1.", name)
            name = name.replace("to_latent.", "mlp_head.0." if isinstance(model, ViT) else "linear_head.0.")
            for today, old in RENAMED if isinstance(model, ViT) else ():
                name = re.sub(today, old, name)
        if version == "0.27":
            name = name.replace("to_patch_embedding.2.", "to_patch_embedding.1.")
        file[name] = tensor[None] if name in ("cls_token", "pos_embedding") else tensor
    return file


OLD_VARIANTS = {
    "1.15": ("before-1.17", "simple"),
    "1.3": ("before-1.4", "simple-before-1.4"),
    "0.27": ("without-patch-norms", "simple-without-patch-norms"),
}


@pytest.mark.wide
@pytest.mark.parametrize("case", ["class", "one head and the identity", "simple"])
@pytest.mark.parametrize("pool", ["class", "mean-all"])
@pytest.mark.parametrize("version", OLD_VARIANTS)
def test_files_of_older_versions_give_their_outputs(version: str, pool: str, case: str, tmp_path: Path) -> None:
    model = reference(case)
    torch.save(as_old_version(model, version), tmp_path / "old.pt")
    if case != "simple":
        model.pool = "cls" if pool == "class" else "mean"
    asked = {"pool": "mean" if case == "simple" else pool}
    loaded = load_checkpoint(tmp_path / "old.pt", LoadOptions(**options_of(case), **asked))
    assert loaded.audit.variant == OLD_VARIANTS[version][case == "simple"]
    images = pictures(16, 16)
    with torch.no_grad():
        difference = (loaded.model(images) - model(images)).abs().max().item()
    record(f"vit-pytorch:{loaded.audit.variant}", "read, native grid", difference)
    assert difference <= 1e-5


def test_what_an_older_file_pools_is_asked_for_and_never_guessed(tmp_path: Path) -> None:
    torch.save(as_old_version(reference("class"), "1.15"), tmp_path / "old.pt")
    for options in ({}, {"pool": "mean"}, {"outputs": 0}):
        with pytest.raises(UsageError, match=r'up to 1\.16 .* Pass pool="class" .* or pool="mean-all"'):
            load_checkpoint(tmp_path / "old.pt", LoadOptions(heads=2, **options))


def test_the_mean_of_version_1_16_has_no_class_token(tmp_path: Path) -> None:
    model = reference("mean")
    file = {n: t[None] if n in ("cls_token", "pos_embedding") else t for n, t in model.state_dict().items()}
    torch.save(file, tmp_path / "old.pt")
    loaded = load_checkpoint(tmp_path / "old.pt", LoadOptions(heads=2))
    images = pictures(16, 16)
    with torch.no_grad():
        assert (loaded.model(images) - model(images)).abs().max() <= 1e-5
    assert loaded.config.pool == "mean" and not loaded.config.class_token


def test_a_class_token_and_positions_of_two_versions_are_refused(tmp_path: Path) -> None:
    file = as_old_version(reference("class"), "1.15")
    torch.save({**file, "cls_token": file["cls_token"][0]}, tmp_path / "old.pt")
    with pytest.raises(DamagedFileError, match=r"pos_embedding is \[1, 17, 32\], cls_token \[1, 32\]: both"):
        load_checkpoint(tmp_path / "old.pt", LoadOptions(heads=2, pool="class"))


@pytest.mark.needs_old_vit_pytorch
@pytest.mark.parametrize(("name", "pool"), [("ViT", "class"), ("ViT", "mean-all"), ("SimpleViT", "mean")])
def test_files_of_version_1_15_7_itself_give_its_outputs(name: str, pool: str, tmp_path: Path) -> None:
    file = {"ViT": "vit.py", "SimpleViT": "simple_vit.py"}[name]  # alone: the package imports all its modules
    spec = spec_from_file_location("old", Path(os.environ["VITRAIL_OLD_VIT_PYTORCH"]) / "vit_pytorch" / file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = {"pool": "cls" if pool == "class" else "mean"} if name == "ViT" else {}
    model = randomised(getattr(module, name)(**SHAPE, **arguments))
    loaded = load_checkpoint(saved(model, tmp_path), LoadOptions(heads=2, pool=pool, image_size=16))
    images = pictures(16, 16)
    with torch.no_grad():
        assert (loaded.model(images) - model(images)).abs().max() <= 1e-5


@pytest.mark.wide
@pytest.mark.parametrize("version", ["today", *OLD_VARIANTS])
@pytest.mark.parametrize("case", ["class", "simple"])
def test_every_damage_is_refused_by_name(case: str, version: str, tmp_path: Path) -> None:
    pool = {} if case == "simple" else {"pool": "class"}

    def from_tensors(tensors: dict[str, Tensor]) -> None:
        torch.save(tensors, tmp_path / "damaged.pt")
        load_checkpoint(tmp_path / "damaged.pt", LoadOptions(layout="vit-pytorch", **options_of(case), **pool))

    model = reference(case)
    file = model.state_dict() if version == "today" else as_old_version(model, version)
    decides = ("to_patch_embedding.*",) if version == "0.27" else ()
    assert refuses_every_damage(file, from_tensors, decides=decides) > 90
