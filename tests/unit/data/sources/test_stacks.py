"""D22: what an array of pictures or labels means, or one sentence that says why it means nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.decoding.decode import decode_image
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources.arrays import normalize_stack
from vitrail.data.sources.image_input import check_single_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

LABELS = [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (np.arange(256, dtype=np.uint8).reshape(4, 8, 8), 0, 255),
        (np.linspace(0, 1, 256, dtype=np.float32).reshape(4, 8, 8), 0, 1),
        (np.linspace(0, 255, 256).reshape(4, 8, 8), 0, 255),
        (np.arange(256, dtype=np.uint16).reshape(4, 8, 8) * 16, 0, 4080),
        (np.linspace(-1, 1, 256, dtype=np.float16).reshape(4, 8, 8), -1, 1),
    ],
)
def test_D22_values_of_every_kind_stay_as_they_are_until_the_range_is_decided(values, low, high):
    source = open_source((values, LABELS))
    assert source.images.dtype == values.dtype and np.array_equal(source.images, values)
    assert (source.images.min(), source.images.max()) == (low, high)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_D22_values_that_are_not_finite_are_said_of_their_picture_alone(wrong):
    values = np.zeros((4, 8, 8), np.float32)
    values[2, 3, 3] = wrong
    source = open_source((values, LABELS))
    assert (decode_image(source.images[0], ImageSpec()) == 0).all()
    with pytest.raises(DataError, match=r"1 of 64 values is not a finite number \(NaN or infinity\)"):
        decode_image(source.images[2], ImageSpec())


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 32, 24), (5, 32, 24)),
        ((5, 32, 24, 1), (5, 32, 24, 1)),
        ((5, 32, 24, 3), (5, 32, 24, 3)),
        ((5, 3, 32, 24), (5, 32, 24, 3)),
        ((5, 1, 32, 24), (5, 32, 24, 1)),
        ((5, 13, 64, 64), (5, 64, 64, 13)),
        ((5, 64, 64, 13), (5, 64, 64, 13)),
    ],
)
def test_D22_channels_are_the_end_with_few_of_them(shape, expected):
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found, notes = normalize_stack(values, "x")
    assert found.shape == expected
    turned = shape != expected
    assert np.array_equal(found, values.transpose(0, 2, 3, 1) if turned else values)
    assert notes == ((f"x: the shape {list(shape)} was read as [n, channels, height, width].",) if turned else ())
    assert np.array_equal(check_single_image(values[0], "x"), found[0])


@pytest.mark.parametrize("shape", [(5, 3, 32, 3), (5, 4, 9, 1), (5, 28, 28, 28), (5, 20, 64, 24)])
def test_D22_channels_that_may_be_at_either_end_are_refused(shape):
    with pytest.raises(DataError, match=r"x: in a picture of shape .*, the channels may be first or last\. Give"):
        normalize_stack(np.zeros(shape, np.uint8), "x")
    if shape[1] <= 4:
        assert normalize_stack(np.zeros(shape, np.uint8), "x", is_tensor=True)[0].shape == (5, *shape[2:], shape[1])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((5, 8, 64, 64, 1)), r"x has the shape \[5, 8, 64, 64, 1\]\. That is a volume or a film a row"),
        (np.zeros((5, 784)), r"A row of numbers is no picture: .*, perhaps 5 x 28 x 28\."),
        (np.zeros((5, 783)), r"reshape it to \[n, height, width\]\."),
        (np.zeros(5), r"Pictures are \[n, height, width\]"),
        (np.zeros((0, 8, 8)), r"no pictures, or pictures without pixels"),
        (np.zeros((5, 8, 8), complex), r"x: pictures must hold integers or fractions\. .* of the kind complex128\.$"),
        (np.zeros((5, 8, 8), "U1"), r"values of the kind <U1"),
        (np.empty(5, object), r"x holds Python objects instead of numbers, as pictures of different sizes do"),
    ],
)
def test_D22_arrays_that_hold_no_pictures_are_refused_in_a_sentence(values, words):
    with pytest.raises(DataError, match=words):
        normalize_stack(values, "x")


def test_D22_truth_values_become_black_and_white():
    found, _ = normalize_stack(np.array([[[True, False]]]), "x")
    assert found.dtype == np.uint8 and found.tolist() == [[[255, 0]]]


def of(labels: object, task: str = "auto") -> tuple[str, tuple[str, ...], list]:
    count = len(labels)  # type: ignore[arg-type]
    source = open_source((np.zeros((count, 8, 8), np.uint8), labels), DataSettings(task=task))
    return source.task, source.classes, source.targets.tolist()


def test_D22_labels_of_every_kind():
    assert of(np.array([2, 0, 2])) == ("classification", ("0", "2"), [1, 0, 1])
    assert of([2, 0, 2]) == of(torch.tensor([2, 0, 2])) == of(np.array([2, 0, 2], np.uint8))
    assert of(np.array([1.0, 0.0, 1.0])) == ("classification", ("0", "1"), [1, 0, 1])
    assert of(np.array(["b", "a", "b"])) == of(["b", "a", "b"]) == ("classification", ("a", "b"), [1, 0, 1])
    assert of(np.array([b"b", b"a", b"b"])) == ("classification", ("a", "b"), [1, 0, 1])
    assert of([True, False, True])[0] == "classification"
    assert of(np.array([[2], [0], [2]])) == ("classification", ("0", "2"), [1, 0, 1])
    task, _, targets = of(np.array([0.5, 1.25, 3.0]))
    assert task == "regression" and targets == [[0.5], [1.25], [3.0]]
    assert of([["a", "b"], ["b"], []])[:2] == ("multilabel", ("a", "b"))


def test_D22_one_hot_rows_are_classes_unless_labels_are_wanted():
    rows = np.eye(3)[[2, 0, 2]]
    assert of(rows) == ("classification", ("0", "1", "2"), [2, 0, 2])
    assert of(torch.tensor(rows)) == of(rows.astype(bool)) == of(rows.tolist()) == of(rows)
    assert of(rows, "multilabel") == ("multilabel", ("0", "1", "2"), rows.tolist())


def test_D22_rows_that_sum_to_one_are_soft_classes_and_others_labels_or_numbers():
    task, classes, targets = of(np.array([[0.25, 0.75], [1.0, 0.0]]))
    assert task == "classification" and classes == ("0", "1") and targets == [[0.25, 0.75], [1, 0]]
    assert of(np.array([[1, 1], [0, 1]]))[0] == "multilabel"
    assert of(np.array([[3.5, 1.5], [0.5, 100.25]]))[0] == "regression"


def test_D22_fractions_that_are_whole_and_many_are_numbers():
    task, _, targets = of(np.arange(60.0) % 30)
    assert task == "regression" and targets[:2] == [[0], [1]]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, 0], r"labels: 4 pictures, but 3 labels\. Each picture needs one, in order\."),
        (np.zeros((4, 8, 8)), r"Labels must have the shape \[n\] or \[n, K\]\. Got \[4, 8, 8\]\. Masks are not learnt"),
        (np.zeros((4, 0)), r"Labels must have the shape"),
        (np.zeros(4, complex), r"Labels must be whole numbers, fractions or texts\. Got an array of complex128"),
        ("abcd", r"Labels must be a list, an array or a tensor, one per picture\. Got a str\."),
        (None, r"Got a NoneType"),
        ([[1, 0], [0, 1], [1], [0, 1]], r"Labels that are rows of numbers must all be equally long"),
        ([0, 1, None, 1], r"labels, row 2"),
        ([0, 1, -1, 1], r"labels, row 2"),
    ],
)
def test_D22_labels_that_say_nothing_are_refused_in_a_sentence(labels, words):
    with pytest.raises(DataError, match=words):
        open_source((np.zeros((4, 8, 8), np.uint8), labels))


def test_rows_without_a_label_are_left_out_when_a_person_says_so():
    values = np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((4, 8, 8), np.uint8)
    source = open_source((values, [0, 1, None, 1]), DataSettings(uncertain="ignore"))
    assert source.images[:, 0, 0].tolist() == [0, 1, 3] and list(source.ids) == ["000000", "000001", "000003"]
    assert source.targets.tolist() == [0, 1, 1] and "Left out 1" in source.notes[-1]
