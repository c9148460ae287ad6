"""Whole runs with minutes: on a simulated clock, killed and resumed, with phases before them, repeated by the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.train.test_fit import MACHINE, drawn
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.files.safetensors_file import load_tensors
from vitrail.train import fit as training
from vitrail.train import phase, time_budget
from vitrail.train.events import Event, FinishEvent, StepProgress
from vitrail.train.planning import throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.request import TrainRequest
from vitrail.train.resume import Extension
from vitrail.train.run_folder import RunFolder

SECONDS = 4.0
SOURCE = drawn((8, 8))


class TickingTime:
    """Every look at the clock takes a while, on a machine that becomes slow after a number of looks, and fast again."""

    def __init__(self) -> None:
        self.now, self.looks = 50.0, 0
        self.slow = range(100, 200)

    def perf_counter(self) -> float:
        self.looks += 1
        self.now += 0.02 if self.looks in self.slow else 0.01
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> TickingTime:
    ticking = TickingTime()
    monkeypatch.setattr(time_budget, "time", ticking)
    monkeypatch.setattr(
        throughput,
        "measure_throughput",
        lambda context: Throughput(tuple((stage, 0.05) for stage in context.plan.recipe.progressive_stages())),
    )
    monkeypatch.setattr(phase, "measure_phase_step", lambda phase: 0.05)
    return ticking


def begin(path: Path, **overrides: object) -> Iterator[Event]:
    fields = {"recipe.batch_size": "8", "recipe.save_every": "7", "compute.num_workers": "0"}
    fields |= {name.replace("__", "."): str(value) for name, value in overrides.items() if "__" in name}
    wishes = TrainRequest(
        data=DataSettings(), model="vit_mu_patch8_16", minutes=SECONDS / 60, overrides=fields,
        pretrain="pretrain" in overrides,
    )  # fmt: skip
    return training.fit(wishes, MACHINE, path, source_object=SOURCE)


def kill(events: Iterator[Event], step: int, title: str = "") -> None:
    """Follow a run to a step, and leave it there."""
    for event in events:
        if isinstance(event, StepProgress) and (event.phase, event.step) == (title, step):
            return
    raise AssertionError(f"The run was over before step {step}.")


def seconds_of(events: Iterator[Event]) -> float:
    (finished,) = [event for event in events if isinstance(event, FinishEvent)]
    return finished.seconds


def assert_same_as_its_plan(path: Path) -> None:
    """The plan of a finished run gives its weights, and is not replanned."""
    run, again = RunFolder(path), RunFolder(path.with_name("again"))
    list(training.fit_plan(run.read_plan(), again.path, SOURCE))
    ours, theirs = (load_tensors(each.bundle / "model.safetensors") for each in (run, again))
    assert all(ours[name].equal(theirs[name]) for name in ours.keys() | theirs.keys())
    assert again.read_plan() == dataclasses.replace(
        run.read_plan(),
        minutes=0.0,
        pretrain=dataclasses.replace(run.read_plan().pretrain, budget_fraction=0.0),
        distill=dataclasses.replace(run.read_plan().distill, budget_fraction=0.0),
    )


def test_a_slow_third_costs_steps_and_no_seconds_and_the_plan_repeats_it(time, tmp_path):
    seconds = seconds_of(begin(tmp_path / "run"))
    recipe = RunFolder(tmp_path / "run").read_plan().recipe
    assert seconds == pytest.approx(SECONDS, rel=0.05)
    assert len(recipe.steps_history) > 3 and recipe.steps_history[-1][1] == recipe.steps
    why = RunFolder(tmp_path / "run").read_reasons()["recipe.steps"]
    assert why == "0.06667 min at 0.050 s a step, measured before the first one; since then replanned"
    assert "recipe.steps replanned after" in (tmp_path / "run" / "log.txt").read_text()
    assert_same_as_its_plan(tmp_path / "run")


@pytest.mark.wide
@pytest.mark.parametrize("steps", [(3,), (14, 36), (7, 23, 24, 41)])
def test_a_run_that_was_killed_goes_on_by_its_minutes_and_its_plan_repeats_it(time, tmp_path, steps):
    kill(begin(tmp_path / "run"), steps[0])
    for step in steps[1:]:
        kill(training.resume_run(tmp_path / "run", SOURCE), step)
        time.now += 1000  # until it is resumed
    assert seconds_of(training.resume_run(tmp_path / "run", SOURCE)) == pytest.approx(SECONDS, rel=0.07)
    assert_same_as_its_plan(tmp_path / "run")


@pytest.mark.wide
def test_decisions_after_the_newest_checkpoint_are_followed_and_not_taken_again(time, tmp_path):
    kill(begin(tmp_path / "run", recipe__save_every=1000), 40)
    decided = RunFolder(tmp_path / "run").read_plan().recipe.steps_history
    assert len(decided) > 2
    seconds_of(training.resume_run(tmp_path / "run", SOURCE))
    assert RunFolder(tmp_path / "run").read_plan().recipe.steps_history[: len(decided)] == decided
    assert_same_as_its_plan(tmp_path / "run")


@pytest.mark.wide
@pytest.mark.parametrize("title", ["pre-training", "training of the teacher"])
def test_phases_before_the_training_keep_to_their_share_and_count(time, tmp_path, title):
    time.slow = range(60, 120)
    teacher = {"distill__teacher": "cnn", "distill__budget_fraction": 0.4}
    fields = {"pretrain": True} if title == "pre-training" else teacher
    kill(begin(tmp_path / "run", **fields), 9, title)
    assert seconds_of(training.resume_run(tmp_path / "run", SOURCE)) == pytest.approx(SECONDS, rel=0.07)
    run = RunFolder(tmp_path / "run")
    section = run.read_plan().pretrain if title == "pre-training" else run.read_plan().distill
    assert section.steps_history[-1][1] == section.steps and section.budget_fraction > 0
    began = max(row["elapsed"] for row in run.read_rows() if not row["step"])
    assert began == pytest.approx(section.budget_fraction * SECONDS, rel=0.1)
    assert_same_as_its_plan(tmp_path / "run")


@pytest.mark.wide
def test_minutes_that_a_phase_has_used_up_leave_a_short_training_that_ends_at_zero(time, tmp_path, monkeypatch):
    monkeypatch.setattr(phase, "measure_phase_step", lambda phase: 0.001)
    assert seconds_of(begin(tmp_path / "run", distill__teacher="cnn", distill__steps=500)) > SECONDS
    recipe = RunFolder(tmp_path / "run").read_plan().recipe
    assert recipe.steps == time_budget.MIN_STEPS and recipe.lr_factor(19) < 0.1


@pytest.mark.wide
def test_a_plan_that_cannot_be_written_is_not_replanned(time, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "record_replanning", lambda *words: False)
    seconds_of(begin(tmp_path / "run"))
    recipe = RunFolder(tmp_path / "run").read_plan().recipe
    assert recipe.steps == 80 and recipe.steps_history == ()


def test_steps_that_are_changed_in_a_resumed_run_are_refused(time, tmp_path):
    kill(begin(tmp_path / "run"), 20)
    run = RunFolder(tmp_path / "run")
    plan, reasons = run.read_plan(), run.read_reasons()
    other = dataclasses.replace(plan.recipe, steps=999, steps_history=())
    run.write_plan(dataclasses.replace(plan, recipe=other), reasons)
    with pytest.raises(UsageError, match=r"recipe\.steps .* -> 999"):
        list(training.resume_run(tmp_path / "run", SOURCE))


@pytest.mark.wide
def test_minutes_of_an_extension_are_kept_too(time, tmp_path):
    first = seconds_of(begin(tmp_path / "run"))
    longer = training.resume_run(tmp_path / "run", SOURCE, Extension(minutes=SECONDS / 60))
    assert seconds_of(longer) - first == pytest.approx(SECONDS, rel=0.07)
    recipe = RunFolder(tmp_path / "run").read_plan().recipe
    assert recipe.steps_history[1][0] > recipe.extended_at > 0
    factors = [recipe.lr_factor(step) for step in range(recipe.extended_at, recipe.steps)]
    assert factors[0] < 0.1 and factors[-1] < 0.1 and max(factors) > 0.3
