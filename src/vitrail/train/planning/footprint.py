"""How much memory a training takes: of this process as measured, of a GPU by a formula before anything lies there."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from ...model.attention import choose_path, device_capability, should_recompute_weights
from ...model.vit import ViT
from ..plan import Plan

SLACK = 1.15
"""On a GPU, of everything together: buffers of the libraries, and holes between pieces of memory."""
HOLES = 1.3
"""On a processor, of what comes and goes in a step; weights and moments lie still (benchmarks/cost_model.py)."""


def peak(device: str) -> int:
    """The most bytes held so far: by torch on a GPU, by this process on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # not the figure that getrusage has: a new process begins there with the peak of the one that started it
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def on_device(plan: Plan, shares: int = 1, world: int = 1) -> int:
    """Bytes that a training needs on each of its devices at the highest point of a step.

    They are the weights, their gradients, the optimisers' moments and the running mean, all in float32; the weights
    once more in the format of the products; what the forward pass of a part of the batch keeps for the backward pass,
    and again one block's share of it for that block's gradients. Weights in shares are gathered a block at a time, and
    the next one while that one computes.

    Args:
        shares: devices among which weights, gradients and moments are parted, as FSDP2 does; 1 has them whole.
        world: processes that share the plan's batch.
    """
    blocks = max(plan.model.depth, 1)
    forward = kept(plan) / world * (1 + 1 / blocks)
    whole = weights(plan)
    gathered = 2 * whole / blocks if shares > 1 else 0.0
    if plan.compute.device == "cpu":
        return round(whole / shares + gathered + HOLES * forward)
    return round(SLACK * (whole / shares + gathered + forward))


def kept(plan: Plan) -> int:
    """Bytes that the forward pass of a step with all patches keeps for the backward pass.

    Counted per block, with b bytes a number in the products' format and 4 in norms. Of every token: the input of the
    first norm (4 D), what it gives (b D), queries, keys and values (3 b D), the turned queries and keys (2 b D). Of
    every token that comes out, which in the last block may be those alone that the head reads: the input of the second
    norm (4 D), what it gives (b D), what attention gives (b D), and the MLP's hidden numbers before and after its
    activation (2 b M; gates have twice as many); in the open path the scaled queries (b D) and a row of weights per
    head, unless these are made again on the way back.
    """
    model, b = plan.model, 4 if plan.compute.number_format == "float32" else 2
    D, M, T = model.width, model.mlp_width, model.tokens
    inner = model.attention_width
    looked_at = 4 * D + b * (D + (5 if model.rotary != "none" else 3) * inner)
    given = 4 * D + b * (D + inner + (2 if model.mlp == "plain" else 4) * M)
    path = choose_path(
        model.attention, device_capability(plan.compute.device), plan.compute.number_format, T, gradients=True
    )
    remade = not model.relative and not model.attention_dropout and should_recompute_weights(inner, T)
    if model.relative or (path == "open" and not remade):
        weight = b if plan.compute.device == "cpu" or b == 4 else 6  # a GPU's softmax keeps float32 beside bfloat16
        given += b * inner + model.heads * T * weight
    tokens = T * model.depth
    fewer = 0 if model.pool_blocks > 1 or model.read_tokens is None or not model.depth else T - model.read_tokens
    numbers = tokens * looked_at + (tokens - fewer) * given
    if model.recompute and model.depth:
        numbers = tokens * b * D + T * (looked_at + given)
    return -(-plan.recipe.batch // plan.recipe.accumulate) * numbers


def weights(plan: Plan) -> int:
    """Bytes of all weights, gradients, moments and the mean."""
    with torch.device("meta"):
        parameters = dict(ViT(plan.model).named_parameters())
    every = sum(parameter.numel() for parameter in parameters.values())
    matrices = sum(p.numel() for name, p in parameters.items() if ".blocks." in name and p.ndim >= 2)
    once = matrices if plan.recipe.optimizer == "muon" else 0
    copies = 2 + bool(plan.recipe.ema)
    cast = 0 if plan.compute.number_format == "float32" else 2 * every  # once a step, for all its products
    return 4 * (copies * every + once + 2 * (every - once)) + cast
