"""Numbers that were drawn on the processor, brought to where the pictures lie without waiting for anything."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def onto(values: np.ndarray, device: torch.device) -> Tensor:
    """The values on a device; float64 becomes float32. A GPU goes on working while they travel."""
    tensor = torch.from_numpy(np.ascontiguousarray(values.astype(np.float32) if values.dtype == np.float64 else values))
    return tensor.to(device, non_blocking=device.type == "cuda")
