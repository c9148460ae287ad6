"""Every case of the corpus, in the order of its number."""

from __future__ import annotations

from . import bombs, damaged, frames, modes, turned
from .case import Case

CASES: tuple[Case, ...] = (*damaged.CASES, *bombs.CASES, *modes.CASES, *turned.CASES, *frames.CASES)
"""Kinds 1 to 63; kind 64 is no file and is made by `places`."""


def of(*numbers: int) -> list[Case]:
    """The cases of these kinds."""
    return [case for case in CASES if case.number in numbers]
