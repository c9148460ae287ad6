"""Folders of class folders, as people really have them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from vitrail.data.decoding.decoded_image import ACCEPTED_FORMATS, CONVERT_HINT
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import natural_sort_key
from vitrail.errors import DataError, UsageError


def opened(root, **settings):
    return open_source(str(root), DataSettings(**settings))


def test_D5_classes_and_files_are_in_natural_order(draw):
    source = opened(draw("10/b10.png", "10/b9.png", "2/a.png", "1/a.png"))
    assert source.classes == ("1", "2", "10")
    assert tuple(source.ids) == ("1/a.png", "2/a.png", "10/b9.png", "10/b10.png")
    assert source.targets.tolist() == [0, 1, 2, 2]
    assert not source.splits
    assert not source.notes


def test_natural_order_knows_numbers_and_words():
    assert sorted(["b", "A", "a10", "a9", "01", "1", "é", ""], key=natural_sort_key) == [
        "",
        "01",
        "1",
        "A",
        "a9",
        "a10",
        "b",
        "é",
    ]


LONG = "x" * 255  # as long as a file system allows


@pytest.mark.parametrize("name", ["NA", "None", "01", "1.0", "TRUE", "-rf", "naïve 🌹", "two\nlines", "end ", LONG])
def test_D4_class_names_stay_text(name, draw):
    assert set(opened(draw(f"{name}/a.png", "other/a.png")).classes) == {name, "other"}


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "val", "test"), ("Training", "valid", "TEST"), ("train", "validation", "testing")],
)
def test_splits_are_known_by_their_usual_names(train, val, test, draw):
    source = opened(draw(f"{train}/a/1.png", f"{train}/b/1.png", f"{val}/b/2.png", f"{test}/a/3.png"))
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1], "val": [2], "test": [3]}
    assert source.targets.tolist() == [0, 1, 1, 0]


def test_D1_the_class_map_is_that_of_train(draw):
    source = opened(draw("train/a/1.png", "train/b/1.png", "train/c/1.png", "val/b/2.png", "val/c/2.png"))
    assert source.targets[source.splits["val"]].tolist() == [1, 2]
    assert "test" not in source.splits


def test_D1_a_class_that_train_lacks_is_named(draw):
    root = draw("train/a/1.png", "train/b/1.png", "test/fox/1.png", "test/fox/2.png", "test/a/1.png")
    with pytest.raises(DataError, match=r"test of .* has classes that train does not have: 'fox' \(2 pictures\)"):
        opened(root)


def test_two_folders_for_one_split_are_refused(draw):
    with pytest.raises(DataError, match=r"has both val/ and valid/ for the split val"):
        opened(draw("train/a/1.png", "train/b/1.png", "val/a/1.png", "valid/a/1.png"))


def test_D3_litter_is_left_out_and_counted(draw):
    root = draw(
        "cat/1.png", "cat/._1.png", "cat/.DS_Store", "cat/Thumbs.db", "dog/1.png", "__MACOSX/cat/1.png", ".hidden/1.png"
    )
    (root / "dog/.ipynb_checkpoints").mkdir()
    source = opened(root)
    assert source.classes == ("cat", "dog")
    assert source.notes == ("Left out 6 hidden or system files and folders.",)


@pytest.mark.parametrize("folder", ["@eaDir", "#recycle", "lost+found", "$RECYCLE.BIN", "System Volume Information"])
def test_D3_what_a_system_keeps_beside_the_pictures_is_no_class(draw, folder):
    source = opened(draw("cat/1.png", "dog/1.png", f"{folder}/1.png", f"cat/{folder}/1.png/SYNOPHOTO_THUMB_M.jpg"))
    assert source.classes == ("cat", "dog") and len(source) == 2
    assert source.notes == ("Left out 2 hidden or system files and folders.",)


def test_D6_other_files_are_left_out_and_counted(draw):
    root = draw("cat/1.png", "dog/1.png", "loose.png")
    (root / "labels.csv").write_text("a")
    (root / "cat/a.jxl").write_text("a")
    (root / "cat/b.jxl").write_text("a")
    (root / "cat/README").write_text("a")
    kinds = "2 x .jxl (such as cat/a.jxl), 1 x .csv (labels.csv), 1 x no ending (cat/README)"
    unread = f"2 x .jxl: pictures that Vitrail does not read; {CONVERT_HINT}."
    assert len(opened(root)) == 2
    assert opened(root).notes == (
        f"Left out 1 picture beside the class folders of '{root}'.",
        f"Left out 4 files of other kinds: {kinds}. Pictures are {ACCEPTED_FORMATS}. {unread}",
        f"labels.csv is not read, as there are class folders. To learn from that file: vitrail train {root}/labels.csv",
    )


def test_folders_of_pictures_that_are_not_read_name_them_and_what_to_do(draw):
    root = draw("loose.png")
    for name in ("cat/1.ppm", "cat/2.ppm", "dog/1.JXL"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("a")
    (root / "loose.png").unlink()
    with pytest.raises(DataError, match=r"\. It holds 2 x \.ppm, 1 x \.jxl: pictures that .* not read; convert it to"):
        opened(root)


def test_endings_in_capitals_and_pictures_without_one_count(draw):
    root = draw("cat/1.JPG", "dog/1.png")
    (root / "dog/1.png").rename(root / "dog/picture")
    os.mkfifo(root / "dog/pipe")
    assert tuple(opened(root).ids) == ("cat/1.JPG", "dog/picture")


def test_bad_files_with_a_pictures_ending_are_kept_for_the_check_to_name(draw):
    root = draw("cat/1.png", "dog/1.png")
    (root / "dog/2.png").write_bytes(b"")
    (root / "dog/3.png").symlink_to("nowhere")
    os.mkfifo(root / "dog/4.png")
    assert tuple(opened(root).ids)[1:] == ("dog/1.png", "dog/2.png", "dog/3.png", "dog/4.png")


def test_D2_an_empty_class_folder_is_left_out_with_a_note_or_kept(draw):
    root = draw("cat/1.png", "dog/1.png")
    (root / "emu").mkdir()
    assert opened(root).classes == ("cat", "dog")
    assert opened(root).notes == (
        f"Left out class folder '{root / 'emu'}': it holds no pictures. --data.keep_empty true keeps it.",
    )
    kept = opened(root, keep_empty=True)
    assert (kept.classes, kept.targets.tolist(), kept.notes) == (("cat", "dog", "emu"), [0, 1], ())


def test_D2_empty_classes_of_later_splits_ask_for_nothing(draw):
    root = draw("train/a/1.png", "train/b/1.png", "val/a/2.png")
    (root / "val" / "c").mkdir()
    assert opened(root, keep_empty=True).classes == ("a", "b")
    (root / "test" / "a").mkdir(parents=True)
    assert "test" not in opened(root, keep_empty=True).splits


def test_a_folder_without_pictures_says_what_was_expected(tmp_path):
    expected = rf"no pictures found in .*; expected one folder per class holding {ACCEPTED_FORMATS}\."
    with pytest.raises(DataError, match=expected):
        opened(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("a")
    with pytest.raises(DataError, match=expected):
        opened(tmp_path)


def test_D6_pictures_as_deep_as_people_nest_them_belong_to_the_first_folder(draw):
    root = draw("cat/2024/01/5/x.png", "cat/a.png", "dog/2024/b.png", "dog/2.png", "dog/10.png", "dog/.cache/3.png")
    source = opened(root)
    assert source.classes == ("cat", "dog") and source.targets.tolist() == [0, 0, 1, 1, 1]
    assert list(source.ids) == ["cat/a.png", "cat/2024/01/5/x.png", "dog/2.png", "dog/10.png", "dog/2024/b.png"]
    assert list(source.metadata["folder"]) == ["", "2024/01/5", "", "", "2024"]
    deeper = (
        "2 of 5 pictures lie deeper, in folders inside the class folders, such as '2024'; each belongs to the class"
    )
    assert source.notes[0] == (
        f"{deeper} of the first folder, 'cat' (2 pictures), 'dog' (3 pictures). If the inner folders are the classes: "
        "--data.class_level 2. If they are days, persons or places: --group folder keeps the pictures of one of them "
        "in one split"
    )


def test_D6_hundreds_of_folders_in_each_other_are_no_limit(draw):
    source = opened(draw(f"cat/{'d/' * 300}1.png", "dog/1.png"))
    assert source.targets.tolist() == [0, 1]


def test_D6_pictures_below_splits_may_lie_as_deep(draw):
    source = opened(draw("train/a/x/1.png", "train/b/1.png", "val/b/y/z/2.png", "test/a/3.png"))
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1], "val": [2], "test": [3]}
    assert list(source.metadata["folder"]) == ["x", "", "y/z", ""]


def test_folders_of_one_name_in_several_class_folders_are_told_with_counts_and_the_way_forward(draw):
    root = draw("north/cat/1.png", "north/dog/1.png", "south/cat/1.png", "south/cat/2.png", "south/dog/1.png")
    (note,) = opened(root).notes
    assert note == (
        f"The classes of {root} are its folders 'north' (2 pictures), 'south' (3 pictures), but folders of the same "
        "names lie in several of them: 'cat' (3 pictures), 'dog' (2 pictures). If those are the classes: "
        "--data.class_level 2"
    )
    source = opened(root, class_level=2)
    assert source.classes == ("cat", "dog") and source.targets.tolist() == [0, 0, 0, 1, 1]
    (note,) = source.notes
    assert note.startswith("Beside those of the classes there are folders such as 'north'. If they are days, persons")
    assert not opened(root, class_level=2, group="folder").notes
    assert list(source.metadata["folder"]) == ["north", "south", "south", "north", "south"]
    assert opened(root, class_level=2, group="folder").groups.tolist() == ["north", "south", "south", "north", "south"]


def test_classes_below_years_months_and_days_are_found_on_their_level(draw):
    days = "2025/05/2025-05-03", "2025/05/2025-05-19 garden", "2025/06/2025-06-01"
    root = draw(*(f"{day}/{name}/1.png" for day in days for name in ("key", "mug")))
    (note,) = opened(root).notes
    assert note == (
        f"The only class of {root} is its folder '2025' (6 pictures), but folders of the same names lie in several "
        "folders below: 'key' (3 pictures), 'mug' (3 pictures). If those are the classes: --data.class_level 4"
    )
    (note,) = opened(root / "2025").notes
    assert note.startswith(f"The classes of {root / '2025'} are its folders '05' (4 pictures), '06' (2 pictures), but ")
    assert note.endswith("--data.class_level 3")
    assert opened(root, class_level=4).classes == ("key", "mug")


def test_a_workbook_is_named_with_what_to_do(draw):
    root = draw("cat/1.png", "dog/1.png", "labels.xlsx")
    with pytest.raises(DataError, match=r"labels\.xlsx is a workbook, which is not read: save the sheet as CSV "):
        open_source(root / "labels.xlsx", DataSettings())
    (note,) = opened(root).notes
    assert "1 x .xlsx: workbooks; if the labels stand there, save the sheet as CSV" in note


def test_dates_inside_class_folders_are_no_doubt_about_the_classes(draw):
    files = [f"{kind}/2024-0{month}/{month}.png" for kind in ("cat", "dog") for month in (1, 2)]
    source = opened(draw(*files))
    assert source.classes == ("cat", "dog") and source.notes[0].startswith("4 of 4 pictures lie deeper")
    grouped = opened(draw(*files, "dog/3.png"), group="folder")
    assert grouped.groups.tolist() == ["2024-01", "2024-02", "dog/3.png", "2024-01", "2024-02"]


def test_folders_called_like_dates_are_told(draw):
    (note,) = opened(draw("2024-01-05/1.png", "2024-02-17 evening/1.png")).notes
    assert "called like dates: '2024-01-05' (1 picture), '2024-02-17 evening' (1 picture)" in note
    assert "write a manifest" in note


def test_splits_inside_class_folders_are_told_and_not_followed(draw):
    source = opened(draw("cat/train/1.png", "cat/test/2.png", "dog/train/1.png", "dog/test/2.png"))
    assert not source.splits and "which are not followed as splits" in source.notes[0]
    assert f"{source.images.root / 'train'}/CLASS" in source.notes[0]


def test_one_folder_around_the_class_folders_is_pointed_at(draw):
    root = draw("flowers/rose/1.png", "flowers/lily/1.png")
    source = opened(root)
    assert source.classes == ("flowers",)
    assert source.notes[0].endswith(
        f"in it are the folders 'lily', 'rose'. If those are the classes, give {root / 'flowers'} instead of {root}."
    )


def test_a_level_without_folders_says_which_one_was_asked_for(draw):
    root = draw("cat/1.png", "dog/1.png")
    with pytest.raises(DataError, match=r"--data\.class_level 3 looks for them 3 folders deep"):
        opened(root, class_level=3)
    with pytest.raises(UsageError, match=r"class_level must be at least 1, the first folder\. Got 0"):
        opened(root, class_level=0)
    with pytest.raises(UsageError, match=r"--group folder was asked for, and .* has no folders but those of its class"):
        opened(root, group="folder")


def test_files_called_heic_that_hold_a_jpeg_are_read_as_what_they_hold(draw):
    root = draw("cat/1.jpg", "dog/1.png")
    (root / "cat/1.jpg").rename(root / "cat/IMG_1.HEIC")
    (root / "dog/MVI_3.MOV").write_bytes(b"\0\0\0\x14ftypqt  \0\0\0\0qt  ")
    source = opened(root)
    assert list(source.ids) == ["cat/IMG_1.HEIC", "dog/1.png"]
    assert source.notes[0].startswith("Left out 1 file of other kinds: 1 x .mov (dog/MVI_3.MOV). Pictures are")
    assert "1 x .mov: videos; take pictures out of it, which ffmpeg does" in source.notes[0]


def test_pictures_without_class_folders_have_their_own_sentence(draw):
    with pytest.raises(DataError, match=r"holds 2 pictures but no class folders\. Put the pictures of each class into"):
        opened(draw("1.png", "2.png"))


def test_an_unlabelled_test_folder_is_left_out_with_a_note(draw):
    root = draw("train/a/1.png", "train/b/1.png", "test/1.png")
    source = opened(root)
    assert list(source.splits) == ["train"]
    (note,) = source.notes
    assert note.startswith(f"There is no official test split: {root / 'test'} holds 1 picture but no class folders.")
    assert note.count(str(root)) == 1


def test_what_lies_beside_train_is_noted(draw):
    source = opened(draw("train/a/1.png", "train/b/1.png", "extra/c/1.png"))
    assert source.notes == ("Left out what lies beside train/: 'extra'.",)


def test_D7_one_class_is_a_source_though_not_one_to_train_on(draw):
    assert opened(draw("cat/1.png", "cat/2.png")).classes == ("cat",)


def test_D4_names_that_differ_only_in_case_or_spaces_collide(draw):
    with pytest.raises(DataError, match=r"has class folders 'Cat' and 'cat', which differ only in case"):
        opened(draw("cat/1.png", "Cat/1.png"))
    with pytest.raises(DataError, match=r"'emu' and 'emu '"):
        opened(draw("b/emu/1.png", "b/emu /1.png") / "b")


def test_D4_accents_are_one_letter_however_they_are_encoded(draw):
    source = opened(draw("train/caf\u00e9/1.png", "train/tea/1.png", "val/cafe\u0301/1.png"))
    assert source.classes == ("caf\u00e9", "tea")
    assert source.targets.tolist() == [0, 1, 0]


def test_D6_links_to_folders_are_followed_and_loops_do_no_harm(draw):
    root = draw("store/1.png", "set/dog/1.png")
    (root / "set/cat").symlink_to(root / "store")
    (root / "set/dog/loop").symlink_to(root / "set")
    (root / "set/self").symlink_to(root / "set/self")
    source = opened(root / "set", allow_outside_root=True)
    assert tuple(source.ids) == ("cat/1.png", "dog/1.png")
    linked = f"Links to folders are not followed: 1, such as {root / 'set/dog/loop'}. Name what they lead to by itself."
    assert source.notes[-1] == linked


def test_D13_links_that_lead_out_of_the_folder_are_refused_unless_that_is_allowed(draw):
    root = draw("store/1.png", "store/2.png", "set/cat/own.png", "set/dog/own.png")
    (root / "set/cat/1.png").symlink_to(root / "store/1.png")
    (root / "set/dog/2.png").symlink_to("../../store/2.png")
    (root / "set/emu").symlink_to(root / "store")
    (root / "set/dog/same.png").symlink_to("own.png")
    (root / "set/dog/notes.txt").symlink_to("/etc/hostname")
    with pytest.raises(DataError) as refused:
        opened(root / "set")
    assert str(refused.value) == (
        f"3 links in {root / 'set'} lead out of it, such as 'cat/1.png' to {root / 'store/1.png'}. If what lies there "
        "is meant to be used, say --data.allow_outside_root true."
    )
    assert len(opened(root / "set", allow_outside_root=True)) == 7
    (root / "set/cat/1.png").unlink()
    (root / "set/emu").unlink()
    with pytest.raises(DataError, match=r"A link in .* leads out of it, such as 'dog/2\.png'"):
        opened(root / "set")
    (root / "set/dog/2.png").unlink()
    assert tuple(opened(root / "set").ids) == ("cat/own.png", "dog/own.png", "dog/same.png")


def test_D13_a_split_folder_that_is_a_link_out_of_the_folder_is_refused(draw):
    root = draw("elsewhere/a/1.png", "set/train/a/1.png", "set/train/b/1.png")
    (root / "set/test").symlink_to(root / "elsewhere")
    with pytest.raises(DataError, match=r"leads out of it, such as 'test' to"):
        opened(root / "set")


def test_a_folder_that_is_itself_reached_by_a_link_is_like_any_other(draw):
    root = draw("set/cat/1.png", "set/dog/1.png")
    (root / "set/cat/again.png").symlink_to("1.png")
    (root / "link").symlink_to(root / "set")
    assert len(opened(root / "link")) == 3


def test_D5_numbers_of_any_length_are_in_natural_order(draw):
    long, longer = "9" * 200, "1" + "0" * 200
    assert opened(draw(f"{longer}/1.png", f"{long}/1.png", "007/1.png")).classes == ("007", long, longer)
    assert natural_sort_key("1" * 5000) < natural_sort_key("2" * 5000) < natural_sort_key("1" * 5001)
    assert sorted(["10", "2", "02", "1", "0"], key=natural_sort_key) == ["0", "1", "02", "2", "10"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_names_that_are_no_utf8_become_escapes(draw):
    root = draw("cat/1.png", "dog/1.png")
    os.rename(root / "dog/1.png", os.fsencode(root / "dog") + b"/\xff.png")
    source = opened(root)
    assert source.ids[1] == "dog/\\xff.png"
    assert np.array_equal(source.targets, [0, 1])
    assert source.images[1].exists()
    source.fingerprint()


def test_the_source_is_called_as_its_folder(draw, monkeypatch):
    root = draw("flowers/rose/1.png", "flowers/lily/1.png")
    assert opened(root / "flowers").name == "flowers"
    monkeypatch.chdir(root / "flowers")
    assert opened(".").name == "flowers"


def test_D6_a_folder_that_is_two_by_a_link_is_refused(draw):
    root = draw("cat/1.png", "dog/1.png")
    (root / "kitten").symlink_to(root / "cat")
    with pytest.raises(DataError, match=r"'kitten' and 'cat' in .* are one folder by a link: the same pictures would"):
        opened(root)
    (root / "kitten").unlink()
    (root / "loop").symlink_to(root)
    with pytest.raises(DataError, match=r"'loop' and '\.' in .* are one folder by a link"):
        opened(root)


def test_D6_val_that_is_train_by_a_link_is_refused(draw):
    root = draw("train/a/1.png", "train/b/1.png")
    (root / "val").symlink_to(root / "train")
    with pytest.raises(DataError, match=r"'val' and 'train' in .* by a link: every picture would be in both splits"):
        opened(root)


def test_films_are_pictures(draw):
    root = draw("sick/1.png", "well/1.png")
    (root / "sick/1.png").rename(root / "sick/1.dcm")
    (root / "well/1.png").rename(root / "well/1.DICOM")
    assert tuple(opened(root).ids) == ("sick/1.dcm", "well/1.DICOM")


@pytest.mark.parametrize("name", ["labels.csv", "metadata.jsonl", "_metadata.csv", "train data.tsv", "all.parquet"])
def test_a_manifest_beside_pictures_without_class_folders_is_pointed_at_with_its_command(draw, name):
    root = draw("1.png", "2.png")
    (root / name).touch()
    command = f"vitrail train '{root / name}'" if " " in name else f"vitrail train {root / name}"
    with pytest.raises(DataError) as refused:
        opened(root)
    assert str(refused.value) == (
        f"{root} holds 2 pictures but no class folders; their labels seem to stand in {name}. "
        f"To learn from that file: {command}"
    )


def test_a_manifest_beside_one_folder_of_pictures_is_pointed_at(draw):
    root = draw("images/1.png", "images/2.png")
    (root / "zoo.csv").touch()
    (root / "labels.csv").touch()
    with pytest.raises(DataError, match=r"one folder with pictures, .images.; .* in labels\.csv beside it.*zoo\.csv"):
        opened(root)


def test_a_manifest_inside_train_is_pointed_at(draw):
    root = draw("train/1.png", "test/1.png")
    (root / "train" / "metadata.csv").touch()
    with pytest.raises(DataError, match=r"train holds 1 picture but no class folders; .*/train/metadata\.csv"):
        opened(root)


def test_columns_are_no_matter_of_class_folders(draw):
    root = draw("cat/1.png", "dog/1.png")
    with pytest.raises(
        UsageError, match=r"no columns, so --group patient cannot be followed\. Write a manifest.*patient"
    ):
        opened(root, group="patient")
    with pytest.raises(UsageError, match=r"so --data\.split part and --data\.targets a,b cannot be followed"):
        opened(root, split="part", targets=("a", "b"))


@pytest.mark.parametrize("name", ["train", "Train", "training"])
@pytest.mark.parametrize("others", [("bus", "car"), ("bus", "test"), ("bus", "val", "images", "labels", "all")])
def test_a_folder_of_pictures_called_train_is_a_class_beside_other_such_folders(name, others, draw):
    source = opened(draw(*(f"{folder}/1.png" for folder in (name, *others))))
    assert source.splits == {} and set(source.classes) == {name, *others}
    assert source.notes == (
        f"{name!r} is read as a class, for it holds pictures and no class folders, as others beside it.",
    )


@pytest.mark.parametrize(
    "files",
    [
        ("train/1.png", "test/1.png"),  # pictures without labels
        ("train/1.png", "extra/a/1.png"),
        ("train/1.png", "test/a/1.png", "bus/1.png"),  # test is a split
        ("train/1.png", "bus/1.png", "labels.csv"),  # the labels stand in a table
    ],
)
def test_a_folder_called_train_without_classes_is_no_class_if_that_is_not_certain(files, draw):
    root = draw(*(file for file in files if file.endswith("png")))
    for file in files:
        (root / file).touch()
    with pytest.raises(DataError, match=r"train holds 1 picture but no class folders") as raised:
        opened(root)
    assert "give the folder above it" not in str(raised.value)


def test_a_class_called_train_among_the_classes_of_train(draw):
    source = opened(draw("train/train/1.png", "train/bus/1.png", "test/train/1.png"))
    assert source.classes == ("bus", "train") and list(source.splits) == ["train", "test"]


@pytest.mark.parametrize("name", ["val.txt", "test_list.txt", "train-split.LST", "validation.txt"])
def test_a_list_of_a_split_beside_class_folders_is_noted(name, draw):
    root = draw("a/1.png", "b/1.png")
    (root / name).write_text("a/1.png")
    assert opened(root).notes[0].startswith(f"'{name}' may list a split, and is not followed. To follow it, write a ma")


@pytest.mark.parametrize("other", ["Cat", "cat ", "\uff43at", "ca\u200bt"])
def test_class_folders_that_differ_in_case_spacing_or_width_are_refused(other, draw):
    with pytest.raises(DataError, match=r"differ only in case, spacing, width or accents' encoding"):
        opened(draw("cat/1.png", f"{other}/1.png"))
