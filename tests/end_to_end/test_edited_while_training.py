"""D23, whole: pictures vanish while a training runs, the run is saved, and goes on once they are back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.settings import DataSettings
from vitrail.errors import DataError
from vitrail.runtime import RuntimeSettings
from vitrail.train import dataset as training_data
from vitrail.train.events import Event, FinishEvent, Note, StepProgress
from vitrail.train.fit import fit, resume_run
from vitrail.train.request import TrainRequest

STEPS = 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty photographs of two classes, none of which fits into the memory that pictures may take."""
    monkeypatch.setattr(training_data, "RESIDENT_BYTES", 0)
    for number in range(40):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 90, (20, 20, 3)) + 120 * (number % 2)
        Image.fromarray(noise.astype(np.uint8)).save(path)
    return tmp_path / "photos"


def train_and(folder: Path, delete: int) -> list[Event]:
    """Train, and delete some of the training pictures once the second step is done."""
    overrides = {"recipe.batch_size": "8", "recipe.save_every": "100"}
    wishes = TrainRequest(
        data=DataSettings(source=str(folder)), model="vit_mu_patch8_16", steps=STEPS, overrides=overrides
    )
    events = []
    for event in fit(wishes, RuntimeSettings(device="cpu", threads=1), folder.parent / "run"):
        events.append(event)
        if isinstance(event, StepProgress) and event.step == 2:
            rows = (folder.parent / "run" / "splits.csv").read_text().splitlines()
            paths = [folder / match[1] for row in rows if (match := re.search(r"([ab]/\d+\.jpg).*train", row))]
            assert len(paths) > delete
            for path in paths[:delete]:
                path.rename(path.with_suffix(".gone"))
    return events


def test_D23_a_training_goes_on_without_a_few_pictures_and_names_them(folder):
    events = train_and(folder, delete=3)
    assert isinstance(events[-1], FinishEvent)
    told = [event.text for event in events if isinstance(event, Note) and "could not be read any more" in event.text]
    assert len(told) == 1
    assert told[0].startswith("3 pictures")


def test_D23_a_training_that_loses_too_many_saves_stops_and_goes_on_when_they_are_back(folder):
    with pytest.raises(DataError, match=r"\d\d of \d+ pictures were deleted.*Step \d+ of 12 is saved.*--resume"):
        train_and(folder, delete=15)
    assert list((folder.parent / "run" / "checkpoints").glob("step-*"))
    for path in folder.glob("*/*.gone"):
        path.rename(path.with_suffix(".jpg"))
    assert isinstance(list(resume_run(folder.parent / "run"))[-1], FinishEvent)
