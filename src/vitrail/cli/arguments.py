"""From words to a command: its flags are the fields of one frozen dataclass, read as strictly as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import shutil
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .. import config
from ..config.schema import describe_type, get_field_types, union_members
from ..errors import UsageError

COMMAND_LINE = "the command line"
HELP_FLAGS = ("--help", "-h")


class Command(ABC):
    """A verb: a frozen dataclass whose fields are its flags and whose docstring is its help.

    `POSITIONAL` names the fields that are given without a flag, in order; a last one of kind tuple takes all that
    follow. `DOTTED` names the field that collects `--name.with.dots VALUE` pairs, or is None.
    """

    POSITIONAL: ClassVar[tuple[str, ...]]
    DOTTED: ClassVar[str | None]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @abstractmethod
    def run(self) -> int:
        """Do it, and give the exit code."""


CommandT = TypeVar("CommandT", bound=Command)


@dataclasses.dataclass
class _ParsedWords:
    """What was on the command line, as text."""

    positionals: list[str] = dataclasses.field(default_factory=list)
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    dotted: dict[str, str] = dataclasses.field(default_factory=dict)
    switch_before: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of free words right behind a flag without a value: which flag that is."""


def parse_command(command: type[CommandT], line: Sequence[str]) -> CommandT:
    """The command that the words of a line spell.

    Raises:
        UsageError: an unknown flag (with the nearest one), a flag without its value or given twice, a value of the
            wrong kind, a missing or superfluous word.
    """
    found = _split_words(command, list(line))
    kinds = get_field_types(command)
    values: dict[str, Any] = _assign_positionals(command, kinds, found)
    values |= {name: text for name, text in found.flags.items() if _is_text(kinds[name])}
    if command.DOTTED is not None:
        values[command.DOTTED] = [[name, text] for name, text in found.dotted.items()]
    asked = config.read(command, values, COMMAND_LINE)
    for name, text in found.flags.items():
        asked = asked if name in values else _set_flag_value(asked, name, text, kinds[name])
    return asked


def flag_names(command: type[Command]) -> dict[str, str]:
    """Every flag of a command and the field that it fills, in written order; --for and --class fill for_ and class_."""
    hidden = (*command.POSITIONAL, command.DOTTED)
    fields = [field.name for field in dataclasses.fields(command) if field.name not in hidden]
    return {_to_flag(name): name for name in fields}


