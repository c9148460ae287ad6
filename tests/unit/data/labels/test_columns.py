"""Which column is for what: told by name and content, or by the settings."""

from __future__ import annotations

import pytest

from vitrail.data.labels.columns import (
    drop_split_column,
    guess_group_kind,
    infer_column_roles,
    quote_for_shell,
    read_groups,
    rows_by_split,
)
from vitrail.data.settings import DataSettings
from vitrail.errors import DataError, UsageError

PICTURES = ["a.png", "b.JPG", "c.tif"]


def roles(columns: dict[str, list[object]], **said: object):
    return infer_column_roles(tuple(columns), columns, DataSettings(**said), "films.csv")


def where(row: int) -> str:
    return f"films.csv, line {row + 2}"


def splits_of(name: str, cells: list[object], **said: object) -> dict[str, list[int]]:
    rows, _ = rows_by_split(name, cells, where, DataSettings(**said))
    return {split: members.tolist() for split, members in rows.items()}


@pytest.mark.parametrize("name", ["path", "Image Index", "file_name", "FilePath", "img"])
def test_the_column_of_pictures_is_known_by_name(name):
    found = roles({"label": ["x", "y", "x"], name: ["one", "two", "three"]})
    assert found.path == name and found.targets == ("label",)


def test_the_column_of_pictures_is_known_by_the_endings_in_it_rather_than_by_name():
    found = roles({"id": ["1", "2", "3"], "what": PICTURES, "label": ["x", "y", "x"]})
    assert found.path == "what"
    assert found.metadata == ("id",)


def test_of_several_columns_of_pictures_one_is_taken_and_the_others_named():
    found = roles({"mask": PICTURES, "image": PICTURES, "label": ["x", "y", "x"]})
    assert found.path == "image"
    assert "'image', 'mask' all name pictures; 'image' is taken. --data.path mask" in found.notes[0]


def test_a_list_without_any_picture_has_no_path():
    assert roles({"alpha": ["1", "2"], "label": ["x", "y"]}).path == ""


@pytest.mark.parametrize("words", [["train", "val", "test"], ["Training", "validation", "TEST"], ["train", "dev", ""]])
def test_the_split_column_is_known_by_its_words_whatever_its_name(words):
    found = roles({"path": PICTURES, "label": ["x", "y", "x"], "purpose": words})
    assert found.split == "purpose" and found.metadata == ()


def test_a_column_called_split_that_holds_no_split_is_metadata():
    found = roles({"path": PICTURES, "label": ["x", "y", "x"], "set": ["A", "B", "A"]})
    assert found.split == "" and found.metadata == ("set",)


def test_a_label_column_with_the_words_train_and_test_is_still_the_label():
    found = roles({"path": PICTURES, "label": ["train", "test", "train"]})
    assert found.split == "" and found.targets == ("label",)


def test_splits_are_rows_and_an_unknown_word_names_its_line():
    assert splits_of("s", ["test", "train", "valid", "train"]) == {"train": [1, 3], "val": [2], "test": [0]}
    assert splits_of("s", ["test", "", None]) == {"test": [0]}
    with pytest.raises(DataError, match=r"films\.csv, line 4: column 's' says 'extra', which is none of train"):
        rows_by_split("s", ["train", "test", "extra"], where, DataSettings())
    with pytest.raises(DataError, match=r"films\.csv, line 3: column 's' is empty, in 1 row in all"):
        rows_by_split("s", ["train", "", "test"], where, DataSettings())


def test_what_the_settings_say_is_taken_and_a_wrong_name_is_refused_with_the_nearest():
    columns = {"a": PICTURES, "b": PICTURES, "c": ["x", "y", "x"], "d": ["train"] * 3, "e": ["1", "1", "2"]}
    found = roles(columns, path="b", targets=("c",), split="d", group="e")
    assert (found.path, found.targets, found.split, found.group, found.metadata) == ("b", ("c",), "d", "e", ("a",))
    with pytest.raises(DataError, match=r"films\.csv has no column 'lable'\. Did you mean label\?"):
        roles({"path": PICTURES, "label": ["x", "y", "x"]}, targets=("lable",))


def test_columns_of_zeros_and_ones_are_learnt_together_and_the_rest_is_metadata():
    flags = {"MEL": ["1.0", "0.0", "0.0"], "NV": ["0.0", "1.0", ""], "BCC": ["0", "-1", "1"]}
    found = roles({"image": PICTURES, **flags, "age": ["1", "0", "1"], "city": ["x", "y", "z"]})
    assert found.targets == ("MEL", "NV", "BCC") and found.metadata == ("age", "city")


