"""What the shapes of a file tell about its architecture, and what to say when they do not agree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import isqrt
from typing import TypeVar

from torch import Tensor

from ..errors import DamagedFileError, UsageError
from .complete import nearest

Given = TypeVar("Given")


def need(tensors: Mapping[str, Tensor], name: str, axes: int) -> Tensor:
    """The tensor of that name, which must have so many axes.

    Raises:
        DamagedFileError: it is missing (with the nearest name of the file), or has another number of axes.
    """
    if name not in tensors:
        raise DamagedFileError(f"The file has no tensor {name}{nearest(name, tensors)}, which tells the architecture.")
    if tensors[name].ndim != axes:
        raise DamagedFileError(f"{name} must have {axes} axes. Got the shape {list(tensors[name].shape)}.")
    return tensors[name]


def blocks(tensors: Mapping[str, Tensor], prefix: str) -> int:
    """How many blocks there are: one more than the highest number after `prefix`."""
    numbers = [re.match(re.escape(prefix) + r"\.(\d+)\.", name) for name in tensors]
    return 1 + max((int(match[1]) for match in numbers if match), default=-1)


def vote(tensors: Mapping[str, Tensor], what: str, *sources: tuple[str, int]) -> int:
    """The length that most of the sources, (name, axis), have in common; `{i}` stands for every block.

    A majority rather than one tensor, so that a single damaged tensor is later named as the one that does not fit.

    Raises:
        DamagedFileError: none of the sources is in the file, or two lengths have equally many votes.
    """
    found: dict[str, int] = {}
    for pattern, axis in sources:
        matching = re.compile(re.escape(pattern).replace(r"\{i\}", r"\d+"))
        for name, tensor in tensors.items():
            if matching.fullmatch(name) and -tensor.ndim <= axis < tensor.ndim:
                found[name] = tensor.shape[axis]
    counts = Counter(found.values()).most_common(2)
    if not counts:
        first = sources[0][0].format(i=0)
        raise DamagedFileError(f"The file has no tensor {first}{nearest(first, tensors)}, which tells the {what}.")
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        said = ", ".join(f"{name} says {length}" for name, length in found.items())
        raise DamagedFileError(f"The tensors of the file disagree about the {what}: {said}.")
    return counts[0][0]


def given(value: Given | None, name: str, layout: str, hint: str) -> Given:
    """An argument that the file cannot replace.

    Raises:
        UsageError: it was not given.
    """
    if value is None:
        raise UsageError(f"A file of the layout {layout} does not say {name}. Pass {name}=; {hint}.")
    return value


def agree(value: Given | None, told: Given, name: str, source: str) -> Given:
    """What the file tells, unless the caller said something else.

    Raises:
        UsageError: the caller's value and the file's differ.
    """
    if value is not None and value != told:
        raise UsageError(f"{name}={value} contradicts the file: {source} says {told}. Leave {name}= out.")
    return told


def square_grid(counts: tuple[int, ...], source: str) -> int:
    """The side of the square that one of the counts of patches fills.

    Raises:
        UsageError: none is a square number, so that the picture's size must be given.
    """
    for count in counts:
        if count > 0 and isqrt(count) ** 2 == count:
            return isqrt(count)
    raise UsageError(
        f"{source} has rows for {' or '.join(map(str, counts))} patches, which fill no square. "
        "Pass image_size=(height, width)."
    )
