"""FSDP2: every process keeps its share of each parameter. What to do where whole tensors are wanted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ...model.vit import ViT
from .team import Team


def shard(model: nn.Module, team: Team, device: str) -> None:
    """Split the parameters of every block, and those around them, over the team; in place.

    A block's parameters are gathered when its turn comes in the forward and the backward pass, and let go after it.
    """
    mesh = init_device_mesh(device, (team.world,))
    assert isinstance(model, ViT)
    for block in model.encoder.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def share_gradients(model: nn.Module, now: bool) -> None:
    """Whether the coming backward pass adds the gradients of all processes up; if not, each keeps its own for later."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(now)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor on every rank, which all have to ask for; one that is not sharded as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, the same on every rank, sharded as another one is; without talking to anybody."""
    if not isinstance(other, DTensor):
        return tensor
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


@torch.no_grad()
def put(whole_one: Tensor, into: Tensor) -> None:
    """Copy a whole tensor, the same on every rank, into one that may be sharded."""
    into.copy_(like(whole_one.to(into.device), into))
