"""Everything that a server must bear has a test, and the page says which."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    spec = importlib.util.spec_from_file_location("table_of_reliability", DOCS / "table_of_reliability.py")
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "table_of_reliability", found)
    spec.loader.exec_module(found)
    return found


def test_every_number_has_a_test_and_every_test_a_number(script):
    assert list(script.proofs()) == list(range(1, 26))
    assert not [number for number, found in script.proofs().items() if not found]


def test_the_page_is_fresh(script):
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    assert script.table() in page, "run python docs/table_of_reliability.py"
