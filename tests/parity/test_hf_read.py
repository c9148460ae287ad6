"""Every published class of transformers, read from its folder and its file in both namings, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf

from vitrail.checkpoints.identify import LAYOUTS
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.rules import write_with_layout
from vitrail.errors import UsageError
from vitrail.files.safetensors_file import save_tensors

from .differences import record
from .hf import SIZES, VIT, images, largest_difference, randomised, saved
from .hf_cases import CASES

NAMINGS = {"names of files": False, "names in memory": True}


@pytest.mark.each_value
@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("name", CASES)
def test_every_block_and_output_is_the_references(name: str, naming: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = randomised(case.build())
    loaded = load_checkpoint(saved(reference, tmp_path / "there", NAMINGS[naming]))
    for size in case.sizes:
        pictures = images(SIZES[size])
        with torch.no_grad():
            theirs = case.run(reference, pictures)
        difference = largest_difference(loaded.model, theirs, pictures)
        record(f"transformers:{name}", f"read, {naming}, {size}", difference)
        assert difference < 1e-5, size


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.memory])
def test_gradients_on_every_parameter_are_the_references(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = randomised(case.build())
    loaded = load_checkpoint(saved(reference, tmp_path / "there", memory=True))
    pictures = images(SIZES["native grid"]).requires_grad_()
    theirs = case.run(reference, pictures)
    end = "outputs" if "outputs" in theirs else "tokens"
    (their_pictures,) = torch.autograd.grad(loss(theirs[end]), pictures, retain_graph=True)
    loss(theirs[end]).backward()
    pictures.grad = None
    loss(loaded.model.features(pictures, keep=(end,))[end]).backward()
    difference = (pictures.grad - their_pictures).abs().max().item() / max(1.0, their_pictures.abs().max().item())
    ours = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in loaded.model.named_parameters()}
    settings = {"norm_eps": loaded.config.norm_eps, "activation": loaded.config.activation}
    names = write_with_layout(ours, loaded.config, LAYOUTS[f"transformers:{case.memory}"], settings)
    compared = 0
    for n, parameter in reference.named_parameters():
        mine = names.get(n, names.get(n.removeprefix("vision_model.").removeprefix("vit.")))
        if parameter.grad is not None and mine is not None:
            scale = max(1.0, parameter.grad.abs().max().item())
            difference = max(difference, (mine - parameter.grad).abs().max().item() / scale)
            compared += 1
    record(f"transformers:{name}", "gradients", difference)
    assert difference < 1e-4 and compared > 20


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["internvl", "internvl with norms of queries and keys"])
def test_internvit_under_the_names_of_its_authors_gives_the_same_tokens(kind: str, whole: bool, tmp_path: Path) -> None:
    case = CASES[kind]
    reference = randomised(case.build())
    theirs = dict(reference.state_dict())
    tensors: dict[str, torch.Tensor] = {}
    for i in range(2):
        inside = f"encoder.layer.{i}."
        q, k, v = (theirs.pop(f"{inside}attention.{name}_proj.weight") for name in "qkv")
        tensors[f"encoder.layers.{i}.attn.qkv.weight"] = torch.cat([q, k, v])
        for name in [name for name in theirs if name.startswith(inside)]:
            renamed = name.replace(".layer.", ".layers.")
            for old, new in AUTHORS_NAMES.items():
                renamed = renamed.replace(old, new)
            tensors[renamed] = theirs.pop(name)
    for old, new in AUTHORS_STEM.items():
        tensors[new] = theirs.pop(old)
    assert not theirs
    if whole:
        tensors = {f"vision_model.{name}": tensor for name, tensor in tensors.items()}
        tensors |= {"language_model.norm.weight": torch.ones(3), "mlp1.0.weight": torch.ones(3)}
    save_tensors(tmp_path / "model.safetensors", tensors, {})
    loaded = load_checkpoint(tmp_path / "model.safetensors", LoadOptions(heads=4))
    assert (loaded.audit.layout, loaded.config.pool, loaded.config.final_norm) == ("internvit", "class", False)
    pictures = images(SIZES["16x40"])
    with torch.no_grad():
        numbers = case.run(reference, pictures)
    del numbers["outputs"]  # transformers' own pooling is another
    difference = largest_difference(loaded.model, numbers, pictures)
    record("internvit", "read, 4x10 grid", difference)
    assert difference < 1e-5


AUTHORS_NAMES = {
    "attention.projection_layer": "attn.proj", "layernorm_before": "norm1", "layernorm_after": "norm2",
    "lambda_1": "ls1", "lambda_2": "ls2", "attention.q_norm": "attn.q_norm", "attention.k_norm": "attn.k_norm",
}  # fmt: skip
"""Names inside a block of InternViT in transformers, and in the repository of its authors."""
AUTHORS_STEM = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.patch_embeddings.projection.weight": "embeddings.patch_embedding.weight",
    "embeddings.patch_embeddings.projection.bias": "embeddings.patch_embedding.bias",
    "embeddings.position_embeddings": "embeddings.position_embedding",
}


def refused(model: torch.nn.Module, folder: Path, because: str) -> None:
    """A model's folder, and its file without one, are refused with that reason."""
    for bare in (False, True):
        path = saved(model, folder / f"bare-{bare}", memory=False, bare=bare)
        with pytest.raises(UsageError, match=because):
            load_checkpoint(path, LoadOptions(heads=4) if bare else None)


def test_towers_with_parts_that_no_model_here_has_are_refused_by_name(tmp_path: Path) -> None:
    normed = hf.InternVLVisionConfig(**VIT, use_qk_norm=True)
    refused(hf.InternVLVisionModel(normed), tmp_path / "internvl", "RMSNorm on queries and keys beside LayerNorm")
    positioned = hf.YolosConfig(**{**VIT, "image_size": [24, 24]}, num_detection_tokens=3)
    refused(hf.YolosModel(positioned), tmp_path / "yolos", "This YOLOS adds positions again before every block")


def test_a_whole_video_model_is_refused_by_name(tmp_path: Path) -> None:
    path = saved(hf.VideoMAEModel(hf.VideoMAEConfig(**VIT, num_frames=2)), tmp_path / "video", memory=False, bare=True)
    with pytest.raises(UsageError, match="pieces of several frames, as VideoMAE does"):
        load_checkpoint(path, LoadOptions(heads=4))


def test_the_card_is_that_of_the_family_which_config_json_names(tmp_path: Path) -> None:
    tower = randomised(CASES["altclip"].build())
    loaded = load_checkpoint(saved(tower, tmp_path / "there", memory=False))
    assert (loaded.licence, loaded.repository) == ("CreativeML-OpenRAIL-M", "FlagAI-Open/FlagAI")


def loss(x: torch.Tensor) -> torch.Tensor:
    """Weighs every number differently, so that none can hide behind another."""
    return (x * torch.linspace(-1, 1, x.numel()).reshape(x.shape)).sum()
