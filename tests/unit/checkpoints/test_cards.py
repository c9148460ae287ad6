"""The numerics cards: every one can be read, and says what a model and a picture need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.checkpoints import cards
from vitrail.checkpoints.cards import card, known_cards
from vitrail.checkpoints.told import Told
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
    monkeypatch.setattr(cards, "FOLDER", tmp_path)
    card.cache_clear()
    yield tmp_path
    card.cache_clear()


def test_another_library_changes_what_its_table_says_and_keeps_the_rest(written) -> None:
    (written / "own.toml").write_text(TEXT)
    own = card("own")
    assert own.numerics() == own.numerics("original") == {"norm_eps": 1e-6, "activation": "GELUTanh"}
    assert own.numerics("timm") == {"norm_eps": 1e-6, "activation": "GELU"}
    assert own.preprocessing("timm") == {"mean": (0.5, 0.5, 0.5), "fit": "crop"}
    assert (own.crop(), own.crop("timm")) == (0.875, 0.9)
    assert (own.licence, own.repository) == ("Apache-2.0", "somebody/something")
    told = Told(match="timm", settings={"norm_eps": 1e-5})
    assert told.numerics("own") == {"norm_eps": 1e-5, "activation": "GELU"}


def test_a_library_that_is_not_on_the_card_is_an_error_that_lists_those_that_are(written) -> None:
    (written / "own.toml").write_text(TEXT)
    with pytest.raises(UsageError, match=r'match="transformers" is not known for own\. .*: original, timm\.'):
        card("own").numerics("transformers")


def test_a_word_that_nobody_reads_is_found(written) -> None:
    (written / "own.toml").write_text(TEXT + "norm_epsilon = 1\n")
    with pytest.raises(AssertionError, match="norm_epsilon"):
        card("own")


@pytest.mark.parametrize("name", known_cards())
def test_every_card_holds_values_that_a_model_and_a_picture_accept(name: str) -> None:
    own = card(name)
    assert own.licence and own.repository
    for match in own.tables:
        read_some(ViTConfig, own.numerics(match), name)
        replace(ImageSpec(), **read_some(ImageSpec, own.preprocessing(match), name))
        assert 0.5 < own.crop(match) <= 1
