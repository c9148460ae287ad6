"""CLIP's picture towers: OpenCLIP's own classes, with OpenAI's activation and with others, and timm's under `trunk`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import open_clip.timm_model
import pytest
import timm
import torch
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP, resize_pos_embed
from torch import Tensor, nn

from parity.differences import record
from parity.negative import refuses_every_damage
from parity.outside import answers, furthest, furthest_gradient, pictures, randomised
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files import safetensors_file as files

VISION: dict[str, Any] = {
    "image_size": 16, "layers": 2, "width": 32, "head_width": 8, "patch_size": 4, "mlp_ratio": 1.5,
}  # fmt: skip
TEXT = {"context_length": 5, "vocab_size": 7, "width": 16, "heads": 2, "layers": 1}
CASES: dict[str, tuple[bool, dict[str, Any]]] = {
    "GELU": (False, {}),
    "QuickGELU": (True, {}),
    "LayerScale": (False, {"ls_init_value": 0.1}),
    "CLIPA": (False, {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}),
    "mean, normed before": (False, {"pool_type": "avg"}),
    "tanh and another epsilon": (False, {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-3}}),
    "a rectangle": (False, {"image_size": [8, 24]}),
}
TRUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    "SigLIP": ("vit_base_patch16_siglip_224", {"timm_pool": "map", "timm_proj": "none"}),
    "SigLIP 2": ("vit_base_patch32_siglip_256", {"timm_pool": "map", "timm_proj": "none"}),
    "projection": ("vit_base_patch16_224", {"timm_pool": "token", "timm_proj": "linear"}),
    "projection with bias": ("vit_base_patch16_224", {"timm_proj": "linear", "timm_proj_bias": True}),
    "timm's own head": ("vit_base_patch16_224", {"timm_pool": "token", "timm_proj": ""}),
    "MobileCLIP 2": ("vit_large_patch14_clip_224", {"timm_pool": "token", "timm_proj": None}),
    "EVA-01": ("eva_giant_patch14_224", {"timm_pool": "token", "timm_proj": None}),
    "EVA-02": ("eva02_base_patch16_clip_224", {"timm_pool": "token", "timm_proj": None}),
    "EVA-02, projection": ("eva02_large_patch14_clip_336", {"timm_pool": "token", "timm_proj": "linear"}),
    "EVA-02, enormous": ("eva02_enormous_patch14_clip_224", {"timm_pool": "token", "timm_proj": None}),
    "Perception Encoder": ("vit_pe_core_base_patch16_224", {"timm_pool": "map", "timm_proj": None}),
    "Perception Encoder, gigantic": ("vit_pe_core_gigantic_patch14_448", {"timm_pool": "map", "timm_proj": None}),
}
TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
Described = dict[str, Any]


def reference(case: str, **more: Any) -> tuple[nn.Module, Described]:
    """A whole model of pictures and words, and its open_clip_config.json."""
    quick, changes = CASES[case]
    model_cfg = {"embed_dim": 12, "quick_gelu": quick, "vision_cfg": {**VISION, **changes, **more}, "text_cfg": TEXT}
    return randomised(CLIP(**model_cfg)), {"model_cfg": model_cfg}


def with_trunk(case: str, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Described]:
    name, changes = TRUNKS[case]
    monkeypatch.setattr(open_clip.timm_model.timm, "create_model", partial(timm.create_model, **TINY))
    vision = {"timm_model_name": name, "image_size": 16, **changes}
    model_cfg = {"embed_dim": 12, "vision_cfg": vision, "text_cfg": TEXT}
    return randomised(CustomTextCLIP(**model_cfg)), {"model_cfg": model_cfg}


def saved(model: nn.Module, described: Described, folder: Path) -> Path:
    """A folder as OpenCLIP puts it on the Hub."""
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    files.save_tensors(folder / "open_clip_model.safetensors", tensors, {})
    (folder / "open_clip_config.json").write_text(json.dumps(described))
    return folder


def run(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    tower = model.visual
    blocks = tower.trunk.blocks if hasattr(tower, "trunk") else tower.transformer.resblocks
    return answers(tower, list(blocks), images)


@pytest.mark.parametrize("case", CASES)
def test_a_folder_of_openclip_gives_its_answers_and_its_gradients(case: str, tmp_path: Path) -> None:
    model, described = reference(case)
    loaded = load_checkpoint(saved(model, described, tmp_path / "folder"))
    images = pictures(*loaded.config.image_size)
    difference = furthest(loaded.model, run(model, images), images)
    record("open-clip", "read, native grid", difference)
    assert difference <= 1e-5
    assert {row.ours for row in loaded.audit.rows if row.action == "dropped"} >= {"the text tower"}
    beside = {
        name: getattr(loaded.config, name) for name in ("activation", "pool", "norm_eps", "final_norm", "pooled_norm")
    }
    gap = furthest_gradient(loaded.model, _Tower(model), images, "open-clip", **beside)
    record("open-clip", "gradients", gap)
    assert gap <= 1e-4


class _Tower(nn.Module):
    """The picture tower under the names of the whole model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.visual = model.visual

    def forward(self, images: Tensor) -> Tensor:
        return self.visual(images)


