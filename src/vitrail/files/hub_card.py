"""The card of a model on the Hub, README.md: ours is sealed, so that one that a person has edited is known and kept."""

from __future__ import annotations

import hashlib
import re

SEAL = re.compile(r"\n<!-- Written by Vitrail, ([0-9a-f]{64}): [^\n]*-->\n?\Z")
FRONT = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^([\w-]+):.*\n(?:[ \t-].*\n)*", re.MULTILINE)
"""One line of the head, with the lines that belong to it."""


def sealed(card: str) -> str:
    """The card with a last line, which no reader sees, that says what it was when it was written."""
    text = _unsealed(card)
    told = "edit this card as you like, later pushes keep what you wrote."
    return f"{text}\n<!-- Written by Vitrail, {_digest(text)}: {told} -->\n"


def as_written(card: str) -> bool:
    """Whether a card is ours, and nobody has changed a word of it."""
    text = card.replace("\r\n", "\n")
    seal = SEAL.search(text)
    return seal is not None and seal[1] == _digest(_unsealed(text))


def merged(ours: str, theirs: str) -> str:
    """The card that the Hub shall show where it shows `theirs` already: ours, or theirs if a person wrote it.

    Of a card that is a head alone, as the Hub's own form for a new model makes it, the fields that ours lacks are
    taken over, such as the licence.
    """
    text = theirs.replace("\r\n", "\n")
    if as_written(text) or not text.strip():
        return ours
    head = FRONT.match(text)
    if text[head.end() if head else 0 :].strip():
        return theirs
    known = FRONT.match(ours)
    assert head is not None and known is not None
    said = {field[1] for field in FIELD.finditer(known[1])}
    more = [field[0] for field in FIELD.finditer(head[1]) if field[1] not in said]
    return sealed(f"---\n{known[1]}{''.join(more)}---\n{ours[known.end() :]}")


def states_licence(card: str) -> bool:
    """Whether the head of a card names a licence."""
    head = FRONT.match(card.replace("\r\n", "\n"))
    return head is not None and any(field[1] == "license" for field in FIELD.finditer(head[1]))


def _unsealed(card: str) -> str:
    return SEAL.sub("", card)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
