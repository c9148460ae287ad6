"""Which shards are read, in which order, and which official split each belongs to."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tar_files import classed, picture, write_tar
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.decoding.decode import decode_image
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources.webdataset import expand_braces, open_shard_folder, open_shards, split_from_shard_name
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec

SETTINGS = DataSettings()


def four_shards(folder, names=("a-10.tar", "a-2.tar", "a-1.tar", "a-0.tar")):
    return [write_tar(folder / name, classed("abab", 4 * place)) for place, name in enumerate(names)]


def test_a_folder_of_shards_is_read_in_natural_order(tmp_path):
    four_shards(tmp_path / "pets")
    source = open_source(tmp_path / "pets")
    assert (source.name, len(source), source.classes) == ("pets", 16, ("a", "b"))
    firsts = [source.ids[row] for row in (0, 4, 8, 12)]
    assert firsts == ["a-0.tar/0012", "a-1.tar/0008", "a-2.tar/0004", "a-10.tar/0000"]
    assert source.blocks.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert source.images[5].fetch() == picture(9)
    assert source.splits == {}


def test_one_shard_is_a_source(tmp_path):
    source = open_source(write_tar(tmp_path / "pets.tar", classed("ab")))
    assert (source.name, list(source.ids)) == ("pets", ["pets.tar/0000", "pets.tar/0001"])


def test_patterns_name_shards_in_their_order(tmp_path):
    four_shards(tmp_path)
    assert len(open_source(f"{tmp_path}/a-*.tar")) == 16
    source = open_source(f"{tmp_path}/a-{{0..2}}.tar")
    assert (source.name, len(source), source.ids[0]) == ("a", 12, "a-0.tar/0012")
    assert open_source(f"{tmp_path}/a-{{2,0}}.tar").ids[0] == "a-2.tar/0004"


def test_a_set_of_shards_is_called_by_the_words_that_all_their_names_begin_with(tmp_path):
    four_shards(tmp_path / "pets", ("dogs-train-0.tar", "dogs-test-0.tar", "train-0.tar", "train-1.tar"))
    assert open_source(f"{tmp_path}/pets/dogs-*.tar").name == "dogs"
    assert open_source(f"{tmp_path}/pets/train-*.tar").name == "pets"


def test_names_relative_to_the_working_folder_are_read(tmp_path, monkeypatch):
    four_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    source = open_source("a-{0..1}.tar")
    assert source.ids[0] == "a-0.tar/0012" and source.images[0].fetch() == picture(12)
    assert open_shards([Path("a-0.tar"), tmp_path / "a-1.tar"], SETTINGS).images[4].fetch() == picture(8)


BRACES = {
    "a-{0..3}.tar": ["a-0.tar", "a-1.tar", "a-2.tar", "a-3.tar"],
    "a-{08..11}.tar": ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"],
    "a-{0000..0002}.tar": ["a-0000.tar", "a-0001.tar", "a-0002.tar"],
    "{3..1}": ["3", "2", "1"],
    "{train,val}-{0..1}": ["train-0", "train-1", "val-0", "val-1"],
    "a{,b}c": ["ac", "abc"],
    "plain.tar": ["plain.tar"],
    "{single}.tar": ["{single}.tar"],
    "open{.tar": ["open{.tar"],
    "{a..c}": ["{a..c}"],
}


@pytest.mark.parametrize(("text", "names"), BRACES.items())
def test_braces_are_written_out_as_a_shell_does(text, names):
    assert expand_braces(text) == names


@pytest.mark.parametrize("text", ["{0..99999999999}.tar", "{0..9999}{0..9999}.tar"])
def test_too_many_names_are_refused_before_they_are_made(text):
    with pytest.raises(DataError, match="names more than 1,000,000 shards"):
        expand_braces(text)


def test_missing_shards_are_counted_and_named(tmp_path):
    four_shards(tmp_path)
    words = r"7 of 10 shards do not exist: .*a-3\.tar, .*a-4\.tar, .*a-5\.tar and 4 more\."
    with pytest.raises(DataError, match=words):
        open_source(f"{tmp_path}/a-{{0..9}}.tar")


def test_a_shard_named_twice_is_refused(tmp_path):
    four_shards(tmp_path)
    with pytest.raises(DataError, match=r"a-0\.tar is named twice; each of its pictures would count double"):
        open_source(f"{tmp_path}/a-{{0,1,0}}.tar")


SPLITS = {
    "train-0001.tar": "train", "imagenet1k-validation-07.tar": "val", "pets_test.tar": "test",
    "TRAIN/0001.tar": "train",
    "val/x-0.tar": "val", "train0001.tar": "train", "a/valid/b.tar": "val", "trains-1.tar": "", "contest.tar": "",
    "data-0001.tar": "", "retest/0.tar": "", "dev.tar": "val", "train/test-0.tar": "train",
}  # fmt: skip


@pytest.mark.parametrize(("name", "split"), SPLITS.items())
def test_names_and_folders_tell_the_official_split(name, split):
    assert split_from_shard_name(Path(name)) == split


def test_a_name_of_two_splits_is_refused():
    with pytest.raises(DataError, match=r"train-test-0\.tar says test and train\. Rename it"):
        split_from_shard_name(Path("train-test-0.tar"))


@pytest.mark.parametrize("names", [("train-0.tar", "train-1.tar", "val-0.tar", "test-0.tar"),
                                   ("train/0.tar", "train/1.tar", "val/0.tar", "test/0.tar")])  # fmt: skip
def test_official_splits_are_kept(names, tmp_path):
    four_shards(tmp_path, names)
    splits = open_shard_folder(tmp_path, SETTINGS).splits
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 8, "val": 4, "test": 4}
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(16))


def test_what_lies_beside_the_training_shards_is_left_out_and_named(tmp_path):
    four_shards(tmp_path, ("train-0.tar", "test-0.tar", "extra-0.tar", "train-1.tar"))
    source = open_source(tmp_path)
    assert len(source) == 12
    assert source.notes == ("Left out what lies beside the training shards: 'extra-0.tar'.",)


def test_without_training_shards_all_but_the_test_ones_are_to_be_parted(tmp_path):
    four_shards(tmp_path, ("a-0.tar", "a-1.tar", "a-2.tar", "a-test.tar"))
    source = open_source(tmp_path)
    assert len(source) == 16 and {name: len(rows) for name, rows in source.splits.items()} == {"test": 4}


def test_D1_a_class_that_training_shards_lack_stops_the_reading(tmp_path):
    write_tar(tmp_path / "train-0.tar", classed("abab"))
    write_tar(tmp_path / "val-0.tar", classed("abcd"))
    with pytest.raises(
        DataError,
        match=r"val of .* has classes that train does not have: 'c' \(\d+ pictures?\), 'd' \(\d+ pictures?\)\.",
    ):
        open_source(tmp_path)


def test_D1_class_numbers_are_those_of_all_shards_together(tmp_path):
    write_tar(tmp_path / "train-0.tar", classed("abc"))
    write_tar(tmp_path / "val-0.tar", classed("cb"))
    source = open_source(tmp_path)
    assert source.classes == ("a", "b", "c") and source.targets.tolist() == [0, 1, 2, 2, 1]


def test_a_column_of_splits_that_is_asked_for_comes_before_names(tmp_path):
    files = classed("abab") | {f"000{n}.json": b'{"part": "%s"}' % (b"test" if n > 1 else b"train") for n in range(4)}
    write_tar(tmp_path / "train-0.tar", files)
    source = open_source(tmp_path, DataSettings(split="part"))
    assert {name: rows.tolist() for name, rows in source.splits.items()} == {"train": [0, 1], "test": [2, 3]}


def test_pictures_beside_the_shards_ask_which_are_meant(tmp_path):
    four_shards(tmp_path)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.png").write_bytes(picture(1))
    with pytest.raises(DataError, match=r"tar files and also pictures outside of them, such as .*1\.png\. Name the"):
        open_source(tmp_path)


def test_packed_shards_are_left_out_and_named(tmp_path):
    four_shards(tmp_path)
    (tmp_path / "b.tar.gz").write_bytes(b"")
    notes = open_shard_folder(tmp_path, SETTINGS).notes
    assert notes == ("Left out 1 packed shard, such as b.tar.gz; unpack them to use them.",)
    for path in tmp_path.glob("*.tar"):
        path.unlink()
    with pytest.raises(DataError, match=r"No tar shards were found in .* Unpack the 1 packed ones, such as b\.tar\.gz"):
        open_shard_folder(tmp_path, SETTINGS)


def test_hidden_files_and_folders_are_not_looked_at(tmp_path):
    four_shards(tmp_path)
    write_tar(tmp_path / "._a-0.tar", {})
    write_tar(tmp_path / ".cache" / "b.tar", {})
    assert len(open_source(tmp_path)) == 16


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    four_shards(tmp_path)
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def refusing(folder):
        if str(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=r"closed cannot be listed \(permission denied\)"):
        open_shard_folder(tmp_path, SETTINGS)


def test_the_doctor_names_members_that_are_no_pictures(tmp_path, bomb):
    files = classed("abababab") | {
        "0001.png": bomb,
        "0002.png": b"<html>",
        "0003.png": picture(3)[:-30],
        "0004.png": b"",
    }
    source = open_source(write_tar(tmp_path / "a.tar", files))
    findings = check_dataset(source, {"train": np.arange(8)}, ImageSpec())
    assert [name for name, _ in findings.bad_images] == ["a.tar/0001", "a.tar/0002", "a.tar/0003", "a.tar/0004"]
    words = ("169 Mpx", "HTML", "truncated", "empty")
    assert all(word in reason for word, (_, reason) in zip(words, findings.bad_images, strict=True))
    assert all(str(tmp_path) not in reason for _, reason in findings.bad_images)


def test_a_picture_looks_the_same_in_a_shard_and_in_a_folder(tmp_path, photo, encode):
    data = encode(photo, "JPEG")
    (tmp_path / "1.jpg").write_bytes(data)
    source = open_source(write_tar(tmp_path / "a.tar", {"1.jpg": data, "1.cls": b"x", "2.jpg": data, "2.cls": b"y"}))
    assert np.array_equal(decode_image(source.images[1], ImageSpec()), decode_image(tmp_path / "1.jpg", ImageSpec()))


def test_a_setting_that_shards_have_no_use_for_is_refused(tmp_path):
    four_shards(tmp_path)
    with pytest.raises(UsageError, match=r"--data\.keep_empty true keeps class folders without pictures"):
        open_source(tmp_path, DataSettings(keep_empty=True))


def test_the_fingerprint_follows_labels_and_places_and_not_the_folder(tmp_path):
    def fingerprint(folder, labels):
        return open_source(write_tar(tmp_path / folder / "a.tar", classed(labels))).fingerprint()

    assert fingerprint("x", "abab") == fingerprint("y", "abab")
    assert len({fingerprint("x", "abab"), fingerprint("z", "abba"), fingerprint("w", "ababa")}) == 3


def test_splits_in_the_names_of_shards_win_over_a_field_that_nobody_named(tmp_path):
    for split, said in (("train", "test"), ("test", "train")):
        samples = {}
        for number in range(4):
            fields = f'{{"label": "{"ab"[number % 2]}", "set": "{said if number > 1 else split}"}}'
            samples |= {f"{number}.png": picture(number), f"{number}.json": fields.encode()}
        write_tar(tmp_path / f"{split}-0.tar", samples)
    source = open_source(tmp_path)
    assert {split: len(rows) for split, rows in source.splits.items()} == {"train": 4, "test": 4}
    assert "set" in source.metadata
    assert any("--data.split set takes the column instead." in note for note in source.notes)
    named = open_source(tmp_path, DataSettings(split="set"))
    assert sorted(map(int, named.splits["train"])) != sorted(map(int, source.splits["train"]))
