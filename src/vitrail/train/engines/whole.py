"""A learner whose tensors are split over processes, put together again: to evaluate it, to save it, to go on with it.

So a checkpoint is the same files whatever engine wrote it, and any other engine or number of processes goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...model.vit import create
from .. import optimizer as rates
from ..loop import Learner
from ..optimizer import Average
from ..plan import Plan
from .team import Team


@torch.no_grad()
def whole_learner(learner: Learner, plan: Plan, team: Team) -> Learner:
    """The same weights and running mean in a plain model; every process must ask at once. A plain learner as it is."""
    if not learner.sharded:
        return learner
    twin = _plain(learner, plan, plan.compute.device)
    _gather(learner, twin, team)
    return Learner(twin.model, [], twin.average)


@torch.no_grad()
def whole_state(learner: Learner, plan: Plan, team: Team) -> Learner | None:
    """All that a checkpoint holds, on the leader; None elsewhere, though every process must ask at once."""
    if not learner.sharded:
        return learner if team.leads else None
    twin = _plain(learner, plan, "cpu") if team.leads else None
    _gather(learner, twin, team)
    from .sharding import whole

    with team.noticing():
        for number, optimizer in enumerate(learner.optimizers):
            ours = None if twin is None else twin.optimizers[number]
            for share, plain in zip(_parameters(optimizer), _parameters(ours or optimizer), strict=True):
                state = {key: whole(tensor).cpu() for key, tensor in optimizer.state[share].items()}
                if ours is not None:
                    ours.state[plain] = state
    return twin


@torch.no_grad()
def split(twin: Learner, learner: Learner) -> None:
    """Put whole tensors, the same on every process, into a learner that is sharded."""
    from .sharding import like, put

    for plain, share in zip(_tensors(twin.model), _tensors(learner.model), strict=True):
        put(plain, share)
    if learner.average is not None and twin.average is not None:
        for name, share in learner.average.weights.items():
            put(twin.average.weights[name], share)
    for theirs, ours in zip(twin.optimizers, learner.optimizers, strict=True):
        for plain, share in zip(_parameters(theirs), _parameters(ours), strict=True):
            ours.state[share] = {
                key: like(tensor.to(share.device), share) if tensor.shape == share.shape else tensor
                for key, tensor in theirs.state[plain].items()
            }


def empty_twin(learner: Learner, plan: Plan) -> Learner:
    """A plain learner of the same kind on the processor, to read a checkpoint into."""
    return _plain(learner, plan, "cpu")


def _plain(learner: Learner, plan: Plan, device: str) -> Learner:
    model = create(plan.model, plan.seed).to(device).train()
    average = None if learner.average is None else Average(model, learner.average.decay)
    return Learner(model, rates.build(model, plan.recipe, device), average)


def _gather(learner: Learner, twin: Learner | None, team: Team) -> None:
    """Fill the twin, where there is one; where there is none only help the others to theirs."""
    from .sharding import whole

    with team.noticing():
        for place, share in enumerate(_tensors(learner.model)):
            together = whole(share)
            if twin is not None:
                _tensors(twin.model)[place].copy_(together)
        for name, share in ({} if learner.average is None else learner.average.weights).items():
            together = whole(share)
            if twin is not None and twin.average is not None:
                twin.average.weights[name].copy_(together)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
