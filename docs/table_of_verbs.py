"""Write every verb with its words and flags into docs/verbs.md, from what `vitrail VERB --help` reads too."""

from __future__ import annotations

import inspect
from pathlib import Path

from markers import fill

from vitrail.cli.arguments import Command, flag_names
from vitrail.cli.main import COMMANDS
from vitrail.config.schema import REQUIRED, Field, describe

PAGE = Path(__file__).parent / "verbs.md"


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "verbs", table())


def table() -> str:
    """One section a verb, in the order of `vitrail --help`."""
    return "\n\n".join(section(verb, command) for verb, command in COMMANDS.items())


def section(verb: str, command: type[Command]) -> str:
    """What the verb does, examples, and its flags as a table."""
    fields = {field.name: field for field in describe(command)}
    named = [_row(name.upper(), fields[name]) for name in command.POSITIONAL]
    named += [_row(flag, fields[name]) for flag, name in flag_names(command).items()]
    if command.DOTTED is not None:
        named.append(_row("--NAME.OF.FIELD", fields[command.DOTTED]))
    head = ["| flag | takes | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {verb}", *describe_verb(command), "", *head, *named])


def describe_verb(command: type[Command]) -> list[str]:
    """A verb's docstring: paragraphs as they are, indented examples as a block."""
    lines: list[str] = []
    for paragraph in (inspect.getdoc(command) or "").split("\n\n"):
        rows = paragraph.splitlines()
        examples = all(row.startswith("  ") for row in rows)
        lines += ["", *(["```", *(row.strip() for row in rows), "```"] if examples else [_plain(" ".join(rows))])]
    return lines[1:]


def _row(flag: str, field: Field) -> str:
    kind = "" if field.type == "true or false" else field.type.removesuffix(" or nothing")
    cells = (f"`{flag}`", "any of its kind" if flag == "--NAME.OF.FIELD" else kind, _default(field), _plain(field.doc))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: Field) -> str:
    """Nothing where the meaning tells what happens without the flag."""
    if field.default is REQUIRED or field.default is None or field.default is False or field.default in ("", ()):
        return ""
    value = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
    return f"`{value.lower() if isinstance(field.default, bool) else value}`"


def _plain(text: str) -> str:
    """What Markdown would take for something else stays what it is."""
    for sign in ("<", "*"):
        text = text.replace(sign, chr(92) + sign)
    return text


if __name__ == "__main__":
    main()
