"""Help pages: drawn from the docstrings of the commands and of their fields, in well under a third of a second."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from .. import config
from .arguments import Command, flag_names

LEFT = 26
"""Columns for the names."""


def overview(commands: Mapping[str, type[Command]]) -> str:
    """All verbs, one line each."""
    lines = ["Vitrail: the best plain Vision Transformer for your pictures.", "", "usage: vitrail VERB ...", ""]
    lines += [_row(verb, (inspect.getdoc(command) or "").partition("\n")[0], 12) for verb, command in commands.items()]
    lines += ["", "vitrail VERB --help tells more of one. A first run: vitrail train digits --minutes 1"]
    return "\n".join(lines)


def page(verb: str, command: type[Command]) -> str:
    """One verb: its words, its flags, its examples."""
    by_name = {field.name: field for field in config.describe(command)}
    flags = flag_names(command)
    usage = " ".join(_word(command, name) for name in command.POSITIONAL)
    lines = [f"usage: vitrail {verb} {usage} [flags]", "", *_paragraphs(inspect.getdoc(command) or ""), ""]
    lines += [_row(name.upper(), by_name[name].doc) for name in command.POSITIONAL]
    lines += [""] if command.POSITIONAL else []
    for flag, name in flags.items():
        value, given = _value(by_name[name]), by_name[name].default
        default = f" [{_spelled(given)}]" if given else ""
        lines.append(_row(f"{flag} {value}".rstrip(), by_name[name].doc + default))
    if command.DOTTED is not None:
        lines.append(_row("--NAME.OF.FIELD VALUE", by_name[command.DOTTED].doc))
    return "\n".join(lines)


def fields(listed: Iterable[config.Field]) -> str:
    """Settings by their dotted names, with what they may be, what they mean and their defaults."""
    rows = []
    for field in listed:
        default = "" if field.default in ("", None) else f" [{_spelled(field.default)}]"
        rows.append(_row(f"--{field.name} {_value(field) or 'true|false'}", field.doc + default, 34))
    return "\n".join(rows)


def _word(command: type[Command], name: str) -> str:
    field = next(field for field in config.describe(command) if field.name == name)
    many = "..." if "list" in field.type else ""
    return f"{name.upper()}{many}" if field.default is config.REQUIRED else f"[{name.upper()}{many}]"


def _value(field: config.Field) -> str:
    """What stands after a flag: nothing for a switch."""
    kind = field.type.removesuffix(" or nothing")
    names = {"true or false": "", "a whole number": "N", "a number": "X", "text": "TEXT", "a path": "PATH"}
    if kind.startswith("a list"):
        return "N,N" if "whole" in kind else "X,..."
    return names[kind] if kind in names else kind.removeprefix("one of ").replace(", ", "|")


def _spelled(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _paragraphs(text: str) -> list[str]:
    """Text wrapped to the terminal; indented lines, such as commands, are left as they are."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        kept = any(line.startswith(" ") for line in paragraph.splitlines())
        lines += ["", *(paragraph.splitlines() if kept else textwrap.wrap(" ".join(paragraph.split()), _columns()))]
    return lines[1:]


def _row(name: str, text: str, left: int = LEFT) -> str:
    """A name and its text in two columns; a long name has a line of its own."""
    wrapped = textwrap.wrap(text, max(30, _columns() - left)) or [""]
    head = [f"  {name}"] if len(name) > left - 4 else []
    first = " " * left + wrapped[0] if head else f"  {name:<{left - 2}}{wrapped[0]}"
    return "\n".join(line.rstrip() for line in [*head, first, *(" " * left + line for line in wrapped[1:])])


def _columns() -> int:
    return min(110, shutil.get_terminal_size().columns)
