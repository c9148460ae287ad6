"""Up to how many tokens two products and a softmax beat the fused kernel here: the table `MEASURED` of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.attention import OPEN_PATH_MAX_TOKENS, AttentionPath, attend, device_capability
from ..runtime import keep_memory
from .clock import Clock, Timing

TOKENS = (16, 25, 49, 65, 101, 145, 197, 257, 577, 1370)
HEADS, HEAD_NUMBERS = 6, 64
TOKENS_IN_A_BATCH = 3000
FORMATS: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PATHS: tuple[AttentionPath, ...] = ("fused", "open")
Key = tuple[str, str, bool]
"""Place, number format and whether gradients flow, as in `MEASURED`."""


class Compared(NamedTuple):
    """Both paths of attention, timed in turn."""

    number_format: str
    gradients: bool
    tokens: int
    fused: Timing
    open: Timing

    @property
    def ratio(self) -> float:
        """Above 1 the open path is the faster one."""
        return self.fused.median / self.open.median


class Proposal(NamedTuple):
    """A row of the table as it is, and as this machine says that it should be."""

    key: Key
    now: int
    better: int


def compared(
    device: str, formats: Iterable[str], tokens: Sequence[int] = TOKENS, rounds: int = 5, least: float = 0.0
) -> Iterator[Compared]:
    """Attention alone, forward, and backward where gradients flow: 6 heads of 64, about 3,000 tokens a batch, which lie
    as a joint product leaves them; freed memory is kept, as it is by whoever opens a model.

    Args:
        least: seconds that each path is repeated for in a round; 0 calls it once.
    """
    keep_memory()
    for name in formats:
        for gradients in (True, False):
            for count in tokens:
                shape = (max(1, TOKENS_IN_A_BATCH // count), count, 3, HEADS, HEAD_NUMBERS)
                joint = torch.randn(shape, device=device).to(FORMATS[name]).requires_grad_(gradients)
                q, k, v = joint.permute(2, 0, 3, 1, 4)
                fused, open_ = in_turn(_once(q, k, v, gradients), device, rounds, least)
                yield Compared(name, gradients, count, fused, open_)


def in_turn(
    run: Callable[[AttentionPath], object], device: str, rounds: int, least: float = 0.0
) -> tuple[Timing, Timing]:
    """Something that takes either path, timed with both in turn."""
    clock = Clock({path: _bound(run, path) for path in PATHS}, device, least)
    for _ in clock.warm_up():
        pass
    for _ in clock.rounds(rounds):
        pass
    return clock.timing("fused"), clock.timing("open")


def proposals(
    found: Iterable[Compared], device: str, table: Mapping[Key, int] = OPEN_PATH_MAX_TOKENS
) -> list[Proposal]:
    """For every format, with gradients and without: the most tokens up to which the open path has never lost.

    Those that the table says already are left out.
    """
    here, faster, lost = device_capability(device), dict[Key, int](), set[Key]()
    for row in found:
        key = (here, row.number_format, row.gradients)
        faster.setdefault(key, 0)
        if row.ratio <= 1:
            lost.add(key)
        elif key not in lost:
            faster[key] = row.tokens
    told = [Proposal(key, table.get(key, 0), tokens) for key, tokens in faster.items()]
    return [row for row in told if row.now != row.better]


def _once(q: Tensor, k: Tensor, v: Tensor, gradients: bool) -> Callable[[AttentionPath], None]:
    def run(path: AttentionPath) -> None:
        with torch.set_grad_enabled(gradients):
            y = attend(q, k, v, HEAD_NUMBERS**-0.5, 0.0, path)
            if gradients:
                torch.autograd.grad(y.sum(), (q, k, v))

    return run


def _bound(run: Callable[[AttentionPath], object], path: AttentionPath) -> Callable[[], object]:
    return lambda: run(path)
