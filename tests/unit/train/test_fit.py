"""A whole training on pictures in memory: what is told, what is refused, and the smallest data that works."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data import loader
from vitrail.data.checks import check_dataset as doctor
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.files import safetensors_file
from vitrail.runtime import RuntimeSettings
from vitrail.train import dataset, loop, trainer
from vitrail.train import fit as training
from vitrail.train.events import Event, FinishEvent, Note, PlanEvent
from vitrail.train.guards import Guards
from vitrail.train.plan import ProgressiveStage
from vitrail.train.planning import throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder

MACHINE = RuntimeSettings(device="cpu", threads=1)


def drawn(counts: tuple[int, ...] = (8, 8), **fields: object) -> Source:
    """Tiny noisy pictures, the brighter the higher their class."""
    targets = np.repeat(np.arange(len(counts)), counts)
    noise = np.random.default_rng(0).integers(0, 60, (len(targets), 16, 16, 3))
    whole = Source(
        name="drawn",
        classes=tuple(f"c{number}" for number in range(len(counts))),
        images=(noise + 60 * targets[:, None, None, None]).astype(np.uint8),
        targets=targets,
        ids=tuple(f"{row}.png" for row in range(len(targets))),
    )
    return dataclasses.replace(whole, **fields)


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., list[Event]]:
    """Train the smallest model for a few steps into `run`; all that was told."""

    def fitted(
        source: Source, steps: int = 2, dry_run: bool = False, run: str = "run", **overrides: str | int
    ) -> list[Event]:
        data = {name: text for name, text in overrides.items() if name in DataSettings.__dataclass_fields__}
        rest = {name.replace("__", "."): text for name, text in overrides.items() if name not in data}
        wishes = TrainRequest(data=DataSettings(**data), model="vit_mu_patch8_16", steps=steps, overrides=rest)
        return list(training.fit(wishes, MACHINE, tmp_path / run, dry_run, source_object=source))

    return fitted


def notes(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


def finished(events: list[Event]) -> FinishEvent:
    assert isinstance(events[-1], FinishEvent)
    return events[-1]


def test_the_reason_of_the_task_and_the_notes_are_told_before_anything_else(fit):
    source = drawn(reason="column label holds 2 words", notes=("Left out 3 files.",))
    told = notes(fit(source, dry_run=True))
    assert told[:2] == ["Task classification: column label holds 2 words.", "Left out 3 files."]
    assert told[2] == "drawn: 2 classes, 16 pictures (11 train, 2 val, 3 test)."
    assert told.count("Left out 3 files.") == 1


@pytest.mark.wide
@pytest.mark.parametrize(
    ("mirror", "words"),
    [("true", ", by the mean of 2 views of each; evaluations during the training used one."), ("false", ".")],
)
def test_answers_by_several_views_are_told_where_figures_on_the_way_were_of_one(fit, mirror, words):
    told = notes(fit(drawn(), recipe__tta_flip=mirror, recipe__tta_shift="0"))
    assert [text for text in told if "held-out" in text] == [f"Evaluating on the held-out pictures{words}"]


@pytest.mark.wide
@pytest.mark.parametrize(("task", "calibrates", "had"), [("classification", True, 2), ("regression", False, 1)])
def test_what_few_validation_pictures_cannot_say_is_told(task, calibrates, had, fit):
    source = drawn() if task == "classification" else drawn(task=task, classes=("mass", "edema"), targets=BLANK)
    said = notes(fit(source))
    sureness = f"not calibrated, which takes 100 validation pictures and had {had}: treat them as a ranking"
    assert any(sureness in text for text in said) == calibrates, "numbers have no probabilities"
    unlike = f"unlike the training is unknown, which takes 99 validation pictures and had {had}: abstain says unknown."
    assert any(unlike in text for text in said)


ROWS = np.arange(16)[:, None]
BLANK = np.where((ROWS + np.arange(2)) % 3 == 0, np.nan, (ROWS // [1, 2]) % 2).astype(np.float32)
"""Two columns of zeros and ones, a third of them not known."""


@pytest.mark.parametrize(("task", "noun"), [("multilabel", "labels"), ("regression", "numbers")])
def test_every_task_is_trained_and_measured_on_what_is_known(task, noun, fit, tmp_path):
    events = fit(drawn(task=task, classes=("mass", "edema"), targets=BLANK))
    assert any(text.startswith(f"drawn: 2 {noun}, 16 pictures (1") for text in notes(events))
    figures, run = finished(events).metrics, tmp_path / "run"
    assert figures.split == "test" and figures.n <= 3
    kept = json.loads((run / "report.json").read_text())
    assert kept["task"] == task and kept["metrics"] == []
    noted = json.loads((run / "model" / "config.json").read_text())
    assert noted["task"] == task and ("scaling" in noted["info"]) == (task == "regression")
    assert events[-1].report.is_file() and (run / "figures").is_dir()


@pytest.mark.wide
def test_the_scale_of_numbers_is_that_of_the_known_training_targets(fit, tmp_path):
    fit(drawn(task="regression", classes=("a", "b"), targets=BLANK * 40 + 300))
    rows = [
        line.split(",")[0] for line in (tmp_path / "run" / "splits.csv").read_text().splitlines() if ",train" in line
    ]
    known = (BLANK * 40 + 300)[[int(name.removesuffix(".png")) for name in rows]]
    scale = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["info"]["scaling"]
    np.testing.assert_allclose(scale["mean"], np.nanmean(known, 0), rtol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_column_of_which_nothing_is_known_in_training_is_told_and_all_of_them_are_refused(task, fit, tmp_path):
    unknown = np.where([True, False], BLANK, np.nan).astype(np.float32)
    events = fit(drawn(task=task, classes=("a", "b"), targets=unknown))
    assert any("No training picture has a known value of 'b'." in text for text in notes(events))
    figures = json.loads((tmp_path / "run" / "metrics-test.json").read_text())
    assert [one["n"] > 0 for one in figures["per_label" if task == "multilabel" else "per_column"]] == [True, False]
    with pytest.raises(DataError, match=r"No training picture has a known value of 'a', 'b'\."):
        fit(drawn(task=task, classes=("a", "b"), targets=np.full((16, 2), np.nan, np.float32)), run="nothing")


@pytest.mark.wide
def test_held_out_pictures_of_which_nothing_is_known_have_answers_and_no_figures(fit, tmp_path):
    targets = BLANK.copy()
    targets[12:] = np.nan
    splits = {"train": np.arange(10), "val": np.arange(10, 12), "test": np.arange(12, 16)}
    events = fit(drawn(task="multilabel", classes=("a", "b"), targets=targets, splits=splits))
    assert "Nothing is known of the test pictures, so they get predictions and no metrics." in notes(events)
    assert finished(events).metrics.split == "val"
    assert (tmp_path / "run" / "predictions" / "test.csv").read_text().count("\n") == 5
    targets[10:] = np.nan
    again = fit(drawn(task="multilabel", classes=("a", "b"), targets=targets, splits=splits), run="nothing")
    assert "Nothing could be measured, so there is no report." in notes(again)[-1]


def test_numbers_cannot_be_smoothed_and_outputs_need_names(fit):
    with pytest.raises(UsageError, match=r"softens classes and labels, and this task is regression.*Got 0\.1"):
        fit(drawn(task="regression", classes=("a", "b"), targets=BLANK), recipe__label_smoothing="0.1")
    with pytest.raises(DataError, match=r"Every output of drawn needs a name of its own\. Got a, a"):
        fit(drawn(task="multilabel", classes=("a", "a"), targets=BLANK))


def test_what_would_make_a_training_worthless_stops_it(fit, monkeypatch, tmp_path):
    true = doctor.check_dataset

    class Stopping:
        """Findings that name two reasons to stop."""

        def __init__(self, found: object):
            self.bad_images, self.bad_indices, self.notes, self.issues = [], np.zeros(0, np.int64), (), ()
            self.blocking_reasons = ("Patient 7 is in train and test.", "All pictures are black.")

    monkeypatch.setattr(dataset, "check_dataset", lambda *words, **named: Stopping(true(*words, **named)))
    with pytest.raises(DataError, match=r"^Patient 7 is in train and test\. All pictures are black\.$"):
        fit(drawn())
    assert not (tmp_path / "run").exists()


def test_the_check_at_the_start_takes_a_twentieth_of_the_minutes(monkeypatch, tmp_path):
    asked = []

    def stopped(*words: object, strata: str) -> None:
        asked.append(words[-1])
        raise DataError("enough seen")

    monkeypatch.setattr(dataset, "check_dataset", stopped)
    for budget in ({"minutes": 2.0}, {"steps": 3}):
        with pytest.raises(DataError, match="enough seen"):
            list(
                training.fit(
                    TrainRequest(data=DataSettings(), **budget), MACHINE, tmp_path / "run", source_object=drawn()
                )
            )
    assert asked == [6.0, None]


@pytest.mark.wide
def test_ranges_and_reading_are_passed_on(fit):
    deep = drawn(images=drawn().images.astype(np.uint16) * 200)
    planned = next(event for event in fit(deep, dry_run=True, range="16") if hasattr(event, "plan"))
    assert (planned.plan.image.high, planned.reasons["image.high"]) == (65535.0, "asked for: 16 bits")
    planned = next(event for event in fit(drawn(), dry_run=True, image__max_pixels="300") if hasattr(event, "plan"))
    assert planned.plan.image.max_pixels == 300


def test_D8_one_split_is_parted_once_written_down_and_used_again(fit, tmp_path):
    fit(drawn())
    written = (tmp_path / "run" / "splits.csv").read_text()
    assert written.count(",train,") == 11 and written.count(",val,") == 2 and written.count(",test,") == 3
    assert json.loads((tmp_path / "run" / "metrics-test.json").read_text())["n"] == 3


@pytest.mark.slow
def test_an_object_in_memory_is_called_so_and_a_run_of_it_goes_on_only_with_it(fit, tmp_path, monkeypatch):
    steps = loop.train_steps
    monkeypatch.chdir(tmp_path)

    def broken(*words: object, **more: object) -> Iterator[object]:
        yield from itertools.islice(steps(*words, **more), 2)
        raise DataError("The disk is gone.")

    monkeypatch.setattr(trainer, "train_steps", broken)
    with pytest.raises(DataError, match=r"The disk is gone\. Step 2 of 4 is saved\. Continue in Python with"):
        fit(drawn(), steps=4)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert RunFolder(run).read_plan().data.source == "memory"
    with pytest.raises(UsageError, match=r"objects that a Python program held in memory"):
        list(training.resume_run(run))
    events = list(training.resume_run(run, drawn()))
    assert "Going on after step 2 of 4." in notes(events)
    whole = list(training.fit_plan(RunFolder(run).read_plan(), tmp_path / "whole", drawn()))
    assert finished(whole).metrics == finished(events).metrics
    ours, theirs = (
        safetensors_file.load_tensors(folder / "model" / "model.safetensors") for folder in (run, tmp_path / "whole")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.wide
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_run_whose_first_step_was_not_applied_goes_on_with_the_bits_of_an_unbroken_one(
    optimizer, fit, tmp_path, monkeypatch
):
    steps, allow = loop.train_steps, Guards.allow

    def refused(self: Guards, step: int, loss: float, *words: object) -> bool:
        return allow(self, step, loss if step else float("nan"), *words)

    def broken(*words: object, **more: object) -> Iterator[object]:
        yield from itertools.islice(steps(*words, **more), 1)
        raise DataError("The disk is gone.")

    monkeypatch.setattr(Guards, "allow", refused)
    fit(drawn(), steps=4, run="whole", recipe__optimizer=optimizer)
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "train_steps", broken)
        with pytest.raises(DataError, match=r"Step 1 of 4 is saved"):
            fit(drawn(), steps=4, recipe__optimizer=optimizer)
    assert "Going on after step 1 of 4." in notes(list(training.resume_run(tmp_path / "run", drawn())))
    for file in ("model", "optimizer"):
        path = f"checkpoints/step-00000004/{file}.safetensors"
        assert (tmp_path / "run" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()


@pytest.mark.wide
def test_soft_labels_train_in_folds_and_are_measured_by_the_most_probable_class(fit, tmp_path):
    soft = np.full((16, 2), [0.8, 0.2], np.float32)
    soft[8:] = [0.3, 0.7]
    events = fit(drawn(targets=soft), steps=3, folds=4, fold=1)
    assert [sum(row) for row in finished(events).metrics.confusion] == [2, 2]
    rows = (tmp_path / "run" / "predictions" / "test.csv").read_text().splitlines()[1:]
    assert sorted(row.split(",")[3] for row in rows) == ["c0", "c0", "c1", "c1"]
    counts = json.loads((tmp_path / "run" / "report.json").read_text())["counts"]
    assert {each["split"]: each["origin"] for each in counts} == {
        "train": "what is left", "val": "10.0%, stratified, seed 0", "test": "fold 1 of 0..3, seed 0",
    }  # fmt: skip


def test_D7_one_picture_a_class_is_trained_on_though_nothing_is_left_to_measure(fit, tmp_path):
    events = fit(drawn((1, 1)))
    assert "No pictures were held out, so there is no report" in notes(events)[-1]
    assert "The test split is empty: there are too few pictures of drawn to part." in notes(events)
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_D7_fewer_pictures_than_classes_and_a_batch_larger_than_the_set(fit):
    events = fit(drawn((3, 4, 0, 0, 0, 0, 0, 0)), recipe__batch_size="64")
    assert finished(events).metrics.n == 1
    assert len(finished(events).metrics.per_class) == 8


def test_D7_a_last_batch_of_one_is_evaluated(fit, monkeypatch):
    from vitrail.train import held_out

    monkeypatch.setattr(held_out, "EVALUATION_BATCH", 3)
    events = fit(drawn(splits={"train": np.arange(0, 16, 2), "test": np.arange(1, 8, 2)}), recipe__batch_size="7")
    assert finished(events).metrics.n == 4


def test_D7_a_single_picture_says_that_one_class_is_too_few(fit):
    with pytest.raises(DataError, match=r"drawn has only one class, 'c0'; telling apart takes two"):
        fit(drawn((1,)))


@pytest.mark.parametrize("given", ["mean", "std"])
def test_mean_and_deviation_are_measured_unless_they_were_given(fit, given):
    planned = next(e for e in fit(drawn(), dry_run=True, **{f"image__{given}": "0.3"}) if isinstance(e, PlanEvent))
    other = "std" if given == "mean" else "mean"
    assert vars(planned.plan.image)[given] == (0.3,)
    assert len(vars(planned.plan.image)[other]) == 3
    assert planned.reasons[f"image.{given}"] == "asked for"
    assert planned.reasons[f"image.{other}"] == "measured on the training pictures"


@pytest.mark.wide
def test_held_out_pictures_are_decoded_by_as_many_workers_as_were_asked_for(monkeypatch, tmp_path):
    asked, load = [], loader.load_images

    def watched(*words: object, **more: object) -> object:
        asked.append(words[4])
        return load(*words, **more)

    monkeypatch.setattr(loader, "load_images", watched)
    wishes = TrainRequest(data=DataSettings(), model="vit_mu_patch8_16", steps=1)
    list(training.fit(wishes, dataclasses.replace(MACHINE, num_workers=0), tmp_path / "run", source_object=drawn()))
    # Those of the training, of its evaluations, val and test at the end, what is familiar, and what bfloat16 changes.
    assert set(asked) == {0} and len(asked) in (5, 6)


@pytest.mark.wide
def test_what_a_run_took_is_in_its_folder_and_a_short_one_is_not_measured_before(fit, tmp_path):
    began = time.perf_counter()
    fit(drawn())
    told = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert told["predicted"] is None
    parts = [told["actual"][name] for name in ("preparation", "training", "evaluation")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(told["actual"]["seconds"], abs=0.05)
    assert told["actual"]["seconds"] < time.perf_counter() - began + 0.01  # it is rounded
    assert told["actual"]["memory"] > 50e6


def test_a_dry_run_says_what_the_run_would_take(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(
        throughput, "measure_throughput", lambda *words: Throughput(((ProgressiveStage(0.0, 1.0), 0.5),))
    )
    (planned,) = [event for event in fit(drawn(), dry_run=True, steps=40) if isinstance(event, PlanEvent)]
    assert planned.cost.training == pytest.approx(20.0, abs=0.1)  # and the evaluations
    assert planned.cost.evaluation > 4 and planned.cost.memory > 50e6
    assert not (tmp_path / "run").exists()


def test_minutes_are_turned_into_steps_and_a_long_run_is_fed_with_more(monkeypatch, tmp_path):
    monkeypatch.setattr(
        throughput, "measure_throughput", lambda *words: Throughput(((ProgressiveStage(0.0, 1.0), 0.001),))
    )
    wishes = TrainRequest(data=DataSettings(), model="vit_mu_patch8_16", minutes=0.05)
    planned = next(e for e in training.fit(wishes, MACHINE, tmp_path, True, drawn()) if isinstance(e, PlanEvent))
    recipe = planned.plan.recipe
    assert (recipe.steps, recipe.mixup, recipe.cutmix) == (3000, 0.8, 1.0)
    assert planned.cost.training == pytest.approx(3.0)
    assert "measured before the first one" in planned.reasons["recipe.steps"]
