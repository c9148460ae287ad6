"""Recorder of a forward pass: tokens of every block, and blocks with their own autograd graphs, without hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.vit import Block, ViT

MAX_ATTENTION_BYTES = 2**29
"""Bytes of attention weights up to which all recorded blocks keep their graphs; above it they are recomputed."""


class RecordedBlock(NamedTuple):
    """Input tokens, attention weights and output tokens of one block, in one graph."""

    before: Float[Tensor, "B T D"]
    attention: Float[Tensor, "B A T T"]
    after: Float[Tensor, "B T D"]


class BlockRecorder:
    """Records the tokens before and after every block, and gives any block from `first` on with its attention.

    If the attention weights of these blocks need more than `memory_limit` bytes, each block is recomputed on request:
    the same values with the memory of one block and a third more time.
    """

    def __init__(
        self, model: ViT, images: Float[Tensor, "B C H W"], first: int, memory_limit: int = MAX_ATTENTION_BYTES
    ):
        self.model = model
        with torch.no_grad():
            x, self.positions = model.embed(images)
            x = model.encoder.prepare_tokens(x)
        self.tokens: list[Tensor] = [x]
        """The input of each block, then the output of the last one."""
        self._kept: dict[int, RecordedBlock] = {}
        weights = model.config.heads * x.shape[1] ** 2 * len(x) * x.element_size()
        keeps = weights * (model.config.depth - first) <= memory_limit
        for i, block in enumerate(model.encoder.blocks):
            if keeps and i >= first:
                self._kept[i] = self._run_block(i)
                x = self._kept[i].after.detach()
            else:
                with torch.no_grad():
                    x = model.encoder.run_block(block, x, self.positions)
            self.tokens.append(x)

    def record_block(self, i: int) -> RecordedBlock:
        """Block `i` with a fresh graph, which the recorder does not keep."""
        kept = self._kept.pop(i, None)
        return self._run_block(i) if kept is None else kept

    def readout_after(self, i: int, after: Float[Tensor, "B T D"] | None = None) -> Float[Tensor, "B T P"]:
        """The input of the pooling if block `i` were the last one.

        Args:
            after: the output of block `i` as part of a graph; None takes the recorded one.
        """
        reach = self.model.config.pool_span
        window = [*self.tokens[1 : i + 1], self.tokens[i + 1] if after is None else after][-reach:]
        return self.model.encoder.apply_final_norm([window[0]] * (reach - len(window)) + window)

    def _run_block(self, i: int) -> RecordedBlock:
        block = self.model.encoder.blocks[i]
        assert isinstance(block, Block)
        before = self.tokens[i].detach().requires_grad_()
        after, weights = block.forward_with_attention(before, self.positions, None, None)
        return RecordedBlock(before, weights, after)


@contextmanager
def gradient_mode(model: ViT) -> Iterator[None]:
    """Evaluation mode with gradients, whatever the caller has set; restores the model's mode afterwards."""
    with inference_mode(model), torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def inference_mode(model: ViT) -> Iterator[None]:
    """Evaluation mode without gradients; restores the model's mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def resolve_block(model: ViT, layer: int | None, default: int) -> int:
    """Check a block index, counted from 0; None takes `default` (-1 is the last).

    Raises:
        UsageError: there is no such block, or there are no blocks at all.
    """
    depth = model.config.depth
    if not depth:
        raise UsageError("The model has no blocks, so there is nothing in it to look at.")
    if layer is not None and not 0 <= layer < depth:
        raise UsageError(f"The model has blocks 0 to {depth - 1}. Got layer={layer}.")
    return default % depth if layer is None else layer


def describe_block_range(model: ViT, first: int) -> str:
    """The blocks from `first` on as text."""
    last = model.config.depth - 1
    return f"block {last}" if first == last else f"blocks {first} to {last}"
