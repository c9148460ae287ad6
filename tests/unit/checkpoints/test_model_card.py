"""The numerics cards: every one can be read, and says what a model and a picture need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.checkpoints import numerics
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.numerics import find_card_for_file, list_cards, load_card
from vitrail.config import read_some
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.spec import ImageSpec

TEXT = """
licence = "Apache-2.0"
repository = "somebody/something"

[original]
norm_eps = 1e-6
activation = "GELUTanh"
mean = [0.5, 0.5, 0.5]
fit = "crop"
crop = 0.875

[timm]
activation = "GELU"
crop = 0.9
"""


@pytest.fixture
def written(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(numerics, "CARDS_FOLDER", tmp_path)
    load_card.cache_clear()
    yield tmp_path
    load_card.cache_clear()


def test_another_library_changes_what_its_table_says_and_keeps_the_rest(written) -> None:
    (written / "own.toml").write_text(TEXT)
    own = load_card("own")
    assert own.numerics() == own.numerics("original") == {"norm_eps": 1e-6, "activation": "GELUTanh"}
    assert own.numerics("timm") == {"norm_eps": 1e-6, "activation": "GELU"}
    assert own.preprocessing("timm") == {"mean": (0.5, 0.5, 0.5), "fit": "crop"}
    assert (own.crop(), own.crop("timm")) == (0.875, 0.9)
    assert (own.licence, own.repository) == ("Apache-2.0", "somebody/something")
    hints = LayoutHints(match="timm", settings={"norm_eps": 1e-5})
    assert hints.numerics("own") == {"norm_eps": 1e-5, "activation": "GELU"}


def test_a_library_that_is_not_on_the_card_is_an_error_that_lists_those_that_are(written) -> None:
    (written / "own.toml").write_text(TEXT)
    with pytest.raises(UsageError, match=r'match="transformers" is not known for own\. .*: original, timm\.'):
        load_card("own").numerics("transformers")


def test_a_word_that_nobody_reads_is_found(written) -> None:
    (written / "own.toml").write_text(TEXT + "norm_epsilon = 1\n")
    with pytest.raises(AssertionError, match="norm_epsilon"):
        load_card("own")


def test_pictures_of_384_pixels_may_be_cut_otherwise(written) -> None:
    (written / "own.toml").write_text(TEXT + "crop_384 = 1.0\n")
    own = load_card("own")
    assert (own.crop("timm"), own.crop("timm", (224, 224)), own.crop("timm", (384, 384))) == (0.9, 0.9, 1.0)
    assert own.crop(None, (384, 384)) == 0.875


def test_the_name_of_a_published_file_picks_the_card_that_lists_it(written) -> None:
    (written / "own.toml").write_text(TEXT)
    (written / "own_other.toml").write_text('files = ["one-01234567.pth"]\n' + TEXT)
    (written / "strange.toml").write_text('files = ["two-01234567.pth"]\n' + TEXT)
    assert find_card_for_file(load_card("own"), "one-01234567.pth") is load_card("own_other")
    assert (
        find_card_for_file(load_card("own"), "two-01234567.pth") is load_card("own")
        and find_card_for_file(None, "one-01234567.pth") is None
    )


def test_the_satellite_files_of_dinov3_have_their_own_mean() -> None:
    found = find_card_for_file(load_card("dinov3"), "dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth")
    assert found is not None and found.preprocessing()["mean"] == (0.430, 0.411, 0.296)
    assert not found.about and "sat493m" in load_card("dinov3").about
    assert {**found.preprocessing(), "mean": 0, "std": 0} == {
        **load_card("dinov3").preprocessing(),
        "mean": 0,
        "std": 0,
    }
    assert found.numerics() == load_card("dinov3").numerics()


@pytest.mark.parametrize(
    ("name", "match", "size", "crop"),
    [
        ("timm_siglip", "timm", 384, 0.9),
        ("hf_ijepa", "timm", 448, 0.9),
        ("hf_dinov3", "timm", 256, 1.0),
        ("hf_deit", "timm", 224, 0.9),
        *((name, "timm", 384, 1.0) for name in ("google_npz", "google_augreg", "hf_vit", "deit", "hf_deit", "deit3")),
        ("hf_deit", "transformers", 224, 0.875),
    ],
)
def test_the_middle_is_what_each_library_keeps(name: str, match: str, size: int, crop: float) -> None:
    assert load_card(name).crop(match, (size, size)) == crop
    assert load_card(name).preprocessing(match)["fit"] == ("squash" if match == "transformers" else "crop")


def test_the_files_of_eupe_have_dinov3s_numerics_and_a_licence_of_their_own() -> None:
    found, dinov3 = find_card_for_file(load_card("dinov3"), "EUPE-ViT-T.pt"), load_card("dinov3")
    assert (found.name, found.licence) == ("dinov3_eupe", "LicenseRef-FAIR-Noncommercial-Research")
    assert found.tables == dinov3.tables and not found.about


def test_cards_of_one_family_stretch_positions_alike() -> None:
    assert (
        load_card("timm_siglip").numerics()["resample"]
        == load_card("hf_siglip").numerics()["resample"]
        == "bilinear-corners"
    )
    clip = [load_card("hf_clip").numerics(match)["resample"] for match in (None, "timm", "transformers")]
    assert clip == ["bicubic-antialias", "bicubic-antialias", "bicubic"]
    assert (
        load_card("timm_dinov3").licence
        == load_card("hf_dinov3").licence
        == load_card("dinov3").licence
        == "LicenseRef-DINOv3"
    )


@pytest.mark.parametrize("name", list_cards())
def test_every_card_holds_values_that_a_model_and_a_picture_accept(name: str) -> None:
    own = load_card(name)
    assert own.licence and own.repository
    assert not own.about.endswith(".")  # it becomes a note
    for match, table in own.tables.items():
        inherited = match != "original" and "crop" in own.tables["original"]
        assert "crop" in table or not (inherited and table.get("fit") == "squash")
        read_some(ViTConfig, own.numerics(match), name)
        replace(ImageSpec(), **read_some(ImageSpec, own.preprocessing(match), name))
        assert 0.5 < own.crop(match) <= 1
