"""One model behind many doors: pictures of every accepted kind get the same decisions and scores from all of them.

A further door is one line in `DOORS`: its name, and a function from the `House` to what it `Told`.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from corpus.all_cases import CASES
from quick_fits import LEARNING, digits
from vitrail import ViTClassifier
from vitrail.cli.main import main
from vitrail.data.transforms import prepare
from vitrail.export.package import Package
from vitrail.predict import exported_rows
from vitrail.predict.onnx_file import OnnxFile
from vitrail.predict.predictor import Predictor

SETTINGS = {
    "compute.number_format": "float32", "recipe.shift": 1, "answers.reject": 0.2,
    "data.val_fraction": 0.3,
}  # fmt: skip
TOLERANCE = 1e-4
"""Largest difference of two scores of a picture."""


@dataclass(frozen=True)
class House:
    """A trained model with all that its doors need."""

    estimator: ViTClassifier
    pictures: tuple[Path, ...]
    """Of every kind that is read."""
    folder: Path
    """Where a door may write."""

    @property
    def run(self) -> Path:
        """Its folder."""
        return self.estimator.run_.path

    @property
    def words(self) -> list[str]:
        """The pictures as a person would type them."""
        return [str(picture) for picture in self.pictures]


class Told(NamedTuple):
    """What a door says of the pictures, in order."""

    labels: list[str]
    chances: np.ndarray
    """Probabilities [n, K]."""
    abstained: list[str] | None = None
    """None from a door that does not say it."""


def rows(records: Sequence[dict[str, Any]]) -> Told:
    """What predictions rows say, from whichever door."""
    names = [name for name in records[0] if name.startswith("prob_")]
    chances = [[float(record[name]) for name in names] for record in records]
    return Told([record["label"] for record in records], np.array(chances), [record["abstain"] for record in records])


def command_line(house: House, *words: str) -> Told:
    """`vitrail predict` into a CSV file."""
    out = house.folder / f"{len(list(house.folder.iterdir()))}.csv"
    assert main(["predict", str(house.run), *house.words, "--to", str(out), *words]) == 0
    return rows(list(csv.DictReader(out.read_text(encoding="utf-8").splitlines())))


def elsewhere(house: House) -> Told:
    """The bundle, copied to another place."""
    copied = Path(shutil.copytree(house.run / "model", house.folder / "copied"))
    return rows(Predictor.open(copied).predict(list(house.pictures)).records())


def estimator(house: House) -> Told:
    """scikit-learn's two methods."""
    answers = house.estimator.predict(house.words)
    return Told([str(answer) for answer in answers], house.estimator.predict_proba(house.words))


def package(house: House) -> Told:
    """A torch.export file, asked by hand."""
    file = Package(house.run / "exports" / "model.pt2")
    images = np.stack([prepare(picture, file.facts.image).permute(1, 2, 0).numpy() for picture in house.pictures])
    names = tuple(house.words)
    return rows(exported_rows.table(file.facts, file.run(images), names, names).records())


DOORS: dict[str, Callable[[House], Told]] = {
    "command line": command_line,
    "Python, paths": lambda house: rows(house.estimator.run_.predict(house.words).records()),
    "Python, bytes": lambda house: rows(
        house.estimator.run_.predict([picture.read_bytes() for picture in house.pictures]).records()
    ),
    "bundle elsewhere": elsewhere,
    "Python, seven at a time": lambda house: rows(
        house.estimator.run_.predictor.predict(list(house.pictures), batch=7).records()
    ),
    "estimator": estimator,
    "torch.export": package,
    "command line, ONNX": lambda house: command_line(house, "--engine", "onnx"),
    "ONNX, resizing": lambda house: rows(
        OnnxFile(house.run / "exports" / "any-size.onnx").predict(list(house.pictures)).records()
    ),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A model of four digits in colour that leaves the least certain pictures unanswered, and its exported files."""
    import torch

    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("doors")
    grey, targets = digits(500, 4)
    X = np.stack([grey, 255 - grey, grey // 2], -1)
    words = {**LEARNING, "settings": {**LEARNING["settings"], **SETTINGS}}
    fitted = ViTClassifier(out=folder / "run", **words).fit(X[:400], targets[:400])
    torch.set_num_threads(threads)
    fitted.run_.export("pt2")
    fitted.run_.export("onnx")
    fitted.run_.export("onnx", fitted.run_.path / "exports" / "any-size.onnx", resize=True)
    written = folder / "written"
    written.mkdir()
    return House(fitted, tuple(draw(folder / "pictures", X[400:])), written)


def draw(folder: Path, seen: np.ndarray) -> list[Path]:
    """Pictures like those of the training, and one of each kind of the corpus that is read as 0 to 255.

    None that the training has seen: cuts are fitted on validation pictures, one of which lies on each of them.
    """
    from PIL import Image

    folder.mkdir()
    found = []
    for place, picture in enumerate(seen):
        found.append(folder / f"digit-{place:03d}.png")
        Image.fromarray(picture).save(found[-1])
    for place, case in enumerate(CASES):
        if not case.says and not case.heavy and (case.low, case.high) == (0, 255):
            found.append(folder / f"{place:03d}-{case.name or 'unnamed'}")
            found[-1].write_bytes(case.make())
    return found


@pytest.fixture(scope="module")
def expected(house: House) -> Told:
    """What the run says."""
    return DOORS["Python, paths"](house)


def test_the_pictures_are_of_many_kinds_and_the_answers_too(house: House, expected: Told) -> None:
    assert len(house.pictures) > 130 and len({picture.suffix for picture in house.pictures}) > 5
    assert len(set(expected.labels)) == 4, set(expected.labels)
    assert np.ptp(expected.chances, axis=0).min() > 0.3
    assert expected.abstained is not None and {"no", "unsure"} <= set(expected.abstained)
    bundle = json.loads((house.run / "model" / "config.json").read_text())
    assert "temperature" in json.dumps(bundle), "nothing is calibrated, so that no door could forget it"


@pytest.mark.parametrize("door", DOORS)
def test_every_door_decides_alike(door: str, house: House, expected: Told) -> None:
    told = DOORS[door](house)
    np.testing.assert_allclose(told.chances, expected.chances, atol=TOLERANCE, err_msg=door)
    assert told.labels == expected.labels, door
    assert told.abstained is None or told.abstained == expected.abstained, door
