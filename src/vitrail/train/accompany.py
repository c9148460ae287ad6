"""What every process but the first does in a training: the same steps, and nothing for anybody to see."""

from __future__ import annotations

from ..data.loader import ImageStore
from ..errors import InterruptedRun, PartnerError
from .dataset import Dataset
from .engines.team import Team
from .engines.whole import whole_learner
from .keeping import state
from .keeping.signals import go_on, listening
from .loop import Learner, train
from .plan import Plan
from .run import RunFolder
from .stepping.guards import Guards


def accompany(run: RunFolder, plan: Plan, learner: Learner, dataset: Dataset, pictures: ImageStore, team: Team) -> None:
    """Train beside `follow.follow` on rank 0, from where it begins to the last step or until somebody shall stop.

    Raises:
        InterruptedRun: this or another process got a signal, and rank 0 has saved the run.
        PartnerError: another process died.
        DataError: too many pictures of this process's part were lost on the way.
        DivergedError: as on rank 0.
    """
    guards = Guards(plan.recipe, None, dataset.source.ids)
    start = _restored(run, plan, learner, guards, int(team.told()))
    try:
        _accompany(plan, learner, dataset, pictures, start, guards, team)
    except PartnerError as error:
        raise PartnerError(f"{error} {go_on(run.path)}") from error


def _restored(run: RunFolder, plan: Plan, learner: Learner, guards: Guards, start: int) -> int:
    """The checkpoint that rank 0 begins from, out of the same folder."""
    if start:
        path = run.checkpoints / f"step-{start:08d}"
        state.load(path, learner.model, learner.optimizers, learner.average)
        facts = state.facts(path)
        guards.remember(facts.get("guards", {}))
        learner.remember(facts)
    return start


def _accompany(
    plan: Plan, learner: Learner, dataset: Dataset, pictures: ImageStore, start: int, guards: Guards, team: Team
) -> None:
    """Whenever rank 0 evaluates or saves, a learner that is split over the processes is put together by all."""
    targets, blocks = dataset.learnt("train"), dataset.blocks("train")
    with listening() as wish:
        for done in train(
            learner, pictures, targets, plan, start, blocks, dataset.source.task, guards, team, dataset.brought
        ):
            if len(dataset.splits["val"]) and plan.recipe.evaluates_at(done.step):
                whole_learner(learner, plan, team)
            due, stop = team.most(int(wish.save), wish.signal or 0)
            wish.save = False
            if learner.sharded and (due or stop):
                state.shares_of(learner, team).help_leader()
            if stop and done.step < plan.recipe.steps:
                team.told()  # rank 0 has saved
                raise InterruptedRun(f"Interrupted at step {done.step} of {plan.recipe.steps}.", 128 + stop)
    whole_learner(learner, plan, team)
