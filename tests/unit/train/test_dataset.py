"""From settings to a parted source: what is left out, what is refused, what a person is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.settings import MEMORY, DataSettings
from vitrail.data.source import Source
from vitrail.data.splits import make_folds
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec
from vitrail.train import dataset as dataset_module
from vitrail.train.dataset import Dataset, class_indices, measure_mean_std, open_dataset, resolve_data_paths
from vitrail.train.plan import Plan


def drawn(n: int = 20, **fields: object) -> Source:
    """n tiny pictures of two classes in turn."""
    whole = Source(
        name="drawn",
        classes=("a", "b"),
        images=np.zeros((n, 4, 4), np.uint8),
        targets=np.arange(n) % 2,
        ids=tuple(f"{row}.png" for row in range(n)),
    )
    return dataclasses.replace(whole, **fields)


def opened(source: Source, **settings: object):
    return open_dataset(DataSettings(source=MEMORY, **settings), 0, source_object=source)


def test_what_a_list_names_is_left_out_and_nobody_else_changes_sides(tmp_path):
    whole = opened(drawn())
    victims = [int(whole.splits["train"][0]), int(whole.splits["test"][0])]
    (tmp_path / "exclude.csv").write_text("id,reason\n" + "".join(f"{row}.png,dark\n" for row in victims))
    rest = opened(drawn(), exclude=str(tmp_path / "exclude.csv"))
    for split, rows in whole.splits.items():
        assert rest.splits[split].tolist() == [row for row in rows.tolist() if row not in victims]
    assert rest.notes == (f"Left out 2 pictures that {tmp_path / 'exclude.csv'} lists.",)


def test_a_list_of_everything_leaves_nothing_to_train_on(tmp_path):
    (tmp_path / "all.csv").write_text("id\n" + "".join(f"{row}.png\n" for row in range(20)))
    with pytest.raises(DataError, match=r"No pictures of drawn are left to train on\. Left out 20 pictures that"):
        opened(drawn(), exclude=str(tmp_path / "all.csv"))


def test_D7_one_class_is_too_few_to_tell_apart():
    with pytest.raises(DataError, match=r"drawn has only one class, 'a'; telling apart takes two"):
        opened(drawn(classes=("a",), targets=np.zeros(20, int)))


def test_what_was_asked_of_the_data_and_is_not_so_is_refused():
    with pytest.raises(UsageError, match=r"--task multilabel was asked for, but drawn is a classification source"):
        opened(drawn(), task="multilabel")
    with pytest.raises(UsageError, match=r"--group patient .*drawn"):
        opened(drawn(), group="patient")


def test_a_split_that_came_out_empty_is_said():
    assert opened(drawn(groups=np.zeros(20, int))).notes == (
        "The val split is empty: there are too few groups of drawn to part.",
        "The test split is empty: there are too few groups of drawn to part.",
    )
    published = {"train": np.arange(10), "val": np.arange(10, 20)}
    assert opened(drawn(splits=published), folds=4).notes == (
        "The published val split of drawn was parted into the 4 folds too.",
    )


def test_a_fraction_of_a_split_that_is_there_already_is_said_to_be_unused():
    published = drawn(splits={"train": np.arange(10), "test": np.arange(10, 20)})
    own = "--data.test_fraction 0.5 is not used: drawn has a test split of its own."
    assert opened(published, test_fraction=0.5).notes == (own,)
    folds = ("--data.test_fraction 0.5 is not used: folds are asked for.",)
    assert opened(drawn(), folds=4, test_fraction=0.5, val_fraction=0.2).notes == folds
    val = "--data.val_fraction 0.2 is not used: folds are asked for."
    assert opened(published, folds=4, val_fraction=0.2).notes == (val,)


def test_soft_labels_count_as_their_most_probable_class():
    soft = drawn(3, targets=np.array([[0.1, 0.9], [0.5, 0.5], [1, 0]], np.float32))
    assert class_indices(soft, np.array([2, 0])).tolist() == [0, 1]
    assert class_indices(drawn(3), np.array([1, 2])).tolist() == [1, 0]


def test_files_are_named_so_that_a_run_goes_on_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films.csv").touch()
    (tmp_path / "flowers").mkdir()
    places = {"films.csv": "films.csv", "flowers": "flowers", "part-{00..09}.tar": "part-{00..09}.tar"}
    for source, place in places.items():
        assert resolve_data_paths(DataSettings(source=source)).source == str(tmp_path / place)
    for source in ("digits", "hf:owner/name", "nowhere", MEMORY):
        assert resolve_data_paths(DataSettings(source=source)).source == source
    assert Path(resolve_data_paths(DataSettings(exclude="bad.csv")).exclude) == tmp_path / "bad.csv"


def test_pictures_that_lay_in_memory_cannot_be_opened_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"objects that a Python program held.*vitrail\.open\(RUN\)\.resume\(OBJECT\)"):
        open_dataset(DataSettings(source=MEMORY), 0)


def test_a_fold_whose_training_pictures_are_of_one_class_is_refused():
    lonely = drawn(targets=(np.arange(20) == 7).astype(int))
    for fold in (0, 1):
        if 7 in opened_rows(lonely, fold):
            assert len(opened(lonely, folds=2, fold=fold).splits["train"])
        else:
            with pytest.raises(DataError, match=rf"training pictures of fold {fold} of drawn are of one class, 'a';"):
                opened(lonely, folds=2, fold=fold)


def opened_rows(source: Source, fold: int) -> set[int]:
    """The rows that a fold trains and validates on."""
    return set(range(len(source))) - set(make_folds(source, 2, 0)[fold].tolist())


def test_a_list_that_leaves_one_class_is_refused(tmp_path):
    (tmp_path / "exclude.csv").write_text("id\n" + "".join(f"{row}.png\n" for row in range(1, 20, 2)))
    with pytest.raises(DataError, match=r"are of one class, 'a'; at least two are needed to tell apart\. Give more p"):
        opened(drawn(), exclude=str(tmp_path / "exclude.csv"))


def test_what_is_squashed_keeps_the_shape_of_its_picture_for_the_report(tmp_path):
    paths = [tmp_path / name for name in ("wide.png", "tall.png", "gone.png")]
    for path, size in zip(paths, ((40, 20), (10, 30), (8, 8)), strict=True):
        Image.new("L", size).save(path)
    source = Source(
        name="drawn", task="classification", classes=("a", "b"), images=paths, ids=tuple("012"),
        targets=np.array([0, 1, 0]),
    )  # fmt: skip
    found = Dataset(source, {})
    paths[2].unlink()
    rows = np.array([0, 1, 2])
    square = ImageSpec(height=16, width=16, channels=1)
    assert found.aspect_ratios(rows, square).tolist() == [2, pytest.approx(1 / 3), 1]
    assert found.aspect_ratios(rows, dataclasses.replace(square, fit="crop")).tolist() == [1, 1, 1]
    assert found.aspect_ratios(rows, ImageSpec(height=16, width=24, channels=1, fit="pad")).tolist() == [1.5] * 3


def test_mean_and_deviation_of_16_bits_see_a_tenth_of_a_grey_level():
    films = np.random.default_rng(0).integers(30_000, 30_050, (20, 4, 4), dtype=np.uint16)
    spec = ImageSpec(height=4, width=4, channels=1, high=65535, bit_depth=16)
    found = measure_mean_std(spec, Dataset(drawn(images=films), {}).load_rows(np.arange(20), spec, 0), seed=0)
    assert found.mean[0] == pytest.approx(films.mean() / 65535, abs=1e-6)
    assert found.std[0] == pytest.approx(films.std() / 65535, abs=1e-6) and found.std[0] < 0.0003
    flat = drawn(images=np.full((20, 4, 4), 7, np.uint16))
    assert measure_mean_std(spec, Dataset(flat, {}).load_rows(np.arange(20), spec, 0), seed=0).std == (0.0001,)


@pytest.mark.parametrize("enough", [True, False])
def test_a_check_that_finds_a_bad_picture_in_its_time_goes_on_to_name_them_all(enough, monkeypatch):
    data, limits = opened(drawn(10)), []
    whole = dataset_module.check_dataset(data.source, data.splits, ImageSpec(height=4, width=4))

    def check(source, splits, spec, patch, seconds, strata):
        limits.append(seconds)
        found = 1 if len(limits) == 1 else 3 if enough else 2
        seen = 4 if len(limits) == 1 else 10 if enough else 7
        bad = [(f"{row}.png", "cut short.") for row in range(found)]
        return dataclasses.replace(whole, bad_images=bad, bad_indices=np.arange(found), checked_count=seen)

    monkeypatch.setattr(dataset_module, "check_dataset", check)
    with pytest.raises(DataError) as caught:
        dataset_module._check_images(data, dataclasses.replace(Plan(), minutes=1.0))
    assert limits == [3.0, 60.0]
    if enough:
        assert str(caught.value).startswith("3 of 10 pictures cannot be read: 0.png (cut short); 1.png (")
    else:
        said = (
            "At least 2 of 10 pictures cannot be read, of the 7 that the check had time for (vitrail check SOURCE names"
        )
        assert str(caught.value).startswith(said)