def test_the_only_column_left_is_learnt_though_its_name_says_nothing():
    found = roles(
        {"column 1": ["0", "1", "2"], "path": PICTURES, "sex": ["f", "m", "f"], "fruit": ["plum", "pear", "plum"]}
    )
    assert found.targets == ("fruit",) and found.metadata == ("column 1", "sex")


def test_of_several_columns_that_may_be_learnt_none_is_guessed():
    with pytest.raises(DataError, match=r"2 columns that may be learnt: 'the fruit', 'shop'.*--data.targets \"the fru"):
        roles({"path": PICTURES, "the fruit": ["plum", "pear", "plum"], "shop": ["a", "b", "a"]})


def test_a_counter_with_a_row_of_sums_and_a_column_of_one_word_are_nothing_to_learn():
    many = [f"{number}.png" for number in range(40)]
    finding = {"finding": ["good", "bad"] * 20}
    counter = [*map(str, range(1, 40)), "sum"]
    found = roles({"path": many, "no.": counter, **finding, "on": ["12.3."] * 39 + [""]}, targets=())
    assert found.targets == ("finding",) and {"no.", "on"} <= {*found.metadata}


@pytest.mark.parametrize("name", ["Patient ID", "patient_id", "subjectId", "module", "lesion_id", "site"])
def test_D19_a_column_that_looks_like_a_group_is_never_taken_unasked(name):
    found = roles({"path": PICTURES, "label": ["x", "y", "x"], name: ["p1", "p1", "p2"]})
    assert found.group == "" and name in found.metadata
    assert guess_group_kind(name, ["p1", "p1", "p2"]) in name.lower()
    assert found.notes == ()  # the doctor warns, which knows the splits


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("patient_id", ["1", "2", "3"]),  # every row its own
        ("patient", ["1", "0", "1"]),  # a label: zeros and ones
        ("colour", ["red", "red", "blue"]),
        ("id", ["1", "1", "2"]),
    ],
)
def test_D19_columns_that_are_no_group_do_not_look_like_one(name, cells):
    assert guess_group_kind(name, cells) == ""


def test_official_splits_win_over_a_column_that_nobody_named_and_both_are_told():
    table = {"path": PICTURES, "label": ["x", "y", "x"], "set": ["train", "test", "train"]}
    found = drop_split_column(roles(table), DataSettings())
    assert found.split == "" and "set" in found.metadata
    (note,) = found.notes
    assert note.startswith(
        "The official splits are used, and not column 'set', which also names splits. --data.split set"
    )
    named = roles(table, split="set")
    assert drop_split_column(named, DataSettings(split="set")) is named


@pytest.mark.parametrize(
    ("name", "word"), [("a_b", "a_b"), ("Patient ID", '"Patient ID"'), ('5" $x', "'5\" $x'"), ("it's!", "'it'\\''s!'")]
)
def test_names_are_written_as_a_shell_reads_them(name, word):
    assert quote_for_shell(name) == word


def test_rows_without_a_group_are_each_a_group_of_their_own():
    groups, note = read_groups("patient", ["p1", "", "p1", None], where)
    assert groups.tolist() == ["p1", "(none, films.csv, line 3)", "p1", "(none, films.csv, line 5)"]
    assert note == "2 rows have an empty 'patient'; each counts as a group of its own."
    assert read_groups("patient", [1, 1, 2], where)[1] == ""


def column_of(words: dict[object, int]) -> list[object]:
    return [word for word, count in words.items() for _ in range(count)]


def table_with(name: str, words: dict[object, int]) -> dict[str, list[object]]:
    cells = column_of(words)
    return {
        "path": [f"{row}.png" for row in range(len(cells))],
        "label": ["xy"[row % 2] for row in range(len(cells))],
        name: cells,
    }


