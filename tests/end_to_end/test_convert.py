"""`vitrail convert` and `vitrail inspect` on one file of each container, as a person would type them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail as package
from end_to_end.test_wrong_inputs import sentence
from vitrail.services import conversion

SAID = {"torchvision": ("--heads", 2), "google-npz": ("--match", "timm")}
"""What files cannot say, and folders can."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a small plain ViT that every target can hold."""
    from vitrail.checkpoints import bundle_weights
    from vitrail.model.registry import config_from_name
    from vitrail.model.vit import create_model
    from vitrail.spec import ImageSpec

    folder = tmp_path_factory.mktemp("plain") / "plain"
    model = create_model(config_from_name("vit_mu_patch8_16"), seed=3)
    torch.nn.init.normal_(model.head.linear.weight, generator=torch.Generator().manual_seed(4))
    classes = tuple(f"kind {k}" for k in range(model.config.outputs))
    spec = ImageSpec(height=16, width=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    bundle_weights.save_bundle(folder, model, spec, "classification", classes, {})
    return folder


def answers(path: Path, **said) -> torch.Tensor:
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        return package.load(path, **said)(images)


@pytest.mark.parametrize("to", conversion.CONVERSION_TARGETS)
def test_there_and_back_gives_the_same_answers(vitrail, plain, tmp_path, to):
    there = conversion.add_extension(str(tmp_path / "there"), to)
    answer = vitrail("convert", plain, "--to", to, "--out", there)
    assert answer.code == 0, answer.err
    assert f"wrote  {there}: layout " in answer.out
    assert "read back and compared on 3 random pictures: the outputs differ by at most " in answer.out
    back = vitrail("convert", there, *SAID.get(to, ()), "--to", "bundle", "--out", tmp_path / "back", "--json")
    assert back.code == 0, back.err
    told = json.loads(back.out)
    assert told["largest_difference"] < 1e-5 and told["path"] == str(tmp_path / "back")
    assert torch.allclose(answers(plain), answers(tmp_path / "back"), atol=1e-5)


@pytest.mark.parametrize("to", ["timm", "transformers"])
def test_class_names_and_preprocessing_survive_two_libraries(vitrail, plain, tmp_path, to):
    assert vitrail("convert", plain, "--to", to, "--out", tmp_path / "there").code == 0
    assert vitrail("convert", tmp_path / "there", "--to", "bundle", "--out", tmp_path / "back").code == 0
    first, last = (json.loads((folder / "config.json").read_text()) for folder in (plain, tmp_path / "back"))
    start = "even" if to == "timm" else "down"
    image = {**first["image"], "crop_start": start}
    assert (last["classes"], last["image"], last["task"]) == (first["classes"], image, first["task"])


@pytest.mark.parametrize("to", ["timm", "torchvision", "google-npz"])
def test_inspecting_lists_every_tensor_the_card_and_the_licence(vitrail, plain, tmp_path, to):
    there = conversion.add_extension(str(tmp_path / "there"), to)
    assert vitrail("convert", plain, "--to", to, "--out", there).code == 0
    answer = vitrail("inspect", there, *SAID.get(to, ()))
    assert answer.code == 0, answer.err
    assert "numerics    LayerNorm eps 1e-06, GELU" in answer.out
    assert "encoder.blocks.0.norm1.weight" in answer.out and f"layout {to}" in answer.out
    told = json.loads(vitrail("inspect", there, *SAID.get(to, ()), "--json").out)
    assert told["layout"].startswith(to) and all(row["action"] for row in told["tensors"])


def test_by_default_the_files_lie_beside_the_model(vitrail, plain):
    assert vitrail("convert", plain, "--to", "timm").code == 0
    assert (plain.parent / "plain-timm" / "config.json").is_file()


def test_the_default_place_is_named_after_the_model(tmp_path, monkeypatch):
    (tmp_path / "run.1").mkdir()
    monkeypatch.chdir(tmp_path / "run.1")
    assert conversion.default_conversion_path("films/ViT_B.pth.tar", "timm") == Path("films/ViT_B-timm")
    assert conversion.default_conversion_path("hf:facebook/dinov2-small@main", "google-npz") == Path(
        "dinov2-small-google-npz.npz"
    )
    assert conversion.default_conversion_path(".", "bundle") == tmp_path / "run.1-bundle"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("noted", "moved"),
    [
        ({"mirror": True, "shift": 2}, "moved by 2 to either side"),
        ({"mirror": True, "shift": 2, "shift_vertical": True}, "moved by 2 left, right, up and down"),
    ],
)
def test_what_only_our_predictions_do_is_told(noted, moved, vitrail, plain, tmp_path):
    from vitrail.checkpoints import bundle, bundle_weights

    kept = bundle_weights.load_bundle(plain)
    bundle_weights.save_bundle(tmp_path / "kept", kept.model, kept.spec, "classification", kept.classes, noted)
    answer = vitrail("convert", tmp_path / "kept", "--to", "timm", "--out", tmp_path / "timm")
    views = f"every picture and its mirror image and itself {moved}"
    assert f"averages over {views} here, and timm does not" in answer.out
    assert "the softmax of its outputs and the answers of vitrail predict differ by at most " in answer.out
    assert vitrail("convert", tmp_path / "kept", "--to", "bundle", "--out", tmp_path / "again").code == 0
    info = bundle.read_bundle_info(tmp_path / "again").info
    assert info.items() >= noted.items()


