"""Many short texts in little memory, and paths made of them when they are asked for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from vitrail.data.compact_strings import CompactStrings, RelativePaths

WORDS = ["", "a.png", "grün/ü.png", "\udcff.png", "a b\nc", "x" * 300]


def test_texts_come_back_as_they_went_in():
    kept = CompactStrings(WORDS)
    assert list(kept) == WORDS and len(kept) == len(WORDS)
    assert [kept[place] for place in range(-len(WORDS), 0)] == WORDS
    assert kept[1:5:2] == WORDS[1:5:2]
    assert "a.png" in kept and "b.png" not in kept


def test_a_place_beyond_the_end_is_an_error():
    for place in (len(WORDS), -len(WORDS) - 1):
        with pytest.raises(IndexError):
            CompactStrings(WORDS)[place]
    assert list(CompactStrings([])) == []


def test_files_lie_below_their_folder_unless_they_have_full_names():
    files = RelativePaths(Path("root"), ["a/b.png", "/elsewhere/c.png"])
    assert files[0] == Path("root/a/b.png") and files[-1] == Path("/elsewhere/c.png")
    assert files[:] == [files[0], files[1]] and len(files) == 2


def test_a_text_costs_its_letters_and_eight_bytes():
    tracemalloc.start()
    kept = CompactStrings(f"images/{number:08d}.png" for number in range(20_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000 * (19 + 8) * 1.1
    assert kept[12_345] == "images/00012345.png"
