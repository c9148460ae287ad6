from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail.checkpoints import bundle_weights
from vitrail.checkpoints.bundle import find_bundle
from vitrail.checkpoints.load import LoadOptions
from vitrail.checkpoints.save import save_model
from vitrail.errors import DamagedFileError, UsageError
from vitrail.explain.figures import SAMPLE_IMAGE
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.services.model_summary import (
    format_licence,
    format_model_summary,
    format_provenance,
    preview_model_input,
    summarize_model,
)
from vitrail.services.open_model import find_model, parse_model_options
from vitrail.spec import ImageSpec


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    spec = ImageSpec(height=16, width=16, mean=(0.25,))
    bundle_weights.save_bundle(
        tmp_path / "run" / "model",
        create_model(find_model("vit_mu_patch8_16", LoadOptions(outputs=2)).config),
        spec,
        "classification",
        ("cat", "dog"),
        {},
    )
    return tmp_path / "run"


def test_a_name_is_a_shape_without_weights():
    found = find_model("vit_tiny_patch16_224", LoadOptions(image_size=(224, 320), channels=1, outputs=14))
    assert (found.kind, found.trained_model, found.classes) == ("name", None, ())
    assert (found.config.image_size, found.config.channels, found.config.outputs) == ((224, 320), 1, 14)
    assert found.spec.size == (224, 320)


def test_a_run_folder_and_its_bundle_are_the_same_model(kept):
    run, inside = find_model(str(kept)), find_model(str(kept / "model"))
    assert (run.kind, inside.kind) == ("run", "bundle")
    assert run.classes == inside.classes == ("cat", "dog") and run.spec.mean == (0.25,)
    assert torch.equal(run.model.head.linear.weight, inside.model.head.linear.weight)


def test_another_number_of_outputs_has_no_class_names(kept):
    assert find_model(str(kept), LoadOptions(outputs=3)).classes == ()


def test_a_folder_that_is_no_model_says_what_is(tmp_path):
    with pytest.raises((UsageError, DamagedFileError), match=str(tmp_path)):
        find_model(str(tmp_path))


def test_a_run_without_a_model_says_how_to_finish_it(tmp_path):
    (tmp_path / "plan.toml").touch()
    with pytest.raises(UsageError, match=rf"has no model yet\. Finish it with: vitrail train --resume {tmp_path}"):
        find_bundle(tmp_path)


def test_layout_and_heads_belong_to_files():
    words = r"--heads and --pool can only describe a weights file\. There is no file vit_tiny_patch16_224"
    with pytest.raises(UsageError, match=words):
        find_model("vit_tiny_patch16_224", LoadOptions(heads=3, pool="mean"))
    with pytest.raises(UsageError, match=r"--network and --channels-policy can only describe a weights file"):
        find_model("vit_tiny_patch16_224", LoadOptions(network="encoder", channels=1, channels_policy="sum"))


def test_settings_change_the_shape_of_a_name():
    found = find_model("vit_mu_patch8_16", LoadOptions(settings={"registers": 2, "activation": "SiLU"}))
    assert (found.config.registers, found.config.activation) == (2, "SiLU")
    with pytest.raises(UsageError, match=r"settings: there is no setting regsters\. Did you mean registers\?"):
        find_model("vit_mu_patch8_16", LoadOptions(settings={"regsters": 2}))


def test_words_are_checked_against_the_fixed_lists():
    words = parse_model_options(
        image_size="60x100", pool="class+mean", match="timm", settings=[("model.norm_eps", "1e-5")]
    )
    assert (words.image_size, words.pool, words.match) == ((60, 100), "class+mean", "timm")
    assert words.settings == {"norm_eps": 1e-5}
    with pytest.raises(
        UsageError, match=r"pool must be class, mean, class\+mean, mean-all, attention or patches\. Got 'max'"
    ):
        parse_model_options(pool="max")


@pytest.mark.parametrize(("typed", "policy"), [("mean", "mean"), ("0,0,2", (0, 0, 2)), ([1, 0], (1, 0))])
def test_a_policy_is_a_word_or_the_files_channels(typed, policy):
    assert parse_model_options(channels_policy=typed).channels_policy == policy


def test_a_policy_that_is_neither_is_refused():
    with pytest.raises(UsageError, match=r"channels_policy must be sum, mean or tile\. Got 'repeat'"):
        parse_model_options(channels_policy="repeat")


