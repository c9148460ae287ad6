"""Files and folders of a made-up family: options, adaptations, and notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from in_memory import load_from_tensors
from vitrail.checkpoints import foreign_folder, identify, numerics
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.rules import write_with_layout
from vitrail.checkpoints.save import save_model
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files import safetensors_file as files
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT

from .toy import CONFIG, TOY, model

CARD = """
licence = "Apache-2.0"
repository = "somebody/toy"
[original]
mean = [0.1, 0.2, 0.3]
std = [0.5, 0.5, 0.5]
interpolation = "bilinear"
fit = "crop"
crop = 0.5
"""
BESIDE = {"model_type": "toy", "id2label": {"0": "cat", "1": "dog", "2": "owl"}, "problem_type": "regression"}
PREPROCESSOR = {
    "size": {"height": 8, "width": 8}, "resample": 2, "image_mean": [0.2, 0.3, 0.4], "image_std": [0.1, 0.1, 0.1],
}  # fmt: skip


@pytest.fixture(autouse=True)
def family(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("cards")
    (folder / "unit_test_toy.toml").write_text(CARD)
    monkeypatch.setattr(numerics, "CARDS_FOLDER", folder)
    monkeypatch.setattr(identify, "LAYOUTS", {"toy": replace(TOY, card="unit_test_toy")})


def tensors() -> dict[str, Tensor]:
    return write_with_layout(model().state_dict(), CONFIG, TOY)


def file(folder: Path) -> Path:
    files.save_tensors(folder / "toy.safetensors", tensors(), {})
    return folder / "toy.safetensors"


def folder(path: Path, config: dict[str, Any], preprocessor: dict[str, Any] | None = None) -> Path:
    path.mkdir()
    files.save_tensors(path / "model.safetensors", tensors(), {})
    (path / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return path


def pictures(channels: int = 3, side: int = 8) -> Tensor:
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(5))


def differs(one: ViT, other: ViT) -> float:
    with torch.no_grad():
        return (one(pictures()) - other(pictures())).abs().max().item()


def test_a_file_alone_is_described_by_its_card(tmp_path: Path) -> None:
    loaded = load_checkpoint(file(tmp_path))
    assert differs(loaded.model, model()) == 0 and loaded.config == CONFIG
    assert (loaded.licence, loaded.repository) == ("Apache-2.0", "somebody/toy")
    assert (loaded.spec.mean, loaded.spec.interpolation, loaded.spec.fit) == ((0.1, 0.2, 0.3), "bilinear", "crop")
    assert loaded.spec.size == (8, 8) and loaded.classes == () and loaded.spec.crop_fraction == 0.5
    assert loaded.notes == ("the file carries no checksum: that it is unchanged was not verified", *loaded.assumed)


def test_what_a_bare_file_does_not_say_is_noted_with_the_values_taken(tmp_path: Path) -> None:
    taken, pictures = load_checkpoint(file(tmp_path)).assumed
    assert taken == (
        "the file does not say norm_eps=1e-06, activation=GELU, resample=bicubic-antialias, image_size=8x8: "
        "its authors' are taken, and others can be given"
    )
    assert pictures == (
        "the file does not say how its pictures are prepared: its authors' way is taken, mean 0.1 0.2 0.3, "
        "std 0.5 0.5 0.5, interpolation bilinear, fit crop, crop_fraction 0.5"
    )
    said = LoadOptions(image_size=(8, 8), settings={"norm_eps": 1e-3, "activation": "ReLU", "resample": "bicubic"})
    assert load_checkpoint(file(tmp_path), said).assumed == (pictures,)
    assert load_checkpoint(folder(tmp_path / "bare", BESIDE)).assumed == (pictures,)
    assert load_checkpoint(folder(tmp_path / "toy", BESIDE, PREPROCESSOR)).assumed == ()


def test_heads_and_pooling_are_noted_where_the_tensors_leave_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(tensors: Any, hints: LayoutHints) -> ViTConfig:
        return replace(TOY.describe(tensors, hints), heads=hints.heads or 2, pool=hints.pool or "attention")

    monkeypatch.setattr(identify, "LAYOUTS", {"toy": replace(TOY, describe=describe)})
    assert load_checkpoint(file(tmp_path)).assumed[0].startswith("the file does not say heads=2, norm_eps=1e-06, ")
    assert "heads" not in load_checkpoint(file(tmp_path), LoadOptions(heads=2)).assumed[0]
    assert "heads" not in load_checkpoint(file(tmp_path), LoadOptions(settings={"heads": 2})).assumed[0]


def test_a_folder_is_described_by_what_stands_in_it(tmp_path: Path) -> None:
    loaded = load_checkpoint(folder(tmp_path / "toy", BESIDE, PREPROCESSOR))
    assert (loaded.task, loaded.classes) == ("regression", ("cat", "dog", "owl"))
    assert (loaded.spec.mean, loaded.spec.std, loaded.spec.fit) == ((0.2, 0.3, 0.4), (0.1, 0.1, 0.1), "squash")
    assert load_checkpoint(tmp_path / "toy" / "model.safetensors").classes == ("cat", "dog", "owl")
    original = load_checkpoint(tmp_path / "toy", LoadOptions(match="original", outputs=5))
    assert original.spec.mean == (0.1, 0.2, 0.3) and original.classes == ()


@pytest.mark.parametrize(
    ("config", "preprocessor", "message"),
    [
        ({"model_type": "swin"}, None, r"swin is no plain Vision Transformer: Swin attends within shifted"),
        ({"model_type": "tower"}, None, r"is a tower, which is not a plain Vision Transformer known here\."),
        (BESIDE, {"image_mean": [0.5, "x", 1]}, r"the description of its pictures makes no sense"),
    ],
)
def test_a_folder_that_makes_no_sense_is_an_error(
    config: dict[str, Any], preprocessor: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises((DamagedFileError, UsageError), match=message):
        load_checkpoint(folder(tmp_path / "toy", config, preprocessor))


@torch.no_grad()
def test_everything_asked_for_is_done_and_noted(tmp_path: Path) -> None:
    loaded = load_checkpoint(
        file(tmp_path), LoadOptions(image_size=(8, 16), channels=1, channels_policy="sum", pool="mean", outputs=0)
    )
    assert loaded.model(torch.zeros(2, 1, 8, 16)).shape == (2, 8)
    assert loaded.config.image_size == loaded.spec.size == (8, 16) and loaded.spec.channels == 1
    assert loaded.spec.mean == (pytest.approx(0.2),)
    text = " | ".join(loaded.notes)
    for words in ("resampled from 4x4 to 4x8", "from 3 to 1 channel: sum", "attention in the file, now mean"):
        assert words in text
    with pytest.raises(UsageError, match=r"channels=1 contradicts the file"):
        load_checkpoint(file(tmp_path), LoadOptions(channels=1))
    with pytest.raises(UsageError, match=r"heads=4 contradicts the file: .* says 2"):
        load_checkpoint(file(tmp_path), LoadOptions(heads=4))


def test_settings_lie_over_what_the_family_says_and_are_read_strictly(tmp_path: Path) -> None:
    assert load_checkpoint(file(tmp_path), LoadOptions(settings={"norm_eps": 1e-3})).config.norm_eps == 1e-3
    with pytest.raises(UsageError, match=r"settings: there is no setting norm_epsilon\. Did you mean norm_eps"):
        load_checkpoint(file(tmp_path), LoadOptions(settings={"norm_epsilon": 1e-3}))


def test_a_count_of_rows_that_fills_a_square_and_the_size_asked_for_is_noted(tmp_path: Path) -> None:
    wide = load_checkpoint(file(tmp_path), LoadOptions(image_size=(4, 16)))
    assert wide.config.grid == (2, 8)
    assert "the positions were taken to lie in 2x8, as image_size says; if they lie in 4x4" in wide.notes[0]
    square = load_checkpoint(file(tmp_path), LoadOptions(image_size=(4, 16), settings={"image_size": (8, 8)}))
    assert "resampled from 4x4 to 2x8" in " ".join(square.notes)
    with pytest.raises(UsageError, match=r"image_size=\(6, 8\) contradicts the file: it makes 12 patches of 2x2"):
        load_checkpoint(file(tmp_path), LoadOptions(settings={"image_size": (6, 8)}))


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    files.save_tensors(
        tmp_path / "toy.safetensors", {name: tensor.bfloat16() for name, tensor in tensors().items()}, {}
    )
    loaded = load_checkpoint(tmp_path / "toy.safetensors")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert differs(loaded.model, model()) < 0.1


def test_tensors_in_memory_are_read_under_the_same_rules() -> None:
    given = tensors()
    assert differs(load_from_tensors(given, "memory").model, model()) == 0 and not given
    with pytest.raises(UsageError, match="memory: heads=4 contradicts the file"):
        load_from_tensors(tensors(), "memory", hints=LayoutHints(heads=4))
    broken = tensors() | {"toy.extra": torch.zeros(2)}
    with pytest.raises(DamagedFileError, match=r"memory does not fit the layout toy: 1 without a rule: toy\.extra"):
        load_from_tensors(broken, "memory")
    empty = tensors() | {"stem.weight": torch.zeros(8, 3, 0, 0)}
    with pytest.raises(DamagedFileError, match=r"memory: .* describe no model \(ZeroDivisionError"):
        load_from_tensors(empty, "memory", hints=LayoutHints(image_size=(8, 8)))


def test_channels_in_another_order_take_mean_and_deviation_along(tmp_path: Path) -> None:
    loaded = load_checkpoint(file(tmp_path), LoadOptions(channels=3, channels_policy=[2, 1, 0]))
    assert loaded.spec.mean == (0.3, 0.2, 0.1)
    colour = pictures()
    with torch.no_grad():
        assert (loaded.model(colour.flip(1)) - model()(colour)).abs().max() < 1e-5
    with pytest.raises(UsageError, match=r'channels_policy="sum" adapts the file to other channels'):
        load_checkpoint(file(tmp_path), LoadOptions(channels_policy="sum"))
    save_model(tmp_path / "kept", model(), loaded.spec, ("cat", "dog", "owl"), "bundle")
    assert load_checkpoint(tmp_path / "kept", LoadOptions(channels=2, channels_policy=[2, 0])).spec.mean == (0.1, 0.3)


def test_a_folder_that_vitrail_wrote_does_not_have_the_licence_of_the_familys_weights(tmp_path: Path) -> None:
    assert load_checkpoint(folder(tmp_path / "theirs", BESIDE)).licence == "Apache-2.0"
    own = load_checkpoint(folder(tmp_path / "own", {**BESIDE, **foreign_folder.make_origin_fields({})}))
    assert (own.licence, own.repository) == ("", "")
    info = {"licence": "MIT", "repository": "somebody/else", "mirror": True}
    kept = load_checkpoint(folder(tmp_path / "kept", {**BESIDE, **foreign_folder.make_origin_fields(info)}))
    assert (kept.licence, kept.repository) == ("MIT", "somebody/else")


def test_heads_that_were_guessed_for_another_depth_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(published: frozenset[tuple[int, int]] | None, **options: Any) -> str:
        layout = replace(TOY, card="unit_test_toy", published=published)
        monkeypatch.setattr(identify, "LAYOUTS", {"toy": layout})
        return " | ".join(load_checkpoint(file(tmp_path), LoadOptions(**options)).notes)

    guess = "heads=2 is that of the published model of this width; the file does not say it: heads= changes it"
    assert guess in notes(frozenset({(8, 12)}))
    for published in (frozenset({(8, 2)}), None):
        assert guess not in notes(published)
    assert guess not in notes(frozenset(), heads=2) and guess not in notes(frozenset(), settings={"heads": 2})


def test_arguments_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "kept", model(), load_checkpoint(file(tmp_path)).spec, ("cat", "dog", "owl"), "bundle")
    with pytest.raises(UsageError, match=r"is a bundle, .* Leave match='timm' and network='encoder' out"):
        load_checkpoint(tmp_path / "kept", LoadOptions(match="timm", network="encoder"))
    with pytest.raises(UsageError, match=r"holds one model, not several networks\. Leave network='encoder' out"):
        load_checkpoint(folder(tmp_path / "toy", BESIDE), LoadOptions(network="encoder"))


def test_a_folder_with_several_networks_gives_the_one_that_is_named(tmp_path: Path) -> None:
    other = {name: tensor + 1 for name, tensor in tensors().items()}
    path = tmp_path / "toy"
    folder(path, BESIDE)
    (path / "model.safetensors").unlink()
    torch.save({"teacher": tensors(), "student": other}, path / "pytorch_model.bin")
    assert differs(load_checkpoint(path).model, model()) == 0
    assert differs(load_checkpoint(path, LoadOptions(network="student")).model, model()) > 0.1


def test_a_folder_of_several_files_holds_no_networks(tmp_path: Path) -> None:
    path = folder(tmp_path / "toy", BESIDE)
    (path / "model.safetensors").rename(path / "model-1-of-1.safetensors")
    listed = dict.fromkeys(tensors(), "model-1-of-1.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    assert differs(load_checkpoint(path).model, model()) == 0
    with pytest.raises(UsageError, match=r"holds one model, not several networks"):
        load_checkpoint(path, LoadOptions(network="encoder"))
