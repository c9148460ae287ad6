"""Answers out of fold: nobody judges a picture that it, or one of its group, was shown."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from vitrail.errors import DataError
from vitrail.evaluate import probe
from vitrail.evaluate.probe import NUM_FOLDS, OOF_STRENGTHS, assign_folds, predict_out_of_fold


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Probes are many small steps, which a second thread only slows down."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


def drawn(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.random.Generator]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, 6)).astype(np.float32), generator


def test_every_picture_is_answered_by_the_probe_of_the_other_folds():
    features, generator = drawn()
    targets = (features[:, 0] + 0.5 * generator.normal(size=200) > 0).astype(np.int64)
    found = predict_out_of_fold(features, targets, "classification", 2)
    fold = assign_folds(targets, "classification", NUM_FOLDS, None, 0)
    fits = []
    for c in OOF_STRENGTHS:
        answers = np.zeros((200, 2), np.float32)
        for number in range(NUM_FOLDS):
            shown = fold != number
            linear = list(probe.fit_probe_path(features[shown], targets[shown], "classification", 2, (c / 10, c)))[-1]
            answers[~shown] = linear.predict_outputs(features[~shown])
        fits.append(np.abs(answers - found).max())
    assert min(fits) < 1e-2 < sorted(fits)[1]


def test_noise_is_told_no_better_than_by_chance():
    features, generator = drawn(400)
    targets = generator.integers(0, 2, 400)
    assert 0.4 < (predict_out_of_fold(features, targets, "classification", 2).argmax(1) == targets).mean() < 0.6


def test_folds_show_classes_in_proportion_and_are_those_of_the_seed():
    targets = np.repeat([0, 1, 2], [100, 50, 10])
    fold = assign_folds(targets, "classification", 5, None, 3)
    assert [np.bincount(targets[fold == number]).tolist() for number in range(5)] == [[20, 10, 2]] * 5
    assert (fold == assign_folds(targets, "classification", 5, None, 3)).all()
    assert (fold != assign_folds(targets, "classification", 5, None, 4)).any()
    labels = np.stack([np.arange(100) < 30, np.arange(100) % 2], axis=1).astype(np.float32)
    parts = assign_folds(labels, "multilabel", 5, None, 0)
    assert [int(labels[parts == number, 0].sum()) for number in range(5)] == [6] * 5


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_groups_are_never_parted(task):
    generator = np.random.default_rng(0)
    groups = np.array([f"patient {number}" for number in generator.integers(0, 40, 200)])
    targets = generator.integers(0, 2, 200)
    given = targets if task == "classification" else targets[:, None].astype(np.float32)
    fold = assign_folds(given, task, 5, groups, 0)
    assert set(fold.tolist()) == set(range(5))
    assert all(len(set(fold[groups == name].tolist())) == 1 for name in set(groups.tolist()))


def test_a_patient_is_not_recognised_by_his_own_pictures():
    features, generator = drawn(40)
    patients = np.repeat(np.arange(40), 5)
    repeated = features[patients] + 0.01 * generator.normal(size=(200, 6)).astype(np.float32)
    wide = np.concatenate([repeated, np.sin(9 * repeated), np.cos(9 * repeated)], axis=1).astype(np.float32)
    targets = generator.integers(0, 2, 40)[patients]
    parted = (predict_out_of_fold(wide, targets, "classification", 2, groups=patients).argmax(1) == targets).mean()
    mixed = (predict_out_of_fold(wide, targets, "classification", 2).argmax(1) == targets).mean()
    assert mixed > parted + 0.1


def test_what_the_other_folds_cannot_teach_is_not_answered():
    features, _ = drawn(60)
    classes = np.array([0, 1] * 29 + [1, 2])
    found = predict_out_of_fold(features, classes, "classification", 3)
    assert np.isnan(found[59]).all() and not np.isnan(found[:59]).any()
    labels = np.stack([np.arange(60) % 2, np.arange(60) == 7, np.full(60, np.nan)], axis=1).astype(np.float32)
    answered = ~np.isnan(predict_out_of_fold(features, labels, "multilabel", 3))
    assert answered[:, 0].all() and not answered[7, 1] and answered[:, 1].sum() >= 40 and not answered[:, 2].any()
    numbers = np.stack([np.arange(60), np.full(60, np.nan)], axis=1).astype(np.float32)
    answered = ~np.isnan(predict_out_of_fold(features, numbers, "regression", 2))
    assert answered[:, 0].all() and not answered[:, 1].any()


def test_numbers_come_in_their_own_unit():
    features, generator = drawn()
    targets = (1000 + 50 * features[:, :1] + generator.normal(size=(200, 1))).astype(np.float32)
    assert np.abs(predict_out_of_fold(features, targets, "regression", 1) - targets).mean() < 2


def test_too_little_to_part_is_refused():
    features, _ = drawn(4)
    with pytest.raises(DataError, match=r"5 folds need at least 5 pictures\. Got 4"):
        predict_out_of_fold(features, np.array([0, 1, 0, 1]), "classification", 2)
    features, _ = drawn(20)
    with pytest.raises(DataError, match=r"5 folds need at least 5 groups\. Got 3"):
        predict_out_of_fold(features, np.arange(20) % 2, "classification", 2, groups=np.arange(20) % 3)
    with pytest.raises(DataError, match=r"at least two classes to tell apart\. Got 1\."):
        predict_out_of_fold(features, np.ones(20, np.int64), "classification", 2)
