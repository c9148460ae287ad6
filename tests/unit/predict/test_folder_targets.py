"""Targets of predicted pictures that lie in class folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.evaluate.predictions import ClassificationPredictions, RegressionPredictions
from vitrail.predict.folder_targets import add_folder_targets, describe_folder_targets, list_named_folders

CLASSES = ("cat", "caf\u00e9")


def table(*paths: str) -> ClassificationPredictions:
    chances = np.tile(np.array([[0.75, 0.25]], np.float32), (len(paths), 1))
    return ClassificationPredictions(
        paths=paths, ids=paths, split="", targets=None, probabilities=chances, classes=CLASSES
    )


@pytest.mark.parametrize(
    ("path", "folder", "target"),
    [
        ("set/cat/1.png", "set", 0),
        ("set/cat/2024/1.png", "set", 0),
        ("set/cat/caf\u00e9/1.png", "set", 0),  # the first folder decides
        ("set/test/cafe\u0301/1.png", "set", 1),  # below a split, and with another encoding of the accent
        ("set/north/cat/1.png", "set", 0),
        ("set/cat/1.png", "set/cat", 0),  # the named folder itself
        ("set/dog/1.png", "set", -1),
        ("cat/set/1.png", "cat/set", -1),  # what lies above the named folder says nothing
        ("set/cat/1.png", "other", -1),
    ],
)
def test_the_first_folder_with_the_name_of_a_class_is_the_target(path, folder, target):
    found = add_folder_targets(table(path, "set/cat/0.png"), [Path(folder), Path("set")])
    assert found.targets.tolist() == [target if folder != "other" else 0, 0]
    alone = add_folder_targets(table(path), [Path(folder)])
    assert (-1 if alone.targets is None else alone.targets[0]) == target


def test_targets_that_are_known_and_other_tasks_stay_as_they_are():
    known = ClassificationPredictions(
        paths=("set/cat/1.png",), ids=("1",), split="", targets=np.array([1]), classes=CLASSES,
        probabilities=np.array([[0.75, 0.25]], np.float32),
    )  # fmt: skip
    assert add_folder_targets(known, [Path("set")]) is known
    values = np.ones((1, 1), np.float32)
    numbers = RegressionPredictions(
        paths=("cat/1.png",), ids=("1",), split="", targets=None, values=values, columns=("n",)
    )
    assert add_folder_targets(numbers, [Path("cat")]) is numbers


def test_what_is_known_is_said_with_the_way_to_measure_it():
    predictions = add_folder_targets(table("set/cat/1.png", "set/caf\u00e9/1.png", "set/x.png"), [Path("set")])
    (note,) = describe_folder_targets(predictions, "RUN")
    assert note.startswith("The target of 2 of 3 pictures is known from folders with the name of a class; ")
    assert note.endswith("vitrail evaluate RUN SOURCE")
    assert describe_folder_targets(table("x.png"), "RUN") == ()
    assert predictions.csv_bytes().decode().splitlines()[1].startswith("set/cat/1.png,set/cat/1.png,,cat,cat,")


def test_only_folders_among_the_arguments_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    assert list_named_folders(["set", "-", "x.png", "set/*.png"]) == (Path("set"),)
