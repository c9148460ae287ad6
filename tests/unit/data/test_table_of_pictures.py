"""The page of outcomes is what the decoder does today."""

from __future__ import annotations

from scripts import ROOT, script


def test_the_page_is_fresh():
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    assert script("table_of_pictures", "docs").table() in page, "run python docs/table_of_pictures.py"
