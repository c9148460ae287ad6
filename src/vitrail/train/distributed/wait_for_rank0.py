"""Rank 0 works alone before the first step: the other ranks wait and forward the signals that they get.

So a signal to any process lets the phase at hand save once, and ends all with the same code unless it asks only to
save. A request, and that the work is over, travel through the store that every process group has: a wait inside torch
would let no signal through.
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

POLL_SECONDS = 0.1  # seconds
Outcome = TypeVar("Outcome")


def run_while_others_wait(
    group: RankGroup, work: Generator[Event, None, Outcome], resume_hint: str
) -> Generator[Event, None, Outcome]:
    """The work on rank 0, while the others are in `waited`; what it raises is raised by all of them.

    Args:
        resume_hint: a sentence that says how to go on with the run.

    Raises:
        InterruptedRun: this or another process got a signal; what the work could save, it has saved.
        PeerError: another process died; here too.
    """
    if group.world_size == 1:
        return (yield from work)
    with listen_for_signals() as signal_request:
        try:
            with _release_ranks_at_end(group):
                outcome = yield from _run_with_signals(group, work, signal_request, resume_hint)
        except VitrailError as error:
            with suppress(PeerError):  # the error at hand says more
                group.all_gather_object(error_to_json(error))
            raise
        group.all_gather_object({})
        _raise_signal_of_any_rank(group, signal_request, resume_hint)
    return outcome


def wait_for_rank0_work(group: RankGroup, resume_hint: str) -> None:
    """On every other rank: wait until `led` is over on rank 0.

    Raises:
        InterruptedRun: as `led`; VitrailError: what rank 0 has raised.
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
    """Until rank 0 calls; a signal is passed on to it."""
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
    """After this block the others wait no more, however it ends: of an end without words they learn by asking."""
    try:
        yield
    finally:
        with suppress(RuntimeError):  # who brought them together has gone, which they notice too
            _default_store().set(_store_key(group, "over"), "")


def _run_with_signals(
    group: RankGroup, work: Generator[Event, None, Outcome], signal_request: SignalRequest, resume_hint: str
) -> Generator[Event, None, Outcome]:
    """The work, which listens to signals itself where it can save; `signal_request` is for those that come elsewhere
    in it.
    """
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
    """Let the work save what it has, as a signal would; how to go on."""
    forward_signal(STOP_SIGNALS[-1])
    with group.pause_watchdog():
        try:
            while isinstance(next(work, None), Note):  # words may lie between a step and its save
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
    """The signal that another process got; 0 is none."""
    with group.translate_errors():
        key = _store_key(group, "asked")
        return int(_default_store().get(key)) if _default_store().check([key]) else 0


def _count_save_requests(group: RankGroup) -> int:
    """How often another process got a signal that asks to save and to go on."""
    with group.translate_errors():
        return int(_default_store().add(_store_key(group, "asked to save"), 0))


def _store_key(group: RankGroup, name: str) -> str:
    """A name that belongs to this training alone, of several that a program makes."""
    assert group.cpu_group is not None
    return f"vitrail/{name}/{group.cpu_group.group_name}"


def _default_store() -> Any:
    """The rendezvous store of the default process group; torch has no public name for it."""
    return dist.distributed_c10d._get_default_store()
