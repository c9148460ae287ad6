"""An evaluation on other pictures ends in pictures: predictions, a page, and the wrong ones by name."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

from stored_runs import store_run
from unit.services.test_evaluation import CLASSES, NAMES, PICTURES, every, opened, source
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from vitrail.services import evaluation
from vitrail.services.evaluation_report import choose_evaluation_folder, list_wrong, write_evaluation


def classified(confidences: list[float], targets: list[int]) -> ClassificationPredictions:
    chances = np.array([[each, 1 - each] for each in confidences], np.float32)
    names = tuple(f"{row}.png" for row in range(len(targets)))
    return ClassificationPredictions(
        paths=names, ids=names, split="all", targets=np.array(targets), probabilities=chances, classes=("cat", "dog")
    )


def test_the_surest_wrong_answers_come_first():
    wrong = list_wrong(classified([0.9, 0.6, 0.99, 0.8, 0.2], [0, 1, 1, -1, 1]))
    assert (wrong.count, wrong.lines) == (
        2, (("2.png", "dog, answered cat (99.0%)"), ("1.png", "dog, answered cat (60.0%)"))
    )  # fmt: skip
    assert wrong.table().splitlines() == [
        "Wrong: 2, the surest first",
        "  2.png  dog, answered cat (99.0%)",
        "  1.png  dog, answered cat (60.0%)",
    ]
    assert list_wrong(classified([0.9], [0])).table() == ""
    many = list_wrong(classified([0.9] * 30, [1] * 30))
    assert many.table().splitlines()[-1] == "  and 20 more" and many.to_json()["count"] == 30


def test_labels_and_numbers_have_their_worst_named_too():
    labels = MultilabelPredictions(
        paths=("", ""), ids=("x", "y"), split="all", targets=np.array([[1, 0], [0, 1]], np.float32),
        probabilities=np.array([[0.9, 0.1], [0.8, 0.3]], np.float32), classes=("bars", "nodule"),
    )  # fmt: skip
    assert list_wrong(labels).lines == (("y", "no bars, predicted 80%; has nodule, predicted 30%"),)
    numbers = RegressionPredictions(
        paths=("", ""), ids=("x", "y"), split="all", targets=np.array([[1.0], [2.0]]),
        values=np.array([[1.5], [5.0]], np.float32), columns=("age",),
    )  # fmt: skip
    found = list_wrong(numbers)
    assert found.count is None and found.table().startswith("Largest errors\n  y  is 2, predicted 5")


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_everything_is_kept_and_the_page_shows_it(task, tmp_path):
    predictor = opened(tmp_path / "model", task, CLASSES)
    targets = {
        "classification": np.array([CLASSES.index(name) for name in NAMES]),
        "multilabel": np.tile(np.array([[1, 0, 0], [0, 1, 1]], np.float32), (6, 1)),
        "regression": np.arange(36, dtype=np.float64).reshape(12, 3),
    }
    labelled = every(source(CLASSES, NAMES, task=task, targets=targets[task]))
    result = evaluation.evaluate_model(predictor, labelled)
    page = write_evaluation(tmp_path / "out", str(tmp_path / "model"), "zoo", predictor, labelled, result)
    assert page == tmp_path / "out" / "report.html"
    text = page.read_text()
    assert "Evaluation report" in text and "zoo: model" in text and "data:image/png;base64" in text
    assert "What was trained" not in text and "The plan" not in text, "a bundle does not know"
    with (tmp_path / "out" / "predictions" / "all.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 12
    assert json.loads((tmp_path / "out" / "metrics-all.json").read_text())["n"] == 12
    assert (tmp_path / "out" / "results.csv").read_text().startswith("split,of,figure,value,low,high,n\nall,")


def test_copies_of_training_pictures_stand_on_the_page_and_in_the_results(tmp_path):
    predictor = opened(tmp_path / "model", "classification", CLASSES)
    labelled = every(source(CLASSES, NAMES))
    seen = evaluation.SeenCopies(train=np.arange(12) < 5, val=np.zeros(12, bool))
    labelled = evaluation.replace(labelled, seen=seen, notes=(seen.describe("RUN"),))
    result = evaluation.evaluate_model(predictor, labelled)
    page = write_evaluation(tmp_path / "out", "RUN", "zoo", predictor, labelled, result)
    assert "RUN has learnt from 5 of these 12 pictures" in page.read_text()
    assert "all,,copies_of_training,5.0,,,12" in (tmp_path / "out" / "results.csv").read_text()


def test_an_evaluation_lies_in_its_run_and_replaces_only_itself(tmp_path):
    run = store_run(tmp_path / "run", names=("cat", "dog"))
    (tmp_path / "a" / "holdout").mkdir(parents=True)
    (tmp_path / "b" / "holdout").mkdir(parents=True)
    first, second = (str(tmp_path / place / "holdout") for place in "ab")
    folder = choose_evaluation_folder(str(run), first, None)
    assert folder == run / "evaluations" / "holdout" == choose_evaluation_folder(str(run / "model"), first, None)
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"command": f"vitrail evaluate {run} {first}"}))
    assert choose_evaluation_folder(str(run), first, None) == folder
    assert choose_evaluation_folder(str(run), second, None) == folder.with_name("holdout-2")
    with pytest.raises(UsageError, match=r"exists already and is kept\. Choose another --out"):
        choose_evaluation_folder(str(run), second, folder)
    assert choose_evaluation_folder(str(run), second, tmp_path / "new") == tmp_path / "new"
    assert choose_evaluation_folder(str(tmp_path / "a"), second, None) is None, "only runs keep what is not asked for"


def test_folders_one_level_too_high_say_how_to_read_them(tmp_path):
    predictor = opened(tmp_path / "model", "classification", CLASSES)
    for site in ("north", "south"):
        for name in CLASSES:
            (tmp_path / "set" / site / name).mkdir(parents=True)
            Image.fromarray(PICTURES[0]).save(tmp_path / "set" / site / name / "1.png")
    labelled = evaluation.load_other_source(str(tmp_path / "set"), None, DataSettings())
    with pytest.raises(evaluation.DataError, match=r"does not know: 'north', 'south'.*--data\.class_level 2"):
        evaluation.evaluate_model(predictor, labelled)
    settings = evaluation.build_source_settings("model", tmp_path / "set", {"data.class_level": "2"})
    found = evaluation.evaluate_model(predictor, evaluation.load_other_source(str(tmp_path / "set"), None, settings))
    assert found.metrics.n == 6
