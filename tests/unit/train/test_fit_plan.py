"""A written plan with changes beside it: what nothing would read is refused, as where the plan is still to be made."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail import config
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import UsageError
from vitrail.runtime import RuntimeSettings
from vitrail.train import fit as training
from vitrail.train.events import PlanEvent
from vitrail.train.request import TrainRequest

PICTURES = np.random.default_rng(0).integers(0, 255, (16, 16, 16, 3)).astype(np.uint8)
SOURCE = Source(
    name="drawn", classes=("a", "b"), images=PICTURES, targets=np.arange(16) % 2, ids=tuple(map(str, range(16)))
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"recipe.progressive_size": "0.5"},
            r"--recipe\.progressive_size has no effect here without a --recipe\.progressive_until",
        ),
        (
            {"recipe.muon_momentum": "0.8", "recipe.optimizer": "adamw"},
            r"--recipe\.muon_momentum has no effect here without",
        ),
        ({"recipe.progressive_size": "0.5", "recipe.progressive_until": "0.5"}, None),
        ({"recipe.progressive_until": "0"}, None),
    ],
)
def test_what_is_changed_in_a_written_plan_and_would_have_no_effect_is_refused(changes, message, tmp_path):
    wishes = TrainRequest(data=DataSettings(), model="vit_mu_patch8_16", steps=2)
    events = training.fit(wishes, RuntimeSettings(device="cpu", threads=1), tmp_path / "run", True, SOURCE)
    (planned,) = [event for event in events if isinstance(event, PlanEvent)]
    assert planned.plan.recipe.progressive_until == 0
    plan = config.override(planned.plan, changes)
    followed = training.fit_plan(plan, tmp_path / "again", SOURCE, dry_run=True, changes=changes)
    if message is None:
        assert [event.plan for event in followed if isinstance(event, PlanEvent)] == [plan]
    else:
        with pytest.raises(UsageError, match=message):
            list(followed)
