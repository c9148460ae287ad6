"""Whose words stand on a model's page on the Hub: a person's are never written over."""

from __future__ import annotations

import pytest

from vitrail.files.hub import has_licence, is_unedited, merge_cards, seal_card

CARD = "---\nlibrary_name: vitrail\ntags: [vision-transformer]\n---\n\n# A model\n\nIt answers with an é.\n"
NEXT = seal_card(CARD.replace("It answers", "It answers better, and"))


def test_a_sealed_card_is_the_card_and_a_line_that_no_reader_sees():
    assert seal_card(CARD).startswith(CARD) and seal_card(CARD)[len(CARD) :].startswith("\n<!-- Written by Vitrail, ")
    assert seal_card(CARD).endswith(" later pushes keep what you wrote. -->\n") and seal_card(
        seal_card(CARD)
    ) == seal_card(CARD)
    assert is_unedited(seal_card(CARD)) and is_unedited(seal_card(CARD).replace("\n", "\r\n"))


@pytest.mark.parametrize(
    "theirs",
    [
        CARD,
        seal_card(CARD).replace("It answers", "It always answers"),
        seal_card(CARD).replace("---\nlib", "---\nlicense: mit\nlib"),
        seal_card(CARD) + "\nMy own words.\n",
        "# A page of somebody else\n",
    ],
)
def test_a_card_that_a_person_wrote_or_changed_is_kept(theirs):
    assert not is_unedited(theirs) and merge_cards(NEXT, theirs) == theirs


@pytest.mark.parametrize("theirs", [seal_card(CARD), "", "\n"])
def test_a_card_that_nobody_changed_gives_way_to_the_next(theirs):
    assert merge_cards(NEXT, theirs) == NEXT


def test_of_a_head_alone_the_fields_that_ours_lacks_are_taken_over():
    head = "---\nlicense: mit\nlanguage:\n- fr\n- en\nlibrary_name: timm\n---\n"
    found = merge_cards(NEXT, head)
    assert found.startswith(
        "---\nlibrary_name: vitrail\ntags: [vision-transformer]\nlicense: mit\nlanguage:\n- fr\n- en\n---\n"
    )
    assert "better, and" in found and is_unedited(found)
    assert has_licence(found) and not has_licence(NEXT) and not has_licence("license: mit\n")
