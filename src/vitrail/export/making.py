"""One exported file: captured, written beside its place, opened again, compared with the run, and only then kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ..errors import UsageError
from ..files.draft import draft, keep
from ..predict.member import Member
from . import package
from .answering import Answering
from .capturing import capture
from .facts import facts_of
from .package import Package
from .proving import Proof, prepared, prove, prove_resizing

Kind = Literal["pt2"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def make(
    member: Member, kind: Kind, out: Path, decoded: Sequence[np.ndarray], resize: bool = False
) -> tuple[Proof, Proof | None]:
    """Write a model as one file that answers as it does in float32.

    Args:
        decoded: pictures as `data.decode` gives them, on which the file is compared with the model; at least one.
        resize: let the file take pictures of any size.

    Returns:
        The proof on prepared pictures, and with `resize` another on pictures as they are.

    Raises:
        UsageError: `out` exists, or has the wrong ending.
        DamagedFileError: the file answers otherwise than the model; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_free(out, kind)
    exact = replace(member, number_format="float32")
    answering = Answering(exact, resize)
    facts = facts_of(answering, exact)
    program = capture(answering)
    with draft(out) as place:
        package.write(program, facts, place)
        file = Package(place)
        proof = prove(file.run, facts, exact, prepared(decoded, exact.spec))
        resizing = prove_resizing(file.run, facts, exact, decoded) if resize else None
        keep(place, out)
    return proof, resizing


def check_free(out: Path, kind: Kind) -> None:
    """Refuse a place, before anything is done for it.

    Raises:
        UsageError: something is there already, or the name has the wrong ending.
    """
    if out.suffix != f".{kind}":
        raise UsageError(f"{kind} is one file, whose name must end in .{kind}. Got {out}.")
    if out.exists():
        raise UsageError(f"{out} exists already and is not overwritten. Choose another name or move it away.")
