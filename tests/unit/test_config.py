"""Settings are read strictly, and every refusal says what, where and what instead."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from vitrail.config import REQUIRED, Field, describe, override, parse_some, read, read_some, read_toml, to_toml, write
from vitrail.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    rate: float = 1e-3
    """Step size,
    at its highest."""
    kind: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class Average:
    decay: float = 0.999
    """Weight of the past."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    steps: int
    """How many updates."""
    width: int = 8
    heads: int = 2
    compile: bool = False
    size: int | tuple[int, int] = 32
    weights: Path | None = None
    names: tuple[str, ...] = ()
    optimizer: Optimizer = field(default_factory=Optimizer)
    average: Average | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads. Got width={self.width}, heads={self.heads}.")


NAMES = [field.name for field in describe(Recipe)]


def refusal(**values: object) -> str:
    with pytest.raises(UsageError) as caught:
        read(Recipe, {"steps": 1, **values}, "plan.toml")
    return str(caught.value)


def test_nested_values_become_settings():
    values = {"steps": 5, "size": [2, 3], "names": ["a"], "weights": "w.pt", "optimizer": {"rate": 1}}
    found = read(Recipe, values, "plan.toml")
    assert found == Recipe(steps=5, size=(2, 3), names=("a",), weights=Path("w.pt"), optimizer=Optimizer(rate=1.0))
    assert isinstance(found.optimizer.rate, float)


def test_an_unknown_name_is_refused_with_the_nearest_known_one():
    assert refusal(widht=3) == "plan.toml: there is no setting widht. Did you mean width?"
    assert refusal(optimizer={"rat": 3}) == "plan.toml: there is no setting optimizer.rat. Did you mean optimizer.rate?"


def test_an_unknown_name_like_no_other_is_refused_with_all_known_ones():
    message = refusal(average={"qqqqq": 3})
    assert message == "plan.toml: there is no setting average.qqqqq. Known here: average.decay."


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 1.5}, "width must be a whole number. Got 1.5 (a number)."),
        ({"width": True}, "width must be a whole number. Got True (true or false)."),
        ({"compile": 1}, "compile must be true or false. Got 1 (a whole number)."),
        ({"optimizer": {"rate": "fast"}}, "optimizer.rate must be a number. Got 'fast' (text)."),
        ({"optimizer": {"rate": True}}, "optimizer.rate must be a number. Got True (true or false)."),
        (
            {"optimizer": {"kind": "muons"}},
            "optimizer.kind must be one of adamw, muon. Got 'muons' (text). Did you mean muon?",
        ),
        (
            {"optimizer": {"betas": [1]}},
            "optimizer.betas must be a list of 2 (a number, a number). Got [1] (a list).",
        ),
        ({"optimizer": {"betas": [0.5, "x"]}}, "optimizer.betas[1] must be a number. Got 'x' (text)."),
        ({"optimizer": 3}, "optimizer must be a group of settings (rate, kind, betas). Got 3 (a whole number)."),
        ({"names": "a"}, "names must be a list, each text. Got 'a' (text)."),
        ({"weights": 3}, "weights must be a path or nothing. Got 3 (a whole number)."),
        ({"width": {"a": 1}}, "width must be a whole number. Got a group holding a."),
        ({"width": "x" * 200}, f"width must be a whole number. Got '{'x' * 76}... (text)."),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected_and_what_came(values, message):
    assert refusal(**values) == f"plan.toml: {message}"


def test_a_size_may_be_one_number_or_two_but_not_three():
    expected = "size must be a whole number or a list of 2 (a whole number, a whole number)"
    assert refusal(size=[1, 2, 3]) == f"plan.toml: {expected}. Got [1, 2, 3] (a list)."


def test_a_missing_value_is_refused():
    with pytest.raises(UsageError, match=r"^plan\.toml: steps is missing\. It must be a whole number\.$"):
        read(Recipe, {}, "plan.toml")


def test_what_the_class_itself_refuses_says_where_it_was_written():
    assert refusal(heads=3) == "plan.toml: width must be a multiple of heads. Got width=8, heads=3."


def test_written_settings_leave_none_out_and_hold_plain_values():
    values = write(Recipe(steps=1, size=(2, 3), weights=Path("a/b")))
    assert values["size"] == [2, 3]
    assert values["weights"] == "a/b"
    assert "average" not in values
    assert values["optimizer"] == {"rate": 1e-3, "kind": "adamw", "betas": [0.9, 0.95]}


