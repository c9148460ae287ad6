"""The `datasets` library: saved folders, loaded tables and names of the Hub, undecoded and lazily read."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoding.decode import decode_image
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import LazyImage
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

datasets = pytest.importorskip("datasets")
NAMES = ["dog", "cat", "bird"]  # not in the order of the alphabet, and the last without a picture
SPEC = ImageSpec(height=8, width=9)


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def picture(level: int) -> Image.Image:
    return Image.fromarray(np.full((8, 9, 3), level, np.uint8))


def table(count: int, first: int = 0, features: dict | None = None, **columns: list):
    """`count` pictures, each as grey as its number."""
    content = {
        "image": [picture(first + row) for row in range(count)],
        "label": [row % 2 for row in range(count)],
    } | columns
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)} | (features or {})
    plain = {name: kinds.get(name) or datasets.Value("string") for name in content}
    return datasets.Dataset.from_dict(content, features=datasets.Features(plain))


def test_a_saved_dictionary_of_splits_is_read_with_its_class_names(tmp_path):
    splits = {"train": table(6), "validation": table(2, 10), "test": table(4, 20), "unsupervised": table(3, 30)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "birds")
    source = open_source(tmp_path / "birds")
    assert source.name == "birds" and source.classes == tuple(NAMES) and source.task == "classification"
    assert source.reason == "Column 'label' is a ClassLabel of 3 names, so a picture has one of 3 classes."
    assert {split: len(rows) for split, rows in source.splits.items()} == {"train": 6, "val": 2, "test": 4}
    assert source.targets.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert source.notes == ("Left out the split 'unsupervised' (3 rows): it is none of train, validation and test.",)
    levels = [int(decode_image(each, SPEC)[0, 0, 0]) for each in source.images]
    assert levels == [0, 1, 2, 3, 4, 5, 10, 11, 20, 21, 22, 23]
    assert list(source.ids)[5:8] == ["train/000005", "val/000000", "val/000001"]
    assert source.fingerprint() == open_source(tmp_path / "birds").fingerprint()


def test_a_single_saved_table_has_no_official_splits(tmp_path):
    table(4).save_to_disk(tmp_path / "one")
    source = open_source(tmp_path / "one")
    assert source.splits == {} and source.ids[3] == "000003" and isinstance(source.images[0], LazyImage)
    assert open_source(datasets.DatasetDict(train=table(4))).splits == {}


def test_pictures_are_handed_over_undecoded_and_by_several_threads_at_once():
    source = open_source(table(40))
    data = source.images[7].fetch()
    assert isinstance(data, bytes) and data.startswith(b"\x89PNG")
    with ThreadPoolExecutor(8) as pool:
        levels = list(pool.map(lambda row: int(decode_image(source.images[row], SPEC)[0, 0, 0]), range(40)))
    assert levels == list(range(40))


def test_pictures_that_are_files_elsewhere_are_read_from_there(tmp_path):
    picture(7).save(tmp_path / "a.png")
    paths = [str(tmp_path / "a.png"), str(tmp_path / "gone.png")]
    source = open_source(table(2, image=paths))
    assert (decode_image(source.images[0], SPEC) == 7).all()
    with pytest.raises(DataError, match=r"000001: .*gone\.png: cannot be read \(no such file"):
        source.images[1].fetch()


def test_a_format_or_transform_of_the_table_changes_nothing():
    plain = open_source(table(4))
    for formed in (
        table(4).with_format("torch"),
        table(4).with_transform(lambda rows: {"x": [0] * len(rows["label"])}),
    ):
        source = open_source(formed)
        assert source.targets.tolist() == plain.targets.tolist()
        assert (decode_image(source.images[3], SPEC) == 3).all()


def test_rows_that_were_chosen_and_shuffled_are_those_rows():
    source = open_source(table(20).shuffle(seed=1).select(range(5)))
    expected = table(20).shuffle(seed=1).select(range(5))["label"]
    levels = [int(decode_image(each, SPEC)[0, 0, 0]) for each in source.images]
    assert [level % 2 for level in levels] == source.targets.tolist() == list(expected)


def test_lists_of_class_labels_are_labels_and_numbers_are_numbers():
    several = datasets.Sequence(datasets.ClassLabel(names=NAMES))
    source = open_source(table(3, features={"label": several}, label=[[0, 2], [], [1]]))
    assert source.task == "multilabel" and source.classes == tuple(NAMES)
    assert source.targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    number = open_source(table(3, features={"label": datasets.Value("float32")}, label=[0.5, 1.5, 2.25]))
    assert number.task == "regression" and number.targets.tolist() == [[0.5], [1.5], [2.25]]
    words = open_source(table(3, features={"label": datasets.Value("string")}, label=["b", "a", "b"]))
    assert words.task == "classification" and words.classes == ("a", "b")


def test_a_label_without_a_name_is_refused():
    several = datasets.Sequence(datasets.ClassLabel(names=NAMES))
    with pytest.raises(DataError, match=r"row 1: 'label' is \[-1\], but there are classes 0\.\.2"):
        open_source(table(2, features={"label": several}, label=[[0], [-1]]))


def test_a_task_that_is_told_is_obeyed():
    source = open_source(table(4), DataSettings(task="multilabel"))
    assert source.task == "multilabel" and source.classes == ("cat", "dog")


def test_other_columns_are_groups_splits_and_metadata():
    more = {"patient": ["p1", "p1", "p2", "p3"], "part": ["train", "train", "test", "test"], "view": list("abca")}
    source = open_source(table(4, **more), DataSettings(group="patient", split="part"))
    assert source.groups is not None and source.groups.tolist() == ["p1", "p1", "p2", "p3"]
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1], "test": [2, 3]}
    assert list(source.metadata["view"]) == ["a", "b", "c", "a"]


def test_rows_without_a_class_stop_unless_they_are_to_be_left_out():
    given = table(4, label=[0, 1, -1, 1])
    with pytest.raises(DataError, match=r"row 2: 'label' is -1, in 1 row in all.*--data\.uncertain ignore"):
        open_source(given)
    source = open_source(given, DataSettings(uncertain="ignore"))
    assert source.targets.tolist() == [0, 1, 1] and (decode_image(source.images[2], SPEC) == 3).all()
    assert list(source.ids) == ["000000", "000001", "000003"]


def test_a_test_split_whose_labels_were_not_published_is_left_out():
    source = open_source(datasets.DatasetDict(train=table(4), test=table(3, label=[-1] * 3)))
    assert len(source) == 4 and source.notes == ("Left out the split test (3 rows): its 'label' was not published.",)


def test_arrays_and_paths_may_be_the_pictures(tmp_path):
    picture(5).save(tmp_path / "a.png")
    array = datasets.Array3D((8, 9, 3), "uint8")
    source = open_source(table(2, features={"image": array}, image=[np.full((8, 9, 3), 5, np.uint8)] * 2))
    assert (decode_image(source.images[1], SPEC) == 5).all()
    paths = table(2, features={"image": datasets.Value("string")}, image=[str(tmp_path / "a.png")] * 2)
    assert (decode_image(open_source(paths).images[1], SPEC) == 5).all()
    binary = table(2, features={"image": datasets.Value("binary")}, image=[(tmp_path / "a.png").read_bytes()] * 2)
    assert (decode_image(open_source(binary).images[1], SPEC) == 5).all()


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda: table(0), {}, r"This Dataset has no rows"),
        (
            lambda: table(2, features={"mask": datasets.Image()}, mask=[picture(1)] * 2),
            {},
            r"pictures: 'image', 'mask'",
        ),
        (
            lambda: table(2, features={"coarse": datasets.ClassLabel(names=NAMES)}, coarse=[0, 1]).rename_column(
                "label", "fine"
            ),
            {},
            r"several columns of class labels: 'fine', 'coarse'.*--data\.targets fine",
        ),
        (lambda: table(2).remove_columns("label"), {}, r"This Dataset has no column of labels"),
        (lambda: table(2), {"targets": ("grade",)}, r"has no column 'grade'"),
        (
            lambda: datasets.DatasetDict(a=table(2), b=table(2)),
            {},
            r"no split called train, validation or test\. It has a",
        ),
        (lambda: datasets.DatasetDict(val=table(2), valid=table(2)), {}, r"two splits for val: val, valid"),
        (lambda: table(2).to_iterable_dataset(), {}, r"A IterableDataset has no length"),
    ],
)
def test_tables_that_say_too_little_or_too_much_are_refused(make, settings, words):
    with pytest.raises(DataError, match=words):
        open_source(make(), DataSettings(**settings))


def test_splits_whose_classes_differ_are_refused():
    other = table(2, features={"label": datasets.ClassLabel(names=["cat", "dog", "bird"])})
    with pytest.raises(DataError, match=r"column 'label' of test is not of the kind that train has"):
        open_source(datasets.DatasetDict(train=table(2), test=other))


def test_a_damaged_folder_is_named(tmp_path):
    table(4).save_to_disk(tmp_path / "one")
    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"one cannot be read as a folder of the datasets library \("):
        open_source(tmp_path / "one")


def test_a_name_of_the_hub_is_loaded_without_trust(monkeypatch):
    asked = []

    def load(*arguments: object, **words: object):
        asked.append((arguments, words))
        return datasets.DatasetDict(train=table(4), test=table(2))

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = open_source("hf:owner/birds:small")
    assert asked == [(("owner/birds", "small"), {})] and source.name == "birds-small"
    assert {split: len(rows) for split, rows in source.splits.items()} == {"train": 4, "test": 2}


def test_without_a_network_the_cache_of_the_library_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table(6).to_parquet(tmp_path / "train.parquet")
    made = datasets.load_dataset("parquet", data_files=str(tmp_path / "train.parquet"), split="train")
    cached = Path(made.cache_files[0]["filename"]).parent
    as_fetched = tmp_path / "cache" / "owner___birds" / "default" / "0.0.0" / cached.name
    as_fetched.mkdir(parents=True)
    for file in cached.iterdir():
        shutil.copy(file, as_fetched / file.name.replace("parquet", "birds"))
    source = open_source("hf:owner/birds")
    assert source.name == "birds" and source.classes == tuple(NAMES) and len(source) == 6
    assert (decode_image(source.images[5], SPEC) == 5).all()


def test_a_name_that_is_not_in_the_cache_says_how_to_fetch_it_elsewhere():
    with pytest.raises(
        DataError,
        match=r"hf:nobody/nothing is not in the cache of the datasets library and cannot be fetched \(.*\)\. Where "
        r"there is a network, run python -c .*load_dataset\('nobody/nothing'\)\.save_to_disk\('FOLDER'\)",
    ):
        open_source("hf:nobody/nothing")


def test_a_name_that_is_a_path_or_a_command_is_refused(tmp_path, monkeypatch):
    for name in ("hf:../../etc", "hf:", "hf:a/b/c", "hf:https://x.org/y", "hf:-x"):
        with pytest.raises(DataError, match=r"is no name of a data set\. Expected hf:OWNER/NAME"):
            open_source(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    with pytest.raises(DataError, match=r"hf:mnist: mnist is also a file or folder here.* Give \./mnist"):
        open_source("hf:mnist")


def test_without_the_library_the_command_that_installs_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"need the datasets library: pip install 'vitrail\[data\]'"):
        open_source("hf:mnist")


def test_D13_a_saved_table_cannot_name_pictures_outside_its_folder(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"")
    picture(3).save(tmp_path / "a.png")
    for outside in (str(tmp_path / "secret.png"), "../secret.png", "~/secret.png"):
        saved = tmp_path / f"saved{len(list(tmp_path.iterdir()))}"
        table(2, features={"image": datasets.Value("string")}, image=["a.png", outside]).save_to_disk(str(saved))
        picture(3).save(saved / "a.png")
        with pytest.raises(DataError, match=r"row 1: .*leads out of"):
            open_source(saved)


def test_pictures_that_a_saved_table_names_lie_in_its_folder_or_below_the_data_root(tmp_path):
    table(2, features={"image": datasets.Value("string")}, image=["a.png", "b.png"]).save_to_disk(str(tmp_path / "s"))
    for name in ("a.png", "b.png"):
        picture(7).save(tmp_path / name)
        picture(9).save(tmp_path / "s" / name)
    assert (decode_image(open_source(tmp_path / "s").images[1], SPEC) == 9).all()
    assert (decode_image(open_source(tmp_path / "s", DataSettings(data_root=str(tmp_path))).images[1], SPEC) == 7).all()


def test_official_splits_win_over_a_column_of_splits_that_nobody_named():
    parts = {"train": table(4, split=["train", "train", "test", "test"]), "test": table(2, split=["train", "val"])}
    source = open_source(datasets.DatasetDict(parts))
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert list(source.metadata["split"]) == ["train", "train", "test", "test", "train", "val"]
    (note,) = [note for note in source.notes if "official splits" in note]
    assert note.endswith("--data.split split takes the column instead.")
    named = open_source(datasets.DatasetDict(parts), DataSettings(split="split"))
    assert {split: rows.tolist() for split, rows in named.splits.items()} == {
        "train": [0, 1, 4],
        "val": [5],
        "test": [2, 3],
    }
    assert not any("official splits" in note for note in named.notes)