def test_a_new_head_of_zeros_proves_nothing_so_the_features_are_compared(plain):
    first, second = package.load(plain, outputs=5), package.load(plain, outputs=5)
    with torch.no_grad():
        second.encoder.norm.bias += 0.25
    difference, _ = conversion.max_output_difference(first, second)
    assert difference == pytest.approx(0.25, abs=1e-4)


def test_what_exists_is_not_overwritten(vitrail, plain, tmp_path):
    said = sentence(vitrail("convert", plain, "--to", "timm", "--out", tmp_path), 2)
    assert said == f"{tmp_path} exists already and is not overwritten. Choose another name or move it away."


def test_a_target_that_does_not_exist(vitrail, plain):
    said = sentence(vitrail("convert", plain, "--to", "keras"), 2)
    assert said == ("A model can be written as bundle, timm, transformers, torchvision or google-npz. Got 'keras'.")


def test_a_file_with_the_wrong_ending(vitrail, plain, tmp_path):
    said = sentence(vitrail("convert", plain, "--to", "google-npz", "--out", tmp_path / "weights.pth"), 2)
    assert said.startswith("google-npz is one file, whose name must end in .npz.")


def test_a_part_that_the_target_cannot_express_is_named_and_nothing_is_kept(vitrail, plain, tmp_path):
    answer = vitrail("convert", plain, "--to", "torchvision", "--out", tmp_path / "a.pth", "--model.activation", "SiLU")
    said = sentence(answer, 2)
    assert "activation" in said or "settings" in said
    assert not list(tmp_path.iterdir())


def test_a_setting_that_is_none_of_the_architecture(vitrail, plain, tmp_path):
    said = sentence(vitrail("convert", plain, "--recipe.batch_size", 3, "--out", tmp_path / "a"), 2)
    assert said == (
        "Beside a model only fields of its architecture can be set, such as --model.activation. Got "
        "--recipe.batch_size."
    )


def test_a_match_that_is_nobodys(vitrail, plain, tmp_path):
    said = sentence(vitrail("inspect", plain, "--match", "keras"), 2)
    assert said == "match must be original, timm or transformers. Got 'keras'."


def test_a_name_has_no_weights(vitrail, tmp_path):
    said = sentence(vitrail("convert", "vit_mu_patch8_16", "--out", tmp_path / "a"), 2)
    assert said.startswith("A name of a size has no weights to convert.")


