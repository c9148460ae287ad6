"""Every way to name pictures, and what is said when there are none."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from vitrail.errors import DataError
from vitrail.predict.image_paths import expand_image_paths


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a/10.png", "a/2.png", "a/b/1.JPG", "a/notes.txt", "a/.hidden.png", "a/.cache/3.png", "one.jpeg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_gives_its_pictures_in_natural_order_without_hidden_files(folder):
    assert expand_image_paths(["a"]) == [Path("a/2.png"), Path("a/10.png"), Path("a/b/1.JPG")]


def test_pictures_of_other_kinds_in_a_folder_are_counted_and_never_left_out_in_silence(folder, capsys):
    for name in ("a/1.jxl", "a/b/2.JXL", "a/3.ppm", "a/.4.jxl", "c/5.dng"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    assert len(expand_image_paths(["a"])) == 3
    said = capsys.readouterr().err
    assert said.startswith("Left out of a: 4 files of other kinds: 2 x .jxl (such as 1.jxl), 1 x .ppm (3.ppm), 1 x .t")
    assert "1 x .ppm" in said
    assert "pictures that Vitrail does not read; convert it to JPEG or PNG" in said
    with pytest.raises(DataError, match=r"^The folder c must hold pictures .*\. It holds 1 x \.dng: pictures that"):
        expand_image_paths(["c"])


def test_files_keep_the_order_in_which_they_are_named_and_may_repeat(folder):
    assert expand_image_paths(["one.jpeg", "a/2.png", "one.jpeg"]) == [
        Path("one.jpeg"),
        Path("a/2.png"),
        Path("one.jpeg"),
    ]


def test_a_file_that_is_named_outright_needs_no_picture_ending(folder):
    assert expand_image_paths(["a/notes.txt"]) == [Path("a/notes.txt")]


def test_patterns_reach_into_folders(folder):
    assert expand_image_paths(["a/*.png"]) == [Path("a/2.png"), Path("a/10.png")]
    assert expand_image_paths(["**/*.JPG"]) == [Path("a/b/1.JPG")]


def test_a_file_with_a_pattern_in_its_name_is_that_file(folder):
    (folder / "x[1].png").write_bytes(b"")
    assert expand_image_paths(["x[1].png"]) == [Path("x[1].png")]


def test_a_list_is_read_from_its_own_folder(folder):
    (folder / "a" / "list.txt").write_text("2.png\n\nb/1.JPG\n")
    assert expand_image_paths(["@a/list.txt"]) == [Path("a/2.png"), Path("a/b/1.JPG")]


def test_a_list_saved_by_a_windows_editor_is_read_too(folder):
    (folder / "list.txt").write_bytes(b"\xef\xbb\xbfone.jpeg\r\na/2.png\r\n")
    assert expand_image_paths(["@list.txt"]) == [Path("one.jpeg"), Path("a/2.png")]


@pytest.mark.parametrize("text", ["one.jpeg\na/2.png\n", "one.jpeg\0a/2.png\0"])
def test_standard_input_gives_lines_or_what_find_print0_writes(text, folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert expand_image_paths(["-"]) == [Path("one.jpeg"), Path("a/2.png")]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere.png", r"no picture, folder, pattern or @list at nowhere\.png\. Check the path"),
        ("empty", r"The folder empty must hold pictures \(\.avif, \.bmp.*\.png.*It holds none"),
        ("*.bmp", r"The pattern \*\.bmp must match at least one file. It matches none"),
        ("@gone.txt", r"needed at gone\.txt\. No such file or directory"),
        ("@blank.txt", r"list on blank\.txt must name at least one picture"),
        ("@wrong.txt", r"list on wrong\.txt names missing\.png, which is not a file"),
    ],
)
def test_no_pictures_is_an_error_that_says_where(argument, message, folder):
    (folder / "empty").mkdir()
    (folder / "blank.txt").write_text("\n\n")
    (folder / "wrong.txt").write_text("one.jpeg\nmissing.png\n")
    with pytest.raises(DataError, match=message):
        expand_image_paths([argument])


def test_films_are_found_in_folders_by_their_endings(folder):
    for name in ("films/2.dcm", "films/10.DICOM"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    assert expand_image_paths(["films"]) == [Path("films/2.dcm"), Path("films/10.DICOM")]


@pytest.mark.parametrize("argument", ["a.tar", "*.tar", "@list.txt"])
def test_a_shard_is_refused_with_what_to_do_instead(argument, folder):
    (folder / "a.tar").write_bytes(b"")
    (folder / "list.txt").write_text("one.jpeg\na.tar\n")
    words = r"^a\.tar is a tar file, .*tar -xf a\.tar -C pictures.*`vitrail evaluate MODEL a\.tar`"
    with pytest.raises(DataError, match=words):
        expand_image_paths([argument])


def test_thumbnails_that_a_system_keeps_beside_pictures_are_none_to_answer(folder):
    for name in ("a/@eaDir/2.png/SYNOPHOTO_THUMB_M.jpg", "a/$RECYCLE.BIN/$I1.png", "a/__MACOSX/2.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"")
    assert expand_image_paths(["a"]) == [Path("a/2.png"), Path("a/10.png"), Path("a/b/1.JPG")]
