"""A learner whose weights are split over processes, put together again to be evaluated or kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...model.vit import create_model
from ..loop import Learner
from ..plan import Plan
from ..stepping.optimizer import Average
from .team import Team


@torch.no_grad()
def whole_learner(learner: Learner, plan: Plan, team: Team) -> Learner:
    """The same weights and running mean in a plain model; every process must ask at once. A plain learner as it is."""
    if not learner.sharded:
        return learner
    from .sharding import whole

    with team.noticing():
        model = create_model(plan.model, plan.seed).to(plan.compute.device).train()
        for plain, share in zip(_tensors(model), _tensors(learner.model), strict=True):
            plain.copy_(whole(share))
        average = None
        if learner.average is not None:
            average = Average(model, learner.average.decay)
            for name, share in learner.average.weights.items():
                average.weights[name].copy_(whole(share))
    return Learner(model, [], average)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
