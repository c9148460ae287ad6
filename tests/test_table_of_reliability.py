"""Every number of the list of reliability has a test that bears it in its name, and the page says which."""

from __future__ import annotations

import pytest

from scripts import ROOT, script

reliability = script("table_of_reliability", "docs")


def test_every_number_has_a_test():
    numbers = {f"A{n}" for n in range(1, 21)} | {f"E{n}" for n in range(1, 26)}
    numbers |= {f"{letter}{n}" for letter in "FH" for n in range(1, 11)}
    numbers |= {f"V{n}" for n in range(1, 19)} | {f"X{n}" for n in range(1, 18)}
    proofs = reliability.proofs()
    assert set(proofs) == numbers
    assert {number for number, found in proofs.items() if not found} == set(reliability.NEEDS_NONE)


@pytest.mark.parametrize("part", reliability.SECTIONS.values())
def test_the_page_is_what_the_program_writes(part):
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert reliability.table(part) in page, "run python docs/table_of_reliability.py"
