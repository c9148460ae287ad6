"""How many pictures have been answered, on standard error, for whatever takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar, runtime_checkable

from .amounts import duration

Thing = TypeVar("Thing")


@runtime_checkable
class Counted(Protocol):
    """What was made of some pictures."""

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of those that were left out."""
        ...

    def __len__(self) -> int:
        """How many were not."""
        ...


Part = TypeVar("Part", bound=Counted)
SECONDS_UNTIL_SHOWN = 2.0
SECONDS_BETWEEN_LINES = 5.0
"""Where nobody watches a terminal."""
SECONDS_BETWEEN_LOOKS = 0.2


def answered(parts: Iterator[Part], total: int) -> Iterator[Part]:
    """The same parts, passed on one by one; a terminal has one line that changes, a file one every five seconds."""
    return counted(parts, total, lambda part: len(part) + len(part.skipped))


def one_by_one(pictures: Iterator[Thing], total: int) -> Iterator[Thing]:
    """As `answered`, where each thing is one picture."""
    return counted(pictures, total, lambda _: 1)


def in_lots(things: Iterator[Thing], lots: int, size: int) -> Iterator[Thing]:
    """As `answered`, where each of so many things is so many pictures."""
    return counted(things, lots * size, lambda _: size)


def counted(things: Iterator[Thing], total: int, size: Callable[[Thing], int]) -> Iterator[Thing]:
    """As `answered`, where `size` says how many pictures a thing is."""
    terminal = sys.stderr.isatty()
    every = SECONDS_BETWEEN_LOOKS if terminal else SECONDS_BETWEEN_LINES
    began, last, done, shown = time.monotonic(), 0.0, 0, False
    for thing in things:
        yield thing
        done += size(thing)
        now = time.monotonic()
        if now - began > SECONDS_UNTIL_SHOWN and now - last > every:
            last, shown = now, True
            _write(f"{done:,} of {total:,} pictures, {duration((now - began) / done * (total - done))} left", terminal)
    if terminal and shown:
        _write("", terminal)


def said(text: str) -> str:
    """A line for standard output that takes the place of the count, where both are one terminal."""
    return f"\r\033[K{text}" if sys.stderr.isatty() and sys.stdout.isatty() else text


def tell_skipped(predictions: Counted) -> None:
    """Name every picture that was left out, on standard error."""
    tell_left_out(predictions.skipped)


def tell_left_out(skipped: Iterable[tuple[str, str]]) -> None:
    """Each of (path, reason)."""
    for path, reason in skipped:
        _show(f"left out {path}: {reason}\n")


def _write(text: str, terminal: bool) -> None:
    _show(f"\r\033[K{text}" if terminal else f"{text}\n")


def _show(text: str) -> None:
    """On standard error; whoever watched it may have gone, or its disk be full, which is no reason to stop."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def doing(words: Iterator[str]) -> Iterator[str]:
    """The same words, passed on; a terminal shows the last in a line that changes, a file one every five seconds."""
    terminal = sys.stderr.isatty()
    began, last, shown = time.monotonic(), 0.0, False
    for text in words:
        now = time.monotonic()
        if now - began > SECONDS_UNTIL_SHOWN and now - last > (0 if terminal else SECONDS_BETWEEN_LINES):
            last, shown = now, True
            _write(text, terminal)
        yield text
    if terminal and shown:
        _write("", terminal)