@pytest.mark.parametrize("size", [(24, 24), (8, 20)])
def test_another_grid_is_that_of_openclips_own_resize(size: tuple[int, int], tmp_path: Path) -> None:
    model, described = reference("GELU")
    other, _ = reference("GELU", image_size=size)
    weights = dict(model.state_dict())
    resize_pos_embed(weights, other)
    other.load_state_dict(weights)
    images = pictures(*size)
    path, theirs = saved(model, described, tmp_path / "folder"), run(other, images)
    difference = max(
        furthest(load_checkpoint(path, LoadOptions(image_size=given)).model, theirs, images) for given in (None, size)
    )
    record("open-clip", f"read, {size[0] // 4}x{size[1] // 4} grid", difference)
    assert difference <= 1e-5


@pytest.mark.parametrize("half", [False, True])
def test_openais_file_is_known_by_its_sizes_and_has_quickgelu(half: bool, tmp_path: Path) -> None:
    model, _ = reference("QuickGELU")
    sizes = {name: torch.tensor(16) for name in ("input_resolution", "context_length", "vocab_size")}
    weights = {name: tensor.half() if half else tensor for name, tensor in model.state_dict().items()}
    torch.save({**weights, **sizes}, tmp_path / "ViT.pt")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    loaded, images = load_checkpoint(tmp_path / "ViT.pt", LoadOptions(heads=4)), pictures(16, 16)
    assert (loaded.audit.layout, loaded.config.activation) == ("openai-clip", "QuickGELU")
    difference = furthest(loaded.model, run(model, images), images)
    record("openai-clip", "read, native grid", difference)
    assert difference <= 1e-5
    gap = furthest_gradient(loaded.model, _Tower(model), images, "openai-clip")
    record("openai-clip", "gradients", gap)
    assert gap <= 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_openais_archive_is_read_without_running_its_program(tmp_path: Path) -> None:
    model, _ = reference("QuickGELU")
    for name in ("input_resolution", "context_length", "vocab_size"):
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(16))
    images, words = pictures(16, 16), torch.zeros(2, 5, dtype=torch.long)
    torch.jit.trace(model, (images, words), check_trace=False).half().save(tmp_path / "ViT.pt")
    loaded, model = (
        load_checkpoint(tmp_path / "ViT.pt", LoadOptions(heads=4)),
        model.float(),
    )  # the trace shares the halved weights
    assert (loaded.audit.layout, loaded.config.activation) == ("openai-clip", "QuickGELU")
    difference = furthest(loaded.model, run(model, images), images)
    record("openai-clip", "read, TorchScript archive", difference)
    assert difference <= 1e-5


@pytest.mark.parametrize("alone", [False, True])
def test_without_anything_beside_it_a_file_must_be_named(alone: bool, tmp_path: Path) -> None:
    model, _ = reference("QuickGELU")
    path, images = tmp_path / "clip.pt", pictures(16, 16)
    torch.save((model.visual if alone else model).state_dict(), path)
    with pytest.raises(DamagedFileError, match=r"fits 2 layouts, open-clip\S* and openai-clip\S*\. Name one"):
        load_checkpoint(path, LoadOptions(heads=4))
    assert (
        furthest(load_checkpoint(path, LoadOptions(layout="openai-clip", heads=4)).model, run(model, images), images)
        <= 1e-5
    )
    with pytest.raises(UsageError, match=r'open-clip without .* does not say activation\. .* "QuickGELU" for those'):
        load_checkpoint(path, LoadOptions(layout="open-clip", heads=4))
    named = load_checkpoint(path, LoadOptions(layout="open-clip", heads=4, settings={"activation": "QuickGELU"}))
    assert furthest(named.model, run(model, images), images) <= 1e-5


