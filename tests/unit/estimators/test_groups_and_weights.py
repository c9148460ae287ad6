"""What `fit` takes beside labels: groups, weights of pictures, and weights of classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas
import pytest
import sklearn
import torch
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate

import vitrail
from quick_fits import QUICK, SETTINGS, digits, threads_kept  # noqa: F401 - a fixture
from vitrail.errors import DataError, UsageError
from vitrail.estimators import select_examples

pytestmark = pytest.mark.usefixtures("threads_kept")
X, Y = digits(120, 3)
GROUPS = np.arange(120) // 4
WEIGHTS = 1.0 + np.arange(120) % 3


def rows_of(run: vitrail.Run) -> list[dict[str, str]]:
    with (run.path / "splits.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def parameters(path: Path) -> list[torch.Tensor]:
    return list(vitrail.load(path).state_dict().values())


@pytest.fixture(scope="module")
def grouped() -> vitrail.ViTClassifier:
    """Learnt in groups of four pictures, with weights."""
    return vitrail.ViTClassifier(validation_fraction=0.3, **QUICK).fit(X, Y, groups=GROUPS, sample_weight=WEIGHTS)


def test_no_group_is_in_training_and_validation(grouped):
    owners = {split: {GROUPS[int(row["id"])] for row in rows_of(grouped.run_) if row["split"] == split}
              for split in ("train", "val")}  # fmt: skip
    assert len(owners["val"]) > 3 and not owners["train"] & owners["val"]
    assert len(np.unique(np.load(grouped.run_.path / "groups.npy"))) == len(owners["val"]), "intervals are by group"


def test_the_run_folder_keeps_the_weights_and_says_why_classes_have_none(grouped):
    assert {int(row["id"]): float(row["weight"]) for row in rows_of(grouped.run_)} == dict(enumerate(WEIGHTS.tolist()))
    assert "each picture was given a weight of its own" in (grouped.run_.path / "plan.toml").read_text()


@pytest.mark.wide
def test_a_weighted_run_goes_on_with_its_weights_though_the_object_brings_none(tmp_path):
    fitted = vitrail.ViTClassifier(out=tmp_path / "run", **QUICK).fit(X, Y, sample_weight=WEIGHTS)
    vitrail.ViTClassifier(out=tmp_path / "named", **QUICK).fit(X, Y, sample_weight=WEIGHTS)
    plain = vitrail.ViTClassifier(out=tmp_path / "plain", **QUICK).fit(X, Y)
    fitted.run_.extend(steps=2, quiet=True)
    vitrail.open(tmp_path / "named").extend(steps=2, source=(X, Y), quiet=True)
    plain.run_.extend(steps=2, quiet=True)
    ours, reopened, others = (parameters(tmp_path / name) for name in ("run", "named", "plain"))
    assert all(torch.equal(one, other) for one, other in zip(ours, reopened, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))
    with pytest.raises(DataError, match=r"have other loss weights than when the run began"):
        vitrail.open(tmp_path / "plain").extend(steps=2, source=fitted.run_._trained_on, quiet=True)


@pytest.mark.wide
@pytest.mark.parametrize("kind", [vitrail.ViTClassifier, vitrail.ViTMultiLabel, vitrail.ViTRegressor])
def test_a_weight_of_zero_leaves_the_picture_out(kind):
    y = np.stack([Y == 1, Y == 2], 1).astype(float) if kind is vitrail.ViTMultiLabel else Y
    kept = np.arange(120) % 5 > 0
    wrong = np.where(kept[:, None] if y.ndim == 2 else kept, y, 1 - y % 2)
    ours = kind(**QUICK).fit(X, wrong, groups=GROUPS, sample_weight=3.0 * kept)
    theirs = kind(**QUICK).fit(X[kept], y[kept], groups=GROUPS[kept])
    np.testing.assert_array_equal(ours.transform(X), theirs.transform(X))
    assert "weight" not in rows_of(ours.run_)[0], "what is left has equal weights"


EXACT = {
    **QUICK, "steps": 6, "settings": {
        **SETTINGS, "recipe.batch_size": 512, "recipe.patch_keep_rate": 1.0, "recipe.flip": False, "recipe.mixup": 0.0,
        "recipe.crop_padding": 0, "recipe.optimizer": "adamw", "image.mean": [0.5], "image.std": [0.5],
    },
}  # fmt: skip


@pytest.mark.wide
def test_whole_weights_are_copies_where_a_step_sees_every_picture():
    times = np.arange(120) % 3 + 1
    weighted, copied, plain = (
        vitrail.ViTClassifier(validation_fraction=0, **EXACT).fit(
            X.repeat(copies, axis=0), Y.repeat(copies), sample_weight=given
        )
        for copies, given in ((1, times), (times, None), (1, None))
    )
    rounding, difference = (np.abs(weighted.transform(X) - one.transform(X)).max() for one in (copied, plain))
    assert rounding < 0.02, "AdamW makes whole steps of gradients that are 0 but for rounding"
    assert difference > 5 * rounding


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(3), r"must hold one number for each of 120 pictures\. Got shape \[3\]"),
        (np.ones((120, 2)), r"Got shape \[120, 2\]"),
        (np.where(np.arange(120) == 7, -0.5, 1), r"sample_weight must be 0 or more\. Got -0\.5 in row 7"),
        (np.where(np.arange(120) == 7, np.nan, 1), r"sample_weight contains NaN"),
        (np.zeros(120), r"The weight of every picture is zero"),
    ],
)
@pytest.mark.parametrize("kind", [vitrail.ViTClassifier, vitrail.ViTMultiLabel, vitrail.ViTRegressor])
def test_weights_that_are_none_say_why(kind, weights, words):
    y = np.stack([Y == 1, Y == 2], 1) if kind is vitrail.ViTMultiLabel else Y
    with pytest.raises(ValueError, match=words):
        kind(**QUICK).fit(X, y, sample_weight=weights)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.arange(3), r"groups must hold one group for each of 120 pictures\. Got shape \[3\]"),
        ([None] + ["a"] * 119, r"name the group of every picture\. Got None in row 0"),
        (np.where(np.arange(120) == 7, np.nan, 1), r"Got nan in row 7"),
        (pandas.Series(["a"] * 119 + [None], dtype="string"), r"Got (nan|<NA>) in row 119"),
        (np.zeros((120, 2)), r"one group for each of 120 pictures\. Got shape \[120, 2\]"),
    ],
)
def test_groups_that_are_none_say_why(groups, words):
    with pytest.raises(ValueError, match=words):
        vitrail.ViTClassifier(**QUICK).fit(X, Y, groups=groups)


def test_weights_of_classes_multiply_those_of_pictures():
    labels = np.array(["a", "a", "a", "b"])

    def weights(sample_weight, class_weight):
        return select_examples(np.zeros((4, 2, 2)), labels, None, sample_weight, class_weight).weights

    assert weights(None, "balanced").tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2])
    assert weights([1, 2, 3, 4], {"b": 10}).tolist() == [1, 2, 3, 40]
    assert weights([1, 0, 3, 4], "balanced").tolist() == pytest.approx([3 / 4, 9 / 4, 6]), "of those that are left"
    assert weights(None, {"a": 1, "b": 1}).tolist() == [1] * 4, "asked for, so the planner adds none"
    assert weights(None, None) is None and weights([2] * 4, None) is None
    assert select_examples(list("wxyz"), labels, None, None, {"b": 0}).images == ["w", "x", "y"]
    with pytest.raises(ValueError, match=r"class_weight must give finite weights of 0 or more\. Got \{'b': -1\}"):
        weights(None, {"b": -1})
    for wrong in ("equal", [1], 2.5, np.ones(2)):
        with pytest.raises(ValueError, match=r'class_weight must be "balanced" or a dictionary of classes and weights'):
            weights(None, wrong)
    with pytest.raises(ValueError, match=r"The classes, \[.*'a'.*\], are not in class_weight"):
        weights(None, {"b": 1, "c": 2})


def test_weights_that_are_given_are_not_changed():
    given = np.array([1.0, 2, 3, 4])
    select_examples(np.zeros((4, 2, 2)), np.array([0, 0, 1, 1]), None, given, {1: 5})
    assert given.tolist() == [1, 2, 3, 4]


@pytest.mark.wide
def test_a_heavy_class_is_answered_everywhere():
    estimator = vitrail.ViTClassifier(class_weight={2: 1000, 0: 0.001, 1: 0.001}, **{**QUICK, "steps": 20}).fit(X, Y)
    assert (estimator.predict(X) == 2).mean() > 0.9


@pytest.mark.parametrize("kind", [vitrail.ViTMultiLabel, vitrail.ViTRegressor])
def test_only_a_classifier_has_classes_to_weigh(kind):
    with pytest.raises(
        TypeError, match=r"'class_weight'\. Only ViTClassifier has classes to weigh: sample_weight of fit"
    ):
        kind(class_weight="balanced")


@pytest.mark.wide
def test_groups_and_weights_are_routed_through_searches():
    seen = []

    class Watched(vitrail.ViTClassifier):
        def fit(self, X, y, groups=None, sample_weight=None):
            seen.append((groups, sample_weight))
            return super().fit(X, y, groups, sample_weight)

    with sklearn.config_context(enable_metadata_routing=True):
        asked = Watched(**QUICK).set_fit_request(groups=True, sample_weight=True)
        asked.set_score_request(sample_weight=True)
        search = GridSearchCV(asked, {"settings__recipe.lr": [1e-3, 2e-3]}, cv=GroupKFold(2), refit=False)
        search.fit(X, Y, groups=GROUPS, sample_weight=WEIGHTS)
        cross_validate(asked, X, Y, cv=GroupKFold(2), params={"groups": GROUPS, "sample_weight": WEIGHTS})
    assert len(seen) == 6
    for groups, weights in seen:
        assert len(groups) == len(weights) == 60 and len(np.unique(groups)) == 15


def test_a_score_is_weighted(grouped):
    right = grouped.predict(X) == Y
    assert grouped.score(X, Y, sample_weight=WEIGHTS) == pytest.approx(np.average(right, weights=WEIGHTS))


@pytest.mark.wide
@pytest.mark.parametrize("method", ["full", "probe"])
def test_a_training_from_a_checkpoint_is_weighted_too(tmp_path, method):
    first = vitrail.ViTClassifier(out=tmp_path / "first", **QUICK).fit(X, Y)
    settings = {"compute.threads": 1, "finetune.method": method}
    more = {"weights": first.run_.path / "model", "settings": settings, "device": "cpu", "random_state": 1}
    more |= {} if method == "probe" else {"steps": 2}
    plain, weighted = (
        vitrail.ViTClassifier(**more).fit(X, Y, sample_weight=given).predict_proba(X)
        for given in (None, np.where(Y == 2, 50.0, 1.0))
    )
    assert weighted[:, 2].mean() > plain[:, 2].mean()


@pytest.mark.wide
def test_a_teacher_or_a_loss_that_gives_a_mean_is_refused_before_a_run_folder_is_made(tmp_path):
    taught = {**QUICK, "settings": {**QUICK["settings"], "distill.teacher": "cnn", "distill.steps": 2}}
    with pytest.raises(UsageError, match=r"cannot be learnt from a teacher"):
        vitrail.ViTClassifier(out=tmp_path / "run", **taught).fit(X, Y, sample_weight=WEIGHTS)
    with pytest.raises(UsageError, match=r"gives the mean of all pictures, so their weights cannot be applied"):
        vitrail.ViTClassifier(out=tmp_path / "run", loss=torch.nn.functional.cross_entropy, **QUICK).fit(
            X, Y, sample_weight=WEIGHTS
        )
    assert not (tmp_path / "run").exists()
