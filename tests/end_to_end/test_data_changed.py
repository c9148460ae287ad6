"""The data of a run changes under it: it goes on without little, says what is not the same, and refuses other data."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.settings import DataSettings
from vitrail.errors import DataError
from vitrail.runtime import RuntimeSettings
from vitrail.services import evaluation
from vitrail.services.prediction import open_predictor
from vitrail.train import dataset as training_data
from vitrail.train.events import Event, FinishEvent, Note, StepProgress, ValidationEvent
from vitrail.train.fit import fit, resume_run
from vitrail.train.request import TrainRequest

STEPS = 4


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty pictures of two classes with a manifest, none of which fits into the memory that pictures may take."""
    monkeypatch.setattr(training_data, "RESIDENT_BYTES", 0)
    for number in range(40):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 90, (20, 20, 3)) + 120 * (number % 2)
        Image.fromarray(noise.astype(np.uint8)).save(path)
    return tmp_path / "photos"


def manifest(photos: Path, names: str) -> Path:
    """Lists all pictures of the folder, with these names of the two classes."""
    lines = [f"{'ab'[number % 2]}/{number}.png,{names[number % 2]}" for number in range(40)]
    (photos / "list.csv").write_text("\n".join(["path,kind", *lines]) + "\n")
    return photos / "list.csv"


def begun(source: Path, run: Path, **more: str) -> list[Event]:
    """A training that stands still after its second step, as if the machine had been switched off."""
    overrides = {"recipe.batch_size": "8", "recipe.save_every": "1", "recipe.evaluate_every": "1"}
    wishes = TrainRequest(
        data=DataSettings(source=str(source)), model="vit_mu_patch8_16", steps=STEPS, overrides=overrides
    )
    events = []
    training = fit(wishes, RuntimeSettings(device="cpu", threads=1), run)
    for event in training:
        events.append(event)
        if isinstance(event, ValidationEvent) and event.step == 2:
            break
    training.close()
    return events


def those(run: Path, split: str) -> list[str]:
    with (run / "splits.csv").open(newline="") as file:
        return [line["id"] for line in csv.DictReader(file) if line["split"] == split]


def notes(events: list[Event]) -> str:
    return " ".join(event.text for event in events if isinstance(event, Note))


@pytest.mark.slow
def test_a_run_goes_on_without_a_few_lost_pictures_and_says_so(photos, tmp_path):
    run = tmp_path / "run"
    begun(photos, run)
    lost = [those(run, split)[0] for split in ("train", "val", "test")]
    for name in lost:
        (photos / name).unlink()
    events = list(resume_run(run))
    assert isinstance(events[-1], FinishEvent)
    told = notes(events)
    assert "3 of the run's 40 pictures are no longer in photos: " in told
    assert all(name in told for name in lost)
    assert "has changed since the run began" in told and "no longer bit for bit" in told
    labelled = evaluation.load_held_out(run, None)
    assert len(labelled.rows) == len(those(run, "test")) - 1 and len(labelled.notes) == 2
    (photos / those(run, "test")[1]).write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"\.png.*Put the picture back or mend it, or leave .* with --skip-bad"):
        evaluation.evaluate_model(open_predictor(run), labelled)


def test_a_run_refuses_classes_and_labels_that_have_changed(photos, tmp_path):
    run = tmp_path / "run"
    begun(manifest(photos, "ab"), run)
    manifest(photos, "za")  # the class that was called a comes last now
    for again in (lambda: list(resume_run(run)), lambda: evaluation.load_held_out(run, None)):
        with pytest.raises(
            DataError, match=r"have changed since the run began\. They were 'a', 'b'; now .* 'a', 'z'\."
        ):
            again()
    manifest(photos, "ba")
    with pytest.raises(DataError, match=r"40 pictures of list\S* changed classes or labels since the run began: "):
        list(resume_run(run))
    manifest(photos, "ab")
    (run / "data.json").unlink()
    assert "begun by an older version" in evaluation.load_held_out(run, None).notes[0]


def test_a_new_class_folder_is_refused_when_a_run_goes_on(photos, tmp_path):
    begun(photos, tmp_path / "run")
    (photos / "c").mkdir()
    (photos / "a" / "0.png").rename(photos / "c" / "0.png")
    with pytest.raises(DataError, match=r"They were 'a', 'b'; now they are 'a', 'b', 'c'\. Put the data back"):
        list(resume_run(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_held_out_picture_that_vanishes_costs_neither_the_steps_nor_the_model(photos, tmp_path, split):
    run = tmp_path / "run"
    overrides = {"recipe.batch_size": "8", "recipe.evaluate_every": "2"}
    wishes = TrainRequest(
        data=DataSettings(source=str(photos)), model="vit_mu_patch8_16", steps=STEPS, overrides=overrides
    )
    said = r"Step 2 of 4 is saved" if split == "val" else r"The trained model is in .*model\. Once that is mended"
    with pytest.raises(DataError, match=rf"\.png.* {said}.*: vitrail train --resume "):
        for event in fit(wishes, RuntimeSettings(device="cpu", threads=1), run):
            if isinstance(event, StepProgress) and event.step == 1:
                (photos / those(run, split)[0]).unlink()
    assert (run / "checkpoints" / f"step-0000000{2 if split == 'val' else 4}").is_dir()
    assert (run / "model" / "config.json").is_file() == (split == "test")
    assert isinstance(list(resume_run(run))[-1], FinishEvent)
