"""The typed keywords of `vitrail.create` are the fields of `ViTConfig`, with their types and docstrings."""

from __future__ import annotations

from typing import get_type_hints

from scripts import script
from vitrail.model.config import ViTConfig
from vitrail.model.config_keywords import ViTKeywords


def test_the_keywords_are_written_from_the_fields():
    keywords = script("keywords_of_create", "docs")
    assert keywords.PAGE.read_text(encoding="utf-8") == keywords.source(), "run python docs/keywords_of_create.py"
    fields, typed = get_type_hints(ViTConfig), get_type_hints(ViTKeywords)
    assert list(typed) == list(fields)
    assert {name for name in typed if typed[name] != fields[name]} == {"image_size", "patch"}
