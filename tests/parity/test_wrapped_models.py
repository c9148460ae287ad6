"""Models as trainings and courses save them, inside a module or with another head, give the outputs of the modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from transformers import Dinov2Config, Dinov2ForImageClassification, ViTConfig, ViTForImageClassification, ViTModel
from vit_pytorch import ViT

from in_memory import load_from_tensors
from parity.outside import pictures, randomised
from vitrail.checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from vitrail.errors import UsageError

WIDTH = 32
HF: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 48, "num_labels": 5,
}  # fmt: skip
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "timm": lambda: TimmViT(img_size=16, patch_size=4, embed_dim=WIDTH, depth=1, num_heads=4, num_classes=5),
    "torchvision": lambda: TorchvisionViT(16, 4, 1, 4, WIDTH, 48, num_classes=5),
    "transformers": lambda: ViTForImageClassification(ViTConfig(**HF)),
    "vit-pytorch": lambda: ViT(
        image_size=16, patch_size=4, num_classes=5, dim=WIDTH, depth=1, heads=4, mlp_dim=48, dim_head=8
    ),
}
HEADS = {"timm": "head", "torchvision": "heads", "transformers": "classifier", "vit-pytorch": "mlp_head"}


def reference(library: str, head: nn.Module | None = None) -> nn.Module:
    model = MAKERS[library]()
    if head is not None:
        setattr(model, HEADS[library], head)
    return randomised(model)


def load(folder: Path, content: object, **options: Any) -> LoadedModel:
    torch.save(content, folder / "f.ckpt")
    return load_checkpoint(folder / "f.ckpt", LoadOptions(heads=4, **options))


def under(beginning: str, model: nn.Module) -> dict[str, Tensor]:
    return {f"{beginning}.{name}": tensor for name, tensor in model.state_dict().items()}


@torch.no_grad()
def gap(loaded: LoadedModel, model: nn.Module) -> float:
    outputs = model(pictures(16, 16))
    return (loaded.model(pictures(16, 16)) - getattr(outputs, "logits", outputs)).abs().max().item()


@pytest.mark.parametrize(
    "beginning", ["model", "net", "backbone", "encoder", "vit", "model.network", "_orig_mod.model"]
)
@pytest.mark.parametrize("library", MAKERS)
def test_a_network_inside_a_training_module_is_read(library: str, beginning: str, tmp_path: Path) -> None:
    model = reference(library)
    content = {"state_dict": under(beginning, model), "hyper_parameters": {"lr": 1e-3}, "optimizer_states": [{}]}
    loaded = load(tmp_path, content)
    assert gap(loaded, model) <= 1e-5
    taken = beginning.removeprefix("_orig_mod.")
    assert f"every name in the file begins with {taken}., which was taken off" in loaded.notes


@pytest.mark.parametrize("library", MAKERS)
def test_a_head_of_one_linear_layer_is_read_wherever_a_course_puts_it(library: str, tmp_path: Path) -> None:
    for head in (nn.Linear(WIDTH, 3), nn.Sequential(nn.Dropout(0.1), nn.Linear(WIDTH, 3))):
        model = reference(library, head)
        loaded = load(tmp_path, under("net", model))
        assert gap(loaded, model) <= 1e-5 and loaded.config.outputs == 3
        assumed = any("1 was read as the head; layers without tensors" in note for note in loaded.notes)
        assert assumed == isinstance(head, nn.Sequential)


def test_a_replaced_head_inside_the_heads_of_torchvision_is_read(tmp_path: Path) -> None:
    model = MAKERS["torchvision"]()
    model.heads.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(WIDTH, 3))
    assert gap(load(tmp_path, randomised(model).state_dict()), model) <= 1e-5


def test_a_replaced_head_of_transformers_dinov2_is_read(tmp_path: Path) -> None:
    model = Dinov2ForImageClassification(Dinov2Config(**HF))
    model.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * WIDTH, 3))
    assert gap(load(tmp_path, randomised(model).state_dict()), model) <= 1e-5


@pytest.mark.parametrize(("family", "activation"), [("CLIP", "QuickGELU"), ("Siglip", "GELUTanh")])
def test_a_replaced_head_of_an_image_and_text_model_is_read(family: str, activation: str, tmp_path: Path) -> None:
    shape = {word: HF[word] for word in HF if word != "num_labels"}
    config = getattr(transformers, f"{family}Config")(vision_config=shape, num_labels=3)
    model = getattr(transformers, f"{family}ForImageClassification")(config)
    model.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(WIDTH, 3))
    loaded = load(tmp_path, randomised(model).state_dict(), settings={"activation": activation})
    assert gap(loaded, model) <= 1e-5


def test_a_head_on_the_class_token_of_dinov2_is_read(tmp_path: Path) -> None:
    model = randomised(TimmViT(img_size=16, patch_size=4, embed_dim=WIDTH, depth=1, num_heads=4, num_classes=3))
    file = {**model.state_dict(), "mask_token": torch.zeros(1, WIDTH)}
    loaded = load(tmp_path, file)
    assert loaded.audit.layout == "dinov2" and loaded.config.pool == "class" and gap(loaded, model) <= 1e-5
    assert gap(load(tmp_path, {f"backbone.{name}": tensor for name, tensor in file.items()}), model) <= 1e-5
    body = {f"backbone.{name}": tensor for name, tensor in file.items() if not name.startswith("head.")}
    with pytest.raises(UsageError, match=r"DINOv2 under backbone, beside it head\.weight: .* network='backbone'"):
        load(tmp_path, body | {"head.weight": torch.ones(3, WIDTH)})


@pytest.mark.parametrize(
    "head",
    [
        nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)),
        nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)),
    ],
    ids=["two linear layers", "LayerNorm", "BatchNorm"],
)
@pytest.mark.parametrize("library", MAKERS)
def test_a_head_of_several_layers_is_refused_and_the_model_read_without_it(
    library: str, head: nn.Module, tmp_path: Path
) -> None:
    file = reference(library, head).state_dict()
    with pytest.raises(UsageError, match=rf"{HEADS[library]}\.0, {HEADS[library]}\.\d, .* Pass outputs=0 for the feat"):
        load(tmp_path, file)
    model = reference(library)
    model.load_state_dict(file, strict=False)
    setattr(model, HEADS[library], nn.Identity())
    assert gap(load(tmp_path, file, outputs=0), model) <= 1e-5
    assert load(tmp_path, file, outputs=7).config.outputs == 7


def test_which_output_of_a_bare_model_a_classifier_reads_is_asked_for(tmp_path: Path) -> None:
    body, head = randomised(ViTModel(ViTConfig(**HF))), randomised(nn.Linear(WIDTH, 3))
    file = {**under("vit", body), **under("classifier", head)}
    with pytest.raises(
        UsageError, match=r'"tanh" if the classifier reads pooler_output, "linear" if it reads last_hid'
    ):
        load(tmp_path, file)
    images = pictures(16, 16)
    with torch.no_grad():
        seen = body(images)
        for words, expected in (("tanh", seen.pooler_output), ("linear", seen.last_hidden_state[:, 0])):
            loaded = load(tmp_path, file, settings={"head": words})
            assert (loaded.model(images) - head(expected)).abs().max() <= 1e-5


def test_a_classifier_that_is_taken_for_that_of_transformers_is_noted(tmp_path: Path) -> None:
    loaded = load(tmp_path, reference("transformers").state_dict())
    assert "the classifier was taken for that of transformers' own class: it reads pool=class" in loaded.notes


def test_what_lies_beside_a_network_is_asked_for(tmp_path: Path) -> None:
    model = reference("timm")
    file = {"state_dict": {**under("model", model), "criterion.weight": torch.ones(5)}}
    with pytest.raises(UsageError, match=r"layout timm under model, beside it criterion\.weight: .* network='model'"):
        load(tmp_path, file)
    loaded = load(tmp_path, file, network="model")
    assert gap(loaded, model) <= 1e-5
    assert "model was read, the tensors whose names begin with it; left out: criterion" in loaded.notes


def test_of_two_networks_under_one_key_one_is_asked_for(tmp_path: Path) -> None:
    student, teacher = reference("timm"), randomised(MAKERS["timm"](), seed=1)
    file = {"state_dict": {**under("student", student), **under("teacher", teacher)}}
    with pytest.raises(UsageError, match=r"2 networks, student and teacher\. Name one: network='student'"):
        load(tmp_path, file)
    assert gap(load(tmp_path, file, network="teacher"), teacher) <= 1e-5
    assert gap(load(tmp_path, file, network="student"), student) <= 1e-5


def test_weights_averaged_by_torch_are_read(tmp_path: Path) -> None:
    model = reference("timm")
    averaged = torch.optim.swa_utils.AveragedModel(model)
    assert gap(load(tmp_path, averaged.state_dict()), model) <= 1e-5


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("swin_tiny_patch4_window7_224", "attention in windows with relative biases, as Swin has it"),
        ("vit_tiny_r_s16_p8_224", "a convolutional network before its patches"),
        ("hiera_tiny_224", "blocks that change their width"),
    ],
)
def test_another_architecture_is_named_and_not_called_damaged(name: str, message: str, tmp_path: Path) -> None:
    shapes = {n: tensor.shape for n, tensor in timm.create_model(name).state_dict().items()}
    with pytest.raises(UsageError, match=f"no plain Vision Transformer that Vitrail reads: it has {message}"):
        load_from_tensors({n: torch.zeros(1).expand(shape) for n, shape in shapes.items()}, "f")
