"""`ViTClassifier` answers as its run does, and behaves as scikit-learn's users expect."""

from __future__ import annotations

import csv
import gc
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import vitrail
from quick_fits import LEARNING, QUICK, digits, threads_kept  # noqa: F401 - a fixture
from vitrail import estimators
from vitrail.cli.main import main
from vitrail.errors import DataError, UsageError
from vitrail.estimators import to_class_names

pytestmark = pytest.mark.usefixtures("threads_kept")
WORDS = np.array(["zero", "one", "two", "three"])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> vitrail.ViTClassifier:
    """Four digits by name, after a hundred steps."""
    X, y = digits(400, 4)
    return vitrail.ViTClassifier(out=tmp_path_factory.mktemp("classifier") / "run", **LEARNING).fit(X, WORDS[y])


def test_it_learns_and_answers_with_the_labels_it_was_given(fitted):
    X, y = digits(700, 4)
    assert fitted.classes_.tolist() == ["one", "three", "two", "zero"] and fitted.n_features_in_ == 64
    assert fitted.score(X[400:], WORDS[y[400:]]) > 0.7  # guessing gives 0.25
    chances = fitted.predict_proba(X[:50])
    np.testing.assert_array_equal(fitted.predict(X[:50]), fitted.classes_[chances.argmax(1)])
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-6)


def test_run_and_command_line_give_the_same_answers(fitted, tmp_path, capsysbinary):
    X, _ = digits(40, 4)
    paths = [tmp_path / f"{place:02d}.png" for place in range(len(X))]
    for picture, path in zip(X, paths, strict=True):
        Image.fromarray(picture).save(path)
    of_estimator = fitted.predict_proba(X)
    of_run = fitted.run_.predict(paths)
    assert main(["predict", str(fitted.run_.path), *map(str, paths), "--device", "cpu"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsysbinary.readouterr().out.decode())))
    of_command = [[float(row[f"prob_{name}"]) for name in fitted.classes_] for row in rows]
    assert of_run.classes == tuple(fitted.classes_)
    np.testing.assert_array_equal(of_run.probabilities, of_estimator)
    np.testing.assert_array_equal(np.array(of_command, np.float32), of_estimator)
    assert [row["label"] for row in rows] == fitted.predict(X).tolist() == fitted.predict(paths).tolist()
    np.testing.assert_array_equal(fitted.predict_proba(list(map(str, paths))), of_estimator)


@pytest.mark.wide
def test_rows_of_numbers_are_the_same_pictures():
    X, y = digits(120, 4)
    of_rows, of_pictures = (
        vitrail.ViTClassifier(**QUICK).fit(given, y).predict_proba(given[:20]) for given in (X.reshape(120, 64), X)
    )
    np.testing.assert_array_equal(of_rows, of_pictures)


@pytest.mark.wide
def test_a_second_fit_gives_the_same_and_leaves_nothing_of_the_first():
    X, y = digits(120, 3)
    estimator = vitrail.ViTClassifier(**QUICK).fit(X, y)
    first, folder = estimator.predict_proba(X), estimator.run_.path
    again = estimator.fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(first, again)
    gc.collect()
    assert not folder.exists() and estimator.run_.path.exists()


@pytest.mark.wide
def test_a_temporary_run_goes_with_the_estimator_and_a_named_one_stays(tmp_path):
    X, y = digits(60, 2)
    estimator, named = (vitrail.ViTClassifier(out=out, **QUICK).fit(X, y) for out in (None, tmp_path / "run"))
    folder = estimator.run_.path
    assert folder.is_dir()
    del estimator, named
    gc.collect()
    assert not folder.exists() and not folder.parent.exists()
    assert vitrail.open(tmp_path / "run").predict(list(X[:2])).classes == ("0", "1")


def test_a_run_folder_that_is_taken_is_refused(tmp_path):
    X, y = digits(60, 2)
    (tmp_path / "something").touch()
    with pytest.raises(UsageError, match=rf"The run folder {tmp_path} exists already and is kept"):
        vitrail.ViTClassifier(out=tmp_path, **QUICK).fit(X, y)


def test_a_forked_process_removes_nothing(tmp_path):
    estimators._remove_folder(tmp_path, os.getpid() + 1)
    assert tmp_path.is_dir()
    estimators._remove_folder(tmp_path, os.getpid())
    assert not tmp_path.exists()


@pytest.mark.wide
def test_a_pickle_answers_without_the_folder_it_came_from():
    X, y = digits(120, 3)
    estimator = vitrail.ViTClassifier(**QUICK).fit(X, y)
    before, packed = estimator.predict_proba(X), pickle.dumps(estimator)
    assert not any(name.startswith("checkpoints") for name in estimators.pack_run_files(estimator.run_.path))
    del estimator
    gc.collect()
    opened = pickle.loads(packed)
    np.testing.assert_array_equal(opened.predict_proba(X), before)
    assert opened.run_.report.is_file() and opened.run_.plan.recipe.steps == 3
    fresh = pickle.loads(pickle.dumps(vitrail.ViTClassifier(steps=5)))
    assert fresh.get_params()["steps"] == 5 and not hasattr(fresh, "run_")