def _to_flag(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def _split_words(command: type[Command], line: list[str]) -> _ParsedWords:
    """Which words are flags, which are their values, which stand free; after `--` all stand free."""
    found, flags, kinds, alone = _ParsedWords(), flag_names(command), get_field_types(command), ""
    while line:
        word = line.pop(0)
        if word == "--":
            found.positionals += line
            break
        if not word.startswith("-") or word == "-":
            found.positionals.append(word)
            found.switch_before |= {word: alone} if alone else {}
            alone = ""
            continue
        flag, equals, value = word.partition("=")
        dotted = command.DOTTED is not None and flag.startswith("--") and "." in flag
        if not dotted and flag not in flags:
            raise UsageError(_unknown_flag_message(flag, flags, command))
        name = flag[2:].replace("-", "_") if dotted else flags[flag]
        into = found.dotted if dotted else found.flags
        if name in into:
            raise UsageError(f"{flag} is given twice. Give it once.")
        alone = flag if not equals and not dotted and kinds[name] is bool else ""
        if not equals:
            value = "true" if alone else _take_value(flag, line)
        into[name] = value
    return found


def _take_value(flag: str, line: list[str]) -> str:
    if not line or line[0].startswith("--"):
        raise UsageError(f"{flag} needs a value after it.")
    return line.pop(0)


def _unknown_flag_message(flag: str, flags: Mapping[str, str], command: type[Command]) -> str:
    known = [*flags, HELP_FLAGS[0]]
    near = difflib.get_close_matches(flag, known, n=1)
    if command.DOTTED is not None and not near:
        near = _suggest_plan_flags(flag[2:].replace("-", "_"))
    hint = f"Did you mean {near[0]}?" if near else f"Its flags: {', '.join(known)}."
    return f"There is no flag {flag} here. {hint}"


def _no_value_message(flag: str, command: type[Command]) -> str:
    """That a flag takes no value, and which fields of the plan do that belong to it."""
    from ..train.plan import Plan

    section = f"{flag[2:].replace('-', '_')}."
    fields = [f"--{one.name}" for one in config.describe(Plan) if one.name.startswith(section)]
    own = f"; what belongs to it is {', '.join(fields)}" if fields and command.DOTTED is not None else ""
    return f" {flag} takes no value{own}."


def _suggest_plan_flags(name: str) -> list[str]:
    """Flags of the plan's fields whose last word is this name, --recipe.batch_size for --batch; the training's own
    first.
    """
    from ..train.plan import Plan

    found = [field.name for field in config.describe(Plan) if field.name.endswith(f".{name}")]
    return [f"--{each}" for each in sorted(found, key=lambda each: not each.startswith("recipe."))]


def _set_flag_value(command: CommandT, name: str, text: str, kind: Any) -> CommandT:
    """The command with the value that a flag's text spells."""
    try:
        return config.override(command, {name: text})
    except UsageError as error:
        allowed = " or ".join(describe_type(member) for member in union_members(kind) if member is not type(None))
        raise UsageError(f"{_to_flag(name)} must be {allowed}. Got {text!r}.") from error


def _assign_positionals(command: type[Command], kinds: Mapping[str, Any], words: _ParsedWords) -> dict[str, Any]:
    """Words without a flag, to the fields that want them."""
    values: dict[str, Any] = {}
    free = words.positionals
    for name in command.POSITIONAL:
        if not _is_text(kinds[name]):
            values[name], free = free, []
        elif free:
            values[name], free = free[0], free[1:]
        elif _is_required(command, name):
            raise UsageError(f"{name.upper()} is missing. See vitrail {command.__name__.lower()} --help.")
    if free:
        takes = " ".join(name.upper() for name in command.POSITIONAL) or "no words without a flag"
        hint = _no_value_message(words.switch_before[free[0]], command) if free[0] in words.switch_before else ""
        raise UsageError(f"{free[0]!r} is one word too many. {command.__name__} takes {takes}.{hint}")
    return values


def _is_required(command: type[Command], name: str) -> bool:
    field = command.__dataclass_fields__[name]
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_text(kind: Any) -> bool:
    """Text and paths are taken as they stand; everything else is spelled."""
    return any(member in (str, Path) for member in union_members(kind))


# Help pages: drawn from the docstrings of the commands and of their fields, in well under a third of a second.

NAME_COLUMN_WIDTH = 26
"""Columns for the names."""


def format_overview(commands: Mapping[str, type[Command]]) -> str:
    """All verbs, one line each."""
    lines = ["Vitrail: the best plain Vision Transformer for your pictures.", "", "usage: vitrail VERB ...", ""]
    lines += [
        _format_row(verb, (inspect.getdoc(command) or "").partition("\n")[0], 12) for verb, command in commands.items()
    ]
    lines += ["", "vitrail VERB --help tells more of one. A first run: vitrail train digits --minutes 1"]
    return "\n".join(lines)


def format_help_page(verb: str, command: type[Command]) -> str:
    """One verb: its words, its flags, its examples."""
    by_name = {field.name: field for field in config.describe(command)}
    flags = flag_names(command)
    usage = " ".join(_format_positional(command, name) for name in command.POSITIONAL)
    lines = [f"usage: vitrail {verb} {usage} [flags]", "", *_wrap_paragraphs(inspect.getdoc(command) or ""), ""]
    lines += [_format_row(name.upper(), by_name[name].doc) for name in command.POSITIONAL]
    lines += [""] if command.POSITIONAL else []
    for flag, name in flags.items():
        value, given = _format_value_placeholder(by_name[name]), by_name[name].default
        default = f" [{_format_default(given)}]" if given else ""
        lines.append(_format_row(f"{flag} {value}".rstrip(), by_name[name].doc + default))
    if command.DOTTED is not None:
        lines.append(_format_row("--NAME.OF.FIELD VALUE", by_name[command.DOTTED].doc))
    return "\n".join(lines)


def format_fields(listed: Iterable[config.Field]) -> str:
    """Settings by their dotted names, with what they may be, what they mean and their defaults."""
    rows = []
    for field in listed:
        default = "" if field.default in ("", None) else f" [{_format_default(field.default)}]"
        rows.append(
            _format_row(f"--{field.name} {_format_value_placeholder(field) or 'true|false'}", field.doc + default, 34)
        )
    return "\n".join(rows)


def _format_positional(command: type[Command], name: str) -> str:
    field = next(field for field in config.describe(command) if field.name == name)
    many = "..." if "list" in field.type else ""
    return f"{name.upper()}{many}" if field.default is config.REQUIRED else f"[{name.upper()}{many}]"


def _format_value_placeholder(field: config.Field) -> str:
    """What stands after a flag: nothing for a switch."""
    kind = field.type.removesuffix(" or nothing")
    names = {"true or false": "", "a whole number": "N", "a number": "X", "text": "TEXT", "a path": "PATH"}
    if kind.startswith("a list"):
        return "N,N" if "whole" in kind else "X,..."
    return names[kind] if kind in names else kind.removeprefix("one of ").replace(", ", "|")


def _format_default(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrap_paragraphs(text: str) -> list[str]:
    """Text wrapped to the terminal; indented lines, such as commands, are left as they are."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        kept = any(line.startswith(" ") for line in paragraph.splitlines())
        lines += [
            "",
            *(paragraph.splitlines() if kept else textwrap.wrap(" ".join(paragraph.split()), _terminal_width())),
        ]
    return lines[1:]


def _format_row(name: str, text: str, left: int = NAME_COLUMN_WIDTH) -> str:
    """A name and its text in two columns; a long name has a line of its own."""
    wrapped = textwrap.wrap(text, max(30, _terminal_width() - left)) or [""]
    head = [f"  {name}"] if len(name) > left - 4 else []
    first = " " * left + wrapped[0] if head else f"  {name:<{left - 2}}{wrapped[0]}"
    return "\n".join(line.rstrip() for line in [*head, first, *(" " * left + line for line in wrapped[1:])])


def _terminal_width() -> int:
    return min(110, shutil.get_terminal_size().columns)


# Answers on standard output: text for people, JSON for machines.


def print_json(value: Any) -> None:
    """One JSON value, indented; NaN and infinity are refused, because JSON has no word for them."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
