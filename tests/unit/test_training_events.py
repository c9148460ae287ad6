"""A training from a program: its events, how they stop it, what is left, and whose state holds between two of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from quick_fits import QUICK, digits
from vitrail.data.open import gather_objects
from vitrail.errors import InterruptedRun, UsageError
from vitrail.files.lock import Lock
from vitrail.train.fit import fit_plan

FOUR = {**QUICK, "steps": 4, "settings": {**QUICK["settings"], "recipe.evaluate_every": 2}}
IMAGES = digits(60, classes=2)


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def curve(run: Path) -> list[tuple[float, ...]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row.get("loss", 0.0), row.get("val_loss", 0.0)) for row in rows]


def splits() -> dict[str, object]:
    images, labels = IMAGES
    return {
        "source": (images[:40], labels[:40]),
        "val": (images[40:48], labels[40:48]),
        "test": (images[48:], labels[48:]),
    }


@pytest.fixture(autouse=True)
def interruptible():
    """As in a terminal; a shell starts programs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The unbroken run."""
    return vitrail.fit(**splits(), out=tmp_path_factory.mktemp("unbroken") / "run", quiet=True, **FOUR)


def test_three_objects_are_trained_validated_and_tested_on(run):
    assert (run.plan.data.source, run.plan.data.val_source, run.plan.data.test_source) == ("memory",) * 3
    assert run.evaluate(split="test").n == 12
    with pytest.warns(UserWarning, match=r"were fitted to 8 of these 8 pictures"):
        assert run.evaluate(split="val").n == 8
    listed = [line.split(",")[:2] for line in (run.path / "splits.csv").read_text().splitlines()[1:]]
    assert len(listed) == 60 and all(name.startswith(f"{split}/") for name, split in listed)


def test_a_loop_over_the_events_is_the_same_training(run, tmp_path):
    kinds, handlers = [], set()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for event in vitrail.train(**splits(), out=tmp_path / "run", **FOUR):
        kinds.append(type(event))
        handlers.add(signal.getsignal(signal.SIGINT))
        assert torch.equal(torch.get_rng_state(), before)
        if isinstance(event, vitrail.StepProgress):  # whatever is set between two events, the training computes alike
            torch.manual_seed(event.step)
            torch.set_default_dtype(torch.float64 if event.step < 3 else torch.float32)
            torch.set_grad_enabled(event.step % 2 == 0)
            before = torch.get_rng_state()
    assert handlers == {signal.default_int_handler}
    assert kinds.count(vitrail.StepProgress) == 4 and kinds.count(vitrail.ValidationEvent) == 2
    assert kinds.index(vitrail.PlanEvent) < kinds.index(vitrail.RunFolderEvent) < kinds.index(vitrail.StepProgress)
    assert kinds[-1] is vitrail.FinishEvent
    assert weights(tmp_path / "run") == weights(run.path)


@pytest.mark.wide
@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_stopped_training_is_saved_says_so_and_goes_on_exactly(step, run, tmp_path):
    events = []
    for event in vitrail.train(**splits(), out=tmp_path / "run", **FOUR):
        events.append(event)
        if isinstance(event, vitrail.StepProgress) and event.step == step:
            event.stop()
    assert events[-1] == vitrail.StopEvent(tmp_path / "run", step) and not (tmp_path / "run" / "model").exists()
    assert (tmp_path / "run" / "checkpoints" / f"step-0000000{step}").is_dir()
    resumed = vitrail.open(tmp_path / "run").resume(**splits(), quiet=True)
    assert weights(resumed.path) == weights(run.path)
    assert curve(resumed.path) == curve(run.path)


@pytest.mark.wide
def test_a_loop_that_is_left_is_saved_too_and_gives_everything_back(run, tmp_path):
    threads = torch.get_num_threads()
    for event in vitrail.train(**splits(), out=tmp_path / "run", **FOUR):
        if isinstance(event, vitrail.ValidationEvent):
            break
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and torch.get_num_threads() == threads
    with Lock(tmp_path / "run"):
        pass
    assert weights(vitrail.open(tmp_path / "run").resume(**splits(), quiet=True).path) == weights(run.path)


def test_a_training_that_is_stopped_before_its_folder_leaves_nothing(tmp_path):
    events = []
    for event in vitrail.train(**splits(), out=tmp_path / "run", **FOUR):
        events.append(event)
        event.stop()
    assert [type(event) for event in events] == [vitrail.StageEvent, vitrail.StopEvent]
    assert events[-1].run is None and not (tmp_path / "run").exists()


@pytest.mark.wide
@pytest.mark.parametrize("phase", ["pretrain", "training"])
def test_an_error_of_a_callback_saves_the_run_and_is_raised(phase, tmp_path):
    class Pruned(Exception):
        pass

    def prune(event: vitrail.TrainingEvent) -> None:
        if isinstance(event, vitrail.StepProgress) and event.step == 2 and bool(event.phase) == (phase == "pretrain"):
            raise Pruned

    options = {**FOUR, "settings": {**FOUR["settings"], **({"pretrain.steps": 3} if phase == "pretrain" else {})}}
    with pytest.raises(Pruned):
        vitrail.fit(**splits(), out=tmp_path / "run", quiet=True, callbacks=[prune], **options)
    folder = tmp_path / "run" / "checkpoints" / ("pretrain" if phase == "pretrain" else "")
    assert (folder / "step-00000002").is_dir()


@pytest.mark.wide
def test_a_callback_may_stop_a_fit_whose_run_is_given_back(tmp_path):
    seen = []

    def stop(event: vitrail.TrainingEvent) -> None:
        seen.append(event)
        if isinstance(event, vitrail.StepProgress):
            event.stop()

    run = vitrail.fit(**splits(), out=tmp_path / "run", quiet=True, callbacks=[stop], **FOUR)
    assert run.path == tmp_path / "run" and not run.report.exists()
    assert isinstance(seen[-1], vitrail.StopEvent) and seen[-1].step == 1
    assert run.resume(quiet=True).report.is_file()


def test_a_fit_that_is_stopped_before_its_folder_is_interrupted(tmp_path):
    with pytest.raises(InterruptedRun, match=r"^Stopped before the training began; nothing was saved yet\.$"):
        vitrail.fit(**splits(), out=tmp_path / "run", quiet=True, callbacks=[vitrail.TrainingEvent.stop], **FOUR)


def test_a_signal_between_two_events_is_the_callers(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        for event in vitrail.train(**splits(), out=tmp_path / "run", **FOUR):
            if isinstance(event, vitrail.StepProgress):
                signal.raise_signal(signal.SIGINT)
    assert (tmp_path / "run" / "checkpoints" / "step-00000001").is_dir()


def test_an_event_of_no_training_ends_none():
    with pytest.raises(UsageError, match="comes from no training"):
        vitrail.Note("Hello.").stop()
    with pytest.raises(UsageError, match="comes from no training step"):
        vitrail.ValidationEvent(2, 0.5, 0.7).finish()


def test_a_training_that_is_finished_early_has_a_model_and_is_repeated_by_its_plan(tmp_path):
    def end(event: vitrail.TrainingEvent) -> None:
        if isinstance(event, vitrail.StepProgress) and event.step == 20:
            event.finish()

    run = vitrail.fit(**splits(), out=tmp_path / "run", quiet=True, callbacks=[end], **{**FOUR, "steps": 60})
    assert run.plan.recipe.steps_history == ((0, 60), (20, 22)) and run.report.is_file()
    assert [step for step, *_ in curve(run.path)][-1] == 22 and run.metrics.n == 12
    source = gather_objects(**splits())
    again = [*fit_plan(run.plan, tmp_path / "again", source)][-1]
    assert isinstance(again, vitrail.FinishEvent) and weights(again.run) == weights(run.path)


@pytest.mark.wide
def test_an_early_end_takes_the_place_of_the_minutes_and_is_resumed(tmp_path):
    def end(event: vitrail.TrainingEvent) -> None:
        if isinstance(event, vitrail.StepProgress) and event.step == 20:
            event.finish()
        elif isinstance(event, vitrail.StepProgress) and event.step == 21:
            event.stop()

    options = {name: value for name, value in FOUR.items() if name != "steps"}
    run = vitrail.fit(**splits(), out=tmp_path / "run", quiet=True, callbacks=[end], minutes=0.5, **options)
    assert run.plan.minutes == 0 and run.plan.recipe.steps == 22 and not run.report.exists()
    assert run.resume(quiet=True).metrics.n == 12 and [step for step, *_ in curve(run.path)][-1] == 22


def test_the_same_objects_are_asked_for(run):
    given = splits()
    with pytest.raises(UsageError, match=r"was begun with source and val and test; give the same again\. Check test="):
        vitrail.open(run.path).resume(given["source"], val=given["val"])


def test_a_picture_of_val_in_train_is_named_in_a_note(tmp_path):
    given = splits()
    images, labels = IMAGES
    leaked = (np.concatenate([images[40:48], images[:1]]), np.concatenate([labels[40:48], labels[:1]]))
    notes = []
    for event in vitrail.train(given["source"], val=leaked, test=given["test"], out=tmp_path / "run", **FOUR):
        notes += [event.text] if isinstance(event, vitrail.Note) else []
        if isinstance(event, vitrail.PlanEvent):
            break
    assert any("lists such copies" in note and "val" in note for note in notes), notes
