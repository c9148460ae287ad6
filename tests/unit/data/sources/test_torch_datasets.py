"""Data sets of torch: labels collected once, pictures fetched when they are needed, one at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from vitrail.data.decoding.decode import decode_image
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=9)


class Counting(Dataset):
    """Ten pictures, each as grey as its number; counts how often each is fetched."""

    def __init__(self, form: str = "array", labels: object = None):
        self.fetched = [0] * 10
        self.form = form
        if labels is not None:
            self.targets = labels

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int):
        if not 0 <= row < 10:
            raise IndexError(row)
        self.fetched[row] += 1
        values = np.full((8, 9, 3), row, np.uint8)
        made = {"array": values, "pillow": Image.fromarray(values), "tensor": torch.from_numpy(values).permute(2, 0, 1)}
        return made[self.form], row % 2


@pytest.mark.parametrize("form", ["array", "pillow", "tensor"])
def test_pictures_of_every_form_are_fetched_when_they_are_needed(form):
    dataset = Counting(form, labels=[row % 2 for row in range(10)])
    source = open_source(dataset)
    assert source.name == "counting" and source.targets.tolist() == [0, 1] * 5 and source.ids[3] == "000003"
    before = list(dataset.fetched)
    assert before[3] == 0, "no picture is fetched to learn the labels"
    assert (decode_image(source.images[3], SPEC) == 3).all() and dataset.fetched[3] == 1
    source.fingerprint()
    assert dataset.fetched[4] == before[4]


@pytest.mark.parametrize("labels", [torch.arange(10) % 2, np.arange(10) % 2, [row % 2 for row in range(10)]])
def test_labels_are_taken_from_the_list_that_the_data_set_has(labels):
    dataset = Counting(labels=labels)
    assert open_source(dataset).targets.tolist() == [0, 1] * 5 and sum(dataset.fetched) <= 5


def test_without_a_list_every_row_is_read_once_and_that_is_noted():
    dataset = Counting()
    source = open_source(dataset)
    assert source.targets.tolist() == [0, 1] * 5 and max(dataset.fetched) <= 2
    assert source.notes == ("Every row of this Counting was read once for its label, for it has no list of labels.",)


def test_a_list_that_the_rows_contradict_is_not_believed():
    source = open_source(Counting(labels=[1] * 10))
    assert source.targets.tolist() == [0, 1] * 5 and "not those that its rows give" in source.notes[0]


def test_classes_of_the_data_set_name_the_classes():
    dataset = Counting(labels=[row % 2 for row in range(10)])
    dataset.classes = ["even", "odd", "neither"]
    assert open_source(dataset).classes == ("even", "odd", "neither")


def test_parts_of_data_sets_keep_their_labels_without_reading_pictures():
    dataset = Counting(labels=[row % 2 for row in range(10)])
    dataset.classes = ["even", "odd"]
    source = open_source(Subset(dataset, [1, 2, 3, 9]))
    assert source.targets.tolist() == [1, 0, 1, 1] and source.classes == ("even", "odd")
    assert (decode_image(source.images[3], SPEC) == 9).all()
    part, _ = random_split(Subset(dataset, range(10)), [8, 2], torch.Generator().manual_seed(0))
    assert len(open_source(part)) == 8
    both = ConcatDataset([Subset(dataset, [0, 1]), dataset])
    assert open_source(both).targets.tolist() == [0, 1, *[0, 1] * 5]
    assert sum(dataset.fetched) <= 16, "a few rows of each to compare, and the first"


def test_tensors_of_a_data_set_become_one_array():
    pictures, labels = torch.rand(4, 3, 8, 9), torch.tensor([0, 1, 1, 0])
    source = open_source(TensorDataset(pictures, labels))
    assert isinstance(source.images, np.ndarray) and source.images.shape == (4, 8, 9, 3)


def test_an_image_folder_of_torchvision_keeps_its_classes(draw):
    import torchvision

    root = draw("dog/1.png", "cat/1.png", "cat/2.png")
    source = open_source(torchvision.datasets.ImageFolder(root))
    assert source.classes == ("cat", "dog") and source.targets.tolist() == [0, 0, 1] and not source.notes
    assert decode_image(source.images[2], ImageSpec()).shape == (6, 5, 3)
    as_tensors = torchvision.datasets.ImageFolder(root, torchvision.transforms.ToTensor())
    assert open_source(as_tensors).images[0].fetch().dtype == np.float32


def test_an_object_with_rows_and_a_length_is_enough():
    class Rows:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int):
            return np.full((8, 9), row, np.uint8), "ab"[row % 2]

    assert open_source(Rows()).classes == ("a", "b")


def test_a_transform_of_its_own_is_noted():
    dataset = Counting(labels=[row % 2 for row in range(10)])
    dataset.transform = lambda picture: picture
    assert open_source(dataset).notes[0].startswith("This Counting has a transform of its own, which runs first")


def test_only_one_thread_at_a_time_is_inside_the_data_set():
    inside, most = 0, 0
    lock = threading.Lock()

    class Slow(Counting):
        def __getitem__(self, row: int):
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.002)
            with lock:
                inside -= 1
            return super().__getitem__(row)

    source = open_source(Slow(labels=[row % 2 for row in range(10)]))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: decode_image(source.images[row], SPEC)[0, 0, 0], range(10)))
    assert found == list(range(10)) and most == 1


class Broken(Counting):
    def __getitem__(self, row: int):
        if row == 7:
            raise RuntimeError("disk on fire")
        return super().__getitem__(row)


def test_a_row_that_cannot_be_read_is_a_picture_that_cannot_be_read():
    source = open_source(Broken(labels=[row % 2 for row in range(10)]))
    with pytest.raises(DataError, match=r"Row 7 of this Broken cannot be read \(RuntimeError: disk on fire\)"):
        source.images[7].fetch()
    with pytest.raises(DataError, match=r"Row 7 of this Broken"):
        open_source(Broken())


class Three(Counting):
    def __getitem__(self, row: int):
        return (*super().__getitem__(row), "more")


class Named(Counting):
    def __getitem__(self, row: int):
        return {"image": 1, "label": 2}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Three(), r"Row 0 of this Three is a tuple of 3, expected \(picture, label\)\. Wrap"),
        (Named(), r"Row 0 of this Named is a dict of 2, expected"),
        (Stream(), r"A Stream has no length and no order\."),
        (DataLoader(Counting()), r"A DataLoader makes batches of its own\. Give its data set: loader\.dataset\."),
        (Subset(Counting(), []), r"This Counting has no rows"),
    ],
)
def test_other_data_sets_are_refused_in_a_sentence(dataset, words):
    with pytest.raises(DataError, match=words):
        open_source(dataset)


def test_columns_cannot_be_named_where_there_are_none():
    with pytest.raises(UsageError, match=r"--group patient names a column; a Counting has no columns"):
        open_source(Counting(), DataSettings(group="patient"))
