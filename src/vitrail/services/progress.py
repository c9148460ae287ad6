"""Progress on standard error for work that takes longer than two seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.abc import MetaPathFinder
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..errors import escape_unprintable
from ..formatting import format_count, format_duration

ItemT = TypeVar("ItemT")


@runtime_checkable
class SkippableResult(Protocol):
    """A result for some images, of which some may have been skipped."""

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of the skipped images."""
        ...

    def __len__(self) -> int:
        """Number of images that were not skipped."""
        ...


ResultT = TypeVar("ResultT", bound=SkippableResult)
SECONDS_UNTIL_SHOWN = 2.0
SECONDS_BETWEEN_LINES = 5.0
"""Interval of progress lines if standard error is no terminal."""
SECONDS_BETWEEN_STAGE_LINES = 20.0
"""The same of a stage that counts nothing, whose line says how long it has taken."""
SECONDS_BETWEEN_UPDATES = 0.2


def track_batches(parts: Iterator[ResultT], total: int) -> Iterator[ResultT]:
    """Pass batches on and show progress: one changing line on a terminal, else a line every five seconds."""
    return track_progress(parts, total, lambda part: len(part) + len(part.skipped))


def track_images(items: Iterator[ItemT], total: int) -> Iterator[ItemT]:
    """As `track_batches`, for items of one image each."""
    return track_progress(items, total, lambda _: 1)


def track_groups(items: Iterator[ItemT], num_groups: int, size: int) -> Iterator[ItemT]:
    """As `track_batches`, for `num_groups` items of `size` images each."""
    return track_progress(items, num_groups * size, lambda _: size)


def track_progress(items: Iterator[ItemT], total: int, size: Callable[[ItemT], int]) -> Iterator[ItemT]:
    """As `track_batches`, where `size` gives the number of images of an item."""
    terminal = sys.stderr.isatty()
    every = SECONDS_BETWEEN_UPDATES if terminal else SECONDS_BETWEEN_LINES
    began, last, done, shown = time.monotonic(), 0.0, 0, False
    for item in items:
        yield item
        done += size(item)
        now = time.monotonic()
        if now - began > SECONDS_UNTIL_SHOWN and now - last > every:
            last, shown = now, True
            left = format_duration((now - began) / done * (total - done))
            _write_progress(f"{done:,} of {format_count(total, 'picture')}, {left} left", terminal)
    if terminal and shown:
        _write_progress("", terminal)


class ImportAnnouncer(MetaPathFinder):
    """Prints a line on standard error before a module is imported for the first time; it finds nothing itself."""

    def __init__(self, module: str, text: str):
        self.module, self.text = module, text

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Print the line if it is this module that is searched."""
        if fullname == self.module and self in sys.meta_path:
            sys.meta_path.remove(self)
            _write_stderr(f"{self.text}\n")


@contextmanager
def announce_slow_import(module: str, text: str) -> Iterator[None]:
    """Print a line on standard error before this block imports a module that takes seconds.

    A timer would be too late: loading a large library holds Python's lock. Of several processes only the first prints.
    Its number is read here, because the code for groups imports torch.
    """
    announcer = ImportAnnouncer(module, text)
    if module not in sys.modules and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        sys.meta_path.insert(0, announcer)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(announcer)


@contextmanager
def start_timer(action: Callable[[float | None], object]) -> Iterator[None]:
    """Call a function in another thread after two seconds of this block, then with the seconds so far every twenty."""
    is_over, began = threading.Event(), time.monotonic()

    def call_until_over() -> None:
        if not is_over.wait(SECONDS_UNTIL_SHOWN):
            action(None)
        while not is_over.wait(SECONDS_BETWEEN_STAGE_LINES):
            action(time.monotonic() - began)

    threading.Thread(target=call_until_over, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def format_stage(text: str, seconds: float | None) -> str:
    """The line of a stage that goes on; the first one, of None seconds, has no time."""
    return f"{text} ..." if seconds is None else f"{text} ... {format_duration(seconds)} so far"


@contextmanager
def track_images_and(stage: str) -> Iterator[Callable[[Iterator[Any], int], Iterator[Any]]]:
    """`track_images` for work that goes on after the last image, whose stage is then named until it is over."""
    with ExitStack() as afterwards:

        def track(items: Iterator[Any], total: int) -> Iterator[Any]:
            yield from track_images(items, total)
            afterwards.enter_context(start_timer(lambda seconds: print_notes([format_stage(stage, seconds)])))

        yield track


def overwrite_progress_line(text: str) -> str:
    """A line for standard output that overwrites the progress line if both streams are a terminal."""
    return f"\r\033[K{text}" if sys.stderr.isatty() and sys.stdout.isatty() else text


def print_skipped_images(predictions: SkippableResult) -> None:
    """Print every skipped image on standard error."""
    print_skipped(predictions.skipped)


def print_skipped(skipped: Iterable[tuple[str, str]]) -> None:
    """Print every skipped (path, reason) on standard error."""
    for path, reason in skipped:
        _write_stderr(f"left out {path}: {reason}\n")


def print_notes(notes: Iterable[str]) -> None:
    """Print every note on standard error."""
    for note in notes:
        _write_stderr(f"{escape_unprintable(note)}\n")


def _write_progress(text: str, terminal: bool) -> None:
    _write_stderr(f"\r\033[K{text}" if terminal else f"{text}\n")


def _write_stderr(text: str) -> None:
    """Write to standard error; a closed pipe or a full disk is ignored."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def track_messages(messages: Iterator[str]) -> Iterator[str]:
    """Pass messages on and show them: in one changing line on a terminal, else a line every five seconds."""
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
