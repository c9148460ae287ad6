"""From words to a command: its flags are the fields of one frozen dataclass, read as strictly as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .. import config
from ..config.schema import describe_type, get_field_types, union_members
from ..errors import UsageError

WHERE = "the command line"
HELP = ("--help", "-h")


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


Verb = TypeVar("Verb", bound=Command)


@dataclasses.dataclass
class _Found:
    """What was on the command line, as text."""

    free: list[str] = dataclasses.field(default_factory=list)
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    dotted: dict[str, str] = dataclasses.field(default_factory=dict)
    behind: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of free words right behind a flag without a value: which flag that is."""


def parse(command: type[Verb], line: Sequence[str]) -> Verb:
    """The command that the words of a line spell.

    Raises:
        UsageError: an unknown flag (with the nearest one), a flag without its value or given twice, a value of the
            wrong kind, a missing or superfluous word.
    """
    found = _sort(command, list(line))
    kinds = get_field_types(command)
    values: dict[str, Any] = _free(command, kinds, found)
    values |= {name: text for name, text in found.flags.items() if _is_text(kinds[name])}
    if command.DOTTED is not None:
        values[command.DOTTED] = [[name, text] for name, text in found.dotted.items()]
    asked = config.read(command, values, WHERE)
    for name, text in found.flags.items():
        asked = asked if name in values else _spelled(asked, name, text, kinds[name])
    return asked


def flag_names(command: type[Command]) -> dict[str, str]:
    """Every flag of a command and the field that it fills, in written order; --for and --class fill for_ and class_."""
    hidden = (*command.POSITIONAL, command.DOTTED)
    fields = [field.name for field in dataclasses.fields(command) if field.name not in hidden]
    return {_flag(name): name for name in fields}


def _flag(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def _sort(command: type[Command], line: list[str]) -> _Found:
    """Which words are flags, which are their values, which stand free; after `--` all stand free."""
    found, flags, kinds, alone = _Found(), flag_names(command), get_field_types(command), ""
    while line:
        word = line.pop(0)
        if word == "--":
            found.free += line
            break
        if not word.startswith("-") or word == "-":
            found.free.append(word)
            found.behind |= {word: alone} if alone else {}
            alone = ""
            continue
        flag, equals, value = word.partition("=")
        dotted = command.DOTTED is not None and flag.startswith("--") and "." in flag
        if not dotted and flag not in flags:
            raise UsageError(_unknown(flag, flags, command))
        name = flag[2:].replace("-", "_") if dotted else flags[flag]
        into = found.dotted if dotted else found.flags
        if name in into:
            raise UsageError(f"{flag} is given twice. Give it once.")
        alone = flag if not equals and not dotted and kinds[name] is bool else ""
        if not equals:
            value = "true" if alone else _next(flag, line)
        into[name] = value
    return found


def _next(flag: str, line: list[str]) -> str:
    if not line or line[0].startswith("--"):
        raise UsageError(f"{flag} needs a value after it.")
    return line.pop(0)


def _unknown(flag: str, flags: Mapping[str, str], command: type[Command]) -> str:
    known = [*flags, HELP[0]]
    near = difflib.get_close_matches(flag, known, n=1)
    if command.DOTTED is not None and not near:
        near = _plan_fields(flag[2:].replace("-", "_"))
    hint = f"Did you mean {near[0]}?" if near else f"Its flags: {', '.join(known)}."
    return f"There is no flag {flag} here. {hint}"


def _valueless(flag: str, command: type[Command]) -> str:
    """That a flag takes no value, and which fields of the plan do that belong to it."""
    from ..train.plan import Plan

    section = f"{flag[2:].replace('-', '_')}."
    fields = [f"--{one.name}" for one in config.describe(Plan) if one.name.startswith(section)]
    own = f"; what belongs to it is {', '.join(fields)}" if fields and command.DOTTED is not None else ""
    return f" {flag} takes no value{own}."


def _plan_fields(name: str) -> list[str]:
    """Flags of the plan's fields whose last word is this name, --recipe.batch for --batch; the training's own first."""
    from ..train.plan import Plan

    found = [field.name for field in config.describe(Plan) if field.name.endswith(f".{name}")]
    return [f"--{each}" for each in sorted(found, key=lambda each: not each.startswith("recipe."))]


def _spelled(asked: Verb, name: str, text: str, kind: Any) -> Verb:
    """The command with the value that a flag's text spells."""
    try:
        return config.override(asked, {name: text})
    except UsageError as error:
        allowed = " or ".join(describe_type(member) for member in union_members(kind) if member is not type(None))
        raise UsageError(f"{_flag(name)} must be {allowed}. Got {text!r}.") from error


def _free(command: type[Command], kinds: Mapping[str, Any], found: _Found) -> dict[str, Any]:
    """Words without a flag, to the fields that want them."""
    values: dict[str, Any] = {}
    free = found.free
    for name in command.POSITIONAL:
        if not _is_text(kinds[name]):
            values[name], free = free, []
        elif free:
            values[name], free = free[0], free[1:]
        elif _required(command, name):
            raise UsageError(f"{name.upper()} is missing. See vitrail {command.__name__.lower()} --help.")
    if free:
        takes = " ".join(name.upper() for name in command.POSITIONAL) or "no words without a flag"
        hint = _valueless(found.behind[free[0]], command) if free[0] in found.behind else ""
        raise UsageError(f"{free[0]!r} is one word too many. {command.__name__} takes {takes}.{hint}")
    return values


def _required(command: type[Command], name: str) -> bool:
    field = command.__dataclass_fields__[name]
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_text(kind: Any) -> bool:
    """Text and paths are taken as they stand; everything else is spelled."""
    return any(member in (str, Path) for member in union_members(kind))
