"""Whose words stand on a model's page on the Hub: a person's are never written over."""

from __future__ import annotations

import pytest

from vitrail.files.hub_card import as_written, merged, sealed, states_licence

CARD = "---\nlibrary_name: vitrail\ntags: [vision-transformer]\n---\n\n# A model\n\nIt answers with an é.\n"
NEXT = sealed(CARD.replace("It answers", "It answers better, and"))


def test_a_sealed_card_is_the_card_and_a_line_that_no_reader_sees():
    assert sealed(CARD).startswith(CARD) and sealed(CARD)[len(CARD) :].startswith("\n<!-- Written by Vitrail, ")
    assert sealed(CARD).endswith(" later pushes keep what you wrote. -->\n") and sealed(sealed(CARD)) == sealed(CARD)
    assert as_written(sealed(CARD)) and as_written(sealed(CARD).replace("\n", "\r\n"))


@pytest.mark.parametrize(
    "theirs",
    [
        CARD,
        sealed(CARD).replace("It answers", "It always answers"),
        sealed(CARD).replace("---\nlib", "---\nlicense: mit\nlib"),
        sealed(CARD) + "\nMy own words.\n",
        "# A page of somebody else\n",
    ],
)
def test_a_card_that_a_person_wrote_or_changed_is_kept(theirs):
    assert not as_written(theirs) and merged(NEXT, theirs) == theirs


@pytest.mark.parametrize("theirs", [sealed(CARD), "", "\n"])
def test_a_card_that_nobody_changed_gives_way_to_the_next(theirs):
    assert merged(NEXT, theirs) == NEXT


def test_of_a_head_alone_the_fields_that_ours_lacks_are_taken_over():
    head = "---\nlicense: mit\nlanguage:\n- fr\n- en\nlibrary_name: timm\n---\n"
    found = merged(NEXT, head)
    assert found.startswith(
        "---\nlibrary_name: vitrail\ntags: [vision-transformer]\nlicense: mit\nlanguage:\n- fr\n- en\n---\n"
    )
    assert "better, and" in found and as_written(found)
    assert states_licence(found) and not states_licence(NEXT) and not states_licence("license: mit\n")
