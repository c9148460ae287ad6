"""An appendix for papers on medical pictures: the checklist CLAIM, answered from what a run has stored.

`claim.md` is written anew each time. What only the authors know stands in `claim.toml` beside it, which is begun with
the open questions and never overwritten; what is written there comes after the run's own answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import DamagedFileError
from ..files import atomic
from .claim_answers import answers
from .claim_items import ITEMS, Item

PAGE, OWN = "claim.md", "claim.toml"
HEAD = """# What this run does not know, for {page}: an answer in quotes to each number; three quotes for several lines.
# Empty ones stay questions there. Write it again with: vitrail report RUN --claim
"""


class Appendix(NamedTuple):
    """What was written."""

    page: Path
    known: int
    """Items that the run answers."""
    told: int
    """Items that claim.toml answers, or adds something to."""
    open: int
    """Items that are nothing but a question."""


def build(folder: Path) -> Appendix:
    """Write claim.md of a run folder, and claim.toml if there is none.

    Raises:
        UsageError: it is no run folder with a report.
        DamagedFileError: claim.toml is not what it should be.
    """
    known, own = answers(folder), _own(folder)
    rows = [_row(item, known.get(item.number, ""), own.get(item.number, "")) for item in ITEMS]
    unanswered = [item for item in ITEMS if item.number not in known and item.number not in own]
    counts = (
        f"Of {len(ITEMS)} items {len(known)} are answered from the files of the run and {len(own)} by its authors "
        f"({OWN}); {len(unanswered)} are open. *Open* marks what authors have to add."
    )
    lines = ["# CLAIM: the checklist for artificial intelligence in medical imaging", "", counts]
    for place, item in enumerate(ITEMS):
        if not place or item.part != ITEMS[place - 1].part:
            lines += ["", f"## {item.part}", "", "| | item | answer |", "|---:|---|---|"]
        lines.append(rows[place])
    atomic.write_text(folder / PAGE, "\n".join(lines) + "\n")
    if not (folder / OWN).exists():
        questions = "".join(f'{item.number} = ""  # {item.topic}: {item.question}\n' for item in ITEMS if item.question)
        atomic.write_text(folder / OWN, HEAD.format(page=PAGE) + questions)
    return Appendix(folder / PAGE, len(known), len(own), len(unanswered))


def _own(folder: Path) -> Mapping[int, str]:
    """What the authors have written, by number; empty answers are none."""
    path = folder / OWN
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f'{path} must be TOML, such as 5 = "Retrospective.". {error}.') from error
    numbers = {str(item.number) for item in ITEMS}
    if odd := [name for name, text in found.items() if name not in numbers or not isinstance(text, str)]:
        raise DamagedFileError(
            f"{path} must hold numbers of items, 1 to {len(ITEMS)}, each with text in quotes. Got {odd[0]} = "
            f"{found[odd[0]]!r}."
        )
    return {int(name): " ".join(text.split()) for name, text in found.items() if text.strip()}


def _row(item: Item, known: str, own: str) -> str:
    """The run's answer, then the authors', or what they are asked."""
    asked = f"*Open*: {item.question}" if item.question and not own else ""
    cell = " ".join(text for text in (known, own, asked) if text).replace("|", "\\|")
    return f"| {item.number} | {item.topic} | {cell} |"
