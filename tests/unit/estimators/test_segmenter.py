"""`ViTSegmenter`: masks in, masks out, mean IoU, and what scikit-learn does with an estimator."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import vitrail
from drawn_masks import draw_scene
from good_parts import save_weights
from quick_fits import threads_kept  # noqa: F401 - a fixture
from vitrail.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("threads_kept")
SETTINGS = {"compute.threads": 1, "compute.num_workers": 0, "finetune.method": "probe"}
VALUES = np.array([3, 7, 40])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "theirs")


def scenes(count: int, first: int = 0, size: tuple[int, int] = (40, 40)) -> tuple[np.ndarray, np.ndarray]:
    drawn = [draw_scene(seed, size) for seed in range(first, first + count)]
    return np.stack([picture for picture, _ in drawn]), VALUES[np.stack([mask for _, mask in drawn])]


def make(weights: Path, **parameters: object) -> vitrail.ViTSegmenter:
    return vitrail.ViTSegmenter(weights=weights, device="cpu", settings=SETTINGS, **parameters)


def test_masks_are_learnt_and_answered_in_their_own_values(weights: Path):
    estimator, (X, y) = make(weights), scenes(8)
    y[:, :2] = 255
    assert estimator.fit(X, y) is estimator and estimator.classes_.tolist() == VALUES.tolist()
    other, truth = scenes(4, 100)
    answers = estimator.predict(other)
    assert isinstance(answers, np.ndarray) and answers.shape == truth.shape and set(np.unique(answers)) <= {*VALUES}
    ious = [((answers == v) & (truth == v)).sum() / ((answers == v) | (truth == v)).sum() for v in VALUES]
    assert estimator.score(other, truth) == pytest.approx(np.mean(ious)) and np.mean(ious) > 0.5
    assert estimator.transform(other).shape == (4, 24)
    opened = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(opened.predict(other), answers)
    truth[:] = 255
    truth[0, 0, 0] = answers[0, 0, 0]
    assert estimator.score(other, truth) == 1
    truth[0, 0, 1] = 99  # a class that it never saw
    is_same = answers[0, 0, 0] == answers[0, 0, 1]
    assert estimator.score(other, truth) == pytest.approx(1 / 4 if is_same else 1 / 3)


def test_pictures_of_any_sizes_and_files_keep_their_sizes(weights: Path, tmp_path: Path):
    drawn = [draw_scene(seed, (32 + seed, 48)) for seed in range(5)]
    names = []
    for seed, (picture, mask) in enumerate(drawn):
        Image.fromarray(picture).save(tmp_path / f"{seed}.png")
        Image.fromarray(mask).save(tmp_path / f"{seed}_mask.png")
        names.append(str(tmp_path / f"{seed}.png"))
    (tmp_path / "classes.csv").write_text("value,name\n0,other\n")
    estimator = make(weights).fit(names, [tmp_path / f"{seed}_mask.png" for seed in range(5)])
    answers = estimator.predict([picture for picture, _ in drawn])
    assert [answer.shape for answer in answers] == [mask.shape for _, mask in drawn]
    assert all(np.array_equal(*pair) for pair in zip(answers, estimator.predict(names), strict=True))
    assert estimator.score(names, [mask for _, mask in drawn]) > 0.5


@pytest.mark.wide
def test_scikit_learn_splits_clones_and_scores_it(weights: Path):
    X, y = scenes(8)
    scores = cross_val_score(clone(make(weights, validation_fraction=0.0)), X, y == 40, cv=2)
    assert scores.shape == (2,) and scores.min() > 0.4


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda y: None, UsageError, "requires y to be passed, but the target y is None"),
        (lambda y: y[:3], ValueError, "inconsistent numbers of samples"),
        (
            lambda y: y.astype(float),
            UsageError,
            r"whole numbers \[H, W\] of 0 or more\. Got float64 \[40, 40\] in row 0",
        ),
        (lambda y: -y, UsageError, "of 0 or more"),
        (lambda y: y[:, 0], UsageError, r"Got int64 \[40\] in row 0"),
        (lambda y: np.full_like(y, 3), UsageError, "Masks have 2 to 255 classes. Those of y have 1."),
        (lambda y: y[:, 1:], DataError, "has 39x40 pixels, and its picture"),
    ],
)
def test_other_masks_are_refused_in_a_sentence(change, error, message, weights: Path):
    X, y = scenes(5)
    with pytest.raises(error, match=message):
        make(weights).fit(X, change(y))
