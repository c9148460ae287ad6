"""A model's classes are its own, by name: another source may order, lack or misname them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

import vitrail
from vitrail import config
from vitrail.checkpoints import bundle_weights
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import (
    LabelledImages,
    build_source_settings,
    evaluate_model,
    find_group_column,
    load_other_source,
)
from vitrail.spec import ImageSpec
from vitrail.train.plan import Plan

CLASSES = ("cat", "dog", "emu")


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """An untrained model that tells bright pictures from dark ones by chance, and knows three classes by name."""
    folder = tmp_path_factory.mktemp("kept") / "model"
    model = vitrail.create("vit_mu_patch8_16", outputs=3)
    bundle_weights.save_bundle(folder, model, ImageSpec(height=16, width=16), "classification", CLASSES, {})
    return Predictor.open(folder)


PICTURES = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)


def source(classes: tuple[str, ...], names: list[str], **fields: object) -> Source:
    given = {
        "name": "zoo",
        "classes": classes,
        "images": PICTURES[: len(names)],
        "targets": np.array([classes.index(name) for name in names]),
        "ids": tuple(f"{row}.png" for row in range(len(names))),
    }
    return Source(**(given | fields))


def every(found: Source) -> LabelledImages:
    return LabelledImages(found, np.arange(len(found)), "all")


NAMES = ["cat", "dog", "emu"] * 4


def test_D1_classes_in_another_order_give_the_same_figures(predictor):
    straight = evaluate_model(predictor, every(source(CLASSES, NAMES)))
    turned = evaluate_model(predictor, every(source(("emu", "dog", "cat"), NAMES)))
    answers = predictor.predict(list(PICTURES)).labels
    assert straight.metrics == turned.metrics
    assert straight.metrics.accuracy == np.mean([a == b for a, b in zip(answers, NAMES, strict=True)])
    assert [CLASSES[target] for target in turned.predictions.targets] == NAMES


def test_D1_a_class_that_the_source_lacks_changes_no_other(predictor):
    names = ["dog", "emu"] * 6
    found = evaluate_model(predictor, every(source(("dog", "emu"), names)))
    assert [CLASSES[target] for target in found.predictions.targets] == names
    assert [(each.name, each.n) for each in found.metrics.per_class] == [("cat", 0), ("dog", 6), ("emu", 6)]


def test_D1_a_folder_with_one_of_the_classes_can_be_measured(predictor, tmp_path):
    (tmp_path / "dog").mkdir()
    for number, picture in enumerate(PICTURES[:3]):
        Image.fromarray(picture).save(tmp_path / "dog" / f"{number}.png")
    found = evaluate_model(predictor, load_other_source(str(tmp_path), None, DataSettings()))
    assert found.predictions.targets.tolist() == [1, 1, 1]
    assert found.predictions.paths[0] == str(tmp_path / "dog" / "0.png")


def test_a_list_to_exclude_is_left_out_of_another_source(tmp_path):
    (tmp_path / "bad.csv").write_text("id\n1.png\n")
    found = load_other_source(source(CLASSES, NAMES), None, DataSettings(exclude=str(tmp_path / "bad.csv")))
    assert found.rows.tolist() == [0, *range(2, 12)]


def test_D1_classes_that_the_model_does_not_know_are_listed(predictor):
    with pytest.raises(DataError, match=r"classes that the model does not know: .fox., .gnu.\. It knows cat"):
        evaluate_model(predictor, every(source(("cat", "fox", "gnu"), ["cat", "fox"])))


def test_soft_labels_are_measured_by_their_most_probable_class(predictor):
    soft = np.array([[0.7, 0.3], [0.1, 0.9]], np.float32)
    found = evaluate_model(predictor, every(source(("emu", "cat"), ["emu", "cat"], targets=soft)))
    assert found.predictions.targets.tolist() == [2, 0]


def test_other_tasks_are_refused(predictor):
    numbers = source(("age",), ["age"] * 2, task="regression", targets=np.ones((2, 1), np.float32))
    with pytest.raises(DataError, match=r"zoo is a regression source, and the model answers with one of 3 classes"):
        evaluate_model(predictor, every(numbers))


def opened(folder: Path, task: str, names: tuple[str, ...], **info: object) -> Predictor:
    bundle_weights.save_bundle(
        folder, vitrail.create("vit_mu_patch8_16", outputs=3), ImageSpec(height=16, width=16), task, names, info
    )
    return Predictor.open(folder)


def test_labels_are_matched_by_name_and_those_that_a_source_lacks_are_not_known(tmp_path):
    labels = opened(tmp_path / "model", "multilabel", ("cat", "dog", "emu"))
    targets = np.array([[1, 0], [0, np.nan]] * 6, np.float32)
    found = evaluate_model(labels, every(source(("emu", "cat"), ["emu"] * 12, task="multilabel", targets=targets)))
    assert found.predictions.targets[:2].tolist()[0][::2] == [0, 1]
    assert np.isnan(found.predictions.targets[:, 1]).all() and np.isnan(found.predictions.targets[1, 0])
    assert [one.n for one in found.metrics.per_label] == [6, 0, 12]
    with pytest.raises(DataError, match=r"has labels that the model does not know: 'fox'"):
        evaluate_model(labels, every(source(("fox",), ["fox"], task="multilabel", targets=np.ones((1, 1), np.float32))))
    with pytest.raises(DataError, match=r"the model answers with any of 3 labels\. Give pictures that have a column"):
        evaluate_model(labels, every(source(CLASSES, NAMES)))


def test_numbers_are_matched_by_column_and_compared_with_the_training_mean(tmp_path):
    scale = {"mean": [1.0, 2.0, 30.0], "deviation": [1.0, 1.0, 4.0]}
    numbers = opened(tmp_path / "model", "regression", ("cat", "dog", "emu"), scaling=scale)
    targets = np.arange(12, dtype=np.float32)[:, None]
    found = evaluate_model(numbers, every(source(("emu",), ["emu"] * 12, task="regression", targets=targets)))
    assert [one.n for one in found.metrics.per_column] == [0, 0, 12]
    assert found.metrics.per_column[2].constant_mae == pytest.approx(np.abs(np.arange(12) - 30).mean())
    with pytest.raises(DataError, match=r"has columns that the model does not know: 'fox'"):
        evaluate_model(numbers, every(source(("fox",), ["fox"] * 12, task="regression", targets=targets)))


def test_another_source_is_read_for_the_task_of_the_model(tmp_path):
    assert build_source_settings("model", "films.csv", {}, task="multilabel").task == "multilabel"
    assert (
        build_source_settings("model", "films.csv", {"data.task": "regression"}, task="multilabel").task == "regression"
    )


class Member:
    """A picture inside something larger."""

    def __init__(self, number: int, good: bool = True):
        self.number, self.good, self.name, self.stamp = number, good, f"zoo.tar/{number}.png", str(number)

    def fetch(self) -> bytes | np.ndarray:
        return PICTURES[self.number] if self.good else b"no picture"


def test_pictures_inside_something_larger_are_called_by_their_names_and_bad_ones_left_out(predictor):
    pictures = tuple(Member(number, good=number != 1) for number in range(3))
    found = evaluate_model(predictor, every(source(CLASSES, ["cat", "dog", "emu"], images=pictures)), skip_bad=True)
    assert found.predictions.paths == ("zoo.tar/0.png", "zoo.tar/2.png")
    assert found.predictions.ids == ("0.png", "2.png") and found.predictions.targets.tolist() == [0, 2]
    assert [name for name, _ in found.predictions.skipped] == ["zoo.tar/1.png"]


def test_bad_arrays_are_left_out_one_by_one(predictor):
    pictures = (PICTURES[0], np.full((4, 4, 3), np.nan), PICTURES[2])
    found = evaluate_model(predictor, every(source(CLASSES, ["cat", "dog", "emu"], images=pictures)), skip_bad=True)
    assert found.predictions.ids == ("0.png", "2.png") and found.predictions.targets.tolist() == [0, 2]


def test_a_manifest_is_read_by_the_columns_that_the_run_learnt_from(tmp_path):
    plan = Plan(data=DataSettings(source="films.csv", targets=("finding",), path="file", group="patient"))
    (tmp_path / "plan.toml").write_text(config.to_toml(plan, {}), encoding="utf-8")
    asked = build_source_settings(tmp_path, "holdout.tsv", {"data.path": "image"})
    assert (asked.task, asked.path, asked.targets, asked.group) == ("classification", "image", ("finding",), "")
    assert build_source_settings(tmp_path, "holdout/", {}).targets == ()
    assert build_source_settings(tmp_path / "nowhere", "holdout.csv", {}, Path("/data")).data_root == "/data"


def test_groups_of_the_run_are_those_of_another_source_with_that_column(tmp_path):
    (tmp_path / "run").mkdir()
    plan = Plan(data=DataSettings(source="own.csv", group="patient"))
    (tmp_path / "run" / "plan.toml").write_text(config.to_toml(plan, {}))
    assert find_group_column(tmp_path / "run") == "patient" and find_group_column(tmp_path) == ""
    frame = pandas.DataFrame(
        {"path": [f"{number}.png" for number in range(6)], "label": ["a", "b"] * 3, "patient": list("uuvvww")}
    )
    for number in range(6):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
    frame["path"] = [str(tmp_path / name) for name in frame["path"]]
    settings = DataSettings()
    grouped = load_other_source(frame, None, settings, "patient")
    assert grouped.source.groups is not None and len(set(grouped.source.groups.tolist())) == 3
    assert load_other_source(frame, None, settings).source.groups is None
    lone = load_other_source(frame.drop(columns="patient"), None, settings, "patient")
    assert lone.source.groups is None and "groups its pictures by 'patient', and these have no groups" in lone.notes[-1]
    chosen = build_source_settings(tmp_path / "run", frame, {"data.group": "patient"})
    assert load_other_source(frame, None, chosen).source.groups is not None


def test_an_evaluation_is_told_only_how_to_read_pictures(tmp_path):
    with pytest.raises(
        UsageError, match=r"only takes settings for reading its pictures: --data\.task.* Got --recipe\.batch_size\."
    ):
        build_source_settings(tmp_path, "holdout.csv", {"recipe.batch_size": "3"})
    with pytest.raises(UsageError, match=r"Got --data\.folds\."):
        build_source_settings(tmp_path, "holdout.csv", {"data.folds": "3"})
    with pytest.raises(UsageError, match=r"there is no setting data\.target\. Did you mean data\.targets\?"):
        build_source_settings(tmp_path, "holdout.csv", {"data.target": "x"})


def test_pictures_are_looked_up_only_when_their_turn_comes():
    chosen = LabelledImages(source(CLASSES, NAMES), np.array([5, 3, 7]), "test").images
    assert len(chosen) == 3
    assert all(np.array_equal(picture, PICTURES[row]) for picture, row in zip(chosen, (5, 3, 7), strict=True))
    assert np.array_equal(chosen[-1], PICTURES[7]) and len(chosen[1:]) == 2
