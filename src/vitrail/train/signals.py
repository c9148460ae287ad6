"""What other programs ask of a training by signals: to stop, which it does between two steps, or only to save.

Ctrl-C, SIGTERM and SIGHUP (the terminal has gone) save and stop; the second one ends the process at once. SIGUSR1,
which SLURM sends ahead of a time limit (`--signal=B:USR1@120`), saves and goes on; where there is nothing to save, it
only goes on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import InterruptedRun

_AVAILABLE = signal.Signals.__members__  # Windows has fewer
STOP_SIGNALS = tuple(_AVAILABLE[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in _AVAILABLE)
SAVE_SIGNALS = tuple(_AVAILABLE[name] for name in ("SIGUSR1",) if name in _AVAILABLE)

FOLDS_FILE = "folds.json"
"""Says of a folder that the run folders in it are folds, which go on together."""

SignalHandler = Callable[[int, FrameType | None], Any]


class SignalRequest:
    """Which signal asked the run to stop, if one did, and whether one asked it to save."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.save = False

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP: 128 + the signal's number."""
        return 128 + (self.signal or 0)


@contextmanager
def listen_for_signals() -> Iterator[SignalRequest]:
    """Within this block signals become wishes; a second one that stops does what it always did."""
    wish = SignalRequest()
    with _install_handlers(
        {**dict.fromkeys(STOP_SIGNALS, _StopHandler(wish)), **dict.fromkeys(SAVE_SIGNALS, _SaveHandler(wish))}
    ):
        yield wish


def forward_signal(signal_number: int) -> None:
    """Turn a signal of another process into a request here, if a handler is installed and has none yet."""
    handlers = map(signal.getsignal, SAVE_SIGNALS if signal_number in SAVE_SIGNALS else STOP_SIGNALS)
    ours = next((found for found in handlers if isinstance(found, _StopHandler | _SaveHandler)), None)
    if ours is not None:
        ours(signal_number)


class _SaveHandler:
    """The handler of `listening` for a signal that only asks to save."""

    def __init__(self, request: SignalRequest) -> None:
        self._request = request

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        self._request.save = True


class _StopHandler:
    """The handler of `listening`; a second signal does what it did outside of all listening."""

    def __init__(self, request: SignalRequest) -> None:
        self._request = request
        self._previous = {number: self._previous_handler(number) for number in STOP_SIGNALS}

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        self._request.signal = number
        for other, handler in self._previous.items():
            signal.signal(other, handler)

    @staticmethod
    def _previous_handler(signal_number: signal.Signals) -> Any:
        found = signal.getsignal(signal_number)
        return found._previous[signal_number] if isinstance(found, _StopHandler) else found


@contextmanager
def raise_on_signal(message: str) -> Iterator[None]:
    """Within this block, where nothing is worth saving, a signal that stops does so at once, with this message.

    Raises:
        InterruptedRun: such a signal came.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise InterruptedRun(message, 128 + number)

    with _install_handlers(dict.fromkeys(STOP_SIGNALS, stop)):
        yield


@contextmanager
def ignore_save_signals() -> Iterator[None]:
    """Within this block a signal that only asks to save ends nothing, as it would by itself; for a whole training.

    `listening`, inside of it, saves. No SIG_IGN, which `listening` would leave as it is.
    """

    def nothing_to_save(number: int, frame: FrameType | None) -> None:
        pass

    with _install_handlers(dict.fromkeys(SAVE_SIGNALS, nothing_to_save)):
        yield


def resume_instructions(path: Path) -> str:
    """How a stopped run goes on, a fold with all others; under SLURM, also how to have that done by itself."""
    begun = path.parent if (path.parent / FOLDS_FILE).is_file() else path
    text = f"Continue with: vitrail train --resume {begun}"
    job = os.environ.get("SLURM_JOB_ID")
    return f"{text} (this is SLURM job {job}: scontrol requeue {job} runs its script again)" if job else text


@contextmanager
def _install_handlers(handlers: dict[signal.Signals, SignalHandler]) -> Iterator[None]:
    """These handlers within this block, and what was there before after it."""
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            if before[number] is not signal.SIG_IGN:  # nohup and background jobs ignore some on purpose
                signal.signal(number, handler)
    except ValueError:  # not the main thread: the program owns the signals
        yield
        return
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
