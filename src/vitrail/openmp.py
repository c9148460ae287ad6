"""GNU OpenMP's spin count: how long idle threads spin before they sleep.

PyTorch's Linux wheels for CPUs use GNU OpenMP, whose threads spin up to 300,000 turns after every operation. On an idle
machine that costs nothing. Beside another program working threads wait for cores on which others only spin, at every
operation, and a training becomes ten times slower than with a short spin (EXPERIMENTS.md, 2026-11-23).
"""

from __future__ import annotations

import os
import sys

SPIN_COUNT_VARIABLE, WAIT_POLICY_VARIABLE = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
SHORT_SPIN_COUNT = 5000
"""Turns before a thread sleeps, some tenths of a millisecond: throughput on an idle machine is within 2 %."""
LONG_SPIN_COUNT = 50_000
"""Turns from which on other programs slow a training down."""


def set_short_spin() -> None:
    """Set a short spin, unless torch is already imported (it reads the variable then) or the environment sets it."""
    if (
        sys.platform == "linux"
        and "torch" not in sys.modules
        and not {SPIN_COUNT_VARIABLE, WAIT_POLICY_VARIABLE} & os.environ.keys()
    ):
        os.environ[SPIN_COUNT_VARIABLE] = str(SHORT_SPIN_COUNT)


def has_short_spin() -> bool:
    """Whether threads sleep soon, by the environment that torch was imported with."""
    if sys.platform != "linux":
        return True  # other systems' OpenMP sleeps by itself after 200 ms or at once
    turns, policy = os.environ.get(SPIN_COUNT_VARIABLE, ""), os.environ.get(WAIT_POLICY_VARIABLE, "").lower()
    return turns.isdecimal() and int(turns) < LONG_SPIN_COUNT if turns else policy == "passive"
