"""How many images have been answered, on standard error, for whatever takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar, runtime_checkable

from ..formatting import format_duration

ItemT = TypeVar("ItemT")


@runtime_checkable
class SkippableResult(Protocol):
    """What was made of some images."""

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of those that were left out."""
        ...

    def __len__(self) -> int:
        """How many were not."""
        ...


ResultT = TypeVar("ResultT", bound=SkippableResult)
SECONDS_UNTIL_SHOWN = 2.0
SECONDS_BETWEEN_LINES = 5.0
"""Where nobody watches a terminal."""
SECONDS_BETWEEN_UPDATES = 0.2


def track_batches(parts: Iterator[ResultT], total: int) -> Iterator[ResultT]:
    """The same parts, passed on one by one; a terminal has one line that changes, a file one every five seconds."""
    return track_progress(parts, total, lambda part: len(part) + len(part.skipped))


def track_images(items: Iterator[ItemT], total: int) -> Iterator[ItemT]:
    """As `answered`, where each thing is one image."""
    return track_progress(items, total, lambda _: 1)


def track_groups(items: Iterator[ItemT], num_groups: int, size: int) -> Iterator[ItemT]:
    """As `answered`, where each of so many things is so many images."""
    return track_progress(items, num_groups * size, lambda _: size)


def track_progress(items: Iterator[ItemT], total: int, size: Callable[[ItemT], int]) -> Iterator[ItemT]:
    """As `answered`, where `size` says how many images a thing is."""
    terminal = sys.stderr.isatty()
    every = SECONDS_BETWEEN_UPDATES if terminal else SECONDS_BETWEEN_LINES
    began, last, done, shown = time.monotonic(), 0.0, 0, False
    for thing in items:
        yield thing
        done += size(thing)
        now = time.monotonic()
        if now - began > SECONDS_UNTIL_SHOWN and now - last > every:
            last, shown = now, True
            _write_progress(
                f"{done:,} of {total:,} pictures, {format_duration((now - began) / done * (total - done))} left",
                terminal,
            )
    if terminal and shown:
        _write_progress("", terminal)


def overwrite_progress_line(text: str) -> str:
    """A line for standard output that takes the place of the count, where both are one terminal."""
    return f"\r\033[K{text}" if sys.stderr.isatty() and sys.stdout.isatty() else text


def print_skipped_images(predictions: SkippableResult) -> None:
    """Name every image that was left out, on standard error."""
    print_skipped(predictions.skipped)


def print_skipped(skipped: Iterable[tuple[str, str]]) -> None:
    """Each of (path, reason)."""
    for path, reason in skipped:
        _write_stderr(f"left out {path}: {reason}\n")


def _write_progress(text: str, terminal: bool) -> None:
    _write_stderr(f"\r\033[K{text}" if terminal else f"{text}\n")


def _write_stderr(text: str) -> None:
    """On standard error; whoever watched it may have gone, or its disk be full, which is no reason to stop."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def track_messages(messages: Iterator[str]) -> Iterator[str]:
    """The same words, passed on; a terminal shows the last in a line that changes, a file one every five seconds."""
    terminal = sys.stderr.isatty()
    began, last, shown = time.monotonic(), 0.0, False
    for text in messages:
        now = time.monotonic()
        if now - began > SECONDS_UNTIL_SHOWN and now - last > (0 if terminal else SECONDS_BETWEEN_LINES):
            last, shown = now, True
            _write_progress(text, terminal)
        yield text
    if terminal and shown:
        _write_progress("", terminal)
