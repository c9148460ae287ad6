"""Counts in words."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A number of things: 1 picture, 2,000 pictures."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