def test_a_file_that_is_no_weights_file(vitrail, tmp_path):
    (tmp_path / "weights.npz").write_bytes(b"PK\3\4 not really")
    answer = vitrail("convert", tmp_path / "weights.npz", "--out", tmp_path / "a")
    sentence(answer, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.npz"]


def test_a_published_classifier_answers_with_its_own_names(vitrail, plain, flowers, tmp_path):
    assert vitrail("convert", plain, "--to", "transformers", "--out", tmp_path / "there").code == 0
    answer = vitrail("predict", tmp_path / "there", flowers / "disc" / "0.png", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0].startswith("path,id,split,target,label,probability,prob_kind 0,prob_kind 1,")


@pytest.mark.wide
def test_weights_without_class_names_cannot_answer(vitrail, plain, flowers, tmp_path):
    assert vitrail("convert", plain, "--to", "google-npz", "--out", tmp_path / "named.npz").code == 0
    with np.load(tmp_path / "named.npz") as arrays:
        np.savez(tmp_path / "there.npz", **arrays)
    answer = vitrail("predict", tmp_path / "there.npz", flowers / "disc")
    assert "there.npz: the file does not say norm_eps=1e-06, activation=GELUTanh" in answer.err
    said = sentence(answer, 2)
    assert said.startswith("Answers need the names of the classes, and ") and "id2label" in said


def test_another_channel_count_needs_a_policy_which_is_told(vitrail, plain, tmp_path):
    grey = ("--channels", 1, "--outputs", 2, "--out", tmp_path / "grey")
    assert "name how to adapt it" in sentence(vitrail("convert", plain, *grey), 2)
    answer = vitrail("convert", plain, *grey, "--channels-policy", "mean")
    assert answer.code == 0, answer.err
    assert "patch projection adapted from 3 to 1 channel: mean" in answer.out
    assert "head replaced" in answer.out and "the outputs have no names" in answer.out
    model = package.load(tmp_path / "grey")
    assert (model.config.channels, model.config.outputs) == (1, 2)
    again = vitrail("convert", tmp_path / "grey", "--outputs", 3, "--out", tmp_path / "again")
    assert again.code == 0, again.err
    notes = json.loads((tmp_path / "again" / "config.json").read_text())["info"]["notes"]
    assert notes[0] == "patch projection adapted from 3 to 1 channel: mean" and notes[-1].startswith("head replaced: 2")


@pytest.mark.wide
def test_the_example_of_the_help_with_settings_is_one_that_works(vitrail, plain, tmp_path):
    from vitrail.cli.commands.convert import Convert

    assert "vitrail convert old.pth --to bundle --heads 12 --model.activation QuickGELU" in (Convert.__doc__ or "")
    assert vitrail("convert", plain, "--to", "torchvision", "--out", tmp_path / "old.pth").code == 0
    said = ("--to", "bundle", "--heads", 2, "--model.activation", "QuickGELU", "--out", tmp_path / "new")
    answer = vitrail("convert", tmp_path / "old.pth", *said)
    assert answer.code == 0, answer.err
    assert package.load(tmp_path / "new").config.activation == "QuickGELU"


@pytest.mark.wide
def test_own_weights_do_not_come_back_under_somebodys_licence(vitrail, plain, tmp_path):
    assert vitrail("convert", plain, "--to", "transformers", "--out", tmp_path / "there").code == 0
    told = json.loads(vitrail("inspect", tmp_path / "there", "--json").out)["provenance"]
    assert (told["licence"], told["repository"]) == ("", "")
    assert json.loads((tmp_path / "there" / "config.json").read_text())["written_by"] == "vitrail"


def test_a_difference_is_an_error_and_nothing_is_kept(vitrail, plain, tmp_path, monkeypatch):
    from vitrail.services import conversion as door

    monkeypatch.setattr(door, "max_output_difference", lambda first, second: (0.5, 1.0))
    said = sentence(vitrail("convert", plain, "--to", "bundle", "--out", tmp_path / "a"), 4)
    assert said.startswith(
        "What was written as bundle and read back answers otherwise: the outputs differ by up to 0.5"
    )
    assert not list(tmp_path.iterdir())