@pytest.mark.parametrize(
    ("name", "words", "sizes"),
    [
        ("split", {"0": 28, "1": 6, "2": 6}, (28, 6, 6)),  # CelebA, WILDS
        ("partition", {"0.0": 28, "1.0": 6, "2.0": 6}, (28, 6, 6)),
        ("set", {0: 28, 1: 6, 2: 6}, (28, 6, 6)),
        ("split", {"TR": 28, "VA": 6, "TE": 6}, (28, 6, 6)),
        ("Split", {"train": 28, "TE": 6}, (28, 0, 6)),
        ("subset", {"tr": 20, "Holdout": 5}, (20, 0, 5)),
        ("data_split", {"training": 20, "dev": 3, "testing": 5}, (20, 3, 5)),
        ("Usage", {"Training": 20, "PublicTest": 3, "PrivateTest": 5}, (20, 3, 5)),  # FER2013
        ("split", {"train": 20, "validate": 3, "test": 5}, (20, 3, 5)),  # MIMIC-CXR-JPG
        ("is_valid", {"False": 32, "True": 8}, (32, 8, 0)),  # fastai
        ("isValid", {False: 32, True: 8}, (32, 8, 0)),
        ("is_test", {"no": 32, "YES": 8}, (32, 0, 8)),
        ("train", {"1": 32, "0": 8}, (32, 0, 8)),
        ("is_training_image", {"1": 32, "0": 8}, (32, 0, 8)),  # CUB-200
        ("test_set", {"0": 32, "1": 8}, (32, 0, 8)),
    ],
)
def test_a_column_of_codes_is_followed_where_its_name_and_words_are_certain(name, words, sizes):
    found = roles(table_with(name, words))
    assert found.split == name and found.targets == ("label",)
    rows, notes = rows_by_split(name, column_of(words), where, DataSettings())
    assert tuple(len(rows.get(split, ())) for split in ("train", "val", "test")) == sizes
    assert all("says the splits: " in note and "--data.split none draws new ones" in note for note in notes)
    assert bool(notes) == (name != "data_split")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("split", {"0": 30, "1": 10}),
        ("split", {"1": 30, "2": 10, "3": 5}),
        ("partition", {"0": 5, "1": 30, "2": 5}),  # train would be the smallest
        ("split", {"train": 30, "id_val": 10}),
        ("is_valid", {"True": 32, "False": 8}),  # perhaps of the picture's quality
        ("split", {"A": 30, "B": 10}),
        ("train_test_split", {"1": 30, "0": 10}),
        ("phase", {"train": 30, "extra": 10}),
    ],
)
def test_a_column_that_looks_like_splits_is_asked_about_and_never_ignored(name, words):
    assert roles(table_with(name, words)).split == name
    with pytest.raises(
        DataError, match=r"none of train, val and test.*--data\.split .*or draw new .*--data\.split none"
    ):
        splits_of(name, column_of(words))
    assert roles(table_with(name, words), split="none").split == ""


def test_the_settings_say_what_the_words_of_a_column_mean():
    said = {"split": "split:0=train, 1=test"}
    assert roles(table_with("split", {"0": 30, "1": 10}), **said).split == "split"
    assert splits_of("split", ["1", "0", 0.0], **said) == {"train": [1, 2], "test": [0]}
    assert splits_of("s", ["train", "ID_val", "test"], split="s:id_val=val") == {"train": [0], "val": [1], "test": [2]}
    assert DataSettings(split="a:b").split_column == "a:b"
    with pytest.raises(UsageError, match=r"data\.split must give each word train, val or test\. Got 's:0=first'"):
        DataSettings(split="s:0=first")


@pytest.mark.parametrize(
    ("name", "words", "noted"),
    [
        ("fold", {"0": 10, "1": 10, "2": 10}, True),
        ("fold", {"0": 10, "1": 10, "2": 10, "3": 10, "4": 10}, True),
        ("phase", {"1": 10, "2": 10}, True),
        ("set", {"isic2018": 10, "isic2019": 10}, False),
        ("valid", {"1": 30, "0": 10}, False),  # a picture's quality
        ("split", {"all": 30}, False),
        ("training", {"weights": 10, "running": 10}, False),
    ],
)
def test_a_column_that_is_no_split_for_certain_is_noted_where_it_may_be_one(name, words, noted):
    found = roles(table_with(name, words))
    assert found.split == "" and bool(found.notes) == noted
    assert all(f"Column {name!r} may say splits" in note and "--data.split" in note for note in found.notes)


def test_a_flag_called_train_beside_other_flags_is_a_label():
    flags = {name: ["1", "0", "1"] for name in ("bus", "car", "train")}
    found = roles({"path": PICTURES, **flags})
    assert found.split == "" and found.targets == ("bus", "car", "train")


def test_groups_of_equal_number_are_one_group():
    groups, _ = read_groups("patient", ["3", "3.0", "03", "p3", 3, 3.0, "4"], where)
    assert groups.tolist() == ["3", "3", "3", "p3", "3", "3", "4"]
