"""Which layout a file has: one and only one, by its names, by what a person says, or by the config.json beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.checkpoints import identify
from vitrail.checkpoints.identify import LAYOUTS, find_layout, list_variants, read_model_types
from vitrail.errors import DamagedFileError, UsageError

from .toy import TOY

REGISTERS = replace(
    TOY, variant="registers", required_names=("stem.weight", "register*"), forbidden_names=(), model_types=("toy-r",)
)
TWIN = replace(TOY, name="twin", model_types=("twin",))
FAMILY = {layout.key: layout for layout in (TOY, REGISTERS)}
NAMES = ("toy.stem.weight", "toy.cls", "toy.table", "toy.layer.0.norm1.weight")


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "LAYOUTS", FAMILY)


@pytest.mark.usefixtures("family")
def test_names_with_and_without_the_prefix_decide_between_variants() -> None:
    assert find_layout(NAMES).key == "toy"
    assert find_layout([name.removeprefix("toy.") for name in NAMES]).key == "toy"
    assert find_layout([*NAMES, "toy.registers"]).key == "toy:registers"


@pytest.mark.usefixtures("family")
def test_a_person_may_name_the_family_or_one_variant() -> None:
    assert find_layout([*NAMES, "toy.registers"], layout="toy").key == "toy:registers"
    assert [layout.key for layout in list_variants("toy")] == ["toy", "toy:registers"]
    with pytest.raises(DamagedFileError, match=r"not of the layout toy:registers: it lacks register\*"):
        find_layout(NAMES, layout="toy:registers")


@pytest.mark.usefixtures("family")
def test_the_nearest_layout_is_named_with_what_it_lacks() -> None:
    with pytest.raises(DamagedFileError, match=r"It comes near toy, but lacks cls \(nearest .*: cls_x\)"):
        find_layout(["stem.weight", "cls_x", "table"])
    with pytest.raises(UsageError, match=r"of its 2 tensors \(conv1, fc\) no layout knows any"):
        find_layout(["conv1", "fc"])
    with pytest.raises(DamagedFileError, match=r"Its first tensors are called conv1, fc\."):
        find_layout(["conv1", "fc"], layout="toy")
    with pytest.raises(DamagedFileError, match=r"It holds no tensors at all"):
        find_layout([])


def test_two_that_fit_are_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "LAYOUTS", {**FAMILY, "twin": TWIN})
    with pytest.raises(DamagedFileError, match=r"fits 2 layouts, toy and twin\. Name one with layout="):
        find_layout(NAMES)
    assert find_layout(NAMES, layout="twin").key == "twin"
    assert find_layout(NAMES, foreign={"model_type": "twin"}).key == "twin"
    monkeypatch.setattr(identify, "LAYOUTS", {**FAMILY, "twin": replace(TWIN, named_only=True)})
    assert find_layout(NAMES).key == "toy" and find_layout(NAMES, layout="twin").key == "twin"


@pytest.mark.usefixtures("family")
def test_a_config_of_an_unknown_kind_of_model_is_an_error() -> None:
    with pytest.raises(
        UsageError, match=r"is a swin, which is not a plain Vision Transformer known here \(toy, toy-r\)"
    ):
        find_layout(NAMES, foreign={"model_type": "swin"})


def test_a_config_says_its_kind_in_the_words_of_its_library() -> None:
    assert read_model_types({"architecture": "vit_tiny_patch16_224"}) == ("timm",)
    assert read_model_types({"model_cfg": {}}) == ("open_clip",)
    assert read_model_types({"model_type": "clip", "vision_config": {"model_type": "clip_vision_model"}}) == (
        "clip_vision_model",
        "clip",
    )
    assert read_model_types({}) == ()


def test_every_layout_says_how_it_is_known_and_keys_are_not_used_twice() -> None:
    assert all(layout.required_names and layout.rules for layout in LAYOUTS.values())
    assert len(LAYOUTS) == sum(len(family) for family in identify.FAMILIES)
