"""One model behind many doors: 500 pictures of every accepted kind get the same decisions and scores from all of them.

Every training and every door is at its defaults, as a person has them: the training computes in the number format that
is fast here, and the doors in float32, on this processor and on one with fewer instructions.

A further door is one line in `DOORS`: its name, and a function from the `House` to what it `Told`.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import partners
import vitrail
from corpus.all_cases import CASES
from corpus.case import Case
from corpus.writing import png16
from end_to_end import drawn_tasks
from good_parts import draw_parts, save_weights
from quick_fits import LEARNING, digits
from served import reading, saved, serving
from vitrail import ViTAnomaly, ViTClassifier
from vitrail.cli.main import main
from vitrail.data.preprocess import preprocess_image
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.evaluate.tables import NO_LABELS
from vitrail.export.build import Pt2File
from vitrail.predict import onnx_predictor
from vitrail.predict.onnx_predictor import OnnxPredictor
from vitrail.predict.predictor import Predictor

pytestmark = pytest.mark.wide

SETTINGS = {
    "recipe.tta_shift": 1,
    "recipe.tta_shift_vertical": True,
    "decisions.abstain_fraction": 0.2,
    "data.val_fraction": 0.3,
}
CLASSES = 6
TOLERANCE = 1e-4
"""Largest difference of two scores of a picture."""
DEEPEST = 65535
"""White of the model: it reads 16 bits as they are, and takes 8 bits as 0..255."""
PROGRAM = str(Path(__file__).parents[1] / "on_ray.py")


@dataclass(frozen=True)
class House:
    """A model with all that its doors need."""

    run: Path
    """Its folder, with exported files."""
    pictures: tuple[Path, ...]
    """Of every kind that it reads."""
    folder: Path
    """Where a door may write."""
    trained: ViTClassifier | None = None

    @property
    def words(self) -> list[str]:
        """The pictures as a person would type them."""
        return [str(picture) for picture in self.pictures]

    @property
    def estimator(self) -> ViTClassifier:
        """That was fitted."""
        assert self.trained is not None
        return self.trained


class Told(NamedTuple):
    """What a door says of the pictures, in order."""

    labels: list[str]
    chances: np.ndarray
    """Probabilities [n, K], or numbers as a fraction of the largest, or scores and p-values of an anomaly model."""
    abstained: list[str] | None = None
    """None from a door that does not say it."""


def rows(records: Sequence[dict[str, Any]]) -> Told:
    """What predictions rows say, from whichever door."""
    names = [name for name in records[0] if name.startswith(("prob_", "value_", "score", "p_value"))]
    chances = np.array([[float(record[name]) for name in names] for record in records])
    found = [record.get("label", "") for record in records]
    labels = [label if isinstance(label, str) else "|".join(label) or NO_LABELS for label in found]
    return Told(labels, chances / max(1.0, np.abs(chances).max()), [record["abstain"] for record in records])


def written(path: Path) -> Told:
    """What a CSV file says."""
    return rows(list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())))


def command_line(house: House, *words: str) -> Told:
    """`vitrail predict` into a CSV file."""
    out = house.folder / f"{len(list(house.folder.iterdir()))}.csv"
    assert main(["predict", str(house.run), *house.words, "--to", str(out), *words]) == 0
    return written(out)


def json_lines(house: House) -> Told:
    """`vitrail predict` into JSON lines."""
    out = house.folder / "answers.jsonl"
    assert main(["predict", str(house.run), *house.words, "--to", str(out)]) == 0
    return rows([json.loads(line) for line in out.read_bytes().splitlines()])


def ray(house: House) -> Told:
    """The workers of a cluster of two, asked from a process of its own."""
    out = house.folder / "ray.csv"
    line = [PROGRAM, "-", "predict", str(house.run), *house.words, "--engine", "ray", "--part-size", "64"]
    ((code, _, err),) = partners.ended(partners.start([*line, "--to", str(out)], world=1), 240)
    assert code == 0, err[-3000:]
    return written(out)


def seven_at_a_time(house: House) -> Told:
    members = [
        dataclasses.replace(member, settings=dataclasses.replace(member.settings, batch_size=7))
        for member in Predictor.open(house.run).members
    ]
    return rows(Predictor(members).predict(list(house.pictures)).records())


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
    file = Pt2File(house.run / "exports" / "model.pt2")
    images = np.stack(
        [preprocess_image(picture, file.metadata.image).permute(1, 2, 0).numpy() for picture in house.pictures]
    )
    names = tuple(house.words)
    return rows(onnx_predictor.predictions_from_outputs(file.metadata, file.run(images), names, names).records())


def server(house: House) -> Told:
    """`vitrail serve` in a process of its own, every picture a request, eight of them at a time."""
    with serving(house.run, "--threads", 1, "--workers", 1, "--device", "cpu") as here:

        def asked(picture: Path) -> dict[str, Any]:
            said = here.ask("/predict", picture.read_bytes(), {"X-Filename": picture.name})
            assert said.status == 200, (picture, said.body)
            found: dict[str, Any] = said.json
            return found

        with ThreadPoolExecutor(8) as clients:
            return rows(list(clients.map(asked, house.pictures)))


DOORS: dict[str, Callable[[House], Told]] = {
    "command line": command_line,
    "command line, JSON lines": json_lines,
    "Python, paths": lambda house: rows(vitrail.open(house.run).predict(house.words).records()),
    "Python, bytes": lambda house: rows(
        vitrail.open(house.run).predict([picture.read_bytes() for picture in house.pictures]).records()
    ),
    "bundle elsewhere": elsewhere,
    "Python, seven at a time": seven_at_a_time,
    "estimator": estimator,
    "torch.export": package,
    "command line, ONNX": lambda house: command_line(house, "--engine", "onnx"),
    "ONNX, resizing": lambda house: rows(
        OnnxPredictor(house.run / "exports" / "any-size.onnx").predict(list(house.pictures)).records()
    ),
    "server": server,
    "Ray": ray,
}
MARKS = {"Ray": (pytest.mark.needs_ray, pytest.mark.slow)}
READERS = ("command line", "bundle elsewhere", "command line, ONNX", "server")
"""Doors that read files, each with what it has at hand: torch, numpy alone, a process with little memory."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A model of digits in colour that leaves the least certain pictures unanswered, and its exported files."""
    import torch

    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("doors")
    grey, targets = digits(1040, CLASSES)
    X = np.stack([grey, 255 - grey, grey // 2], -1).astype(np.uint16) * 257
    words = {**LEARNING, "settings": {**LEARNING["settings"], **SETTINGS}}
    fitted = ViTClassifier(out=folder / "run", **words).fit(X[:560], targets[:560])
    torch.set_num_threads(threads)
    fitted.run_.export("pt2")
    fitted.run_.export("onnx")
    fitted.run_.export("onnx", fitted.run_.path / "exports" / "any-size.onnx", resize=True)
    return House(fitted.run_.path, tuple(draw(folder / "pictures", X[560:])), made(folder / "written"), fitted)


def read_by(case: Case, high: float) -> bool:
    """Whether a model whose white is `high` reads this picture of the corpus."""
    return not case.says and not case.heavy and (case.high == high or (case.high in (255, 4095) and high > 4095))


def draw(folder: Path, seen: np.ndarray) -> list[Path]:
    """Pictures like those of the training, one of each kind of the corpus that the model reads, and a link to one.

    None that the training has seen: cuts are fitted on validation pictures, one of which lies on each of them.
    """
    from PIL import Image

    made(folder)
    found = []
    for place, picture in enumerate(seen):
        found.append(folder / f"digit-{place:03d}.png")
        if place % 2:
            found[-1].write_bytes(png16(picture))
        else:
            Image.fromarray((picture // 257).astype(np.uint8)).save(found[-1])
    for place, case in enumerate(CASES):
        if read_by(case, DEEPEST):
            found.append(folder / f"{place:03d}-{case.name or 'unnamed'}")
            found[-1].write_bytes(case.make())
    found.append(folder / "link.png")
    found[-1].symlink_to(found[0])
    return found


def made(folder: Path) -> Path:
    """An empty folder."""
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def expected(house: House) -> Told:
    """What the run says."""
    return DOORS["Python, paths"](house)


def test_the_pictures_are_of_many_kinds_and_the_answers_too(house: House, expected: Told) -> None:
    assert len(house.pictures) >= 500 and len({picture.suffix for picture in house.pictures}) > 5
    assert len(set(expected.labels)) == CLASSES, set(expected.labels)
    assert np.ptp(expected.chances, axis=0).min() > 0.3
    assert expected.abstained is not None and {"no", "unsure"} <= set(expected.abstained)
    bundle = json.loads((house.run / "model" / "config.json").read_text())
    assert "temperature" in json.dumps(bundle), "nothing is calibrated, so that no door could forget it"


def test_every_kind_that_is_accepted_is_among_them_or_has_a_range_of_its_own() -> None:
    accepted = {case.number for case in CASES if case.status == 200}
    shown = {case.number for case in CASES if read_by(case, DEEPEST)}
    assert accepted - shown == {case.number for case in CASES if case.high in OTHER_RANGES} == {37, 38}
    assert not any(case.heavy for case in CASES if case.status == 200)
    assert {*range(27, 37), *range(39, 58), 11, 12, 23, 24, 25, 59, 60, 63} <= shown


@pytest.mark.parametrize("door", [pytest.param(door, marks=MARKS.get(door, ())) for door in DOORS])
def test_every_door_decides_alike(door: str, house: House, expected: Told) -> None:
    agree(door, house, expected)


OTHER_RANGES = (1, 65_535_000)
"""White of fractions, and of a film of 32 bits: no model of another range reads them."""


@pytest.mark.slow
@pytest.mark.parametrize("high", OTHER_RANGES)
def test_whoever_reads_files_decides_alike_about_values_of_another_range(high: float, tmp_path: Path) -> None:
    found = reading()
    found = dataclasses.replace(found, spec=dataclasses.replace(found.spec, high=high))
    run = made(tmp_path / "run")
    saved(run / "model", found)
    assert main(["export", str(run), "--to", "onnx", "--out", str(run / "exports" / "model.onnx")]) == 0
    pictures = []
    for case in CASES:
        if not case.says and not case.heavy and case.high in (255, high):
            pictures.append(tmp_path / f"{len(pictures)}-{case.name}")
            pictures[-1].write_bytes(case.make())
    house = House(run, tuple(pictures), made(tmp_path / "written"))
    expected = rows(Predictor.open(run).predict(pictures).records())
    for door in READERS:
        agree(door, house, expected)


def agree(door: str, house: House, expected: Told) -> None:
    """A door gives the expected scores, and decides as expected about every picture."""
    compare(door, DOORS[door](house), expected)


def compare(door: str, told: Told, expected: Told) -> None:
    np.testing.assert_allclose(told.chances, expected.chances, atol=TOLERANCE, err_msg=door)
    assert told.labels == expected.labels, door
    assert told.abstained is None or told.abstained == expected.abstained, door


# -- The other tasks, and an ensemble of folds; and the same answers from processors with fewer instructions.

OTHER_DOORS = (
    "command line", "command line, JSON lines", "Python, bytes", "bundle elsewhere", "Python, seven at a time",
    "torch.export", "command line, ONNX", "server",
)  # fmt: skip
TRAIN = ("--model", "vit_mu_patch8_16", "--recipe.batch_size", "32", "--steps", "90", "--data.val_fraction", "0.3")


def small_house(folder: Path, source: str, pictures: Sequence[Path], *words: str) -> House:
    """A model trained at its defaults by the command line; exported unless it is an ensemble."""
    import torch

    threads = torch.get_num_threads()
    run = folder / "run"
    assert main(["train", source, *TRAIN, *words, "--out", str(run)]) == 0
    torch.set_num_threads(threads)
    if "--folds" not in words:
        assert [main(["export", str(run), "--to", kind]) for kind in ("pt2", "onnx")] == [0, 0]
    return House(run, tuple(pictures), made(folder / "written"))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> House:
    """Two labels with thresholds."""
    folder = tmp_path_factory.mktemp("labels")
    films = drawn_tasks.draw_labels(folder / "films", n=300)
    fresh = drawn_tasks.draw_labels(folder / "fresh", n=100, seed=9)
    return small_house(folder, str(films), sorted((fresh.parent / "pictures").iterdir()))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> House:
    folder = tmp_path_factory.mktemp("numbers")
    cells = drawn_tasks.draw_numbers(folder / "cells", n=300)
    fresh = drawn_tasks.draw_numbers(folder / "fresh", n=100, seed=9)
    return small_house(folder, str(cells), sorted((fresh.parent / "pictures").iterdir()))


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> House:
    """An ensemble of three digit classifiers."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("folds")
    grey, _ = digits(200)
    pictures = [folder / f"{place:03d}.png" for place in range(len(grey))]
    for path, picture in zip(pictures, grey, strict=True):
        Image.fromarray(255 - picture[::-1]).save(path)  # no picture of the training
    return small_house(folder, "digits", pictures, "--folds", "3", "--image-size", "16")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> House:
    """A bank of good parts; asked of good ones and of defects that it has not seen."""
    folder = tmp_path_factory.mktemp("parts")
    draw_parts(folder / "parts", good=40, defects=30)
    words = ["--task", "anomaly", "--weights", str(save_weights(folder / "theirs")), "--alpha", "0.05"]
    assert main(["train", str(folder / "parts" / "train"), *words, "--out", str(folder / "run")]) == 0
    assert [main(["export", str(folder / "run"), "--to", kind]) for kind in ("pt2", "onnx")] == [0, 0]
    return House(folder / "run", tuple(sorted(folder.glob("parts/test/*/*.png"))), made(folder / "written"))


def test_the_parts_are_good_and_defects(parts: House) -> None:
    said = DOORS["Python, paths"](parts)
    assert len(parts.pictures) == 60 and 20 <= said.labels.count("defect") <= 40 and said.chances.shape == (60, 2)


def test_an_estimator_of_good_parts_says_what_its_run_says(tmp_path: Path) -> None:
    draw_parts(tmp_path / "parts", good=20, defects=10)
    good, others = (sorted(tmp_path.glob(f"parts/{where}/*.png")) for where in ("train/good", "test/*"))
    fitted = ViTAnomaly(weights=str(save_weights(tmp_path / "theirs")), out=tmp_path / "run").fit([*map(str, good)])
    said = Predictor.open(tmp_path / "run").predict(others)
    assert isinstance(said, ClassificationPredictions) and said.scores is not None
    np.testing.assert_allclose(-fitted.score_samples([*map(str, others)]), said.scores, atol=TOLERANCE)
    assert [{-1: "defect", 1: "good"}[one] for one in fitted.predict([*map(str, others)]).tolist()] == list(said.labels)


@pytest.mark.parametrize("task", ["labels", "numbers", "parts"])
@pytest.mark.parametrize("door", OTHER_DOORS)
def test_every_other_task_is_the_same_behind_every_door(door: str, task: str, request: pytest.FixtureRequest) -> None:
    other: House = request.getfixturevalue(task)
    agree(door, other, DOORS["Python, paths"](other))


@pytest.mark.parametrize("door", ["command line", "Python, bytes", "Python, seven at a time", "server"])
def test_an_ensemble_of_folds_answers_alike_behind_every_door(door: str, folds: House) -> None:
    agree(door, folds, DOORS["Python, paths"](folds))


@pytest.mark.parametrize("capability", ["avx2", "default"])
@pytest.mark.parametrize("task", ["house", "labels", "numbers", "folds", "parts"])
def test_a_processor_with_fewer_instructions_gives_the_same_answers(
    task: str, capability: str, request: pytest.FixtureRequest
) -> None:
    here: House = request.getfixturevalue(task)
    out = here.folder / f"{capability}.csv"
    fewer = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    line = [sys.executable, "-m", "vitrail", "predict", str(here.run), *here.words, "--to", str(out)]
    done = subprocess.run(line, env=fewer, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compare(capability, written(out), DOORS["Python, paths"](here))
