"""The guards of RELIABILITY's part F: what is not applied, what is said of it, and what a resume remembers."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.loader import Batch
from vitrail.errors import DataError, DivergedError
from vitrail.train.guards import LEARNING_CHECK_STEP, LOSS_WINDOW, MAX_BAD_STEPS, Guards, PhaseLabel
from vitrail.train.plan import Recipe

NAMES = ("a.png", "b.png", "c.png", "d.png")
NAN = math.nan


def batch(targets: torch.Tensor | None = None) -> Batch:
    found = torch.tensor([0, 1]) if targets is None else targets
    return Batch(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), found, np.array([3, 1]))


def seen(guards: Guards, losses: list[float], first: int = 0) -> list[bool]:
    return [guards.allow(first + number, loss, 1.0, batch()) for number, loss in enumerate(losses)]


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (math.inf, 1.0), (1.0, NAN), (1.0, math.inf)])
def test_F1_a_step_that_is_not_finite_is_not_applied_and_written_down(loss, norm, tmp_path: Path):
    guards = Guards(Recipe(steps=200, warmup=0.0, lr_schedule="constant"), tmp_path, NAMES)
    assert guards.allow(121, 1.0, 1.0, batch())
    assert not guards.allow(122, loss, norm, batch(), logits=torch.tensor([[0.0], [NAN]]))
    kept = json.loads((tmp_path / "nan-step-000123.json").read_text())
    assert kept == {
        "step": 123,
        "loss": str(loss),
        "gradient_norm": str(norm),
        "rates": {"muon": 0.02, "adamw": 0.002},
        "pictures": ["d.png", "b.png"],
        "pictures_without_a_finite_answer": ["b.png"],
    }
    (said,) = guards.take_messages(123)
    assert said.startswith("Step 123 was not applied: loss ") and "nan-step-000123.json" in said
    assert guards.take_messages(123) == [], "each thing is told once"


def test_F1_three_in_a_row_stop_the_run_and_two_do_not():
    guards = Guards(Recipe(steps=200))
    assert seen(guards, [1.0, NAN, NAN, 1.0, NAN, NAN]) == [True, False, False, True, False, False]
    with pytest.raises(DivergedError, match=r"not finite in steps 5 to 7\. Lower.*muon_lr 0\.0067.*lr 0\.00067") as at:
        guards.allow(6, NAN, 1.0, batch())
    assert at.value.exit_code == 6 and MAX_BAD_STEPS == 3 and guards.nonfinite_steps == 5


def test_F1_that_nothing_can_be_written_down_is_no_reason_to_stop(tmp_path: Path):
    (tmp_path / "file").write_text("")
    guards = Guards(Recipe(), tmp_path / "file", NAMES)
    assert not guards.allow(0, NAN, 1.0, batch())
    assert "a file stands where a folder is expected" in guards.take_messages(1)[0]


def test_F2_a_jump_of_six_deviations_is_skipped_only_if_asked_for_and_at_most_once_in_a_hundred():
    calm = [1.0 + 0.01 * (number % 2) for number in range(LOSS_WINDOW)]
    assert all(seen(Guards(Recipe(steps=300)), [*calm, 50.0]))
    guards = Guards(Recipe(steps=300, skip_spikes=True))
    assert all(seen(guards, calm))
    assert seen(guards, [1.02, 50.0, 1.0], LOSS_WINDOW) == [True, False, True]
    for again in range(4):
        guards.load_state_dict(guards.state_dict() | {"finite": calm})
        assert guards.allow(200 + again, 50.0, 1.0, batch()) == (again >= 2), "three of 300 steps, and no more"
    assert guards.skipped_steps == 3
    assert guards.take_messages(204)[0] == f"Step {LOSS_WINDOW + 2} was skipped: its loss jumped to 50."


def test_F2_a_new_level_is_soon_no_jump_any_more():
    guards = Guards(Recipe(steps=10_000, skip_spikes=True))
    seen(guards, [1.0, 1.1] * (LOSS_WINDOW // 2))
    assert seen(guards, [9.0] * 20, LOSS_WINDOW).count(False) == 4


def test_F3_after_one_NaN_the_next_healthy_steps_are_all_applied():
    guards = Guards(Recipe(steps=1000, skip_spikes=True))
    healthy = [1.0 + 0.01 * (number % 3) for number in range(300)]
    assert all(seen(guards, healthy[:150]))
    assert seen(guards, [NAN], 150) == [False]
    assert all(seen(guards, healthy[150:], 151))


def test_F4_numbers_that_are_not_finite_when_they_are_read_are_named_by_file():
    guards = Guards(Recipe(), None, NAMES)
    with pytest.raises(DataError, match=r"Step 8 read numbers that are not finite with b\.png\. Mend"):
        guards.allow(7, NAN, 1.0, batch(torch.tensor([[0.5, NAN], [1.0, math.inf]])))


def test_F6_what_overflows_float16_is_counted_apart_and_stops_nobody():
    guards = Guards(Recipe())
    for step in range(10):
        assert not guards.allow(step, 1.0, math.inf, batch(), scale=65536.0)
    assert (guards.overflow_steps, guards.nonfinite_steps, guards.take_messages(10)) == (10, 0, [])
    with pytest.raises(DivergedError):
        for step in itertools.count(10):
            guards.allow(step, 1.0, math.inf, batch(), scale=1.0)
    assert (guards.overflow_steps, guards.nonfinite_steps) == (10, 3)


def test_F7_a_loss_that_does_not_fall_in_500_steps_brings_the_three_likeliest_causes_once():
    guards = Guards(Recipe(steps=2000))
    seen(guards, [2.3] * LEARNING_CHECK_STEP)
    assert guards.take_messages(LEARNING_CHECK_STEP - 1) == []
    (said,) = guards.take_messages(LEARNING_CHECK_STEP)
    assert "has not fallen in 500 steps (from 2.3 to 2.3)" in said
    assert all(cause in said for cause in ("rates are too high", "labels do not belong", "lost at this size"))
    assert guards.take_messages(LEARNING_CHECK_STEP + 1) == []
    learning = Guards(Recipe(steps=2000))
    seen(learning, [2.3 - 0.001 * step for step in range(LEARNING_CHECK_STEP)])
    assert learning.take_messages(LEARNING_CHECK_STEP) == []


def test_what_comes_before_the_training_is_named_in_the_file_and_in_every_sentence(tmp_path: Path):
    guards = Guards(Recipe(steps=2000), tmp_path, NAMES, PhaseLabel("pretrain", "pre-training", "Take smaller ones."))
    seen(guards, [2.3] * LEARNING_CHECK_STEP)
    assert guards.take_messages(LEARNING_CHECK_STEP) == [], (
        "of the loss of another phase nobody knows how fast it falls"
    )
    assert not guards.allow(600, NAN, 1.0, batch())
    kept = json.loads((tmp_path / "pretrain-nan-step-000601.json").read_text())
    assert kept["pictures"] == ["d.png", "b.png"]
    assert "pictures_without_a_finite_answer" not in kept, "nobody looked at the answers"
    (said,) = guards.take_messages(601)
    assert said.startswith("Step 601 of the pre-training was not applied: loss nan, gradient norm 1. Its pictures are")
    with pytest.raises(DataError, match=r"Step 602 of the pre-training read numbers that are not finite with d\.png"):
        guards.allow(601, NAN, 1.0, batch(torch.tensor([[math.inf], [1.0]])))
    with pytest.raises(
        DivergedError, match=r"^The pre-training diverged: .* in steps 601 to 603\. Take smaller ones\.$"
    ):
        guards.allow(602, NAN, 1.0, batch())


def test_what_is_remembered_decides_as_before(tmp_path: Path):
    losses = [1.0 + 0.01 * (number % 5) for number in range(140)] + [NAN, 30.0, NAN, NAN]
    whole = Guards(Recipe(steps=300, skip_spikes=True))
    decided = seen(whole, losses)
    for cut in (0, 100, 139, 141, 143):
        first, second = Guards(whole.recipe), Guards(whole.recipe)
        found = seen(first, losses[:cut])
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert found + seen(second, losses[cut:], cut) == decided
        assert second.state_dict() == whole.state_dict()
    whole.load_state_dict({})
    assert whole.nonfinite_steps == 3
