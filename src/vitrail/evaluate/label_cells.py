r"""Which labels a picture has, in one cell: names joined by |, ?name where it is not known, (none) for none of them.

A label that is given as a share is written name=0.25. An empty cell says that nothing is known. The signs \ | = inside
a name, and ? or ( at its beginning, have a \ before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from ..errors import DataError
from .table import digits

NONE = "(none)"
_PIECE = re.compile(r"(?:\\.|[^\\|])*", re.DOTALL)


def escaped(name: str) -> str:
    """A name that cannot be mistaken for anything else in such a cell."""
    safe = re.sub(r"([\\|=])", r"\\\1", name)
    return f"\\{safe}" if safe.startswith(("?", "(")) else safe


def cell_of(targets: Sequence[float], names: Sequence[str]) -> str:
    """The cell of one picture's labels [K], 0..1 or NaN; `names` are escaped already."""
    if all(target != target for target in targets):
        return ""
    words = [
        f"?{name}" if target != target else name if target == 1 else f"{name}={digits(target)}"
        for name, target in zip(names, targets, strict=True)
        if target != 0
    ]
    return "|".join(words) or NONE


def labels_in(cell: str, positions: Mapping[str, int], where: str, column: str = "target") -> Float32[np.ndarray, " K"]:
    """What a cell says of each label.

    Args:
        positions: the place of each escaped name.
        column: what to call it in messages.

    Raises:
        DataError: a name that is no label, or a share that is none.
    """
    if not cell:
        return np.full(len(positions), np.nan, np.float32)
    found = np.zeros(len(positions), np.float32)
    for piece in [] if cell == NONE else _pieces(cell):
        name, _, share = (piece[1:], "", "nan") if piece.startswith("?") else _split(piece)
        if name not in positions:
            raise DataError(
                f"{where}: {column} must hold labels among {', '.join(positions)}, joined by |, or be {NONE}. "
                f"Got {piece!r}."
            )
        found[positions[name]] = _share(share, where)
    return found


def _pieces(cell: str) -> list[str]:
    """The cell cut at every | that has no \\ before it."""
    pieces, start = [], 0
    while True:
        found = _PIECE.match(cell, start)
        assert found is not None
        pieces.append(found[0])
        start = found.end() + 1
        if start > len(cell):
            return pieces


def _split(piece: str) -> tuple[str, str, str]:
    """A name and its share, which is 1 where none is written."""
    found = re.fullmatch(r"((?:\\.|[^\\=])*)=(.*)", piece, re.DOTALL)
    return (found[1], "=", found[2]) if found else (piece, "", "1")


def _share(text: str, where: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if share < 0 or share > 1:
        raise DataError(f"{where}: the share of a label must be a number in 0..1. Got {text!r}.")
    return share
