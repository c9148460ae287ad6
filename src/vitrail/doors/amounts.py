"""Seconds and bytes as people say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 9 min 58 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def memory(count: float) -> str:
    """Bytes as people say them: 850 MB, 1.2 GB; a thousand thousand bytes are a megabyte."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
