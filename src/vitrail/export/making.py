"""One exported file: captured, written beside its place, opened again, compared with the run, and only then kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from ..errors import UsageError
from ..files.atomic import commit_draft, make_draft
from ..predict.onnx_predictor import OnnxPredictor
from ..predict.predictor import PredictorMember
from . import onnx_graph, package
from .answering import Answering
from .capturing import capture
from .facts import facts_of
from .package import Package
from .proving import Proof, prepared, prove, prove_resizing

Kind = Literal["onnx", "pt2"]
KINDS: tuple[Kind, ...] = get_args(Kind)
File = OnnxPredictor | Package
"""A file that has been written and opened again: facts, and `run` from pictures to named outputs."""


def make(
    member: PredictorMember, kind: Kind, out: Path, decoded: Sequence[np.ndarray], resize: bool = False
) -> tuple[Proof, Proof | None]:
    """Write a model as one file that answers as it does in float32.

    Args:
        decoded: pictures as `data.decode` gives them, on which the file is compared with the model; at least one.
        resize: let the file take pictures of any size.

    Returns:
        The proof on prepared pictures, and with `resize` another on pictures as they are.

    Raises:
        UsageError: `out` exists or has the wrong ending, or the packages that write such a file are not installed.
        DamagedFileError: the file answers otherwise than the model; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_free(out, kind)
    exact = replace(member, number_format="float32")
    with make_draft(out) as place:
        file = written(exact, kind, place, resize)
        proof = prove(file.run, file.facts, exact, prepared(decoded, exact.spec))
        resizing = prove_resizing(file.run, file.facts, exact, decoded) if resize else None
        commit_draft(place, out)
    return proof, resizing


def written(member: PredictorMember, kind: Kind, place: Path, resize: bool, number_format: str = "float32") -> File:
    """A file that has just been written, opened again; nothing has been compared.

    Args:
        number_format: in which matrices are stored and multiplied.

    Raises:
        UsageError: the packages that write such a file are not installed.
    """
    if kind == "onnx":
        onnx_graph.check_installed()
    answering = Answering(member, resize, number_format=number_format)
    program = capture(answering)
    write = onnx_graph.write if kind == "onnx" else package.write
    write(program, facts_of(answering, member), place)
    return reopened(place, kind)


def reopened(place: Path, kind: Kind) -> File:
    """A file as its users will open it, computing with as many threads as PyTorch does here."""
    return OnnxPredictor(place, torch.get_num_threads()) if kind == "onnx" else Package(place)


def check_free(out: Path, kind: Kind) -> None:
    """Refuse a place, before anything is done for it.

    Raises:
        UsageError: something is there already, or the name has the wrong ending.
    """
    if out.suffix != f".{kind}":
        raise UsageError(f"{kind} is one file, whose name must end in .{kind}. Got {out}.")
    if out.exists():
        raise UsageError(f"{out} exists already and is not overwritten. Choose another name or move it away.")
