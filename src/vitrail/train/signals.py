"""Signals during a training: stop after the current step, or save and continue.

Ctrl-C, SIGTERM and SIGHUP (the terminal is closed) save and stop; the second one ends the process at once. SIGUSR1,
which SLURM sends ahead of a time limit (`--signal=B:USR1@120`), saves and continues; where there is nothing to save, it
is ignored.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ..data.settings import MEMORY
from ..errors import InterruptedRun

_AVAILABLE = signal.Signals.__members__  # Windows has fewer
STOP_SIGNALS = tuple(_AVAILABLE[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in _AVAILABLE)
SAVE_SIGNALS = tuple(_AVAILABLE[name] for name in ("SIGUSR1",) if name in _AVAILABLE)

FOLDS_FILE = "folds.json"
"""Marks a folder whose run folders are folds, which are resumed together."""

TUNE_FILE = "tune.json"
"""Marks a folder whose run folders are trials, which are resumed together."""

EventT = TypeVar("EventT")
SignalHandler = Callable[[int, FrameType | None], Any]


class SignalRequest:
    """The signal to stop, if one came, and whether a signal to save came."""

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
    """Within this block signals are recorded in the request; a second stop signal does what it did before."""
    request = SignalRequest()
    with _install_handlers(
        {**dict.fromkeys(STOP_SIGNALS, _StopHandler(request)), **dict.fromkeys(SAVE_SIGNALS, _SaveHandler(request))}
    ):
        yield request


def forward_signal(signal_number: int) -> None:
    """Turn a signal of another process into a request here, if a handler is installed and has none yet."""
    handlers = map(signal.getsignal, SAVE_SIGNALS if signal_number in SAVE_SIGNALS else STOP_SIGNALS)
    handler = next((each for each in handlers if isinstance(each, _StopHandler | _SaveHandler)), None)
    if handler is not None:
        handler(signal_number)


class _SaveHandler:
    """The handler of `listen_for_signals` for SIGUSR1."""

    def __init__(self, request: SignalRequest) -> None:
        self._request = request

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        self._request.save = True


class _StopHandler:
    """The handler of `listen_for_signals` for stop signals; it restores the outermost previous handlers."""

    def __init__(self, request: SignalRequest) -> None:
        self._request = request
        self._previous = {number: self._previous_handler(number) for number in STOP_SIGNALS}

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        self._request.signal = number
        for other, handler in self._previous.items():
            signal.signal(other, handler)

    @staticmethod
    def _previous_handler(signal_number: signal.Signals) -> Any:
        handler = signal.getsignal(signal_number)
        return handler._previous[signal_number] if isinstance(handler, _StopHandler) else handler


@contextmanager
def raise_on_signal(message: str) -> Iterator[None]:
    """Within this block, where there is nothing to save, a stop signal raises InterruptedRun with this message."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise InterruptedRun(message, 128 + number)

    with _install_handlers(dict.fromkeys(STOP_SIGNALS, stop)):
        yield


@contextmanager
def ignore_save_signals() -> Iterator[None]:
    """Within this block SIGUSR1, whose default ends the process, does nothing; for a whole training.

    `listen_for_signals`, inside of it, saves. No SIG_IGN, which `listen_for_signals` would leave in place.
    """

    def nothing_to_save(number: int, frame: FrameType | None) -> None:
        pass

    with _install_handlers(dict.fromkeys(SAVE_SIGNALS, nothing_to_save)):
        yield


def lend_signals(events: Generator[EventT]) -> Generator[EventT]:
    """Pass events on; while the caller has one, signals do what the caller has set, and not what the training has."""
    if threading.current_thread() is not threading.main_thread():  # the program owns the signals
        yield from events
        return
    own: dict[signal.Signals, Any] = {}  # the training's handlers, while it waits
    try:
        while True:
            callers = _exchange_handlers(own)
            try:
                event = next(events)
            except StopIteration:
                return
            finally:
                own = _exchange_handlers(callers)
            yield event
    finally:
        callers = _exchange_handlers(own)
        try:
            events.close()
        finally:
            _exchange_handlers(callers)


def _exchange_handlers(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Install handlers and return those of all our signals before; None, of another language, stays."""
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, *SAVE_SIGNALS)}
    for number, handler in handlers.items():
        if handler is not None and handler is not before[number]:
            signal.signal(number, handler)
    return before


def resume_instructions(path: Path) -> str:
    """A sentence on how to resume a run, or all folds or trials of one; under SLURM, also how to requeue the job.

    A run on objects in memory is resumed by a program that has them.
    """
    is_member = any((path.parent / name).is_file() for name in (FOLDS_FILE, TUNE_FILE))
    folder = path.parent if is_member else path
    verb = "tune" if (folder / TUNE_FILE).is_file() else "train"
    if verb == "train" and _is_from_memory(path):
        return f'Continue in Python with the same objects: vitrail.open("{folder}").resume(source)'
    text = f"Continue with: vitrail {verb} --resume {shlex.quote(str(folder))}"
    job = os.environ.get("SLURM_JOB_ID")
    return f"{text} (this is SLURM job {job}: scontrol requeue {job} runs its script again)" if job else text


def _is_from_memory(run: Path) -> bool:
    """Whether the source of a run was a Python object."""
    try:
        plan = tomllib.loads((run / "plan.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # no plan was written yet
    return bool(plan.get("data", {}).get("source") == MEMORY and not Path(MEMORY).exists())


@contextmanager
def _install_handlers(handlers: dict[signal.Signals, SignalHandler]) -> Iterator[None]:
    """Install handlers within this block, and restore the previous ones after it."""
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
