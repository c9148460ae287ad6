"""Sources of their own for train, val and test: one map of classes, and each picture in the split it was given for."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as Pillow

from vitrail.data.open import SplitSources, gather_objects, open_source
from vitrail.data.settings import DataSettings
from vitrail.data.splits import make_splits
from vitrail.errors import DataError, UsageError


def drawn(count: int, shade: int = 0) -> np.ndarray:
    return np.arange(shade, shade + count, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)


def pairs(*labels: object, shade: int = 0) -> list[tuple[np.ndarray, object]]:
    return list(zip(drawn(len(labels), shade), labels, strict=True))


def split_sizes(source) -> dict[str, int]:
    return {split: len(rows) for split, rows in make_splits(source, DataSettings(), 0).items()}


class Photos(torch.utils.data.Dataset):
    classes = ("cat", "dog")

    def __init__(self, *targets: int):
        self.targets = list(targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return drawn(1, row)[0], self.targets[row]


def table(*labels: int) -> Dataset:
    pictures = [Pillow.fromarray(picture) for picture in drawn(len(labels))]
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"])})
    return Dataset.from_dict({"image": pictures, "label": list(labels)}, features=features)


def frame(*labels: str, **columns: object) -> pandas.DataFrame:
    return pandas.DataFrame({"picture": list(drawn(len(labels))), "label": labels, **columns})


SOURCES = {
    "pairs": (pairs("cat", "dog", "dog"), pairs("dog"), pairs("dog", "cat")),
    "arrays": ((drawn(3), ["cat", "dog", "dog"]), (drawn(1), ["dog"]), (drawn(2), ["dog", "cat"])),
    "torch data sets": (Photos(0, 1, 1), Photos(1), Photos(1, 0)),
    "tables": (table(0, 1, 1), table(1), table(1, 0)),
    "frames": (frame("cat", "dog", "dog"), frame("dog"), frame("dog", "cat")),
    "of different kinds": (frame("cat", "dog", "dog"), Photos(1), table(1, 0)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_three_sources_keep_their_splits_under_one_map_of_classes(kind):
    source = open_source(SplitSources(*SOURCES[kind]))
    assert source.classes == ("cat", "dog")
    assert source.targets.tolist() == [0, 1, 1, 1, 1, 0]
    assert {split: rows.tolist() for split, rows in make_splits(source, DataSettings(), 0).items()} == {
        "train": [0, 1, 2],
        "val": [3],
        "test": [4, 5],
    }
    assert [name.partition("/")[0] for name in source.ids] == ["train"] * 3 + ["val"] + ["test"] * 2
    assert len(set(source.ids)) == len(source.images) == 6


def test_a_dictionary_of_data_sets_has_its_own_splits():
    whole = open_source(DatasetDict(train=table(0, 1, 1), validation=table(1), test=table(1, 0)))
    assert split_sizes(whole) == {"train": 3, "val": 1, "test": 2}


def test_what_is_not_given_is_taken_from_the_training_pictures():
    source = open_source(SplitSources((drawn(40), [0, 1] * 20), test=(drawn(8), [0, 1] * 4)))
    sizes = split_sizes(source)
    assert sizes == {"train": 36, "val": 4, "test": 8}


def test_splits_of_the_training_source_are_kept_unless_they_are_given_apart():
    published = DatasetDict(train=table(0, 1, 1), test=table(1, 0))
    assert split_sizes(open_source(SplitSources(published, val=table(1)))) == {"train": 3, "val": 1, "test": 2}
    with pytest.raises(DataError, match=r"has a test split of its own \(2 pictures\), .* Leave one of them out"):
        open_source(SplitSources(published, test=table(1)))


def test_a_source_with_splits_gives_the_one_that_it_is_given_for():
    published = DatasetDict(train=table(0, 1, 1), test=table(1, 0))
    source = open_source(SplitSources(table(0, 1), test=published))
    assert split_sizes(source)["test"] == 2 and len(source.images) == 4
    with pytest.raises(DataError, match=r"given for val, has splits of its own \(train, test\) and none called val"):
        open_source(SplitSources(table(0, 1), val=published))


def test_a_class_that_only_val_has_is_named():
    with pytest.raises(DataError, match=r"val of pairs has classes that train does not have: 'fox' \(2 pictures\)"):
        open_source(SplitSources(pairs("cat", "dog"), val=pairs("dog", "fox", "fox")))
    with pytest.raises(DataError, match=r"test of photos has classes that train does not have: 'dog' \(1 picture\)"):
        open_source(SplitSources(Photos(0, 0), test=Photos(1)))


def test_pictures_of_another_task_are_refused_with_the_split_that_they_are_for():
    with pytest.raises(DataError, match=r"^The source of the val pictures: .*'cat', expected a finite number"):
        open_source(SplitSources(pairs(0.5, 1.5, 2.25), val=pairs("cat", "cat")))
    with pytest.raises(DataError, match="for train have the task classification, those for test regression"):
        open_source(SplitSources(pairs("cat", "dog"), test=open_source(pairs(0.5, 1.5, 2.25))))


def test_numbers_of_val_are_read_as_those_of_train():
    source = open_source(SplitSources(pairs(0.5, 1.5, 2.25), val=pairs(1, 2)))
    assert (source.task, source.targets.ravel().tolist()) == ("regression", [0.5, 1.5, 2.25, 1.0, 2.0])


def test_hard_classes_beside_probabilities_are_probabilities():
    soft = np.array([[0.25, 0.75], [0.5, 0.5]])
    source = open_source(SplitSources((drawn(2), soft), val=(drawn(1), np.array([[0, 1]]))))
    np.testing.assert_array_equal(source.targets, [[0.25, 0.75], [0.5, 0.5], [0, 1]])


def test_a_label_that_val_does_not_say_is_unknown_there_and_a_note_says_so():
    train, val = frame("", "", a=[0, 1], b=[1, 1]), frame("", a=[1])
    settings = DataSettings(task="multilabel", targets=("a", "b"))
    with pytest.raises((DataError, UsageError), match=r"^The source of the val pictures: .*'b'"):
        open_source(SplitSources(train, val=val), settings)
    one, other = open_source(train, settings), open_source(val, DataSettings(task="multilabel", targets=("a",)))
    joined = open_source(SplitSources(one, val=other))
    np.testing.assert_array_equal(joined.targets, [[0, 1], [1, 1], [1, np.nan]])
    assert "val does not say 'b', which is unknown there." in joined.notes


def test_a_group_that_crosses_is_named():
    train = frame("cat", "dog", "dog", patient=["p1", "p2", "p3"])
    val = frame("dog", "cat", patient=["p4", "p2"])
    source = open_source(SplitSources(train, val=val), DataSettings(group="patient"))
    with pytest.raises(DataError, match="Group p2 has pictures in train and in val of frame"):
        make_splits(source, DataSettings(group="patient"), 0)


def test_a_part_without_groups_counts_each_of_its_pictures_alone():
    train = open_source(frame("cat", "dog", patient=["p1", "p2"]), DataSettings(group="patient"))
    source = open_source(SplitSources(train, val=frame("dog", "cat")))
    assert len(set(source.groups)) == 4 and "val names no groups" in " ".join(source.notes)


def test_arrays_of_one_kind_are_one_array_and_others_are_refused():
    source = open_source(SplitSources((drawn(2), [0, 1]), val=(drawn(2, shade=7), [1, 0])))
    assert source.images.shape == (4, 4, 4) and source.images[:, 0, 0].tolist() == [0, 1, 7, 8]
    with pytest.raises(DataError, match=r"pictures of train are uint8, those of val float64"):
        open_source(SplitSources((drawn(2), [0, 1]), val=(drawn(2) / 255, [1, 0])))


def test_folders_of_their_own_are_the_folder_that_holds_them(tmp_path):
    for split in ("train", "val", "test"):
        for label in ("cat", "dog"):
            folder = tmp_path / "pets" / split / label
            folder.mkdir(parents=True)
            for number, picture in enumerate(drawn(2)):
                Pillow.fromarray(picture).save(folder / f"{number}.png")
    whole = open_source(tmp_path / "pets")
    paths = [str(tmp_path / "pets" / split) for split in ("train", "val", "test")]
    joined = open_source(paths[0], DataSettings(val_source=paths[1], test_source=paths[2]))
    assert (joined.name, joined.classes, list(joined.ids)) == (whole.name, whole.classes, list(whole.ids))
    assert joined.fingerprint() == whole.fingerprint()


def test_folds_and_a_source_for_val_exclude_each_other():
    with pytest.raises(UsageError, match="those of a source of its own for val are never trained on"):
        DataSettings(folds=3, val_source="val")


def test_sources_are_one_object_where_one_of_them_is():
    images = pairs("cat", "dog")
    assert gather_objects("train", "val") is None
    assert gather_objects(images) is images
    assert gather_objects("train", images) == SplitSources("train", images)
