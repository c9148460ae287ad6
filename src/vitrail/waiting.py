"""How long OpenMP's threads look out for their next piece of work before they sleep.

PyTorch's Linux wheels for CPUs compute with GNU's OpenMP. After every operation its threads look for the next one in a
loop, 300,000 turns long, and keep their cores busy by it. With the machine to oneself that is free. Beside another
program it is not: the thread that has something to do waits for a core on which another only looks, at every operation
again, and a training becomes ten times slower than with threads that sleep soon (EXPERIMENTS.md, 2026-11-23).
"""

from __future__ import annotations

import os
import sys

TURNS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
BRIEFLY = 5000
"""Turns before a thread sleeps, some tenths of a millisecond: on a quiet machine within 2 % of the usual pace."""
LONG = 50_000
"""Turns from which on another program is felt."""


def wait_briefly() -> None:
    """Have OpenMP's threads sleep soon, unless torch is there already, which reads it when it is imported, or the
    machine's owner has decided."""
    if sys.platform == "linux" and "torch" not in sys.modules and not {TURNS, POLICY} & os.environ.keys():
        os.environ[TURNS] = str(BRIEFLY)


def waits_briefly() -> bool:
    """Whether they do, by the environment that torch was imported with."""
    if sys.platform != "linux":
        return True  # other systems' OpenMP sleeps by itself after 200 ms or at once
    turns, policy = os.environ.get(TURNS, ""), os.environ.get(POLICY, "").lower()
    return turns.isdecimal() and int(turns) < LONG if turns else policy == "passive"
