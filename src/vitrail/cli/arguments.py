"""Argument parsing and help pages: a command's flags are the fields of its frozen dataclass, parsed strictly."""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .. import config
from ..argument_types import union_members
from ..config.library_names import explain_library_name, suggest_name
from ..config.schema import describe_type, get_field_types, read_class_doc
from ..errors import UsageError

COMMAND_LINE = "the command line"
HELP_FLAGS = ("--help", "-h")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """A command: a frozen dataclass whose fields are its flags and whose docstrings are its help."""

    POSITIONAL: ClassVar[tuple[str, ...]] = ()
    """Fields of positional arguments in order; a tuple as the last one takes all that follow."""
    DOTTED: ClassVar[str | None] = None
    """The field that collects `--name.with.dots VALUE` pairs, if the command takes any."""
    SECTIONS: ClassVar[tuple[str, ...]] = ()
    """Sections of the plan that the dotted flags reach; empty for all."""

    debug: bool = False
    """Show tracebacks."""
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @abstractmethod
    def run(self) -> int:
        """Run the command and return the exit code."""


CommandT = TypeVar("CommandT", bound=Command)


@dataclasses.dataclass
class _ParsedWords:
    """The parsed command line, as text."""

    positionals: list[str] = dataclasses.field(default_factory=list)
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    dotted: dict[str, str] = dataclasses.field(default_factory=dict)
    switch_before: dict[str, str] = dataclasses.field(default_factory=dict)
    """Positional argument -> the switch right before it."""


def parse_command(command: type[CommandT], line: Sequence[str]) -> CommandT:
    """Parse the arguments of a command.

    Raises:
        UsageError: an unknown flag (with a suggestion), a flag without its value or given twice, a value of the wrong
            type, a missing or superfluous argument.
    """
    words = _split_words(command, list(line))
    kinds = get_field_types(command)
    values: dict[str, Any] = _assign_positionals(command, kinds, words)
    values |= {name: text for name, text in words.flags.items() if _is_text(kinds[name])}
    if command.DOTTED is not None:
        values[command.DOTTED] = [[name, text] for name, text in words.dotted.items()]
    parsed = config.read(command, values, COMMAND_LINE)
    for name, text in words.flags.items():
        parsed = parsed if name in values else _set_flag_value(parsed, name, text, kinds[name])
    return parsed


def flag_names(command: type[Command]) -> dict[str, str]:
    """Flag -> field of a command, in source order, --debug last; --for and --class are the fields for_ and class_."""
    hidden = (*command.POSITIONAL, command.DOTTED, "debug")
    names = [field.name for field in dataclasses.fields(command) if field.name not in hidden]
    return {to_flag(name): name for name in (*names, "debug")}


def to_flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.rstrip("_").replace("_", "-")


def _split_words(command: type[Command], line: list[str]) -> _ParsedWords:
    """Split a line into flags with their values and positional arguments; after `--` all are positional."""
    words, flags, kinds, switch = _ParsedWords(), flag_names(command), get_field_types(command), ""
    while line:
        word = line.pop(0)
        if word == "--":
            words.positionals += line
            break
        if not word.startswith("-") or word == "-":
            words.positionals.append(word)
            words.switch_before |= {word: switch} if switch else {}
            switch = ""
            continue
        flag, equals, value = word.partition("=")
        dotted = command.DOTTED is not None and flag.startswith("--") and "." in flag
        if not dotted and flag not in flags:
            raise UsageError(_unknown_flag_message(flag, flags, command))
        name = flag[2:].replace("-", "_") if dotted else flags[flag]
        target = words.dotted if dotted else words.flags
        if name in target:
            raise UsageError(f"{flag} is given twice. Give it once.")
        switch = flag if not equals and not dotted and kinds[name] is bool else ""
        if switch:
            value = "true"
        elif not equals:
            if not line or line[0].startswith("--"):
                raise UsageError(f"{flag} needs a value after it.")
            value = line.pop(0)
        target[name] = value
    return words


def _unknown_flag_message(flag: str, flags: Mapping[str, str], command: type[Command]) -> str:
    """What an unknown flag is called here: by another library's word, by its own name in a section, by its spelling."""
    name, plan_flags = flag.lstrip("-").replace("-", "_"), _plan_flags(command)
    words = {field: field.upper() for field in command.POSITIONAL}
    own = {field: one for one, field in flags.items()}
    lasts = {field.rpartition(".")[2]: one for field, one in reversed(plan_flags.items())} | own
    everything = ", ".join([*flags, HELP_FLAGS[0]])
    if name in words:
        hint = f" It is {words[name]}, which is given without a flag."
    elif name in lasts:
        hint = f" Did you mean {lasts[name]}?"
    elif hint := explain_library_name(name, plan_flags | own | words):
        hint += " It is given without a flag." * any(f" {word} " in hint for word in words.values())
    elif near := suggest_name(name, lasts).removeprefix(" Did you mean ").removesuffix("?"):
        hint = f" Did you mean {lasts[near]}?"
    return f"There is no flag {flag} here.{hint or f' Its flags: {everything}.'}"


