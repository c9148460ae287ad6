"""Messages for a caller in Python: a flag of the command line becomes the argument that has its meaning there.

Sentences are written once, with flags: many of them are also stored in plans, findings and reports, which must not
depend on the interface. This file alone knows how they are spelled in Python.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import partial

ARGUMENTS = (
    "abstain|against|alarms|alpha|at|band|by|calibrate|case|channels-policy|channels|class|data-root|date|device|"
    "epochs|estimate|exclude|folds|forget|group|heads|image-size|into|keep|labels|layer|layout|match|minutes|model|"
    "network|normal-until|outputs|out|pool|positive|precision|prevalence|rule|runtime|seed|since|split|steps|task|"
    "test|to|trials|use|val|weights"
)
"""Flags that are an argument of a public function, with a value."""
BY_NAME = ("at", "prevalence")
"""Arguments that are a number for each name, NAME=NUMBER behind their flags."""
SWITCHES = "dry-run|fetch|force|pretrain|private|prove|resize|sets|skip-bad"
"""Flags that are an argument of a public function, without one."""
PLACEHOLDERS = "COLUMN|DIR|FILE|FOLDER|IMAGES|LABELS|N|NAME|NUMBER|PICTURES|RULE|RUN|SOURCE"
"""Words that stand for a value of the reader's."""
NO_VALUES = (
    "a|above|after|alone|already|and|another|are|as|asks|at|before|begins|below|beside|brings|by|can|cannot|each|"
    "else|for|from|has|have|holds|in|is|it|keeps|leaves|makes|must|names|needs|no|not|of|on|or|others|out|reads|says|"
    "shows|so|takes|than|that|the|to|trains|uses|was|were|what|when|where|which|with|without|would|writes"
)
"""Words behind a flag that go on with the sentence."""
OF_DATA = "data_root|exclude|folds|group|skip_bad|task"
"""Fields of [data] that are arguments of `vitrail.fit`."""
COMMAND_LINE = "the command line: "
"""Beginning of a message about a setting in a flag."""

_WORD = r"""(?:'(?:[^']|'\\'')*'|"[^"]*"|(?!-)[^\s;()`]*[^\s,;:().`])"""
_VALUE = rf"(?: (?!(?:{NO_VALUES})(?:[\s,;:)]|\.?$|\.\s))(?P<value>{_WORD}))?"
_FLAG = re.compile(
    r"(?P<shell>vitrail [a-z]+(?: (?:--[\w.-]+|[A-Z][\w./=,-]*))+)"  # has no counterpart: stays a command
    r"|(?P<source>\bSOURCE\b)"
    rf"|--(?:(?P<switch>{SWITCHES})(?!\.[a-z])|(?P<section>[a-z]+)\.(?P<field>[\w-]+|\*){_VALUE}"
    rf"|(?P<argument>{ARGUMENTS}){_VALUE.replace('value', 'given')})(?![\w-])"
)
_COMMANDS = tuple(
    (re.compile(pattern), call)
    for pattern, call in (
        (
            rf"vitrail train --resume ({_WORD}) --([\w.]+) ({_WORD})",
            "{1} = {2} in plan.toml, and vitrail.open({0}).resume()",
        ),
        (rf"vitrail tune --resume ({_WORD})", "vitrail.tune(source, out={}, resume=True)"),
        (rf"vitrail decide ({_WORD}) --rule ({_WORD}) --keep ({_WORD})", "vitrail.open({}).decide(rule={}, keep={})"),
        (rf"vitrail decide ({_WORD}) --rule ({_WORD})", "vitrail.open({}).decide(rule={})"),
        (
            rf"vitrail decide ({_WORD}) --alpha ({_WORD}) --keep ({_WORD}) --use ({_WORD})",
            "vitrail.open({}).decide(alpha={}, keep={}, use={})",
        ),
        (rf"vitrail decide ({_WORD}) --use ({_WORD})", "vitrail.open({}).decide(use={})"),
        (rf"vitrail teach ({_WORD}) --forget ({_WORD})", "vitrail.open({}).teach(forget={})"),
        (rf"(?:vitrail train )?--resume ({_WORD})", "vitrail.open({}).resume()"),
        (rf"vitrail train ({_WORD}) --weights ({_WORD})", "vitrail.fit({}, weights={})"),
        (rf"vitrail embed ({_WORD}) ({_WORD}) --to {_WORD}", "vitrail.open({}).embed({})"),
        (rf"vitrail export ({_WORD}) --to ({_WORD})", "vitrail.open({}).export({})"),
        (r"vitrail inspect --allow-nonfinite", "vitrail.load(..., allow_nonfinite=True)"),
        (r"--resume\b", "resume()"),
        (r"--extend\b", "extend()"),
        (r"--plan\b", "vitrail.fit"),
    )
)


def to_python(message: str) -> str:
    """The message with arguments instead of flags, and calls instead of commands; flags of other programs stay.

    `--group case` becomes `group="case"`, `--data.split none` becomes `settings={"data.split": "none"}`.
    """
    for pattern, call in _COMMANDS:
        message = pattern.sub(partial(_spell_command, call), message)
    message = _FLAG.sub(_spell_flag, message).replace("} settings={", ", ")
    return re.sub(rf"{COMMAND_LINE}data\.(?=(?:{OF_DATA})\b)", "", message).replace(COMMAND_LINE, "settings: ")


def _spell_command(call: str, found: re.Match[str]) -> str:
    """The call with the words of a command as its arguments."""
    return call.format(*map(_to_literal, found.groups()))


def _spell_flag(found: re.Match[str]) -> str:
    """One flag, with its value if it has one."""
    if found["shell"]:
        return found[0]
    if found["source"]:
        return "source"
    if found["switch"]:
        return f"{_to_identifier(found['switch'])}=True"
    if found["argument"]:
        name, given = _to_identifier(found["argument"]), found["given"] or ""
        if name in BY_NAME and (pair := re.fullmatch(r"(.+)=([\d.]+)", given)):
            return f"{name}={{{_to_literal(pair[1])}: {pair[2]}}}"
        return f"{'target' if name == 'class' else name}={_to_literal(given)}"
    value = f" {found['value']}" if found["value"] else ""
    if found["field"] == "*":
        return f'the settings of "{found["section"]}"{value}'
    field = f"{found['section']}.{_to_identifier(found['field'])}"
    return f'settings={{"{field}": {_to_literal(found["value"] or "...")}}}'


def _to_identifier(flag: str) -> str:
    return flag.replace("-", "_")


def _to_literal(word: str) -> str:
    """A word of a shell as a Python literal; placeholders, "..." and "" stay."""
    text = shlex.split(word)[0] if word[:1] in ("'", '"') else word
    if text in ("", "...", *PLACEHOLDERS.split("|")) or re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", text):
        return text
    return text.capitalize() if text in ("true", "false") else json.dumps(text, ensure_ascii=False)
