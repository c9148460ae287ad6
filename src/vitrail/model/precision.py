"""Products that keep float32 where training runs its others in bfloat16."""

from __future__ import annotations

from contextlib import nullcontext

import torch


def in_float32(device: str) -> torch.autocast | nullcontext[None]:
    """A context in which autocast is off on a device of this type; nothing to enter where it is off already."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
