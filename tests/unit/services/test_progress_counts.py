"""How far a long evaluation is, on standard error."""

from __future__ import annotations

import errno
import sys
from io import StringIO

from vitrail.services import progress


def test_lots_are_counted_in_pictures(monkeypatch, capsys):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    assert list(progress.track_groups(iter("abc"), 3, 500)) == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == [
        "500 of 1,500 pictures, 12 s left",
        "1,000 of 1,500 pictures, 6 s left",
        "1,500 of 1,500 pictures, 0 s left",
    ]


def test_what_was_left_out_is_named(capsys):
    progress.print_skipped([("a.png", "no picture"), ("b.png", "cut short")])
    assert capsys.readouterr().err == "left out a.png: no picture\nleft out b.png: cut short\n"


def test_what_is_being_done_is_told_every_five_seconds_and_passed_on(monkeypatch, capsys):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    words = [f"round {number}" for number in range(1, 8)]
    assert list(progress.track_messages(iter(words))) == words
    assert capsys.readouterr().err.splitlines() == ["round 3", "round 6"]


def test_what_cannot_be_shown_stops_nothing(monkeypatch):
    class Full(StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sys, "stderr", Full())
    assert list(progress.track_groups(iter("abc"), 3, 500)) == ["a", "b", "c"]
    progress.print_skipped([("a.png", "no picture")])