@pytest.mark.wide
def test_clones_pipelines_and_grid_searches_work():
    X, y = digits(90, 2)
    rows = X.reshape(90, 64) / 255
    estimator = vitrail.ViTClassifier(**QUICK)
    assert clone(estimator).get_params() == estimator.get_params()
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(np.sqrt), estimator),
        {"vitclassifier__steps": [1, 2]},
        cv=2,
        scoring="roc_auc",
    )
    search.fit(rows, y)
    assert search.best_estimator_.predict(rows).shape == (90,)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.wide
def test_the_run_s_own_threshold_decides():
    X, y = digits(300, 2)
    asked = {
        **QUICK,
        "settings": {**QUICK["settings"], "decisions.positive": "1", "decisions.threshold_rule": "sensitivity 0.99"},
    }
    estimator = vitrail.ViTClassifier(**asked, validation_fraction=0.4).fit(X, y)
    decided = estimator.run_.predictor.decisions
    assert decided.positive == "1" and decided.thresholds[0] != 0.5
    expected = (estimator.predict_proba(X)[:, 1] >= decided.thresholds[0]).astype(int)
    np.testing.assert_array_equal(estimator.predict(X), expected)
    assert (expected != estimator.predict_proba(X).argmax(1)).any()


@pytest.mark.wide
def test_pictures_may_be_floats_colours_and_files_of_many_sizes(tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(40) % 2
    colours = generator.random((40, 6, 9, 3)) * (0.5 + 0.5 * y[:, None, None, None])
    estimator = vitrail.ViTClassifier(**QUICK).fit(colours, y)
    assert estimator.n_features_in_ == 6 * 9 * 3 and estimator.run_.plan.image.channels == 3
    assert estimator.run_.plan.image.high == 1
    paths = [tmp_path / f"{place}.png" for place in range(40)]
    for place, path in enumerate(paths):
        Image.fromarray(np.full((8 + place % 3, 8, 3), 60 + 90 * y[place], np.uint8)).save(path)
    of_files = vitrail.ViTClassifier(image_size=8, **QUICK).fit(list(map(str, paths)), y)
    assert of_files.run_.plan.image.size == (8, 8) and not hasattr(of_files, "n_features_in_")
    assert of_files.predict(paths).shape == (40,)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((6, 4, 4)), [0, 1, 0], r"inconsistent numbers of samples: \[6, 3\]"),
        (np.zeros((6, 4, 4)), [1] * 6, r"at least two classes\. All 6 are of one class"),
        (np.zeros((6, 5)), [0, 1] * 3, r"5 numbers are no square"),
        (np.full((6, 4, 4), np.nan), [0, 1] * 3, r"contains NaN"),
        (np.zeros((1, 4, 4)), [0], r"minimum of 2 is required"),
        (np.zeros(6), [0, 1] * 3, r"Expected 2D array, got 1D array"),
        (np.zeros((6, 2, 2, 2, 2)), [0, 1] * 3, r"volume or a film"),
        (["no.png"] * 6, [0, 1] * 3, r"no\.png"),
    ],
)
def test_what_cannot_be_fitted_says_why(X, y, words):
    with pytest.raises(ValueError, match=words):
        vitrail.ViTClassifier(**QUICK).fit(X, y)


def test_rows_after_pictures_and_answers_before_a_fit_are_refused(fitted):
    with pytest.raises(UsageError, match=r"was fitted on pictures, and this X has two axes, \[2, 64\]"):
        fitted.predict(np.zeros((2, 64)))
    with pytest.raises(DataError, match="absent"):
        fitted.predict(["absent.png"])
    with pytest.raises(NotFittedError):
        vitrail.ViTClassifier().predict(np.zeros((2, 8, 8)))


def test_labels_become_names():
    assert to_class_names(np.array([-1, 0, 2])) == ("-1", "0", "2")
    assert to_class_names(np.array([1.0, 2.5])) == ("1", "2.5")
    assert to_class_names(np.array(["a", "b"], dtype=object)) == ("a", "b")
    with pytest.raises(UsageError, match="two classes that are both written as '1'"):
        to_class_names(np.array([1, "1"], dtype=object))


def test_notebooks_show_a_card_and_terminals_plain_text(fitted):
    page = fitted._repr_html_()
    assert "report.html" in page and "one, three, two, zero" in page
    assert "Accuracy on 40 held-out pictures (val)" in page
    assert fitted.run_._repr_html_() in fitted._repr_mimebundle_()["text/html"]
    assert "<" not in repr(fitted) and "<" not in str(fitted.run_) and repr(fitted).startswith("ViTClassifier(")
    assert fitted.run_._repr_html_() in page
    assert "report.html" not in vitrail.ViTClassifier()._repr_html_()
    report = Path(fitted.run_.path / "report.json")
    kept = report.read_bytes()
    report.unlink()
    assert "A run without a report" in fitted.run_._repr_html_()
    report.write_bytes(kept)


def halved(outputs, targets):
    """Half the loss of the task."""
    return torch.nn.functional.cross_entropy(outputs, targets) / 2


def same(images):
    return images


def test_a_loss_and_an_augmentation_of_ones_own_are_parameters_like_others():
    X, y = digits(60, 3)
    asked = vitrail.ViTClassifier(loss=halved, augment=same, **QUICK)
    copy = clone(asked)
    assert copy.loss is halved and copy.get_params()["augment"] is same
    run = copy.fit(X, y).run_
    assert run.plan.recipe.custom_loss.endswith(".halved") and run.plan.recipe.custom_augment.endswith(".same")
    assert pickle.loads(pickle.dumps(vitrail.ViTClassifier(loss=len))).loss is len  # what can be imported