@pytest.fixture
def on_the_hub(tmp_path, monkeypatch):
    """A Hub that gives out one folder."""
    from vitrail.files import hub

    def put(*weights: str, licence: str = "apache-2.0") -> None:
        got = hub.HubDownload(folder=tmp_path, weights=weights, revision="a" * 40, licence=licence, notes=("a note.",))
        monkeypatch.setattr(hub, "download_model", lambda name: got)

    return put


def test_a_name_on_the_hub_is_its_bundle_and_tells_its_licence(on_the_hub, tmp_path, capsys):
    model = create_model(find_model("vit_mu_patch8_16", LoadOptions(outputs=2)).config)
    bundle_weights.save_bundle(
        tmp_path / "kept", model, ImageSpec(height=16, width=16), "classification", ("cat", "dog"), {}
    )
    for file in (tmp_path / "kept").iterdir():
        file.rename(tmp_path / file.name)
    (tmp_path / "kept").rmdir()
    on_the_hub("model.safetensors")
    found = find_model("hf:somebody/something")
    assert (found.kind, found.classes, found.licence) == ("bundle", ("cat", "dog"), "apache-2.0")
    assert found.repository == "somebody/something"
    assert found.notes == ("a note.", f"hf:somebody/something was read at revision {'a' * 40}")
    assert capsys.readouterr().err == f"hf:somebody/something: licence apache-2.0, revision {'a' * 40}\n"


def test_a_page_that_states_no_licence_leaves_the_one_that_the_files_know(on_the_hub, tmp_path):
    model = create_model(find_model("vit_mu_patch8_16", LoadOptions(outputs=2)).config)
    info = {"licence": "CC-BY-NC-4.0", "repository": "their/code"}
    save_model(tmp_path / "kept", model, ImageSpec(height=16, width=16), ("cat", "dog"), "transformers", info=info)
    for file in (tmp_path / "kept").iterdir():
        file.rename(tmp_path / file.name)
    (tmp_path / "kept").rmdir()
    on_the_hub("model.safetensors", licence="not stated; see their page")
    found = find_model("hf:somebody/something")
    assert (found.licence, found.repository) == ("CC-BY-NC-4.0", "their/code")
    assert format_licence(found) == "licence of the weights that their/code published: CC-BY-NC-4.0"
    assert "  licence     CC-BY-NC-4.0, of the weights that their/code published" in format_provenance(found)


def test_own_weights_in_a_folder_for_transformers_have_nobodys_licence(tmp_path):
    own = create_model(
        find_model("vit_mu_patch8_16", LoadOptions(outputs=0)).config
    )  # headless: transformers reads an MSN
    save_model(tmp_path / "own", own, ImageSpec(height=16, width=16), (), "transformers")
    found = find_model(str(tmp_path / "own"))
    assert (found.licence, found.repository, format_licence(found)) == ("", "", "")
    assert "  licence     not stated" in format_provenance(found)


def test_a_name_on_the_hub_with_several_files_asks_for_one(on_the_hub, tmp_path):
    on_the_hub("B_16.npz", "L_16.npz")
    with pytest.raises(UsageError, match=rf"holds 2 weights files .*B_16\.npz, L_16\.npz.* They lie in {tmp_path}"):
        find_model("hf:google/vit")


@pytest.mark.parametrize("name", ["xray_vit_patch16_224", "explained_vit_patch20_60x100", "vit_nano_patch4_28"])
def test_parts_add_up_to_all_parameters(name):
    facts = summarize_model(find_model(name))
    assert sum(facts["parts"].values()) == facts["parameters"] > 0
    assert facts["tokens"] == config_from_name(name).tokens


def test_the_table_says_what_a_shape_is():
    found = find_model("explained_vit_patch20_60x100")
    text = format_model_summary(found, summarize_model(found), "explained_vit_patch20_60x100 (name)")
    assert "20 x 20 pixels, 3 rows x 5 columns" in text
    assert "16 (the class token and 15 patches), 768 numbers each" in text
    assert "and 12,288 fixed numbers" in text
    assert "  encoder.blocks   [B, 16, 768]  " in text and "  head             [B, 1]        " in text


def test_figures_show_what_the_model_sees():
    assert preview_model_input(find_model("explained_vit_patch20_60x100"), SAMPLE_IMAGE).shape == (60, 100, 1)
    assert preview_model_input(find_model("vit_mu_patch8_16"), SAMPLE_IMAGE).shape == (16, 16, 3)
