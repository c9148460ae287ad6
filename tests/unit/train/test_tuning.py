"""Successive halving: which variants are tried, who goes on, what is kept, and that an interruption changes nothing."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

import vitrail
from quick_fits import SETTINGS, digits
from vitrail.data.settings import DataSettings
from vitrail.errors import DivergedError, InterruptedRun, UsageError
from vitrail.model.config import ViTConfig
from vitrail.runtime import RuntimeSettings
from vitrail.train import tuning
from vitrail.train.plan import FinetuneSettings, Plan, Recipe
from vitrail.train.request import TrainRequest
from vitrail.train.tuning import Trial, TrialResult, Tuning, draw_trials

PLAN = Plan(model_name="vit_pico_patch2_8", recipe=Recipe(mixup=0.2, rotate=10.0))
REQUEST = TrainRequest(data=DataSettings())
IMAGES = digits(60, classes=2)
OPTIONS = {
    "device": "cpu", "quiet": True, "settings": {**SETTINGS, "recipe.batch_size": 16, "data.val_fraction": 0.3},
}  # fmt: skip


def result(trial: int, number: int, loss: float | None, seconds: float = 1.0) -> TrialResult:
    return TrialResult(trial=trial, round=number, steps=10, seconds=seconds, loss=loss, metric=0.5)


def tuned(trials: int, **fields: object) -> Tuning:
    drawn = tuple(Trial(None, {}, {}) for _ in range(trials))
    return Tuning(request=REQUEST, settings=RuntimeSettings(), trials=drawn, preparation=0.0, **fields)


# -- Which variants


def test_the_first_trial_is_the_plan_and_the_others_vary_it_within_the_documented_space():
    trials = draw_trials(PLAN, REQUEST, 40)
    assert trials[0] == Trial("vit_pico_patch2_8", {}, {})
    assert {trial.model for trial in trials} == {f"vit_{size}_patch2_8" for size in ("femto", "pico", "nano")}
    for trial in trials[1:]:
        factor = float(trial.overrides["recipe.lr"]) / PLAN.recipe.lr
        assert 2**-1.5 * 0.99 <= factor <= 2**1.5 * 1.01
        assert float(trial.overrides["recipe.muon_lr"]) == pytest.approx(factor * PLAN.recipe.muon_lr, rel=0.02)
        assert trial.overrides.get("recipe.mixup", "0.2") in ("0.1", "0.2", "0.3")
        assert trial.overrides.get("recipe.rotate", "10.0") in ("5.0", "10.0", "15.0")
        assert trial.overrides.get("recipe.weight_decay", "0.05") in ("0.0167", "0.05", "0.15")
    assert draw_trials(PLAN, REQUEST, 6) == trials[:6]
    assert draw_trials(PLAN, replace(REQUEST, seed=1), 6)[1:] != trials[1:6]


def test_what_was_asked_for_is_not_varied():
    asked = {"recipe.lr": "0.001", "recipe.muon_lr": "0.01", "recipe.mixup": "0.2", "recipe.rotate": "10.0"}
    for trial in draw_trials(PLAN, replace(REQUEST, model="vit_pico_patch2_8", overrides=asked), 20):
        assert set(trial.changes) <= {"recipe.weight_decay"}


def test_a_model_whose_shape_was_asked_for_keeps_its_size():
    trials = draw_trials(PLAN, replace(REQUEST, overrides={"model.width": "16"}), 20)
    assert {trial.model for trial in trials} == {"vit_pico_patch2_8"}


def test_from_a_checkpoint_the_decay_by_layers_varies_and_the_size_does_not():
    plan = replace(
        PLAN, finetune=FinetuneSettings(weights="dinov2", layer_decay=0.75), recipe=Recipe(optimizer="adamw")
    )
    trials = draw_trials(plan, REQUEST, 20)
    assert {trial.model for trial in trials} == {None}
    decays = {trial.changes.get("finetune.layer_decay", "as planned") for trial in trials[1:]}
    assert decays == {"as planned", "0.65", "0.85", "0.95"}
    assert not any("recipe.muon_lr" in trial.changes for trial in trials)


def test_a_plan_without_augmentation_is_varied_by_mixup():
    plan = replace(PLAN, recipe=Recipe())
    assert {trial.changes.get("recipe.mixup") for trial in draw_trials(plan, REQUEST, 20)} == {None, "0.2"}


def test_strength_does_not_leave_the_range_of_a_field():
    strong = replace(PLAN, recipe=Recipe(random_erasing=0.8, rotate=170.0), model=ViTConfig(drop_path=0.8))
    drawn = [trial.changes for trial in draw_trials(strong, REQUEST, 20)]
    assert {one.get("recipe.random_erasing") for one in drawn} == {None, "0.4", "0.9"}
    assert {one.get("model.drop_path") for one in drawn} == {None, "0.4", "0.9"}


# -- Who goes on, and with how much


def test_the_better_half_goes_on_and_a_diverged_trial_does_not():
    results = (result(0, 0, 0.9), result(1, 0, None), result(2, 0, 0.1), result(3, 0, 0.5), result(4, 0, 0.9))
    halves = tuned(5, results=results)
    assert halves.num_rounds == 4
    assert halves.entrants(0) == [0, 1, 2, 3, 4] and halves.entrants(1) == [0, 2, 3]


@pytest.mark.parametrize("trials, rounds", [(2, 2), (3, 3), (4, 3), (6, 4), (8, 4), (9, 5)])
def test_every_round_doubles_what_a_trial_has_had_and_the_steps_add_up(trials, rounds):
    state = replace(tuned(trials), request=replace(REQUEST, steps=1000))
    assert state.num_rounds == rounds
    entrants, used, had = trials, 0, 0
    for number in range(rounds):
        share = state.choose_share(number)
        assert number in (0, rounds - 1) or share == pytest.approx(had, rel=0.05)
        had, used = had + share, used + entrants * share
        state, entrants = replace(state, shares=(*state.shares, share)), -(-entrants // 2)
    assert 1000 - trials <= used <= 1000


def test_the_last_trial_has_what_the_clock_has_left():
    """6 trials of 17 shares, of which each took 2 seconds longer than asked for."""
    first = replace(tuned(6), request=replace(REQUEST, minutes=17.0), preparation=2.0)
    share = first.choose_share(0)
    assert share == pytest.approx((17 * 60 - 12 * 2) / 17 / 60)
    done = tuple(result(trial, 0, 0.5, 60 * share + 5) for trial in range(6))
    later = replace(first, shares=(share,), results=done)
    left = 17 * 60 - 6 * (60 * share + 5)
    assert later.choose_share(1) == pytest.approx((left - 6 * 5) / 11 / 60)


def test_too_little_for_as_many_trials_says_how_much_it_takes():
    with pytest.raises(UsageError, match=r"6 trials need at least 17 steps in all\. Got --steps 16"):
        replace(tuned(6), request=replace(REQUEST, steps=16)).choose_share(0)
    with pytest.raises(UsageError, match=r"6 trials need at least 0\.97 minutes here"):
        replace(tuned(6), request=replace(REQUEST, minutes=0.5), preparation=2.0).choose_share(0)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"trials": 1}, r"compares at least 2 trials\. Got trials=1"),
        ({"settings": {"data.folds": 3}}, "folds have one each"),
        ({"settings": {"pretrain.steps": 3}}, r'\{"pretrain\.steps": \.\.\.\} trains before it'),
        ({"minutes": 1.0}, "Give one budget"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_read(fields, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        vitrail.tune("nowhere", steps=20, out=tmp_path / "tuned", **{"quiet": True, **fields})
    assert not (tmp_path / "tuned").exists()


# -- Whole tunings of a few steps


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return vitrail.tune(IMAGES, 3, steps=16, out=tmp_path_factory.mktemp("tuned") / "tuned", **OPTIONS)


def weights(found: vitrail.TuneResult) -> bytes:
    return (found.run.path / "model" / "model.safetensors").read_bytes()


def test_the_best_trial_is_a_finished_run_and_the_others_can_be_resumed(unbroken):
    """7 shares of 2 steps: three trials of 2, two of 2 more, and one of the 6 that are left."""
    assert [(one.trial, one.round, one.steps) for one in unbroken.results if one.round == 0] == [
        (0, 0, 2), (1, 0, 2), (2, 0, 2),
    ]  # fmt: skip
    assert [one.steps for one in unbroken.results if one.round == 1] == [4, 4]
    last = unbroken.results[-1]
    assert (last.round, last.steps) == (2, 10) and unbroken.run.path == unbroken.folder / f"trial-{last.trial}"
    assert unbroken.run.report.is_file() and unbroken.run.plan.recipe.steps == 10
    second = sorted((one for one in unbroken.results if one.round == 1), key=lambda one: one.loss)
    assert second[0].trial == last.trial
    stopped = unbroken.folder / f"trial-{second[1].trial}"
    assert not (stopped / "report.html").exists()
    assert vitrail.open(stopped).resume(IMAGES, quiet=True).report.is_file()


def test_the_table_of_trials_names_what_each_changes(unbroken):
    with (unbroken.folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    assert rows[0]["differs from the plan by"] == "nothing"
    assert rows[1]["differs from the plan by"].startswith("recipe.lr ")
    assert {row["steps"] for row in rows} == {"2", "4", "10"}


@pytest.mark.parametrize("step", [2, *(pytest.param(step, marks=pytest.mark.wide) for step in (1, 7, 12))])
def test_an_interrupted_tuning_goes_on_exactly(step, unbroken, tmp_path):
    """Stopped at the end of the first share, after the first step, in the second round, and in the last."""
    seen = []

    def interrupt(event: vitrail.TrainingEvent) -> None:
        seen.extend([event] if isinstance(event, vitrail.StepProgress) else [])
        if len(seen) == step:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRun, match=r"Continue with: vitrail\.tune\(source, out=.*tuned\", resume=True\)"):
        vitrail.tune(IMAGES, 3, steps=16, out=tmp_path / "tuned", callbacks=[interrupt], **OPTIONS)
    found = vitrail.tune(IMAGES, out=tmp_path / "tuned", resume=True, device="cpu", quiet=True)
    assert [one.loss for one in found.results] == [one.loss for one in unbroken.results]
    assert weights(found) == weights(unbroken)


def test_a_diverged_trial_stops_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "fit", diverge_after(tuning.fit, "trial-1"))
    found = vitrail.tune(IMAGES, 2, steps=9, out=tmp_path / "tuned", **OPTIONS)
    assert found.run.path == tmp_path / "tuned" / "trial-0"
    assert json.loads((tmp_path / "tuned" / "tune.json").read_text())["results"][1]["loss"] is None


def diverge_after(fit, name: str):
    def fit_or_diverge(request, settings, out=None, *rest):
        events = fit(request, settings, out, *rest)
        for event in events:
            yield event
            if out is not None and out.name == name and isinstance(event, vitrail.StepProgress):
                events.close()
                raise DivergedError("The loss is NaN.")

    return fit_or_diverge
