"""Ctrl-C and SIGTERM become a wish to stop that the loop looks at between two steps; the second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopWish:
    """Which signal asked the run to stop, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM: 128 + the signal's number."""
        return 128 + (self.signal or 0)


@contextmanager
def listening() -> Iterator[StopWish]:
    """Within this block SIGINT and SIGTERM set the wish; a second one does what it always did."""
    wish = StopWish()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        wish.signal = number
        for other, handler in before.items():
            signal.signal(other, handler)

    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # a background job may have been told to ignore Ctrl-C
                signal.signal(number, ask)
    except ValueError:  # not the main thread: somebody else owns the signals
        yield wish
        return
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
