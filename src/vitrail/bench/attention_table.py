"""Benchmark of the open (two products and a softmax) and the fused attention path, for `OPEN_PATH_MAX_TOKENS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..evaluate.inference import DTYPES
from ..model.attention import OPEN_PATH_MAX_TOKENS, AttentionPath, attend, device_capability
from ..runtime import keep_freed_memory
from .measure import InterleavedTimer, Timing

TOKEN_COUNTS = (16, 25, 49, 65, 101, 145, 197, 257, 577, 1370)
NUM_HEADS, HEAD_WIDTH = 6, 64
TOKENS_PER_BATCH = 3000
PATHS: tuple[AttentionPath, ...] = ("fused", "open")
TableKey = tuple[str, str, bool]
"""Device capability, precision and whether gradients are computed, as in `OPEN_PATH_MAX_TOKENS`."""


class AttentionTiming(NamedTuple):
    """Interleaved timings of both attention paths."""

    precision: str
    gradients: bool
    tokens: int
    fused: Timing
    open: Timing

    @property
    def ratio(self) -> float:
        """Time of the fused over that of the open path; above 1 the open path is faster."""
        return self.fused.median / self.open.median


class TableProposal(NamedTuple):
    """A row of the table, with its current and its measured value."""

    key: TableKey
    now: int
    better: int


def compare_paths(
    device: str,
    precisions: Iterable[str],
    token_counts: Sequence[int] = TOKEN_COUNTS,
    num_rounds: int = 5,
    min_seconds: float = 0.0,
) -> Iterator[AttentionTiming]:
    """Time attention alone, forward and (with gradients) backward: 6 heads of 64, about 3,000 tokens a batch.

    Tokens have the memory layout of a joint QKV product; freed memory is kept, as for every opened model.

    Args:
        min_seconds: least seconds of each path in a round; 0 calls it once.
    """
    keep_freed_memory()
    for name in precisions:
        for gradients in (True, False):
            for count in token_counts:
                shape = (max(1, TOKENS_PER_BATCH // count), count, 3, NUM_HEADS, HEAD_WIDTH)
                joint = torch.randn(shape, device=device).to(DTYPES[name]).requires_grad_(gradients)
                q, k, v = joint.permute(2, 0, 3, 1, 4)
                fused, open_ = time_both_paths(
                    _make_attention_call(q, k, v, gradients), device, num_rounds, min_seconds
                )
                yield AttentionTiming(name, gradients, count, fused, open_)


def time_both_paths(
    run: Callable[[AttentionPath], object], device: str, num_rounds: int, min_seconds: float = 0.0
) -> tuple[Timing, Timing]:
    """Time a function of the attention path with both paths, interleaved."""
    clock = InterleavedTimer({path: partial(run, path) for path in PATHS}, device, min_seconds)
    clock.run(num_rounds)
    return clock.timing("fused"), clock.timing("open")


def propose_changes(
    timings: Iterable[AttentionTiming], device: str, table: Mapping[TableKey, int] = OPEN_PATH_MAX_TOKENS
) -> list[TableProposal]:
    """Rows to change: the most tokens up to which the open path always wins, by precision and gradients."""
    here, faster, lost = device_capability(device), dict[TableKey, int](), set[TableKey]()
    for row in timings:
        key = (here, row.precision, row.gradients)
        faster.setdefault(key, 0)
        if row.ratio <= 1:
            lost.add(key)
        elif key not in lost:
            faster[key] = row.tokens
    rows = [TableProposal(key, table.get(key, 0), tokens) for key, tokens in faster.items()]
    return [row for row in rows if row.now != row.better]


def _make_attention_call(q: Tensor, k: Tensor, v: Tensor, gradients: bool) -> Callable[[AttentionPath], None]:
    def run(path: AttentionPath) -> None:
        with torch.set_grad_enabled(gradients):
            y = attend(q, k, v, HEAD_WIDTH**-0.5, 0.0, path)
            if gradients:
                torch.autograd.grad(y.sum(), (q, k, v))

    return run
