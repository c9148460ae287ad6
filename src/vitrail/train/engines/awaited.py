"""What rank 0 does alone before the first step: the others wait for it, and pass on to it the signals that they get.

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

from ...errors import InterruptedRun, PartnerError, VitrailError
from ..events import Event, Note
from ..keeping.signals import SAVING, STOPPING, Wish, listening, pass_on
from .team import Team, in_words, out_of_words

LOOK_EVERY = 0.1  # seconds
Outcome = TypeVar("Outcome")


def led(team: Team, work: Generator[Event, None, Outcome], go_on: str) -> Generator[Event, None, Outcome]:
    """The work on rank 0, while the others are in `waited`; what it raises is raised by all of them.

    Args:
        go_on: a sentence that says how to go on with the run.

    Raises:
        InterruptedRun: this or another process got a signal; what the work could save, it has saved.
        PartnerError: another process died; here too.
    """
    if team.world == 1:
        return (yield from work)
    with listening() as wish:
        try:
            with _calling(team):
                outcome = yield from _heeding(team, work, wish, go_on)
        except VitrailError as error:
            with suppress(PartnerError):  # the error at hand says more
                team.gathered(in_words(error))
            raise
        team.gathered({})
        _stop_together(team, wish, go_on)
    return outcome


def waited(team: Team, go_on: str) -> None:
    """On every other rank: wait until `led` is over on rank 0.

    Raises:
        InterruptedRun: as `led`; VitrailError: what rank 0 has raised.
        PartnerError: another process died.
    """
    with listening() as wish:
        try:
            _wait(team, wish)
        except PartnerError as error:
            raise PartnerError(f"{error} {go_on}") from error
        answer = team.gathered({})[0]
        if "error" in answer:
            raise out_of_words(answer)
        _stop_together(team, wish, go_on)


def _wait(team: Team, wish: Wish) -> None:
    """Until rank 0 calls; a signal is passed on to it."""
    with team.noticing():
        while not _store().check([_key(team, "over")]):
            team.see_that_all_live()
            if wish:
                _store().set(_key(team, "asked"), str(wish.signal))
            if wish.save:
                wish.save = False
                _store().add(_key(team, "asked to save"), 1)
            time.sleep(LOOK_EVERY)


@contextmanager
def _calling(team: Team) -> Iterator[None]:
    """After this block the others wait no more, however it ends: of an end without words they learn by asking."""
    try:
        yield
    finally:
        with suppress(RuntimeError):  # who brought them together has gone, which they notice too
            _store().set(_key(team, "over"), "")


def _heeding(
    team: Team, work: Generator[Event, None, Outcome], wish: Wish, go_on: str
) -> Generator[Event, None, Outcome]:
    """The work, which listens to signals itself where it can save; `wish` is for those that come elsewhere in it."""
    saves = 0  # that others asked for, and the work was told of
    with closing(work):
        while True:
            try:
                event = next(work)
            except StopIteration as over:
                return over.value
            if wish:
                raise InterruptedRun(f"Interrupted before the first step. {go_on}", wish.exit_code)
            yield event
            if number := _asked(team):
                pass_on(number)
            if (asked := _asked_to_save(team)) > saves:
                saves = asked
                pass_on(SAVING[0])
            try:
                team.see_that_all_live()
            except PartnerError as error:
                raise PartnerError(f"{error} {_saved(team, work, go_on)}") from error


def _saved(team: Team, work: Generator[Event, None, object], go_on: str) -> str:
    """Let the work save what it has, as a signal would; how to go on."""
    pass_on(STOPPING[-1])
    with team.saving():
        try:
            while isinstance(next(work, None), Note):  # words may lie between a step and its save
                pass
        except InterruptedRun as saved:
            return str(saved)
    return go_on


def _stop_together(team: Team, wish: Wish, go_on: str) -> None:
    """The work is over: whoever got a signal that nobody heeded says so now."""
    (number,) = team.most(wish.signal or 0)
    if number:
        raise InterruptedRun(f"Interrupted before the first step. {go_on}", 128 + number)


def _asked(team: Team) -> int:
    """The signal that another process got; 0 is none."""
    with team.noticing():
        key = _key(team, "asked")
        return int(_store().get(key)) if _store().check([key]) else 0


def _asked_to_save(team: Team) -> int:
    """How often another process got a signal that asks to save and to go on."""
    with team.noticing():
        return int(_store().add(_key(team, "asked to save"), 0))


def _key(team: Team, name: str) -> str:
    """A name that belongs to this training alone, of several that a program makes."""
    assert team.messages is not None
    return f"vitrail/{name}/{team.messages.group_name}"


def _store() -> Any:
    """What the processes have met by; torch shows it to nobody by a public name."""
    return dist.distributed_c10d._get_default_store()
