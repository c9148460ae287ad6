"""A file that computes in fewer bits: its answers and speed beside those of float32, kept if it decides alike."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ..data.preprocess import to_batch_tensor
from ..errors import UsageError
from ..files.atomic import commit_draft, make_draft
from ..predict.predictor import PredictorMember
from . import pacing, quantising
from .agreeing import Agreement, check_agrees, compare
from .making import File, Kind, check_free, reopened, written
from .proving import prepared

Precision = Literal["float32", "int8", "bf16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
FORMATS: dict[Precision, str] = {"bf16": "bfloat16", "float16": "float16"}
ABLE: dict[Kind, tuple[Precision, ...]] = {
    "onnx": ("float32", "int8", "float16"),
    "pt2": ("float32", "bf16", "float16"),
}
"""What each kind of file computes in on a CPU: ONNX Runtime has no products in bf16 there, PyTorch's graphs no int8."""


def make_smaller(
    member: PredictorMember,
    kind: Kind,
    precision: Precision,
    out: Path,
    decoded: Sequence[np.ndarray],
    calibration: Sequence[np.ndarray] = (),
    resize: bool = False,
    force: bool = False,
) -> Agreement:
    """Write a model as one file that answers almost as it does in float32, and say how nearly and how fast.

    Args:
        decoded: pictures as `data.decode` gives them, on which the file is compared with the model; at least one.
        calibration: of int8, pictures that the ranges of activations are read from; at least one.
        resize: let the file take pictures of any size.
        force: keep it although too many decisions differ.

    Raises:
        UsageError: `out` exists or has the wrong ending, or such a file cannot compute in that precision.
        DamagedFileError: too many decisions differ, or the file's decisions do not follow from its scores; nothing is
            kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_free(out, kind)
    check_able(kind, precision)
    exact = replace(member, number_format="float32")
    pictures = prepared(decoded, exact.spec)
    with make_draft(out) as place, tempfile.TemporaryDirectory() as elsewhere:
        aside = Path(elsewhere) / f"float32.{kind}"
        whole = written(exact, kind, aside, resize)
        if precision == "int8":
            facts = replace(whole.facts, number_format=precision)
            quantising.quantise(aside, prepared(calibration, exact.spec), facts, place)
            file = reopened(place, kind)
        else:
            file = written(exact, kind, place, resize, FORMATS[precision])
        same, difference = compare(file.run, file.facts, exact, pictures)
        agreed = Agreement(
            precision=precision, task=member.task, pictures=len(pictures), same=same, difference=difference,
            rates=pacing.rates(_answerers(exact, whole, file, precision), pictures),
        )  # fmt: skip
        if not force:
            check_agrees(agreed)
        commit_draft(place, out)
    return agreed


def check_able(kind: Kind, precision: Precision) -> None:
    """Refuse what a kind of file cannot compute in, before anything is done for it.

    Raises:
        UsageError: it cannot; the message names the kind that can.
    """
    if precision not in ABLE[kind]:
        other = next(name for name, able in ABLE.items() if precision in able)
        raise UsageError(
            f"{kind} files compute in {', '.join(ABLE[kind])}, and not in {precision}. Use --to {other} for it."
        )


def _answerers(
    exact: PredictorMember, whole: File, file: File, precision: str
) -> dict[str, Callable[[np.ndarray], object]]:
    """Whose speed is compared: the run itself, the same kind of file in float32, and the new one."""
    device = next(exact.model.parameters()).device
    return {
        "float32 in PyTorch": lambda pictures: exact.outputs(to_batch_tensor(pictures), device),
        "float32 file": whole.run,
        f"{precision} file": file.run,
    }
