"""A batch on several cores: each core answers pictures of its own, instead of all sharing every operation.

Threads that share an operation wait for each other at its end, about a hundred times for one pass through a ViT, and
for every core that another program takes for a moment. Whole pictures wait once. What a core works on at once is small
enough for its own cache. The figures are in EXPERIMENTS.md.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from ..model.config import ViTConfig
from ..model.vit import ViT
from ..runtime import use_threads
from .pooled import Pooled

Found = TypeVar("Found")
TEAMS = 4
"""Parts that are computed at once: with more, Python, which runs one at a time, would be what they wait for."""
LEAST = 2**16
"""Numbers (pictures x tokens x width) that are worth a team of its own; with fewer, Python takes longer than they."""
MOST = 2**18
"""As many as a core is given at once, where there are so few cores that each is a team: 1 MiB in float32."""


def parts_of(model: nn.Module, images: UInt8[Tensor, "B C H W"], device: torch.device, number_format: str) -> int:
    """How many parts a batch is best answered in: 1 for shared operations, else a number of parts for each team.

    Only a plain ViT is split, whole or as far as its head: what else wraps one (compiled, spread over processes) need
    not be called by several threads.
    """
    plain = model.model if isinstance(model, Pooled) else model
    if device.type != "cpu" or type(plain) is not ViT:
        return 1
    return parts_on(torch.get_num_threads(), plain.config, len(images), number_format)


def parts_on(threads: int, config: ViTConfig, pictures: int, number_format: str) -> int:
    """The same for so many pictures, by so many threads of a processor."""
    teams = min(threads, TEAMS)
    if not 1 < teams <= pictures:
        return 1
    numbers = pictures * config.tokens * config.width
    if numbers < teams * LEAST:
        return 1
    if number_format != "float32":
        return teams  # autocast makes its copies of the weights anew for each part
    return min(pictures, teams * math.ceil(numbers / (threads * MOST)))


def side_by_side(
    answer: Callable[[UInt8[Tensor, "b C H W"]], Found], images: UInt8[Tensor, "B C H W"], parts: int
) -> list[Found]:
    """What `answer` says of each part of a batch, in their order; teams of torch's threads take one after another."""

    def alone(part: Tensor) -> Found:
        with torch.inference_mode():
            return answer(part)

    return list(_teams(torch.get_num_threads()).map(alone, images.tensor_split(parts)))


class _Kept(threading.local):
    """The teams of a thread, for so many threads of this process: one that was forked off has none of them."""

    whose: tuple[int, int] = (0, 0)
    teams: ThreadPoolExecutor | None = None


_KEPT = _Kept()


def _teams(threads: int) -> ThreadPoolExecutor:
    """The calling thread's teams, kept until it asks for another number of threads."""
    whose = (os.getpid(), threads)
    if _KEPT.teams is None or _KEPT.whose != whose:
        if _KEPT.teams is not None:
            _KEPT.teams.shutdown(wait=False)
        _KEPT.whose, _KEPT.teams = whose, _made(min(threads, TEAMS), threads)
    return _KEPT.teams


def _made(teams: int, threads: int) -> ThreadPoolExecutor:
    """So many teams, all of them begun."""
    begun = threading.Barrier(teams + 1)

    def begin() -> None:
        use_threads(threads // teams)
        begun.wait()

    made = ThreadPoolExecutor(teams, thread_name_prefix="vitrail-team")
    for _ in range(teams):
        made.submit(begin)
    begun.wait()
    use_threads(threads)  # threads that begin later take what was set last, wherever that was
    return made
