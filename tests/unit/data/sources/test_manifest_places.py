"""Where a manifest's pictures may lie, which names are refused, and what becomes of missing ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError

Draw = Callable[..., Path]


def manifest(root: Path, *names: str) -> Path:
    """A manifest of these pictures, whose labels are a and b in turn, beside or above them."""
    root.mkdir(exist_ok=True)
    path = root / "films.csv"
    rows = "".join(f'"{name}",{"ab"[row % 2]}\n' for row, name in enumerate(names))
    path.write_text("path,label\n" + rows, encoding="utf-8")
    return path


def read(path: Path, **said: object) -> Source:
    return open_source(str(path), DataSettings(**said))


def there(source: Source) -> Sequence[bool]:
    return [path.is_file() for path in source.images]


OUTSIDE = (
    "../../etc/passwd",
    "a/../../b.png",
    "..",
    "/etc/passwd",
    "//host/share/x.png",
    "~/x.png",
    "~root/x.png",
)
WINDOWS = ("\\\\host\\share\\x.png", "C:\\x.png", "c:x.png", "C:/x.png", "..\\x.png", "a\\..\\..\\x.png", "\\x.png")
WINDOWS_LONG = ("\\\\?\\C:\\x.png", "\\\\.\\pipe\\x")
ADDRESSES = (
    "http://host/x.png",
    "HTTPS://host/x.png",
    "file:///etc/passwd",
    "file:x.png",
    "s3://bucket/x.png",
    "data:,x",
)


@pytest.mark.parametrize("name", [*OUTSIDE, *WINDOWS, *WINDOWS_LONG])
def test_D13_a_path_that_leads_out_of_the_folder_is_refused_by_its_line_on_every_system(draw, name):
    path = manifest(draw("ok.png"), "ok.png", name)
    with pytest.raises(DataError, match=r"^films\.csv, line 3: .* leads out of .*--data.allow_outside_root true\.$"):
        read(path)


@pytest.mark.parametrize("name", ADDRESSES)
def test_D13_an_address_is_refused_even_where_other_folders_are_allowed(draw, name):
    path = manifest(draw("ok.png"), "ok.png", name)
    for allowed in (False, True):
        with pytest.raises(DataError, match=r"^films\.csv, line 3: .* is an address, and pictures are read from files"):
            read(path, allow_outside_root=allowed)


@pytest.mark.parametrize("name", ["A.PNG", "a.PNG", "Sub/b.png", "sub/B.Png", "B"])
def test_names_in_other_capitals_are_found_with_a_note(draw, name):
    source = read(
        manifest(draw("a.png", "sub/b.png", "c.png"), "c.png", name)
        if "/" in name or name[0] in "Aa"
        else manifest(draw("a.png", "sub/b.png"), name)
    )
    assert all(there(source))
    assert any(note == "Found under names with other capitals: 1 picture." for note in source.notes)


def test_a_colleagues_sheet_finds_its_pictures_by_capitals_umlauts_and_spellings_of_the_ending_at_once(draw):
    root = draw("Bilder/Schlu\u0308ssel_1.JPG", "Bilder/Schlu\u0308ssel_2.jpeg", "Bilder/Blatt_3.tif")
    source = read(manifest(root, "SCHL\u00dcSSEL_1.jpg", "Schl\u00fcssel_2.jpg", "blatt_3.TIFF", "blatt_4.TIFF"))
    assert there(source) == [True, True, True, False]
    assert source.notes[:2] == (
        "Found under names with other capitals: 1 picture.",
        "Found with another ending of the same format, such as .jpeg for .jpg: 2 pictures.",
    )


def test_of_two_files_the_one_in_the_capitals_of_the_name_is_taken(draw):
    source = read(manifest(draw("films/a.png", "films/A.png"), "a", "A"))
    assert [path.name for path in source.images] == ["a.png", "A.png"]
    source = read(manifest(draw("films/a.jpeg", "films/a.JPG"), "a.jpg"))
    assert [path.name for path in source.images] == ["a.JPG"]
    with pytest.raises(DataError, match=r"'a\.PNG' may mean 'films/A\.png' or 'films/a\.png'"):
        read(manifest(draw("films/a.png", "films/A.png"), "a.PNG"))


def test_a_name_with_another_ending_is_answered_by_the_file_that_is_there(draw):
    with pytest.raises(DataError, match=r"None of 1 picture is there.*Did you mean .*/film17\.png\?"):
        read(manifest(draw("film17.png"), "film17.jpg"))


@pytest.mark.parametrize("allowed", [False, True])
def test_D13_nul_and_empty_names_are_refused(draw, allowed):
    root = draw("ok.png")
    lines = root / "films.jsonl"  # no other text can hold one
    lines.write_text('{"path": "ok.png", "label": "a"}\n{"path": "a\\u0000.png", "label": "b"}\n')
    with pytest.raises(DataError, match=r"line 2: 'a\\x00\.png' holds a NUL character"):
        read(lines, allow_outside_root=allowed)
    with pytest.raises(DataError, match=r"line 3: no picture is named\. Name it, or delete that line"):
        read(manifest(root, "ok.png", " "), allow_outside_root=allowed)


def test_D13_a_link_that_leads_out_is_refused_and_one_that_stays_inside_is_not(draw):
    root = draw("in/a.png", "in/b.png", "out/c.png") / "in"
    (root / "same.png").symlink_to("a.png")
    assert there(read(manifest(root, "same.png", "b.png"))) == [True, True]
    (root / "link.png").symlink_to("../out/c.png")
    with pytest.raises(DataError, match=r"line 3: 'link\.png' is or lies behind a link that leads out of"):
        read(manifest(root, "a.png", "link.png"))
    (root / "folder").symlink_to("../out")
    for name in ("folder/c.png", "folder/c"):
        with pytest.raises(DataError, match=r"line 3: 'folder.*' is or lies behind a link"):
            read(manifest(root, "a.png", name))
    assert there(read(manifest(root, "folder/c.png", "link.png"), allow_outside_root=True)) == [True, True]


def test_D13_other_folders_may_be_allowed(draw, monkeypatch):
    root = draw("in/a.png", "out/b.png", "out/c.png", "home/d.png")
    monkeypatch.setenv("HOME", str(root / "home"))
    path = manifest(root / "in", "a.png", "../out/b.png", str(root / "out" / "c.png"), "~/d.png")
    assert there(read(path, allow_outside_root=True)) == [True] * 4


def test_full_names_inside_the_folder_and_names_with_dots_are_no_way_out(draw):
    root = draw("a/1.png", "a/2..png", "a/..3.png", "12:30.png")
    path = manifest(root, str(root / "a" / "1.png"), "a//./2..png", "./a/..3.png", "12:30.png")
    source = read(path)
    assert list(source.ids) == ["a/1.png", "a/2..png", "a/..3.png", "12:30.png"] and there(source) == [True] * 4


def test_D14_missing_files_are_all_counted_and_the_first_twenty_named(draw):
    names = [f"gone{row}.png" for row in range(23)]
    source = read(manifest(draw("a.png", "b.png"), "a.png", *names, "b.png"))
    assert len(source) == 25 and sum(there(source)) == 2
    (note,) = source.notes
    assert note.startswith("23 of 25 pictures are missing in ")
    assert "'gone0.png' (films.csv, line 3), 'gone1.png' (films.csv, line 4)" in note
    assert "'gone19.png' (films.csv, line 22) and 3 more." in note and "gone20" not in note


def test_D14_no_file_at_all_stops_and_says_where_they_were_looked_for(draw):
    root = draw("elsewhere/a.png", "elsewhere/b.png")
    path = manifest(root / "list", "a.png", "b.png")
    with pytest.raises(DataError, match=r"None of 2 pictures is there: 'a\.png' \(films\.csv, line 2\).*--data-root"):
        read(path)
    assert there(read(path, data_root=str(root / "elsewhere"))) == [True, True]


def test_names_without_their_folder_or_ending_are_found_with_a_note(draw):
    root = draw("images_1/images/001.png", "images_2/002.jpg", "003.png", ".hidden/004.png")
    source = read(manifest(root, "001", "002.jpg", "003", "003.png.txt"))
    assert list(source.ids)[:3] == ["images_1/images/001.png", "images_2/002.jpg", "003.png"]
    assert there(source) == [True, True, True, False]
    assert source.notes[:3] == (
        "Found with the ending .png, and in folders, that their names do not say: 1 picture.",
        "Found in folders that their names do not say: 1 picture.",
        "Found with the ending .png that their names do not say: 1 picture.",
    )


def test_a_name_that_fits_several_files_is_refused(draw):
    root = draw("images/1.png", "masks/1.png", "images/2.png", "images/2.jpg")
    with pytest.raises(DataError, match=r"line 2: '1\.png' may mean '.*/1\.png' or '.*/1\.png'.*--data-root"):
        read(manifest(root, "1.png", "2.png"))
    with pytest.raises(DataError, match=r"line 3: 'images/2' may mean 'images/2\.jpg' or 'images/2\.png'"):
        read(manifest(root, "images/1.png", "images/2"))
    assert list(read(manifest(root, "1", "2.png"), data_root=str(root / "images")).ids) == ["1.png", "2.png"]


def test_a_name_with_a_folder_is_never_found_in_another_folder(draw):
    source = read(manifest(draw("cats/1.png", "dogs/2.png"), "cats/1.png", "cats/2.png"))
    assert there(source) == [True, False]


def test_names_written_on_windows_are_read(draw):
    source = read(manifest(draw("cats/1.png", "dogs/2.png"), "cats\\1.png", "dogs\\2.png"))
    assert list(source.ids) == ["cats/1.png", "dogs/2.png"]
    assert source.notes == ("By names with \\ for /: 2 pictures.",)


@pytest.mark.parametrize("beginning", ["C:\\Users\\ann\\", "/home/ann/set 2/", "\\\\nas\\films\\", "//nas/films/"])
def test_full_names_of_another_machine_are_cut_where_the_first_is_a_file_below_the_folder(draw, beginning):
    between = "\\" if "\\" in beginning else "/"
    names = [f"{beginning}{name.replace('/', between)}" for name in ("cats/1.png", "dogs/1.png", "dogs/gone.png")]
    source = read(manifest(draw("cats/1.png", "dogs/1.png", "1.png"), *names))
    assert list(source.ids) == ["cats/1.png", "dogs/1.png", "dogs/gone.png"]
    assert there(source) == [True, True, False]
    assert source.notes[0].startswith(
        f"3 pictures have full names of another machine, beginning with {beginning.replace(between, '/')!r}; what"
    )


def test_full_names_are_all_cut_alike_so_that_none_is_taken_for_another(draw):
    path = manifest(draw("1.png"), "/home/ann/cats/1.png", "/home/ann/dogs/1.png")
    with pytest.raises(DataError, match=r"line 3: '/home/ann/dogs/1\.png' leads out of"):
        read(path)


def test_a_full_name_that_is_a_file_here_is_never_cut(draw, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "a.png"
    other.write_bytes(b"")
    with pytest.raises(DataError, match="leads out of"):
        read(manifest(draw("a.png"), str(other)))


def test_names_written_as_in_an_address_are_read(draw):
    root = draw("one two/caf\u00e9.png", "deep/a/b/c/50%.png", "20%25.png")
    source = read(manifest(root, "one%20two/caf%C3%A9.png", "deep/a/b/c/50%25.png", "20%25.png", "%2E%2E%2Fx.png"))
    assert list(source.ids)[:3] == ["one two/caf\u00e9.png", "deep/a/b/c/50%.png", "20%25.png"]
    assert there(source) == [True, True, True, False]
    way = "written as in an address (%20) or in another form of Unicode"
    assert source.notes[0] == f"By names that are {way}: 2 pictures."


def test_an_address_never_leads_out_of_the_folder(draw):
    root = draw("in/a.png", "out.png") / "in"
    with pytest.raises(DataError, match=r"line 3: '\.\./out\.png' is or lies behind a link that leads out of"):
        read(manifest(root, "a.png", "%2e%2e%2fout.png"))


@pytest.mark.parametrize("written, on_disk", [("\u00e9", "e\u0301"), ("e\u0301", "\u00e9")])
def test_accents_are_the_same_in_both_forms_of_unicode(draw, written, on_disk):
    source = read(manifest(draw(f"caf{on_disk}/1.png", "caf/1.png"), f"caf{written}/1.png", "caf/1.png"))
    assert list(source.ids) == [f"caf{on_disk}/1.png", "caf/1.png"]
    way = "written as in an address (%20) or in another form of Unicode"
    assert source.notes == (f"By names that are {way}: 1 picture.",)


def test_a_pipe_among_the_pictures_blocks_nothing(draw):
    root = draw("a.png")
    os.mkfifo(root / "pipe.png")
    assert len(read(manifest(root, "a.png", "pipe.png"))) == 2
