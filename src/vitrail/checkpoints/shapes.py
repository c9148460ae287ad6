"""What the shapes of a file tell about its architecture, and what to say when they do not agree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from math import isqrt
from typing import TypeVar

from torch import Tensor

from ..errors import DamagedFileError, UsageError
from .complete import nearest
from .told import Told

Given = TypeVar("Given")
BLOCKS = 256
"""Blocks of the largest model that is read; the largest published plain ViT has 64."""


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


def pattern_of(name: str) -> re.Pattern[str]:
    """What a name of a table matches, `{i}` any block and `{p}` weight or bias."""
    return re.compile(re.escape(name).replace(r"\{i\}", r"\d+").replace(r"\{p\}", "(weight|bias)"))


def has(tensors: Collection[str], *patterns: str) -> bool:
    """Whether some name fits one of the patterns, `{i}` any block and `{p}` weight or bias."""
    wanted = [pattern_of(pattern) for pattern in patterns]
    return any(pattern.fullmatch(name) for name in tensors for pattern in wanted)


def blocks(tensors: Mapping[str, Tensor], prefix: str) -> int:
    """How many blocks there are: one more than the highest number after `prefix`.

    Raises:
        DamagedFileError: a number is higher than BLOCKS allows, before anybody counts up to it.
    """
    matches = [re.match(re.escape(prefix) + r"\.(\d+)\.", name) for name in tensors]
    numbers = [match[1] for match in matches if match]
    for number in numbers:
        if len(number) > 3 or int(number) >= BLOCKS:
            raise DamagedFileError(
                f"A file may have at most {BLOCKS} blocks, {prefix}.0 to {prefix}.{BLOCKS - 1}. It names "
                f"{prefix}.{number[:20]}{'...' if len(number) > 20 else ''}; use another copy of it."
            )
    return 1 + max(map(int, numbers), default=-1)


def vote(tensors: Mapping[str, Tensor], what: str, *sources: tuple[str, int]) -> int:
    """The length that most of the sources, (name, axis), have in common; `{i}` stands for every block.

    A majority rather than one tensor, so that a single damaged tensor is later named as the one that does not fit.

    Raises:
        DamagedFileError: none of the sources is in the file, or two lengths have equally many votes.
    """
    found: dict[str, int] = {}
    for pattern, axis in sources:
        matching = pattern_of(pattern)
        for name, tensor in tensors.items():
            if matching.fullmatch(name) and -tensor.ndim <= axis < tensor.ndim:
                found[name] = tensor.shape[axis]
    counts = Counter(found.values()).most_common(2)
    if not counts:
        first = sources[0][0].format(i=0)
        raise DamagedFileError(f"The file has no tensor {first}{nearest(first, tensors)}, which tells the {what}.")
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        said = ", ".join(f"{name[:80]} says {length}" for name, length in list(found.items())[:8])
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


def picture_size(patches: int, patch: tuple[int, int], told: Told, source: str) -> tuple[int, int]:
    """The picture size that a table for so many patches belongs to.

    What the caller says in `settings` or in `image_size` is taken where it makes that many patches; else the patches
    lie in a square, and another `image_size` is reached afterwards by resampling.

    Args:
        source: the table's name, for messages.

    Raises:
        UsageError: the count fills no square, and no size was given that it fills.
    """
    said = told.settings.get("image_size")
    if said is not None and _patches(said, patch) != patches:
        raise UsageError(
            f"image_size={said} contradicts the file: it makes {_patches(said, patch)} patches of "
            f"{patch[0]}x{patch[1]}, and {source} has rows for {patches}."
        )
    for size in (said, told.image_size):
        if size is not None and _patches(size, patch) == patches:
            return size[0], size[1]
    side = square_grid((patches,), source)
    return side * patch[0], side * patch[1]


def _patches(size: tuple[int, int], patch: tuple[int, int]) -> int:
    return (size[0] // patch[0]) * (size[1] // patch[1])
