"""Every tensor of a file in turn dropped, renamed, reshaped, duplicated: each must be refused by its name.

Each damage is a file of its own, so models here must be tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from vitrail.errors import DamagedFileError, UsageError

Tensors = dict[str, Tensor]


def refuses_every_damage(
    tensors: Mapping[str, Tensor],
    load_fn: Callable[[Tensors], object],
    optional: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    decides: tuple[str, ...] = (),
    prefix: str = "",
) -> int:
    """Assert that no damage passes and that every message names the tensor.

    Args:
        tensors: a file that `load_fn` reads without an error; the loader gets a new dictionary every time.
        optional: patterns (`*` for anything) of names that a file may lack; only their other damages are tried.
        ignored: patterns of names that the layout leaves aside whatever they hold; nothing is tried with these.
        decides: patterns of names whose absence makes the file another valid kind, so that the message may speak of
            what follows from it; that there is an error is still asserted.
        prefix: of the layout, which messages may leave out.

    Returns:
        How many damages were refused.
    """
    load_fn(dict(tensors))
    count = 0
    for name in tensors:
        if _fits(name, ignored):
            continue
        for damage, damaged in _damages(name, tensors, droppable=not _fits(name, optional)):
            message = _refusal(damaged, load_fn)
            assert message, f"{name} {damage}: the file was read as if nothing had happened"
            named = _fits(name, decides) or name in message or (prefix and name.removeprefix(prefix) in message)
            assert named, f"{name} {damage}: the message does not name it: {message}"
            count += 1
    return count


def _damages(name: str, tensors: Mapping[str, Tensor], droppable: bool) -> Iterator[tuple[str, Tensors]]:
    tensor = tensors[name]
    others = {other: kept for other, kept in tensors.items() if other != name}
    if droppable:
        yield "dropped", others
    yield "renamed", {f"{name}_x" if other == name else other: kept for other, kept in tensors.items()}
    yield "with an axis more", {**tensors, name: tensor[None]}
    yield "twice as long", {**tensors, name: torch.cat([tensor, tensor]) if tensor.ndim else tensor.expand(2).clone()}
    yield "duplicated", {**tensors, f"{name}_copy": tensor.clone()}


def _refusal(tensors: Tensors, load_fn: Callable[[Tensors], object]) -> str:
    """The message, or nothing if there was no error; any other exception is ours and goes through."""
    try:
        load_fn(tensors)
    except (DamagedFileError, UsageError) as error:
        return str(error)
    return ""


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
