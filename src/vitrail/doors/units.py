"""A model of numbers that answers in their units by itself, for libraries that know nothing of our scale."""

from __future__ import annotations

import copy

import torch

from ..errors import UsageError
from ..evaluate.calibration import TargetScaling
from ..model.vit import ViT


def in_units(model: ViT, scaling: TargetScaling) -> ViT:
    """A copy whose last matrix and bias have taken up the scale: its outputs are deviation x output + mean.

    Raises:
        UsageError: the head has no bias, which would have to hold the mean.
    """
    own = copy.deepcopy(model)
    matrices = [matrix for matrix in (own.head.linear, own.head.distillation) if matrix is not None]
    with torch.no_grad():
        for matrix in matrices:
            if matrix.bias is None:
                raise UsageError(
                    "Other libraries need the mean of the training targets in the head's bias, and this model's head "
                    "has none. Convert it to a bundle, which keeps the mean beside the weights."
                )
            deviation = torch.tensor(scaling.deviation, dtype=torch.float64)
            mean = torch.tensor(scaling.mean, dtype=torch.float64)
            matrix.weight.copy_(matrix.weight.double() * deviation[:, None])
            matrix.bias.copy_(matrix.bias.double() * deviation + mean)
    return own
