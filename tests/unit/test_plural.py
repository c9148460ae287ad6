"""Counts in words: one thing is no several things, in the helpers and in every message that a test expects."""

import re
from pathlib import Path

from vitrail.formatting import format_count, format_part, format_some, format_these

THINGS = (
    "pictures images rows labels values numbers groups films samples columns masks shards classes steps files links"
)
BETWEEN = "(such |other |more |different |training |packed |test |good )?"
WRONG = re.compile(rf"(?<![\d.,:-])1 {BETWEEN}({THINGS.replace(' ', '|')}|channels)\b")
"""Wrong plurals; "A-1 pictures" and "0.1 rows" are none."""


def test_one_thing_is_no_several_things():
    assert [format_count(count, "picture") for count in (0, 1, 1200)] == ["0 pictures", "1 picture", "1,200 pictures"]
    assert [format_count(count, "class", "classes") for count in (1, 2)] == ["1 class", "2 classes"]
    assert [format_count(count, "row has", "rows have") for count in (1, 2)] == ["1 row has", "2 rows have"]


def test_a_part_of_several_has_the_verb_of_its_own_number():
    assert format_part(1, 40, "mask", "has", "have") == "1 of 40 masks has"
    assert format_part(2, 1040, "mask", "has", "have") == "2 of 1,040 masks have"


def test_things_that_were_pointed_at_agree_with_their_number():
    assert [format_these(n, "picture", "shows", "show") for n in (1, 2)] == [
        "this picture shows",
        "these 2 pictures show",
    ]
    assert [format_some(1, n, "picture") for n in (1, 40)] == ["this picture", "1 of these 40 pictures"]


def test_no_message_that_a_test_expects_says_1_rows():
    tests = Path(__file__).parents[1]
    found = [
        f"{path.relative_to(tests)}: {match[0]}"
        for path in sorted(tests.rglob("*.py"))
        if path != Path(__file__)
        for match in WRONG.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "these messages come from a count without formatting.format_count"
