"""Human-readable durations, sizes and counts."""

from __future__ import annotations

from collections.abc import Iterable

MIN_TEST_IMAGES = 50
"""Held-out images below which confidence intervals are wider than most differences that matter."""


def format_duration(seconds: float) -> str:
    """Format seconds: 42 s, 9 min 58 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_bytes(count: float) -> str:
    """Format bytes in decimal units: 850 MB, 1.2 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def format_flops(count: float) -> str:
    """Format a number of operations: 9.2 GFLOP, 3.2 EFLOP."""
    names = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP")
    power = 0
    while count >= 999.5 and power < len(names) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {names[power]}"


def format_short_duration(seconds: float) -> str:
    """Format seconds that may be few: 12.3 ms, 4.5 s, and from a minute on as `format_duration`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)


def format_count(count: int, thing: str, things: str = "") -> str:
    """Format a count with its noun: 1 row, 2,000 rows.

    Args:
        thing: the noun, with what must agree with it: "row", or "class", or "row has".
        things: the same of several, where that is more than another s: "classes", "rows have".
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def join_sentences(sentences: Iterable[str]) -> str:
    """Join sentences by spaces, and by a dot in the middle after one that ends with a command and has no full stop."""
    text = ""
    for sentence in sentences:
        text += (" " if text.endswith(".") else " · " if text else "") + sentence
    return text


def format_these(count: int, thing: str, verb: str = "", verbs: str = "") -> str:
    """Format things that were pointed at: this picture, these 40 pictures; with a verb: this picture shows."""
    each = f"this {thing}" if count == 1 else f"these {format_count(count, thing)}"
    return f"{each} {verb if count == 1 else verbs}" if verb else each


def format_some(count: int, total: int, thing: str) -> str:
    """Format how many of the things that were pointed at: 3 of these 40 pictures; of a single one: this picture."""
    return format_these(total, thing) if total == 1 else f"{count:,} of {format_these(total, thing)}"


def format_part(count: int, total: int, thing: str, verb: str, verbs: str) -> str:
    """Format a count among several, with its verb: 1 of 40 masks has, 2 of 40 masks have."""
    return f"{count:,} of {format_count(total, thing)} {verb if count == 1 else verbs}"
