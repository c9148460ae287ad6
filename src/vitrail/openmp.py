"""How long OpenMP's threads look out for their next piece of work before they sleep.

PyTorch's Linux wheels for CPUs compute with GNU's OpenMP. After every operation its threads look for the next one in a
loop, 300,000 turns long, and keep their cores busy by it. With the machine to oneself that is free. Beside another
program it is not: the thread that has something to do waits for a core on which another only looks, at every operation
again, and a training becomes ten times slower than with threads that sleep soon (EXPERIMENTS.md, 2026-11-23).
"""

from __future__ import annotations

import os
import sys

SPIN_COUNT_VARIABLE, WAIT_POLICY_VARIABLE = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
SHORT_SPIN_COUNT = 5000
"""Turns before a thread sleeps, some tenths of a millisecond: on a quiet machine within 2 % of the usual pace."""
LONG_SPIN_COUNT = 50_000
"""Turns from which on another program is felt."""


def set_short_spin() -> None:
    """Have OpenMP's threads sleep soon, unless torch is there already, which reads it when it is imported, or the
    machine's owner has decided."""
    if (
        sys.platform == "linux"
        and "torch" not in sys.modules
        and not {SPIN_COUNT_VARIABLE, WAIT_POLICY_VARIABLE} & os.environ.keys()
    ):
        os.environ[SPIN_COUNT_VARIABLE] = str(SHORT_SPIN_COUNT)


def has_short_spin() -> bool:
    """Whether they do, by the environment that torch was imported with."""
    if sys.platform != "linux":
        return True  # other systems' OpenMP sleeps by itself after 200 ms or at once
    turns, policy = os.environ.get(SPIN_COUNT_VARIABLE, ""), os.environ.get(WAIT_POLICY_VARIABLE, "").lower()
    return turns.isdecimal() and int(turns) < LONG_SPIN_COUNT if turns else policy == "passive"
