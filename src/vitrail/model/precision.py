"""Number formats inside a model: products that keep float32, and matrices that are cast once for many passes."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import nn


def in_float32(device: str) -> torch.autocast | nullcontext[None]:
    """A context in which autocast is off on a device of this type; nothing to enter where it is off already."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def cast_once(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with its linear layers and convolutions in a number format, for inference under autocast.

    Autocast makes the same cast anew on every pass; the answers have the same bits. All other parameters and buffers
    are shared with `model`, which stays as it is.
    """
    shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
    cast = copy.deepcopy(model, shared)
    for module in cast.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.weight = nn.Parameter(module.weight.detach().to(dtype), requires_grad=False)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.detach().to(dtype), requires_grad=False)
    return cast
