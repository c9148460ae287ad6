"""Pictures and labels in NumPy's files, under the names that people give them."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources.arrays import MAX_COPIED_BYTES, open_arrays, parse_array_name
from vitrail.errors import DamagedFileError, DataError, UsageError


def pictures(count: int, *shape: int, first: int = 0) -> np.ndarray:
    size = count * int(np.prod(shape))
    return (np.arange(first, first + size) % 251).astype(np.uint8).reshape(count, *shape)


SPLITS = {"train": 4, "val": 2, "test": 3}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("x_{}", "y_{}"),
        ("{}_images", "{}_labels"),
        ("X{}", "y{}"),
        ("{}X", "{}Y"),
        ("{}", "{}_labels"),
        ("images/{}", "labels/{}"),
        ("{}_image", "{}_image_labels"),
    ],
)
def test_splits_are_told_by_the_names_of_arrays(tmp_path, save, x, y):
    content = {}
    for number, (split, count) in enumerate(SPLITS.items()):
        content[x.format(split)] = pictures(count, 5, 6, first=number)
        content[y.format(split)] = np.arange(count) % 2
    save(tmp_path / "set.npz", **content)
    source = open_source(tmp_path / "set.npz")
    assert source.name == "set" and source.task == "classification" and source.classes == ("0", "1")
    assert {split: len(rows) for split, rows in source.splits.items()} == SPLITS
    for split, rows in source.splits.items():
        assert np.array_equal(source.images[rows], content[x.format(split)])
        assert source.targets[rows].tolist() == content[y.format(split)].tolist()
    assert list(source.ids[:5]) == ["train/000000", "train/000001", "train/000002", "train/000003", "val/000000"]
    assert source.fingerprint() == open_source(tmp_path / "set.npz").fingerprint()


NAMES = [
    ("x_train", ("train", "x")),
    ("trainImages", ("train", "images")),
    ("valid_labels", ("val", "labels")),
    ("testing.Y", ("test", "y")),
    ("arr_0", ("", "arr_0")),
    ("X", ("", "x")),
    ("train_test", ("", "train_test")),
    ("proxy", ("", "proxy")),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_a_name_says_split_and_kind(name, expected):
    assert parse_array_name(name) == expected


@pytest.mark.parametrize(("x", "y"), [("X", "y"), ("images", "labels"), ("data", "target"), ("pictures", "targets")])
def test_without_splits_there_are_no_official_ones(tmp_path, x, y):
    np.savez(tmp_path / "a.npz", **{x: pictures(4, 5, 6), y: np.array(["dog", "cat", "cat", "dog"])})
    source = open_arrays(tmp_path / "a.npz", DataSettings())
    assert source.classes == ("cat", "dog") and source.targets.tolist() == [1, 0, 0, 1]
    assert source.splits == {} and source.ids[3] == "000003"


def test_medmnist_as_it_is_published(tmp_path):
    content = {}
    for split, count in SPLITS.items():
        content[f"{split}_images"] = pictures(count, 28, 28, 3)
        content[f"{split}_labels"] = (np.arange(count) % 2).astype(np.uint8)[:, None]
    np.savez_compressed(tmp_path / "pathmnist.npz", **content)
    source = open_source(tmp_path / "pathmnist.npz")
    assert source.images.shape == (9, 28, 28, 3) and source.targets.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_rows_of_several_ones_are_labels(tmp_path):
    rows = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    np.savez(tmp_path / "chestmnist.npz", images=pictures(4, 8, 8), labels=rows)
    source = open_source(tmp_path / "chestmnist.npz")
    assert source.task == "multilabel" and source.targets.tolist() == rows.tolist()


def test_class_names_in_the_archive_are_used(tmp_path):
    np.savez(tmp_path / "a.npz", x=pictures(3, 8, 8), y=np.array([2, 0, 2]), class_names=np.array(["a", "b", "c"]))
    source = open_source(tmp_path / "a.npz")
    assert source.classes == ("a", "b", "c") and source.targets.tolist() == [2, 0, 2] and source.notes == ()
    np.savez(tmp_path / "a.npz", x=pictures(3, 8, 8), y=np.array([3, 0, 2]), class_names=np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"row 0: label 3 is none of 0\.\.2, for there are 3 class names\. 1 such row"):
        open_source(tmp_path / "a.npz")


def test_two_arrays_without_names_are_told_by_their_axes_and_other_arrays_are_noted(tmp_path):
    np.savez(tmp_path / "a.npz", np.arange(3) % 2, pictures(3, 8, 8))
    source = open_source(tmp_path / "a.npz")
    assert source.images.shape == (3, 8, 8)
    assert source.notes == ("arr_1 was read as the pictures and arr_0 as their labels, by their axes.",)
    np.savez(tmp_path / "b.npz", x=pictures(3, 8, 8), y=np.arange(3) % 2, x_test=pictures(1, 8, 8), mean=np.zeros(3))
    assert open_source(tmp_path / "b.npz").notes == ("Arrays that were not used: x_test, mean.",)


def test_scikit_learns_digits_saved_whole_take_the_pictures_with_axes(tmp_path):
    np.savez(tmp_path / "a.npz", data=np.zeros((3, 64)), images=np.zeros((3, 8, 8)), target=np.arange(3))
    assert open_source(tmp_path / "a.npz").images.shape == (3, 8, 8)


def test_a_test_split_beside_unnamed_pictures_stays_official(tmp_path):
    content = {"x": pictures(4, 8, 8), "y": np.arange(4) % 2, "x_test": pictures(2, 8, 8), "y_test": np.arange(2)}
    np.savez(tmp_path / "a.npz", **content)
    source = open_source(tmp_path / "a.npz")
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"test": [0, 1]} and len(source) == 6


def test_settings_name_arrays_and_groups(tmp_path):
    content = {
        "first": pictures(4, 8, 8),
        "second": pictures(4, 9, 9),
        "coarse": np.arange(4) % 2,
        "y": np.arange(4),
        "patient": np.array([5, 5, 6, 6]),
    }
    np.savez(tmp_path / "a.npz", **content)
    settings = DataSettings(path="second", targets=("coarse",), group="patient")
    source = open_source(tmp_path / "a.npz", settings)
    assert source.images.shape == (4, 9, 9) and source.targets.tolist() == [0, 1, 0, 1]
    assert source.groups is not None and source.groups.tolist() == [5, 5, 6, 6]
    with pytest.raises(DataError, match=r"a\.npz has no array 'place'"):
        open_source(tmp_path / "a.npz", DataSettings(path="second", group="place"))
    with pytest.raises(UsageError, match=r"--data\.split fold names a column; .*whose arrays' names tell their splits"):
        open_source(tmp_path / "a.npz", DataSettings(split="fold"))
    with pytest.raises(DataError, match=r"labels are one array \[n\] or \[n, K\]"):
        open_source(tmp_path / "a.npz", DataSettings(path="second", targets=("a", "b")))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": np.zeros((3, 8, 8)), "b": np.zeros((3, 8, 8)), "c": np.zeros(3)}, r"holds a \[3, 8, 8\].* Call the"),
        ({"a": np.zeros(3), "b": np.zeros(3)}, "no pictures with labels"),
        ({"x": np.zeros((3, 8, 8))}, r"holds pictures, 'x', but no labels\. Call the pictures x, images"),
        (
            {"x": np.zeros((3, 8, 8)), "images": np.zeros((3, 8, 8)), "y": np.zeros(3)},
            "several arrays of pictures: x, im",
        ),
        ({"x": np.zeros((3, 8, 8)), "y": np.zeros(3), "labels": np.zeros(3)}, "several arrays of labels: y, labels"),
        ({"x": np.zeros((3, 8, 8)), "X": np.zeros((3, 8, 8))}, "holds both x and X, which say the same"),
        ({"x_train": np.zeros((3, 8, 8)), "y_train": np.zeros(2)}, r"x_train holds 3 pictures, but .*y_train 2 labels"),
    ],
)
def test_archives_that_say_too_little_or_too_much_are_refused(tmp_path, content, words):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(DataError, match=words):
        open_source(tmp_path / "a.npz")


def test_splits_of_different_kinds_are_refused(tmp_path):
    content = {
        "x_train": pictures(2, 8, 8),
        "x_test": np.zeros((2, 8, 8)),
        "y_train": np.arange(2),
        "y_test": np.arange(2),
    }
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(
        DataError, match=r"pictures of train are uint8, those of test float64\. One value range must fit"
    ):
        open_source(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **content | {"x_test": pictures(2, 8, 8), "y_test": np.array(["a", "b"])})
    with pytest.raises(
        DataError, match=r"the labels of its splits are of different kinds: train int64 \[2\], test <U1"
    ):
        open_source(tmp_path / "a.npz")


def test_splits_of_different_sizes_or_too_large_to_copy_stay_where_they_are(tmp_path, monkeypatch):
    content = {
        "x_train": pictures(2, 8, 8),
        "x_test": pictures(2, 9, 9),
        "y_train": np.arange(2),
        "y_test": np.arange(2),
    }
    np.savez(tmp_path / "a.npz", **content)
    source = open_source(tmp_path / "a.npz")
    assert [picture.shape for picture in source.images] == [(8, 8), (8, 8), (9, 9), (9, 9)]
    assert np.array_equal(source.images[-1], content["x_test"][1])
    np.savez(tmp_path / "a.npz", **content | {"x_test": pictures(2, 8, 8)})
    assert MAX_COPIED_BYTES > 0 and isinstance(open_source(tmp_path / "a.npz").images, np.ndarray)
    monkeypatch.setattr("vitrail.data.sources.arrays.MAX_COPIED_BYTES", 0)
    assert not isinstance(open_source(tmp_path / "a.npz").images, np.ndarray)


def test_an_archive_of_objects_is_refused_and_a_damaged_one_is_named(tmp_path):
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.zeros((2, 2)), np.zeros((3, 3))]
    np.savez(tmp_path / "a.npz", x=ragged, y=np.arange(2))
    with pytest.raises(DataError, match=r"a\.npz, x holds Python objects, which can run anything"):
        open_source(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    with pytest.raises(DamagedFileError, match=r"a\.npz is not a whole archive"):
        open_source(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("films.npy", "films_labels.npy"),
        ("films.npy", "films-labels.npy"),
        ("films.npy", "labels.npy"),
        ("X.npy", "y.npy"),
        ("train_images.npy", "train_labels.npy"),
    ],
)
def test_a_single_array_finds_its_labels_beside_it(tmp_path, name, labels):
    np.save(tmp_path / name, pictures(4, 8, 8))
    np.save(tmp_path / labels, np.arange(4) % 2)
    np.save(tmp_path / "test_labels.npy", np.arange(9))
    source = open_source(tmp_path / name)
    assert source.targets.tolist() == [0, 1, 0, 1] and not source.images.flags.owndata
    assert source.splits == {}, "one array is all there is, whatever it is called"


def test_the_file_of_labels_can_be_named(tmp_path):
    np.save(tmp_path / "films.npy", pictures(4, 8, 8))
    np.save(tmp_path / "grades.npy", np.arange(4) % 2)
    assert len(open_source(tmp_path / "films.npy", DataSettings(targets=("grades.npy",)))) == 4
    with pytest.raises(DataError, match=r"films\.npy holds pictures, and there is no other\.npy\. Put their labels"):
        open_source(tmp_path / "films.npy", DataSettings(targets=("other.npy",)))


def test_a_single_array_without_labels_says_how_they_are_given(tmp_path):
    np.save(tmp_path / "films.npy", pictures(4, 8, 8))
    with pytest.raises(
        DataError, match=r"no file beside it holds labels\. .* into films_labels\.npy .*--data\.targets FILE"
    ):
        open_source(tmp_path / "films.npy")
    np.save(tmp_path / "labels.npy", np.arange(4))
    np.save(tmp_path / "y.npy", np.arange(4))
    with pytest.raises(DataError, match=r"several files may be its labels, labels\.npy, y\.npy"):
        open_source(tmp_path / "films.npy")
