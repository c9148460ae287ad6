"""What is tried when the memory was full takes as much of it as the step that failed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from vitrail.evaluate.inference import DTYPES
from vitrail.model.vit import create_model
from vitrail.train.loop import build_train_state, try_step
from vitrail.train.plan import ComputeSettings, Plan


@pytest.mark.parametrize("number_format", list(DTYPES))
def test_a_step_is_tried_in_the_number_format_of_the_run(number_format):
    plan = Plan(compute=ComputeSettings(precision=number_format))
    plan = dataclasses.replace(plan, model=dataclasses.replace(plan.model, width=12, depth=1, heads=2, mlp_width=24))
    learner = build_train_state(create_model(plan.model, seed=0), plan)
    products = {part: "" for part in learner.model.modules() if isinstance(part, nn.Linear)}
    for part in products:
        part.register_forward_hook(lambda part, _, answer: products.update({part: answer.dtype}))
    try_step(learner, plan, 2)
    blocks = {products[part] for name, part in learner.model.named_modules() if part in products and "blocks" in name}
    assert blocks == {DTYPES[number_format]}
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert not torch.is_autocast_enabled("cpu")
