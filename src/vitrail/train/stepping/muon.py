"""Muon for the matrices of the blocks: momentum, then the nearest orthogonal matrix, in stacks of one shape.

torch.optim.Muon does the same one matrix at a time and in bfloat16, which a CPU without bfloat16 instructions does ten
times slower than float32 (EXPERIMENTS.md has the figures); ours works in the number format that the machine is good
at, takes all matrices of one shape in one batched product, and treats queries, keys and values as three matrices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# The quintic polynomial of Keller Jordan's Muon: steep at 0, so that five rounds bring all singular values near 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315
MOST = 2**23
"""Numbers that are orthogonalised at once: of more, a product is no faster, and its copies would be what a step holds
most of."""


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton and Schulz's iteration (Jordan et al. 2024), with decoupled weight decay.

    Args:
        matrices: groups of parameters [rows, columns]; `parts=3` says that the rows of a group's matrices are three
            matrices in one, as those of a joint qkv projection.
        lr: learning rate; each update has singular values near lr * max(1, rows / columns) ** 0.5.
        compute: number format of the iteration.
        sharded: whether the matrices are shares of whole ones, which every process then orthogonalises whole.
        compiled: whether torch.compile makes the iteration fewer kernels.
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        compute: torch.dtype = torch.float32,
        sharded: bool = False,
        compiled: bool = False,
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})
        self.compute = compute
        self.sharded = sharded

        self.orthogonalise = torch.compile(orthogonalise) if compiled else orthogonalise

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        assert closure is None
        if self.sharded:
            from ..engines.sharding import like, whole  # a second to import, for those few who need it
        stacks: dict[tuple[int, ...], list[tuple[Tensor, Tensor, float, bool]]] = defaultdict(list)
        shares: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                update = self._momentum(matrix, matrix.grad, group["momentum"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                place: Tensor = matrix
                if self.sharded:
                    update = whole(update)
                    place = torch.zeros_like(update)
                    shares.append((matrix, place))
                for part, piece in zip(place.chunk(group["parts"]), update.chunk(group["parts"]), strict=True):
                    tall = piece.shape[0] > piece.shape[1]
                    piece = piece.T if tall else piece
                    stacks[tuple(piece.shape)].append((part, piece, group["lr"], tall))
        for shape, stack in stacks.items():
            count = max(1, MOST // math.prod(shape))
            for start in range(0, len(stack), count):
                self._move(stack[start : start + count])
        for matrix, place in shares:
            matrix.add_(like(place, matrix))

    def prepare(self) -> None:
        """The momentum of every matrix, still 0, for a checkpoint to be read into."""
        for group in self.param_groups:
            for matrix in group["params"]:
                self.state[matrix] = {"momentum": torch.zeros_like(matrix)}

    def _momentum(self, matrix: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        state["momentum"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(state["momentum"], momentum)  # Nesterov's look ahead

    def _move(self, stack: list[tuple[Tensor, Tensor, float, bool]]) -> None:
        updates = self.orthogonalise(torch.stack([piece for _, piece, _, _ in stack]).to(self.compute))
        for (part, _, lr, tall), update in zip(stack, updates, strict=True):
            update = update.T if tall else update
            size = max(1.0, part.shape[0] / part.shape[1]) ** 0.5
            part.add_(update.to(part.dtype), alpha=-lr * size)


def orthogonalise(matrices: Float[Tensor, "n r c"], rounds: int = 5) -> Float[Tensor, "n r c"]:
    """The matrices with all singular values brought near 1 (0.7 to 1.2), directions kept. For r <= c."""
    x = matrices / matrices.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(rounds):
        gram = x @ x.mT  # [n, r, r]
        polynomial = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        x = torch.baddbmm(x, polynomial, x, beta=_A)
    return x
