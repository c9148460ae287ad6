"""Trainings with a teacher: a CNN first, another run, features; resumed, and refused where it cannot teach."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.files import safetensors_file
from vitrail.runtime import RuntimeSettings
from vitrail.train import fit as training
from vitrail.train import loop, phase
from vitrail.train.distill import distillation
from vitrail.train.events import Event, FinishEvent, Note, PlanEvent, StepProgress
from vitrail.train.phase import START_WEIGHTS_FILE
from vitrail.train.plan import DistillSettings, FinetuneSettings, Plan
from vitrail.train.planning import planner
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder

MACHINE = RuntimeSettings(device="cpu", threads=1)
TARGETS = np.arange(16) // 8
NUMBERS = np.stack([TARGETS * 40 + 300, TARGETS], 1).astype(np.float32)


def drawn(**fields: object) -> Source:
    """Tiny noisy pictures of two classes, brighter and darker."""
    noise = np.random.default_rng(0).integers(0, 60, (16, 16, 16, 3))
    whole = Source(
        name="drawn",
        classes=("dark", "light"),
        images=(noise + 60 * TARGETS[:, None, None, None]).astype(np.uint8),
        targets=TARGETS,
        ids=tuple(f"{row}.png" for row in range(16)),
    )
    return dataclasses.replace(whole, **fields)


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., list[Event]]:
    """Train the smallest model for three steps into `run`; all that was told."""

    def fitted(run: str = "run", source: Source | None = None, dry_run: bool = False, **said: object) -> list[Event]:
        overrides = {"recipe.save_every": "1"} | {name.replace("__", "."): str(text) for name, text in said.items()}
        wishes = TrainRequest(data=DataSettings(), model="vit_mu_patch8_16", steps=3, overrides=overrides)
        return list(training.fit(wishes, MACHINE, tmp_path / run, dry_run, source_object=source or drawn()))

    return fitted


def notes(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


def same(first: Path, second: Path) -> bool:
    ours, theirs = (safetensors_file.load_tensors(path / "model" / "model.safetensors") for path in (first, second))
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


CNN = {"distill__teacher": "cnn", "distill__steps": 4, "distill__cnn_width": 4}


def test_a_cnn_is_trained_first_is_judged_and_lies_in_the_run_folder(fit, tmp_path):
    events = fit(**CNN)
    shown = [(event.phase, event.step) for event in events if isinstance(event, StepProgress)]
    assert shown[:4] == [("training of the teacher", step) for step in (1, 2, 3, 4)] and len(shown) == 7
    assert any(text.startswith("The teacher is trained: accuracy ") for text in notes(events))
    assert (tmp_path / "run" / "teacher.safetensors").is_file()
    assert not (tmp_path / "run" / "checkpoints" / "teacher").exists()
    fit("alone")
    assert not same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("last", [2, 4, 6])
def test_a_run_with_a_cnn_that_was_stopped_anywhere_ends_with_the_same_bits(last, fit, tmp_path, monkeypatch):
    from vitrail.train import trainer

    steps, train = phase.iterate_phase_steps, loop.train_steps

    def broken(*words: object, **more: object) -> Iterator[object]:
        yield from itertools.islice((steps if last < 5 else train)(*words, **more), last if last < 5 else last - 4)
        raise DataError("The disk is gone.")

    monkeypatch.setattr(*((phase, "iterate_phase_steps") if last < 5 else (trainer, "train")), broken)
    with pytest.raises(DataError, match="The disk is gone"):
        fit(**CNN)
    monkeypatch.undo()
    events = list(training.resume_run(tmp_path / "run", drawn()))
    told = f"step {last} of 4 of the training of the teacher" if last < 5 else f"step {last - 4} of 3"
    assert any(told in text for text in notes(events))
    fit("whole", **CNN)
    assert same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.wide
def test_another_run_teaches_in_any_order_of_its_classes_and_may_go_away_afterwards(fit, tmp_path):
    fit("elder")
    events = fit(distill__teacher=tmp_path / "elder", source=drawn(classes=("light", "dark"), targets=1 - TARGETS))
    assert [event.phase for event in events if isinstance(event, StepProgress)] == [""] * 3
    kept = json.loads((tmp_path / "run" / "teacher" / "config.json").read_text())
    assert kept["classes"] == ["dark", "light"]
    shutil.rmtree(tmp_path / "elder")
    shutil.rmtree(tmp_path / "run" / "model")
    (tmp_path / "run" / "report.html").unlink()
    list(training.resume_run(tmp_path / "run", drawn(classes=("light", "dark"), targets=1 - TARGETS)))
    assert (tmp_path / "run" / "model").is_dir()


@pytest.mark.wide
@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_labels_and_numbers_have_teachers_too(task, fit, tmp_path):
    source = drawn(task=task, classes=("a", "b"), targets=NUMBERS if task == "regression" else (NUMBERS > 300) * 1.0)
    source = dataclasses.replace(source, targets=source.targets.astype(np.float32))
    fit("elder", source)
    fit(source=source, distill__teacher=tmp_path / "elder")
    assert (tmp_path / "run" / "teacher" / "config.json").is_file()
    fit("first", source, **CNN)


def test_features_are_learnt_first_and_the_weights_lie_in_the_run_folder(fit, tmp_path):
    fit("elder")
    source = drawn(classes=("yes", "no"))
    events = fit(source=source, distill__teacher=tmp_path / "elder", distill__kind="features", distill__steps=4)
    shown = [event.phase for event in events if isinstance(event, StepProgress)]
    assert shown == ["learning of features"] * 4 + [""] * 3
    start = safetensors_file.load_tensors(tmp_path / "run" / "start.safetensors")
    bundled = safetensors_file.load_tensors(tmp_path / "run" / "pretrained" / "model.safetensors")
    assert start.keys() == bundled.keys() and all(torch.equal(start[name], bundled[name]) for name in start)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["teacher_loss"] for row in rows if "teacher_loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]


@pytest.mark.wide
def test_what_is_kept_as_pretrained_is_what_the_training_begins_with(fit, tmp_path):
    fit("teacher")
    teaching = {"distill__teacher": tmp_path / "teacher", "distill__kind": "features", "distill__steps": 2}
    fit(**teaching, pretrain__steps=2)
    kept, start = (
        safetensors_file.load_tensors(tmp_path / "run" / name)
        for name in ("pretrained/model.safetensors", START_WEIGHTS_FILE)
    )
    assert kept.keys() == start.keys() and all(torch.equal(kept[name], start[name]) for name in kept)


def test_a_teacher_that_cannot_teach_is_refused_in_a_sentence(fit, tmp_path):
    with pytest.raises(UsageError, match=r"There is no teacher at .*nowhere\. Give a run folder, a bundle"):
        fit(distill__teacher=tmp_path / "nowhere")
    fit("elder")
    elder = {"distill__teacher": tmp_path / "elder", "dry_run": False}
    with pytest.raises(UsageError, match=r"The teacher knows dark, light, and drawn has dark, red"):
        fit(source=drawn(classes=("dark", "red")), **elder)
    assert not (tmp_path / "run").exists()
    labels = drawn(task="multilabel", targets=np.stack([TARGETS, 1 - TARGETS], 1).astype(np.float32))
    with pytest.raises(UsageError, match=r"is a classification model, and drawn is a multilabel source"):
        fit("multilabel", source=labels, **elder)
    with pytest.raises(UsageError, match=r"takes 0 to 255 .* and this run 0 to 65535"):
        fit("deep", source=drawn(images=drawn().images.astype(np.uint16) * 250), **elder)


@pytest.mark.wide
def test_features_are_asked_between_black_and_white_of_whatever_pictures(fit, tmp_path):
    fit("elder")
    deep = drawn(images=drawn().images.astype(np.uint16) * 250)
    asked = {"distill__teacher": tmp_path / "elder", "distill__kind": "features", "distill__steps": 2}
    assert isinstance(fit("deep", source=deep, **asked)[-1], FinishEvent)


REFUSED = {
    "no teacher": ({"distill__alpha": 0.3}, r"distill\.alpha was set, but there is no teacher"),
    "width": (
        {"distill__teacher": "x", "distill__cnn_width": 8},
        r"distill\.cnn_width has no use with distill\.teacher=x",
    ),
    "share": ({"distill__teacher": "x", "distill__budget_fraction": 0.1}, r"distill\.budget_fraction has no use"),
    "temperature": (
        {"distill__teacher": "x", "distill__kind": "features", "distill__temperature": 4},
        r"distill\.temperature has no use .*kind=features",
    ),
    "cnn features": ({"distill__teacher": "cnn", "distill__kind": "features"}, r"A CNN has no patches"),
    "no time": (
        {"distill__teacher": "cnn", "distill__budget_fraction": 0},
        r"needs --distill\.budget_fraction or --distill\.steps above 0",
    ),
    "twice": (
        {"distill__teacher": "cnn", "distill__budget_fraction": 0.1, "distill__steps": 3},
        r"say the same in two ways",
    ),
    "weight 0": ({"distill__teacher": "cnn", "distill__alpha": 0}, r"0 < fraction <= 1\. Got 0\.0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_of_a_teacher_that_have_no_effect_are_refused(case, fit):
    said, words = REFUSED[case]
    with pytest.raises(UsageError, match=words):
        fit(dry_run=True, **said)


def test_features_and_a_checkpoint_cannot_both_be_the_beginning():
    plan = Plan(distill=DistillSettings(teacher="x", kind="features", steps=3), finetune=FinetuneSettings(weights="y"))
    with pytest.raises(UsageError, match=r"--weights begins from a checkpoint\. Leave one"):
        planner.check_distill_settings(plan, "classification")


def test_numbers_have_no_temperature():
    plan = Plan(distill=DistillSettings(teacher="x", temperature=5))
    planner.check_distill_settings(plan, "multilabel")
    with pytest.raises(UsageError, match=r"distill\.temperature softens probabilities, which numbers are not"):
        planner.check_distill_settings(plan, "regression")


def test_a_cnn_has_a_share_of_the_budget_unless_one_is_said(fit):
    planned = next(event for event in fit(dry_run=True, distill__teacher="cnn") if isinstance(event, PlanEvent))
    assert (planned.plan.distill.steps, planned.plan.distill.budget_fraction) == (1, 0)
    assert planned.reasons["distill.steps"] == "0.15 of all steps; 3 of training follow"


@pytest.mark.wide
def test_a_dry_run_of_a_written_plan_counts_its_teacher_and_makes_nothing(fit, tmp_path, monkeypatch):
    fit(distill__teacher="cnn", distill__steps=2)
    plan = RunFolder(tmp_path / "run").read_plan()
    monkeypatch.setattr(distillation, "measure_distill_step", lambda *_: 1000.0)
    (planned,) = [
        e for e in training.fit_plan(plan, tmp_path / "dry", drawn(), dry_run=True) if isinstance(e, PlanEvent)
    ]
    assert planned.plan == plan and 2000 < planned.cost.training < 2100
    assert not (tmp_path / "dry").exists()