def test_toml_carries_reasons_and_reads_back(tmp_path):
    recipe = Recipe(steps=9, names=('quote " and \\', "new\nline", "\x7f"), average=Average(decay=0.5))
    reasons = {"steps": "one\nminute", "weights": "none on this machine", "optimizer.rate": "for AdamW"}
    text = to_toml(recipe, reasons)
    assert text.startswith("# weights is not set: none on this machine\nsteps = 9 ")
    assert "steps = 9                             # one minute\n" in text
    assert "[optimizer]\nrate = 0.001                          # for AdamW\n" in text
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    assert read_toml(path, Recipe) == recipe


def test_a_reason_for_no_setting_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="widht"):
        to_toml(Recipe(steps=1), {"widht": "typo"})


def test_numbers_that_are_not_finite_survive_toml():
    values = tomllib.loads(to_toml(Optimizer(rate=float("inf")), {}))
    assert values["rate"] == float("inf")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"settings file .*none\.toml cannot be read: No such file or directory"):
        read_toml(tmp_path / "none.toml", Recipe)


def test_a_file_that_is_not_toml_is_named_with_its_line(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("steps = 1\nwidth = \n")
    with pytest.raises(UsageError, match=r"plan\.toml is not valid TOML: .*line 2"):
        read_toml(path, Recipe)


def test_a_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"plan\.toml is not UTF-8 text"):
        read_toml(path, Recipe)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("steps", "7", Recipe(steps=7)),
        ("compile", "yes", Recipe(steps=1, compile=True)),
        ("size", "24,32", Recipe(steps=1, size=(24, 32))),
        ("size", "24", Recipe(steps=1, size=24)),
        ("names", "a, b", Recipe(steps=1, names=("a", "b"))),
        ("weights", "x.pt", Recipe(steps=1, weights=Path("x.pt"))),
        ("weights", "none", Recipe(steps=1)),
        ("optimizer.rate", "3e-4", Recipe(steps=1, optimizer=Optimizer(rate=3e-4))),
        ("optimizer.kind", "muon", Recipe(steps=1, optimizer=Optimizer(kind="muon"))),
        ("average.decay", "0.5", Recipe(steps=1, average=Average(decay=0.5))),
    ],
)
def test_text_overrides_a_setting_as_its_type(name, text, expected):
    assert override(Recipe(steps=1), {name: text}) == expected


def test_a_group_that_is_there_keeps_its_other_values():
    before = Recipe(steps=1, optimizer=Optimizer(rate=5.0))
    assert override(before, {"optimizer.kind": "muon"}).optimizer == Optimizer(rate=5.0, kind="muon")


def test_values_that_are_right_only_together_change_together():
    changed = override(Recipe(steps=1), {"width": "9", "heads": "3"})
    assert (changed.width, changed.heads) == (9, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer.rtae": "1"}, "there is no setting optimizer.rtae. Did you mean optimizer.rate?"),
        ({"rate": "1"}, "there is no setting rate. Did you mean optimizer.rate?"),
        ({"width.more": "1"}, f"there is no setting width.more. Known here: {', '.join(NAMES)}."),
        ({"width": "wide"}, "width must be a whole number. Got 'wide' (text)."),
        ({"optimizer.betas": "1,x"}, "optimizer.betas[1] must be a number. Got 'x' (text)."),
        ({"optimizer": "adam"}, "optimizer must be a group of settings (rate, kind, betas). Got 'adam' (text)."),
        ({"heads": "3"}, "width must be a multiple of heads. Got width=8, heads=3."),
    ],
)
def test_a_wrong_override_is_refused_in_the_same_words(changes, message):
    with pytest.raises(UsageError) as caught:
        override(Recipe(steps=1), changes)
    assert str(caught.value) == f"the command line: {message}"


def test_single_fields_are_read_without_the_rest():
    assert parse_some(Recipe, {"width": "9", "heads": "2"}) == {"width": 9, "heads": 2}  # the class would refuse these
    assert read_some(Recipe, {"width": 9}, "settings") == {"width": 9}


def test_single_fields_are_read_as_strictly():
    with pytest.raises(UsageError, match=r"the command line: width must be a whole number\. Got 'wide' \(text\)\."):
        parse_some(Recipe, {"width": "wide"})
    with pytest.raises(UsageError, match=r"settings: there is no setting widht\. Did you mean width\?"):
        read_some(Recipe, {"widht": 9}, "settings")


def test_description_lists_every_setting_in_order_with_its_docstring():
    fields = describe(Recipe)
    assert NAMES[-4:] == ["optimizer.rate", "optimizer.kind", "optimizer.betas", "average.decay"]
    assert fields[0] == Field("steps", "a whole number", REQUIRED, "How many updates.")
    assert fields[7] == Field("optimizer.rate", "a number", 1e-3, "Step size, at its highest.")
    assert fields[8].type == "one of adamw, muon"
    assert fields[-1] == Field("average.decay", "a number", 0.999, "Weight of the past.")
