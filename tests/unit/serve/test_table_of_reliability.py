"""Everything that a server must bear has a test, and the page says which."""

from __future__ import annotations

from scripts import ROOT, script

reliability = script("table_of_reliability", "docs")


def test_every_number_has_a_test_and_every_test_a_number():
    assert list(reliability.proofs()) == list(range(1, 26))
    assert not [number for number, found in reliability.proofs().items() if not found]


def test_the_page_is_fresh():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert reliability.table() in page, "run python docs/table_of_reliability.py"