def _plan_flags(command: type[Command]) -> dict[str, str]:
    """Field of the plan -> its flag, such as --recipe.batch_size; the section [recipe] first."""
    if command.DOTTED is None:
        return {}
    from ..train.plan import Plan  # for messages only: start-up stays fast (tests/end_to_end/test_help_time.py)

    names = sorted((field.name for field in config.describe(Plan)), key=lambda name: not name.startswith("recipe."))
    sections = command.SECTIONS or tuple(get_field_types(Plan))
    return {name: f"--{name}" for name in names if "." in name and name.partition(".")[0] in sections}


def _no_value_message(flag: str, command: type[Command]) -> str:
    """Error message for a value after a switch, with the plan's fields of that name."""
    fields = [own for own in _plan_flags(command).values() if own.startswith(f"{flag}.")]
    own = f"; what belongs to it is {', '.join(fields)}" if fields else ""
    return f" {flag} takes no value{own}."


def _set_flag_value(command: CommandT, name: str, text: str, kind: Any) -> CommandT:
    """The command with a flag's value parsed from text."""
    try:
        return config.override(command, {name: text})
    except UsageError as error:
        allowed = " or ".join(describe_type(member) for member in union_members(kind) if member is not type(None))
        allowed += next((limit for limit in (config.BELOW_MAX_NUMBER, config.FINITE) if limit in str(error)), "")
        raise UsageError(f"{to_flag(name)} must be {allowed}. Got {text!r}.") from error


def _assign_positionals(command: type[Command], kinds: Mapping[str, Any], words: _ParsedWords) -> dict[str, Any]:
    """Assign positional arguments to fields."""
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
    """Whether a type takes text unchanged; other types are parsed."""
    return any(member in (str, Path) for member in union_members(kind))


# -- Help pages, from the docstrings of commands and fields.

NAME_COLUMN_WIDTH = 26


def format_overview(commands: Mapping[str, type[Command]]) -> str:
    """All commands, one line each."""
    lines = ["Vitrail: the best plain Vision Transformer for your pictures.", "", "usage: vitrail VERB ...", ""]
    lines += [_format_row(verb, read_class_doc(command).partition("\n")[0], 12) for verb, command in commands.items()]
    lines += ["", "vitrail VERB --help tells more of one, vitrail --version which Vitrail this is."]
    lines.append("A first run: vitrail train digits --minutes 1")
    return "\n".join(lines)


def format_help_page(verb: str, command: type[Command]) -> str:
    """The help page of a command: usage, description with examples, arguments and flags."""
    by_name = {field.name: field for field in config.describe(command)}
    flags = flag_names(command)
    usage = " ".join(_format_positional(command, name) for name in command.POSITIONAL)
    lines = [f"usage: vitrail {verb} {usage} [flags]", "", *_wrap_paragraphs(read_class_doc(command)), ""]
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
    """Settings by their dotted names, with allowed values, meaning and default."""
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
    """Placeholder for a flag's value; empty for a switch."""
    kind = field.type.removesuffix(" or nothing")
    names = {"true or false": "", "a whole number": "N", "a number": "X", "text": "TEXT", "a path": "PATH"}
    if kind.startswith("a list"):
        return "N,N" if "whole" in kind else "X,..."
    return names[kind] if kind in names else kind.removeprefix("one of ").replace(", ", "|")


def _format_default(value: Any) -> str:
    """A value as written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrap_paragraphs(text: str) -> list[str]:
    """Wrap text to the terminal's width; paragraphs with indented lines, such as examples, are unchanged."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        kept = any(line.startswith(" ") for line in paragraph.splitlines())
        lines += [
            "",
            *(paragraph.splitlines() if kept else textwrap.wrap(" ".join(paragraph.split()), _terminal_width())),
        ]
    return lines[1:]


def _format_row(name: str, text: str, left: int = NAME_COLUMN_WIDTH) -> str:
    """A name and its text in two columns; a long name gets its own line."""
    wrapped = textwrap.wrap(text, max(30, _terminal_width() - left)) or [""]
    head = [f"  {name}"] if len(name) > left - 4 else []
    first = " " * left + wrapped[0] if head else f"  {name:<{left - 2}}{wrapped[0]}"
    return "\n".join(line.rstrip() for line in [*head, first, *(" " * left + line for line in wrapped[1:])])


def _terminal_width() -> int:
    return min(110, shutil.get_terminal_size().columns)


# -- Output: tables for people, JSON for programs.


def print_json(value: Any) -> None:
    """Print one JSON value, indented; NaN and infinity raise ValueError."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns to their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
