"""A file is complete when it holds the expected names and shapes, no more, no less, and only finite numbers."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from ..errors import DamagedFileError

SHOWN = 4
"""Names that a message lists before it goes on counting."""
COMPARED, LETTERS = 1_000, 100
"""Names among which the nearest is sought, and the letters of the longest of them: the search takes their product."""


def check_complete(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Sequence[int] | None],
    layout: str,
    where: str,
) -> None:
    """Compare a file's names and shapes with the expected ones; None stands for any shape.

    Raises:
        DamagedFileError: names every kind of difference, the first few tensors of each, and the nearest known name.
    """
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    reshaped = [
        f"{name} is {_shape(tensors[name].shape)}, expected {_shape(shape)}"
        for name, shape in expected.items()
        if name in tensors and shape is not None and tuple(tensors[name].shape) != tuple(shape)
    ]
    near = {name: nearest(name, extra) for name in missing[:SHOWN]}
    faults = [
        _listed("missing", [f"{name} {_shape(expected[name])}".strip() + near.get(name, "") for name in missing]),
        _listed("without a rule", [f"{name} {_shape(tensors[name].shape)}" for name in extra]),
        _listed("of another shape", reshaped),
    ]
    if missing or extra or reshaped:
        raise DamagedFileError(
            f"{where} does not fit the layout {layout}: {'; '.join(filter(None, faults))}. "
            "Give the tensors their names and shapes back, or name another layout."
        )


def check_numbers(tensors: Mapping[str, Tensor], where: str, allow_nonfinite: bool = False) -> tuple[str, ...]:
    """Refuse tensors that are not floating-point, or hold NaN or infinity; the latter are only noted if allowed.

    Returns:
        One note for each tensor that holds numbers that are not finite.

    Raises:
        DamagedFileError: names the tensor and how many of its numbers are bad.
    """
    notes = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise DamagedFileError(f"{where}: {name} must hold floating-point numbers. Got {_format(tensor)}.")
        known = tensor if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16) else tensor.float()
        if bad := int((~torch.isfinite(known)).sum()):  # of float64 as they will be used, in float32
            found = f"{bad} of the {tensor.numel()} in {name} are NaN or infinite"
            if not allow_nonfinite:
                raise DamagedFileError(
                    f"{where}: every weight must be a finite number, but {found}. The training that wrote it had "
                    "diverged; take an earlier checkpoint. vitrail inspect --allow-nonfinite shows this one."
                )
            notes.append(f"{found}, so no answer of this model means anything")
    return tuple(notes)


def nearest(name: str, known: Collection[str]) -> str:
    """Words for the most similar of the known names, or nothing if none is similar."""
    short = [other for other in islice(known, COMPARED) if len(other) <= LETTERS]
    close = difflib.get_close_matches(name, short, n=1, cutoff=0.6) if len(name) <= LETTERS else []
    return f" (nearest name in the file: {close[0]})" if close else ""


def _listed(kind: str, words: list[str]) -> str:
    if not words:
        return ""
    more = f", and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return f"{len(words)} {kind}: {', '.join(words[:SHOWN])}{more}"


def _shape(shape: Sequence[int] | None) -> str:
    return "" if shape is None else str(list(shape))


def _format(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
