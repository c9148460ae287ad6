"""When a running training is saved, and what is said if that fails."""

from __future__ import annotations

import time
from contextlib import nullcontext

from ... import config
from ...errors import ResourceError
from ..engines.team import ALONE, Team
from ..loop import Learner
from ..plan import Plan
from ..run import RunFolder
from ..stepping.guards import Guards
from . import state
from .signals import Wish, go_on

SECONDS_BETWEEN_SAVES = 60.0


class Keeper:
    """Saves one run: about once a minute, or every so many steps if the recipe says so."""

    def __init__(self, run: RunFolder, plan: Plan, learner: Learner, guards: Guards, team: Team = ALONE):
        self._run, self._plan, self._learner, self._guards = run, plan, learner, guards
        self._team = team
        self.whole = not learner.sharded
        """Whether this process can save by itself, without those that hold other parts of the weights."""
        self._plan_text = config.to_toml(plan, {})
        self._saved_at = time.monotonic()
        self._complained = False

    def due(self, step: int, wish: Wish) -> bool:
        """Whether to save after this many steps: it is time, somebody asked, or it was the last one."""
        every = self._plan.recipe.save_every
        timely = step % every == 0 if every else time.monotonic() - self._saved_at > SECONDS_BETWEEN_SAVES
        return timely or wish.save or bool(wish) or step == self._plan.recipe.steps

    def save(self, step: int) -> list[str]:
        """Save the run after `step` steps; sentences about what did not quite succeed.

        Raises:
            ResourceError: it cannot be saved; says which older step is safe.
        """
        learner, folder = self._learner, self._run.checkpoints
        shares = None if not learner.sharded else state.shares_of(learner, self._team)
        self._run.flush_metrics()  # the table must not lose to a power cut what the checkpoint keeps
        try:
            with self._team.saving() if self.whole else nullcontext():
                state.save(
                    folder, step, learner.model, learner.optimizers, learner.average, self._plan_text,
                    {"guards": self._guards.remembered(), **learner.remembered()}, shares,
                )  # fmt: skip
        except ResourceError as error:
            raise ResourceError(f"{error} {self._safe(step)} {go_on(self._run.path)}") from error
        finally:
            if shares is not None:
                shares.close()
        self._saved_at = time.monotonic()
        left = state.left_over(folder, step)
        if not left or self._complained:
            return []
        self._complained = True
        return [f"The old checkpoint {left[0]} cannot be deleted. The training goes on; delete it when it is over."]

    def _safe(self, step: int) -> str:
        """What the checkpoint would have needed, and which one there is."""
        size = state.size(self._learner) / 2**20
        newest, _ = state.newest(self._run.checkpoints)
        safe = f"step {state.facts(newest)['step']:,} is still safe" if newest else "nothing was saved before"
        return f"The checkpoint of step {step:,} needs {size:,.1f} MiB; {safe}. Make room."
