"""A model that is taken over may have learnt what is held out here: seen, counted and said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.runtime import RuntimeSettings
from vitrail.train import fit as training
from vitrail.train.contamination import CONTAMINATION_FILE
from vitrail.train.events import Note
from vitrail.train.request import TrainRequest

MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")
LEARNT = "learnt"


def drawn(count: int = 40, seed: int = 0) -> Source:
    pictures = np.random.default_rng(seed).integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
    ids = tuple(f"{row}.png" for row in range(count))
    return Source(name="drawn", classes=("a", "b"), images=pictures, targets=np.arange(count) % 2, ids=ids)


@pytest.fixture
def notes(tmp_path: Path) -> Callable[..., list[str]]:
    """Train for two steps, and give what was noted about pictures that were learnt before."""

    def trained(run: str, source: Source | None = None, seed: int = 0, **words: str) -> list[str]:
        overrides = {name.replace("__", "."): text for name, text in words.items() if "__" in name}
        rest = {"model": "vit_mu_patch8_16"} if "weights" not in words else {"weights": words["weights"]}
        wishes = TrainRequest(data=DataSettings(), seed=seed, steps=2, overrides=overrides, **rest)
        events = list(training.fit(wishes, MACHINE, tmp_path / run, source_object=source or drawn()))
        said = [event.text for event in events if isinstance(event, Note) and LEARNT in event.text]
        report = json.loads((tmp_path / run / "report.json").read_text())["notes"]
        assert [text for text in report if LEARNT in text] == said, "the report says the same"
        return said

    trained("first")
    return trained


def rows(run: Path, split: str) -> set[str]:
    lines = (run / "splits.csv").read_text().splitlines()[1:]
    return {line.split(",")[0] for line in lines if line.split(",")[1] == split}


@pytest.mark.first(1)
@pytest.mark.parametrize("words", ["weights", "distill__teacher"])
def test_held_out_pictures_that_the_other_run_learnt_are_counted(words, notes, tmp_path):
    (said,) = notes("second", seed=1, **{words: str(tmp_path / "first")})
    learnt = rows(tmp_path / "first", "train")
    for split, name in (("test", "test"), ("val", "validation")):
        held_out = rows(tmp_path / "second", split)
        assert f"{len(held_out & learnt)} of the {len(held_out)} {name} pictures" in said
    assert "its seed is 0" in said


def test_the_same_parting_is_no_reason_to_worry(notes, tmp_path):
    assert notes("second", weights=str(tmp_path / "first")) == []
    assert (
        json.loads((tmp_path / "second" / CONTAMINATION_FILE).read_text()) == []
    )  # looked for once: the other run may change


@pytest.mark.wide
def test_other_pictures_under_the_same_names_are_others(notes, tmp_path):
    assert notes("second", drawn(seed=7), seed=1, weights=str(tmp_path / "first")) == []


@pytest.mark.wide
def test_a_bundle_without_its_run_says_that_nobody_knows(notes, tmp_path):
    shutil.copytree(tmp_path / "first" / "model", tmp_path / "bundle")
    (said,) = notes("second", seed=1, weights=str(tmp_path / "bundle"))
    assert "trained on drawn too" in said and "Name the run folder" in said
