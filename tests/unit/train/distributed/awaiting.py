"""One of two processes, of which rank 0 works alone while the other waits. Run as a program of its own, by
`partners.start`: each prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from vitrail.errors import DivergedError, InterruptedRun, VitrailError
from vitrail.train.distributed import wait_for_rank0
from vitrail.train.distributed.collectives import RankGroup, join_group
from vitrail.train.events import Event, Note
from vitrail.train.signals import listen_for_signals

GO_ON = "Continue with: vitrail train --resume run"

Work = Callable[[list[str]], Generator[Event, None, str]]


def steps(done: list[str], count: int = 200) -> Generator[Event, None, str]:
    """A phase that can be saved after each step, and as the real ones has a word between a step and its save."""
    with listen_for_signals() as wish:
        for _ in range(count):
            time.sleep(0.02)
            done.append("step")
            yield Note("a step")
            yield Note("a word")
            if wish.save:
                done.append("saved")
                wish.save = False
            if wish:
                done.append("saved")
                raise InterruptedRun(f"Interrupted, saved. {GO_ON}", wish.exit_code)
    return "outcome"


def unsaved(done: list[str]) -> Generator[Event, None, str]:
    """Work with events, of which nothing can be saved."""
    for _ in range(200):
        time.sleep(0.02)
        yield Note("a piece")
    return "outcome"


def silent(done: list[str]) -> Generator[Event, None, str]:
    """Work that nobody can interrupt."""
    yield Note("begun")
    time.sleep(1.5)
    return "outcome"


def diverging(done: list[str]) -> Generator[Event, None, str]:
    """Work that fails."""
    yield Note("begun")
    raise DivergedError("Not finite.")


CASES: dict[str, tuple[Work, signal.Signals | None, tuple[int, ...]]] = {
    "undisturbed": (lambda done: steps(done, 5), None, ()),
    "SIGTERM to rank 1": (steps, signal.SIGTERM, (1,)),
    "SIGTERM to rank 0": (steps, signal.SIGTERM, (0,)),
    "SIGINT to both": (steps, signal.SIGINT, (0, 1)),
    "SIGHUP to rank 1": (steps, signal.SIGHUP, (1,)),
    "SIGUSR1 to rank 1": (steps, signal.SIGUSR1, (1,)),
    "SIGUSR1 where nothing can be saved": (unsaved, signal.SIGUSR1, (1,)),
    "where nothing can be saved": (unsaved, signal.SIGTERM, (1,)),
    "after the last event": (silent, signal.SIGTERM, (1,)),
    "diverged": (diverging, None, ()),
}


def outcome(
    team: RankGroup, work: Work, number: signal.Signals | None, ranks: tuple[int, ...]
) -> tuple[list[Any], Any]:
    """What came of it in this process, and what it did."""
    team.all_gather_object(None)  # so that the signals come to both within the work
    if number is not None and team.rank in ranks:
        threading.Timer(0.5, os.kill, [os.getpid(), number]).start()
    done: list[str] = []
    try:
        if not team.is_rank0:
            wait_for_rank0.wait_for_rank0_work(team, GO_ON)
            return [None], done
        walk = wait_for_rank0.run_while_others_wait(team, work(done), GO_ON)
        while True:
            try:
                next(walk)
            except StopIteration as over:
                return [over.value], done
    except VitrailError as error:
        return [type(error).__name__, str(error), error.exit_code], done


def main() -> None:
    """Each case in a team of its own, as a program that trains several times."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite that was begun with nohup hands on that it is ignored
    found = {}
    for name, case in CASES.items():
        with join_group("cpu", 60) as team:
            found[name] = outcome(team, *case)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