@pytest.mark.parametrize("case", TRUNKS)
def test_a_tower_of_timm_gives_its_answers(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, described = with_trunk(case, monkeypatch)
    loaded, images = (
        load_checkpoint(saved(model, described, tmp_path / "folder"), LoadOptions(heads=4)),
        pictures(16, 16),
    )
    assert loaded.audit.layout == "open-clip" and loaded.config.outputs == (0 if "SigLIP" in case else 12)
    difference = furthest(loaded.model, run(model, images), images)
    record(f"open-clip:{loaded.audit.variant}", "read, native grid", difference)
    assert difference <= 1e-5


MULTIMODAL = {"width": 16, "context_length": 5, "vocab_size": 7, "layers": 1, "heads": 2, "attn_pooler_heads": 2}


def coca(**more: Any) -> tuple[nn.Module, Described]:
    """A CoCa, which has a decoder of words beside both towers."""
    tokens = {"output_tokens": True}
    model_cfg = {
        "embed_dim": 12, "vision_cfg": {**VISION, **tokens, **more}, "text_cfg": {**TEXT, **tokens, "embed_cls": True},
        "multimodal_cfg": MULTIMODAL,
    }  # fmt: skip
    return randomised(CoCa(**model_cfg)), {"model_cfg": model_cfg}


def test_the_tower_of_a_coca_gives_its_embedding(tmp_path: Path) -> None:
    model, described = coca()
    loaded, images = load_checkpoint(saved(model, described, tmp_path / "folder")), pictures(16, 16)
    with torch.no_grad():
        difference = (loaded.model(images) - model.visual(images)[0]).abs().max().item()
    record("open-clip", "read, native grid", difference)
    assert difference <= 1e-5


def test_a_coca_that_pools_by_many_queries_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a pooling by many learned queries, as CoCa has it"):
        load_checkpoint(saved(*coca(attentional_pool=True, attn_pooler_heads=2), tmp_path / "folder"))


def test_a_tower_of_timm_takes_its_pictures_as_its_folder_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, described = with_trunk("SigLIP", monkeypatch)
    preprocessing = {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.4, 0.4],
        "interpolation": "bilinear",
        "resize_mode": "squash",
    }
    folder = saved(model, {**described, "preprocess_cfg": preprocessing}, tmp_path / "folder")
    for match in (None, "original"):
        spec = load_checkpoint(folder, LoadOptions(heads=4, match=match)).spec
        assert (spec.fit, spec.interpolation, spec.mean) == ("squash", "bilinear", (0.1, 0.2, 0.3))
    assert (
        load_checkpoint(folder, LoadOptions(heads=4, match="timm")).config
        == load_checkpoint(folder, LoadOptions(heads=4)).config
    )
    with pytest.raises(UsageError, match='match="transformers" is not known for'):
        load_checkpoint(folder, LoadOptions(heads=4, match="transformers"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_type": "max"}, r"says pool_type='max'\. Known: tok, avg"),
        ({"qk_norm": True}, r"a block or a pooling that a plain Vision Transformer has not"),
        ({"head_width": 7}, r"head_width must be a whole number that divides 32\. Got 7"),
        ({"image_size": "big"}, r"image_size must be a number from 1 to 16,384\. Got 'big'"),
        ({"image_size": 32}, r"image_size=\(32, 32\) contradicts the file: it makes 64 patches .* has rows for 16"),
        ({"act_kwargs": 3}, r"act_kwargs must hold arguments by name\. Got 3"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_named(changes: Described, message: str, tmp_path: Path) -> None:
    model, described = reference("GELU")
    described["model_cfg"]["vision_cfg"].update(changes)
    with pytest.raises((UsageError, DamagedFileError), match=message):
        load_checkpoint(saved(model, described, tmp_path / "folder"))


@pytest.mark.wide
@pytest.mark.parametrize("case", ["LayerScale", "trunk"])
def test_every_damage_is_refused_by_name(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, described = with_trunk("projection", monkeypatch) if case == "trunk" else reference(case)
    folder = saved(model, described, tmp_path / "folder")

    def from_tensors(tensors: dict[str, Tensor]) -> None:
        files.save_tensors(folder / "open_clip_model.safetensors", tensors, {})
        load_checkpoint(folder, LoadOptions(heads=4))

    words = (
        "transformer.*",
        "token_embedding.*",
        "positional_embedding",
        "ln_final.*",
        "text*",
        "logit_*",
        "attn_mask",
    )
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    assert refuses_every_damage(weights, from_tensors, ignored=words, prefix="visual.trunk.") > 100


@pytest.mark.wide
def test_every_damage_of_openais_file_is_refused_by_name(tmp_path: Path) -> None:
    tower = reference("QuickGELU")[0].visual

    def from_tensors(tensors: dict[str, Tensor]) -> None:
        torch.save(tensors, tmp_path / "damaged.pt")
        load_checkpoint(tmp_path / "damaged.pt", LoadOptions(layout="openai-clip", heads=4))

    assert refuses_every_damage(tower.state_dict(), from_tensors) > 100
