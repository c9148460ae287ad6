from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from vitrail.cli.arguments import Command, flag_names, parse_command
from vitrail.cli.commands.train import Train
from vitrail.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Paint(Command):
    """Paint something."""

    POSITIONAL: ClassVar[tuple[str, ...]] = ("canvas", "brushes")
    DOTTED: ClassVar[str | None] = "changes"

    canvas: str
    """What to paint on."""
    brushes: tuple[str, ...] = ()
    """What to paint with."""
    strokes: int | None = None
    """How often."""
    light: float = 0.5
    """How bright."""
    out: Path | None = None
    """Where to."""
    two_coats: bool = False
    """Paint twice."""
    changes: tuple[tuple[str, str], ...] = ()
    """Anything else."""

    def run(self) -> int:
        """Nothing is painted."""
        return 0


def refused(*line: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command(Paint, line)
    return str(caught.value)


def test_words_and_flags_go_to_their_fields_in_any_order():
    asked = parse_command(
        Paint, ["wall", "--strokes", "3", "a,b.png", "--light=0.9", "--two-coats", "c", "--out", "x/y"]
    )
    assert asked == Paint(
        canvas="wall", brushes=("a,b.png", "c"), strokes=3, light=0.9, out=Path("x/y"), two_coats=True
    )


def test_dotted_names_are_collected_with_hyphens_as_underscores():
    asked = parse_command(Paint, ["wall", "--recipe.batch_size", "125", "--recipe.patch-keep-rate=0.5"])
    assert asked.changes == (("recipe.batch_size", "125"), ("recipe.patch_keep_rate", "0.5"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["flowers", "--json", "more"], " --json takes no value."),
        (
            ["flowers", "--pretrain", "more"],
            " --pretrain takes no value; what belongs to it is --pretrain.budget_fraction, ",
        ),
        (["flowers", "--pretrain", "--json", "more"], " --json takes no value."),
        (["flowers", "more", "--pretrain"], " Train takes SOURCE."),
    ],
)
def test_a_word_behind_a_flag_without_value_is_told_so(line, said):
    with pytest.raises(UsageError, match="'more' is one word too many") as caught:
        parse_command(Train, line)
    assert said in str(caught.value) and (" takes no value" in said or "no value" not in str(caught.value))


def test_after_two_hyphens_everything_is_a_word_and_one_hyphen_is_a_word():
    assert parse_command(Paint, ["wall", "-", "--", "--strokes"]).brushes == ("-", "--strokes")


def test_a_negative_number_is_a_value():
    assert parse_command(Paint, ["wall", "--strokes", "-3"]).strokes == -3


def test_a_switch_can_be_written_out():
    assert parse_command(Paint, ["wall", "--two-coats=false"]).two_coats is False


def test_an_unknown_flag_names_the_nearest_one():
    assert refused("wall", "--stroke", "3") == "There is no flag --stroke here. Did you mean --strokes?"


def test_the_last_word_of_a_plan_field_names_the_field():
    assert (
        refused("wall", "--batch-size", "3") == "There is no flag --batch-size here. Did you mean --recipe.batch_size?"
    )


def test_a_flag_like_nothing_known_lists_all():
    assert refused("wall", "--zzz").startswith("There is no flag --zzz here. Its flags: --strokes, --light, --out")


def test_a_flag_without_its_value_is_named():
    assert refused("wall", "--strokes") == "--strokes needs a value after it."
    assert refused("wall", "--out", "--two-coats") == "--out needs a value after it."


def test_a_flag_given_twice_is_named():
    assert refused("wall", "--strokes", "1", "--strokes=2") == "--strokes is given twice. Give it once."
    assert refused("wall", "--a.b", "1", "--a.b", "2") == "--a.b is given twice. Give it once."


@pytest.mark.parametrize(
    ("flag", "text", "allowed"),
    [("--strokes", "abc", "a whole number"), ("--strokes", "1.5", "a whole number"), ("--light", "dim", "a number")],
)
def test_a_value_of_the_wrong_kind_says_what_is_right(flag, text, allowed):
    assert refused("wall", flag, text) == f"{flag} must be {allowed}. Got {text!r}."


def test_a_missing_word_is_named():
    assert refused() == "CANVAS is missing. See vitrail paint --help."


def test_hidden_fields_are_no_flags():
    assert list(flag_names(Paint)) == ["--strokes", "--light", "--out", "--two-coats", "--debug"]
    assert "no flag --changes" in refused("wall", "--changes", "x")
