"""The reasons that `to_toml` writes as comments, read back."""

from __future__ import annotations

import re
import tomllib

_MARK = "  # "


def read_reasons(text: str) -> dict[str, str]:
    """Dotted name -> the comment at the end of its line; text that `to_toml` did not write gives what it can."""
    reasons, table = {}, ""
    for line in text.splitlines():
        if match := re.fullmatch(r"# ([\w.]+) is not set: (.*)", line):
            reasons[match[1]] = match[2]
        elif match := re.fullmatch(r"\[([\w.]+)\]", line):
            table = f"{match[1]}."
        elif found := _commented(line):
            reasons[table + found[0]] = found[1]
    return reasons


def _commented(line: str) -> tuple[str, str] | None:
    """Name and comment of `name = value  # comment`; the mark may also stand inside of a text."""
    place = line.find(_MARK)
    while place >= 0:
        try:
            (name,) = tomllib.loads(line[:place])
        except (tomllib.TOMLDecodeError, ValueError):
            place = line.find(_MARK, place + 1)
            continue
        return name, line[place + len(_MARK) :]
    return None
