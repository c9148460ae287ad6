"""Rank 0 works alone before the first step: the other ranks wait and forward the signals that they get.

So a stop signal to any rank saves the current phase once and ends all ranks with the same code; a save signal only
saves. Requests and the end of the work are keys of the process group's store: a wait inside torch would block signals.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import torch.distributed as dist

from ...errors import InterruptedRun, PeerError, VitrailError
from ..events import Event, Note
from ..signals import SAVE_SIGNALS, STOP_SIGNALS, SignalRequest, forward_signal, listen_for_signals
from .collectives import RankGroup, error_from_json, error_to_json

POLL_SECONDS = 0.1
Outcome = TypeVar("Outcome")


def run_while_others_wait(
    group: RankGroup, work: Generator[Event, None, Outcome], resume_hint: str
) -> Generator[Event, None, Outcome]:
    """Run the work on rank 0, while the others are in `wait_for_rank0_work`; all ranks raise its error.

    Args:
        resume_hint: a sentence that says how to resume the run.

    Raises:
        InterruptedRun: this or another process got a signal; the work has saved what it can.
        PeerError: another process died.
    """
    if group.world_size == 1:
        return (yield from work)
    with listen_for_signals() as signal_request:
        try:
            with _release_ranks_at_end(group):
                outcome = yield from _run_with_signals(group, work, signal_request, resume_hint)
        except VitrailError as error:
            with suppress(PeerError):  # the original error says more
                group.all_gather_object(error_to_json(error))
            raise
        group.all_gather_object({})
        _raise_signal_of_any_rank(group, signal_request, resume_hint)
    return outcome


def wait_for_rank0_work(group: RankGroup, resume_hint: str) -> None:
    """On every other rank: wait until `run_while_others_wait` is finished on rank 0.

    Raises:
        InterruptedRun: this or another process got a signal; VitrailError: rank 0's error.
        PeerError: another process died.
    """
    with listen_for_signals() as signal_request:
        try:
            _poll_rank0(group, signal_request)
        except PeerError as error:
            raise PeerError(f"{error} {resume_hint}") from error
        status = group.all_gather_object({})[0]
        if "error" in status:
            raise error_from_json(status)
        _raise_signal_of_any_rank(group, signal_request, resume_hint)


def _poll_rank0(group: RankGroup, signal_request: SignalRequest) -> None:
    """Wait until rank 0 has finished; forward signals to it."""
    with group.translate_errors():
        while not _default_store().check([_store_key(group, "over")]):
            group.check_alive()
            if signal_request:
                _default_store().set(_store_key(group, "asked"), str(signal_request.signal))
            if signal_request.save:
                signal_request.save = False
                _default_store().add(_store_key(group, "asked to save"), 1)
            time.sleep(POLL_SECONDS)


@contextmanager
def _release_ranks_at_end(group: RankGroup) -> Iterator[None]:
    """Release the other ranks at the end of this block, also after an error."""
    try:
        yield
    finally:
        with suppress(RuntimeError):  # the store's process is gone, which they notice too
            _default_store().set(_store_key(group, "over"), "")


def _run_with_signals(
    group: RankGroup, work: Generator[Event, None, Outcome], signal_request: SignalRequest, resume_hint: str
) -> Generator[Event, None, Outcome]:
    """Run the work, which handles signals itself where it can save; `signal_request` catches the others."""
    saves = 0  # requested by other ranks and already forwarded to the work
    with closing(work):
        while True:
            try:
                event = next(work)
            except StopIteration as over:
                return over.value
            if signal_request:
                raise InterruptedRun(f"Interrupted before the first step. {resume_hint}", signal_request.exit_code)
            yield event
            if signal_number := _requested_signal(group):
                forward_signal(signal_number)
            if (requested := _count_save_requests(group)) > saves:
                saves = requested
                forward_signal(SAVE_SIGNALS[0])
            try:
                group.check_alive()
            except PeerError as error:
                raise PeerError(f"{error} {_save_via_signal(group, work, resume_hint)}") from error


def _save_via_signal(group: RankGroup, work: Generator[Event, None, object], resume_hint: str) -> str:
    """Let the work save by a stop signal; returns a sentence on how to resume."""
    forward_signal(STOP_SIGNALS[-1])
    with group.pause_watchdog():
        try:
            while isinstance(next(work, None), Note):  # notes may come between a step and its save
                pass
        except InterruptedRun as saved:
            return str(saved)
    return resume_hint


def _raise_signal_of_any_rank(group: RankGroup, signal_request: SignalRequest, resume_hint: str) -> None:
    """After the work: if any rank got a signal that was not handled, raise it on all ranks."""
    (signal_number,) = group.all_reduce_max(signal_request.signal or 0)
    if signal_number:
        raise InterruptedRun(f"Interrupted before the first step. {resume_hint}", 128 + signal_number)


def _requested_signal(group: RankGroup) -> int:
    """The stop signal of another rank; 0 is none."""
    with group.translate_errors():
        key = _store_key(group, "asked")
        return int(_default_store().get(key)) if _default_store().check([key]) else 0


def _count_save_requests(group: RankGroup) -> int:
    """Number of save signals of other ranks so far."""
    with group.translate_errors():
        return int(_default_store().add(_store_key(group, "asked to save"), 0))


def _store_key(group: RankGroup, name: str) -> str:
    """A key of this training, because a program may run several."""
    assert group.cpu_group is not None
    return f"vitrail/{name}/{group.cpu_group.group_name}"


def _default_store() -> Any:
    """The rendezvous store of the default process group; torch has no public name for it."""
    return dist.distributed_c10d._get_default_store()
