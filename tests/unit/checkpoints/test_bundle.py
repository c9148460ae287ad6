"""The portable bundle: what goes in comes out, and what was changed is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.checkpoints import bundle, bundle_weights
from vitrail.checkpoints.image_spec import make_preprocessor_config
from vitrail.checkpoints.load import LoadOptions, load_checkpoint
from vitrail.checkpoints.model_card import format_model_card
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files.checksums import write_manifest
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model
from vitrail.spec import ImageSpec

CONFIG = ViTConfig(image_size=(4, 8), patch=(2, 2), channels=1, width=8, depth=1, heads=2, mlp_width=12, outputs=2)
SPEC = ImageSpec(
    height=4, width=8, channels=1, low=0.0, high=65535.0, mean=(0.4,), std=(0.2,), interpolation="bilinear"
)
INFO = {"fingerprint": "12ab", "mirror": True, "thresholds": [0.5, 0.25]}


def saved(folder: Path, config: ViTConfig = CONFIG) -> ViT:
    model = create_model(config, seed=3)
    bundle_weights.save_bundle(folder / "model", model, SPEC, "classification", ("cat", "dog"), INFO)
    return model


def saved_at(folder: Path) -> Path:
    """Where a bundle has just been saved."""
    saved(folder)
    return folder / "model"


@pytest.mark.parametrize("positions", ["learned", "sinusoid", "sincos2d", "none"])
@torch.no_grad()
def test_a_saved_bundle_opens_with_equal_outputs_and_all_that_was_said(positions: str, tmp_path: Path) -> None:
    model = saved(tmp_path, replace(CONFIG, positions=positions))
    opened = bundle_weights.load_bundle(tmp_path / "model")
    images = torch.randn(2, 1, 4, 8)
    assert torch.equal(opened.model(images), model.eval()(images))
    assert (opened.model.config, opened.spec, opened.task) == (model.config, SPEC, "classification")
    assert (opened.classes, opened.info) == (("cat", "dog"), INFO)
    assert not opened.model.training and all(parameter.requires_grad for parameter in opened.model.parameters())


def test_a_bundle_holds_the_promised_files_and_nothing_else(tmp_path: Path) -> None:
    saved(tmp_path)
    promised = {"README.md", "config.json", "manifest.json", "model.safetensors", "preprocessor_config.json"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == promised
    assert bundle.is_bundle(tmp_path / "model") and not bundle.is_bundle(tmp_path)


def test_the_card_says_what_the_model_reads_and_answers(tmp_path: Path) -> None:
    saved(tmp_path)
    text = (tmp_path / "model" / "README.md").read_text()
    for words in ("one of 2 classes", "4 x 8 pixels", "`cat`, `dog`", "- fingerprint: 12ab", "0 (black) to 65535"):
        assert words in text


def test_the_card_says_what_turns_outputs_into_answers() -> None:
    noted = {"decisions": {"temperature": [2.5], "thresholds": [0.125], "positive": "cat"}}
    text = format_model_card(CONFIG, 10, SPEC, "classification", ("cat", "dog"), noted)
    assert "divided by 2.5, the temperature. `cat` is answered from a probability of 0.125 on." in text
    noted = {"decisions": {"temperature": [1.0, 2.0], "thresholds": [0.5, 0.25]}}
    text = format_model_card(CONFIG, 10, SPEC, "multilabel", ("cat", "dog"), noted)
    assert "divided by its temperature (`cat` 1, `dog` 2), and is answered from its threshold on (`cat` 0.5" in text
    assert "answered from 0.5 on" in format_model_card(CONFIG, 10, SPEC, "multilabel", ("cat", "dog"), {})


def test_what_the_training_pictures_look_like_is_kept(tmp_path: Path) -> None:
    model, known = create_model(CONFIG, seed=3), {"bank": torch.randn(4, 8).half(), "means": torch.randn(2, 8)}
    bundle_weights.save_bundle(tmp_path / "model", model, SPEC, "classification", ("cat", "dog"), INFO, known)
    again = bundle_weights.load_bundle(tmp_path / "model").feature_stats
    assert again.keys() == known.keys() and all(torch.equal(again[name], known[name]) for name in known)
    assert bundle_weights.load_bundle(saved_at(tmp_path / "plain")).feature_stats == {}


def test_the_preprocessor_speaks_transformers_field_names() -> None:
    fields = make_preprocessor_config(replace(SPEC, channels=3, fit="crop"))
    assert fields["resample"] == 2 and fields["rescale_factor"] == 1 / 255
    assert fields["size"] == {"shortest_edge": 4} and fields["crop_size"] == {"height": 4, "width": 8}
    assert fields["do_center_crop"] and fields["image_mean"] == [0.4, 0.4, 0.4]
    squash = make_preprocessor_config(SPEC)
    assert squash["size"] == {"height": 4, "width": 8} and not squash["do_center_crop"]
    assert make_preprocessor_config(ImageSpec())["resample"] == 3


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "preprocessor_config.json", "README.md"])
def test_a_changed_byte_in_any_file_is_an_error_that_shows_both_hashes(name: str, tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "model" / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        DamagedFileError, match=rf"Checksum mismatch in .*{name}: expected [0-9a-f]{{8}}, got [0-9a-f]{{8}}"
    ):
        bundle_weights.load_bundle(tmp_path / "model")


def edited(folder: Path, name: str, **changes: object) -> Path:
    """A bundle whose JSON file was edited by somebody who kept the manifest right."""
    saved(folder)
    file = folder / "model" / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    write_manifest(folder / "model")
    return folder / "model"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": 3}, r"config\.json must hold task \(str\)\. Got 3"),
        ({"task": "guess"}, r"task must be classification, .* or segmentation\. Got 'guess'"),
        ({"classes": ["cat"]}, r"Every one of the model's 2 outputs needs a name\. Got 1 names"),
        ({"format": 2}, r"config\.json is of bundle format 2, expected at most 1"),
        ({"architecture": {"witdh": 8}}, r"config\.json, architecture: there is no setting witdh\. Did you mean width"),
        ({"image": {"height": 4, "width": 4, "channels": 1}}, r"must be what the model reads: \(4, 8\) .*Got \(4, 4\)"),
    ],
)
def test_a_config_that_makes_no_sense_is_an_error_that_says_where(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DamagedFileError, match=message):
        bundle_weights.load_bundle(edited(tmp_path, "config.json", **change))


def test_a_preprocessor_file_that_says_something_else_is_an_error(tmp_path: Path) -> None:
    folder = edited(tmp_path, "preprocessor_config.json", resample=3, image_mean=[0.5])
    with pytest.raises(DamagedFileError, match=r"does not agree with config\.json about resample, image_mean"):
        bundle_weights.load_bundle(folder)


def test_a_file_that_is_not_json_and_a_folder_that_is_no_bundle_are_errors(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model" / "config.json").write_text("{")
    write_manifest(tmp_path / "model")
    with pytest.raises(DamagedFileError, match=r"config\.json is not JSON text"):
        bundle_weights.load_bundle(tmp_path / "model")
    with pytest.raises(DamagedFileError, match=r"holds no model: that would be config\.json and model\.safetensors"):
        load_checkpoint(tmp_path)


def test_saving_over_a_folder_or_with_names_that_do_not_fit_is_refused(tmp_path: Path) -> None:
    model = saved(tmp_path)
    with pytest.raises(UsageError, match=r"exists already"):
        saved(tmp_path)
    with pytest.raises(UsageError, match=r"2 outputs needs a name\. Got 3 names"):
        bundle_weights.save_bundle(tmp_path / "other", model, SPEC, "classification", ("a", "b", "c"), {})
    with pytest.raises(UsageError, match=r"\(4, 8\) pixels and 1 channel\. Got \(4, 8\) and 3"):
        bundle_weights.save_bundle(
            tmp_path / "other", model, replace(SPEC, channels=3), "classification", ("a", "b"), {}
        )
    assert not (tmp_path / "other").exists()


def test_load_opens_a_bundle_without_arguments_and_checks_those_given(tmp_path: Path) -> None:
    saved(tmp_path)
    loaded = load_checkpoint(tmp_path / "model", LoadOptions(heads=2, image_size=(4, 8), channels=1))
    assert loaded.config == CONFIG and loaded.audit.layout == "bundle"
    with pytest.raises(UsageError, match=r"heads=4 contradicts the file: .*config\.json says 2"):
        load_checkpoint(tmp_path / "model", LoadOptions(heads=4))
    with pytest.raises(UsageError, match=r"can only be a bundle: .* Got layout='explained'"):
        load_checkpoint(tmp_path / "model", LoadOptions(layout="explained"))


@torch.no_grad()
def test_other_outputs_replace_the_head_and_none_gives_features(tmp_path: Path) -> None:
    saved(tmp_path)
    images = torch.randn(2, 1, 4, 8)
    new = load_checkpoint(tmp_path / "model", LoadOptions(outputs=5))
    assert new.model(images).shape == (2, 5) and not new.model(images).any()
    assert [row.ours for row in new.audit.rows if row.action == "dropped"] == ["outputs=5 asks for another head"] * 2
    features = load_checkpoint(tmp_path / "model", LoadOptions(outputs=0))
    assert features.model(images).shape == (2, 8) and features.config.outputs == 0
    assert torch.equal(
        load_checkpoint(tmp_path / "model", LoadOptions(outputs=2)).model(images),
        load_checkpoint(tmp_path / "model").model(images),
    )
