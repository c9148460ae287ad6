"""What a device can do at most: the matrix products of a model's own blocks, one large product, copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..model import flops
from ..model.config import ViTConfig
from ..model.flops import MatrixProduct
from .clock import Job

BLOCK = ("projections", "attention", "mlp")
LARGE = 2048
"""Side of the square matrices of the large product."""
COPIED = 64 * 2**20
"""Bytes of a copy: more than the caches hold."""


@dataclass(frozen=True)
class Limit:
    """Something that a device is given to do, and how much of it that is: operations, or bytes read and written."""

    job: Job
    amount: float


def block(config: ViTConfig, batch: int, dtype: torch.dtype, device: str, training: bool) -> Limit:
    """The products of one block for a batch, nothing else done; with `training` those of its backward pass too.

    A share of this limit (model FLOPs utilisation) says how much of the time goes to what is no product. Where a model
    has no blocks, they are all its products.
    """
    every = [product for product in flops.list_matrix_products(config, whole=True) if product.times]
    found = [product for product in every if product.part in BLOCK] or every
    pairs = [_pair(product, batch, dtype, device) for product in found]
    once = sum(product.flops * batch // product.times for product in found)

    def job() -> None:
        for x, w in pairs:
            y = x @ w.mT
            if training:
                y @ w  # as the gradient of x is made
                y.mT @ x  # as that of w

    return Limit(job, once * (flops.TRAINING_FORWARD_MULTIPLE if training else 1))


def large(dtype: torch.dtype, device: str) -> Limit:
    """One product of large square matrices."""
    x, w = (torch.randn(LARGE, LARGE, device=device).to(dtype) for _ in range(2))
    return Limit(lambda: x @ w, 2.0 * LARGE**3)


def copies(device: str) -> Limit:
    """Copying memory, in bytes read and written together."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    return Limit(lambda: target.copy_(source), 2.0 * COPIED)


def _pair(product: MatrixProduct, batch: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Both matrices of one product for a batch, the second as torch stores weights, [columns, inner]."""
    stack = product.stack if product.shared else product.stack * batch
    rows = product.rows * (batch if product.shared else 1)
    x = torch.randn(stack, rows, product.inner, device=device).to(dtype)
    w = torch.randn(stack, product.columns, product.inner, device=device).to(dtype)
    return (x[0], w[0]) if stack == 1 else (x, w)
