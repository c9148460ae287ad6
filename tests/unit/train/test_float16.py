"""float16's loss scale: halved after an overflow, doubled after 2,000 good steps, remembered, never in the way."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.train.loop import GROWTH_INTERVAL, INITIAL_SCALE, LossScale


def test_the_scale_falls_at_once_and_grows_slowly():
    scale = LossScale()
    scale.update(overflowed=True)
    assert scale.factor == INITIAL_SCALE / 2
    for _ in range(GROWTH_INTERVAL - 1):
        scale.update(overflowed=False)
    assert scale.factor == INITIAL_SCALE / 2
    scale.update(overflowed=False)
    assert scale.factor == INITIAL_SCALE
    for _ in range(100):
        scale.update(overflowed=True)
    assert scale.factor == 1.0


def test_a_resumed_scale_goes_on_where_it_stood():
    first, second = LossScale(), LossScale()
    for _ in range(GROWTH_INTERVAL - 1):
        first.update(overflowed=False)
    second.load_state_dict(first.state_dict())
    second.update(overflowed=False)
    assert second.factor == 2 * INITIAL_SCALE


def test_dividing_gives_the_gradients_without_the_factor_bit_for_bit():
    parameter = nn.Parameter(torch.zeros(3))
    gradient = torch.tensor([0.1, -3.0, 7e-5])
    parameter.grad = gradient * INITIAL_SCALE
    LossScale().unscale([parameter, nn.Parameter(torch.zeros(1))])
    assert torch.equal(parameter.grad, gradient)
