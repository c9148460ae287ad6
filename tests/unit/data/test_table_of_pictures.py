"""The page of outcomes is what the decoder does today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_fresh(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    spec = importlib.util.spec_from_file_location("table_of_pictures", DOCS / "table_of_pictures.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "table_of_pictures", script)
    spec.loader.exec_module(script)
    page = (DOCS / "pictures.md").read_text(encoding="utf-8")
    assert script.table() in page, "run python docs/table_of_pictures.py"
