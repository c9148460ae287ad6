"""Manifests of text: how lines become rows, which cells mean what, and what each mistake is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.data.sources.table_files import read_manifest_table
from vitrail.errors import DataError, UsageError

Made = Callable[..., Path]


@pytest.fixture
def films(draw: Callable[..., Path]) -> Made:
    """A manifest beside the pictures a.png to f.png: films("path,label\\na.png,cat\\n") -> its path."""

    def made(text: str | bytes, name: str = "films.csv") -> Path:
        path = draw(*(f"{letter}.png" for letter in "abcdef")) / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return made


def read(path: Path, **said: object) -> Source:
    return open_source(str(path), DataSettings(**said))


def words(source: Source) -> list[str]:
    return [source.classes[number] for number in source.targets]


def test_a_manifest_becomes_a_source_with_its_reason_groups_splits_and_metadata(films):
    text = "path,label,split,patient,age\na.png,cat,train,p1,61\nb.png,dog,train,p2,\nc.png,cat,test,p3,70\n"
    source = read(films(text), group="patient")
    assert (source.name, source.task, source.classes) == ("films", "classification", ("cat", "dog"))
    assert [path.name for path in source.images] == list(source.ids) == ["a.png", "b.png", "c.png"]
    assert all(path.is_file() for path in source.images)
    assert source.reason == "Column 'label' holds 2 different words, so a picture has one of 2 classes."
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1], "test": [2]}
    assert source.groups is not None and source.groups.tolist() == ["p1", "p2", "p3"]
    assert {name: list(values) for name, values in source.metadata.items()} == {"age": ["61", "", "70"]}
    assert source.notes == ()


PLAIN = "path,label\na.png,cat\nb.png,dog\n"


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + PLAIN.encode(),
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-16-le"),
        PLAIN.encode("utf-16-be"),
        PLAIN.replace(",", ";").encode(),
        PLAIN.replace(",", "\t").encode(),
        PLAIN.replace(",", "|").encode(),
        PLAIN.replace(",", ", ").encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("\n", "\r").encode(),
        PLAIN.replace("\n", "\n\n").encode(),
        PLAIN.replace("\n", ",\n").encode(),
        PLAIN.replace("\n", ",,,\n").replace("label,,,", "label").encode(),
        b'"path","label"\n"a.png","cat"\n"b.png","dog"',
        b"sep=;\r\n" + PLAIN.replace(",", ";").encode(),
        (PLAIN + ",\n , \n").encode(),
    ],
)
def test_D9_every_common_way_to_write_a_table_reads_the_same(films, text):
    source = read(films(text))
    assert (list(source.ids), words(source), source.notes) == (["a.png", "b.png"], ["cat", "dog"], ())


def test_D9_quoted_newlines_and_delimiters_stay_in_their_cell_and_lines_are_counted_right(films):
    path = films('path,label,note\na.png,cat,"two\nlines, ""quoted"""\nb.png,dog,\n\nc.png,cat\n')
    with pytest.raises(DataError, match=r"^films\.csv, line 6: 2 fields, expected 3 \('path', 'label', 'note'\)"):
        read(path)
    source = read(films('path,label,note\na.png,cat,"two\nlines, ""quoted"""\nb.png,dog,\n'))
    assert list(source.metadata["note"]) == ['two\nlines, "quoted"', ""]


def test_D9_a_line_with_too_many_fields_names_line_and_cure(films):
    lines = ["path,label,age"] + [f"{letter}.png,cat,1" for letter in "abcdef"]
    lines[5] = "e.png,big, red cat,1"
    with pytest.raises(DataError, match=r"^films\.csv, line 6: 4 fields, expected 3 .*holds , needs quotation marks"):
        read(films("\n".join(lines)))


def test_D9_without_a_header_the_columns_are_numbered_and_a_note_says_so(films):
    source = read(films("a.png,cat\nb.png,dog\nc.png,cat\n"))
    assert list(source.ids) == ["a.png", "b.png", "c.png"] and words(source) == ["cat", "dog", "cat"]
    assert "films.csv has no header: its first line names a picture" in source.notes[0]
    assert "'column 1', 'column 2'" in source.notes[0]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize(
    "title", ["Films of 2021", "Films of 2021{0}{0}", '"Films; of, 2021"', "Films of 2021\n\nby site"]
)
def test_titles_above_the_header_are_left_out_with_a_note(films, title, mark):
    table = "path,label,age\na.png,cat,1\nb.png,dog,2\nc.png,cat,3"
    rows = f"{title.format(mark)}\n{table.replace(',', mark)}"
    source = read(films(rows + "\n"))
    assert list(source.ids) == ["a.png", "b.png", "c.png"] and words(source) == ["cat", "dog", "cat"]
    assert source.notes[0].startswith(f"films.csv: {1 + title.count('by')} line") and "2021" in source.notes[0]


def test_lines_below_a_title_keep_their_numbers(films):
    with pytest.raises(DataError, match=r"line 5: 1 field, expected 2"):
        read(films("Films of 2021\n\npath,label\na.png,cat\nb.png\nc.png,dog\n"))


def test_D9_columns_parted_by_spaces_as_in_elpv_are_read(films):
    path = films("a.png  1.0  mono\nb.png  0.3333 poly\nc.png 0.0   mono\n", "labels.csv")
    with pytest.raises(DataError, match=r"2 columns that may be learnt: 'column 2', 'column 3'\. Name one"):
        read(path)
    source = read(path, targets=("column 2",))
    assert source.task == "regression" and source.targets[:, 0].tolist() == pytest.approx([1, 0.3333, 0])
    assert list(source.metadata["column 3"]) == ["mono", "poly", "mono"]


def test_D9_two_columns_of_one_name_are_refused(films):
    with pytest.raises(DataError, match=r"films\.csv, line 1: columns 2 and 4 are called 'label'"):
        read(films("path,label,age,label\na.png,cat,1,dog\n"))


def test_D9_bars_in_the_labels_do_not_part_the_columns(films):
    source = read(films("a.png,Mass|Edema\nb.png,Mass\nc.png,Edema|Hernia|Mass\n"))
    assert source.task == "multilabel" and source.classes == ("Edema", "Hernia", "Mass")


def test_D9_an_open_quotation_mark_is_named_by_its_line(films):
    with pytest.raises(DataError, match=r"^films\.csv, line 3: its quotation marks do not close"):
        read(films('path,label\na.png,cat\nb.png,"dog\nc.png,cat\n'))


def test_text_that_is_not_utf_8_is_read_as_windows_1252_with_a_note(films):
    source = read(films("path,label\na.png,Käfer\nb.png,Biene\n".encode("cp1252")))
    assert source.classes == ("Biene", "Käfer")
    assert source.notes[0] == "films.csv is not UTF-8 text; it was read as Windows-1252."
    with pytest.raises(DataError, match="neither UTF-8 nor Windows-1252"):
        read(films(b"path,label\na.png,\x81\x8d\n"))


@pytest.mark.parametrize("text", ["", "\n\n", "path,label\n", "path,label\n,\n"])
def test_a_manifest_without_rows_is_refused(films, text):
    with pytest.raises(DataError, match=r"films\.csv (is empty|holds no rows)"):
        read(films(text))


def test_D10_class_names_are_never_taken_for_nothing_numbers_or_truths(films):
    names = ["NA", "None", "null", "01", "1.0", "TRUE"]
    rows = "".join(f"{letter}.png,{name}\n" for letter, name in zip("abcdef", names, strict=True))
    assert words(read(films("path,label\n" + rows))) == names


def test_D11_cells_that_fit_no_label_stop_with_their_line(films):
    with pytest.raises(DataError, match=r"films\.csv, line 3: 'label' is empty"):
        read(films("path,label\na.png,cat\nb.png,\nc.png,dog\n"))
    flags = "path,Edema,Mass,Nodule\na.png,1,0,0\nb.png,0,1,1\nc.png,{},0,1\nd.png,,0,1\n"
    with pytest.raises(DataError, match=r"films\.csv, line 4: 'Edema' is '2', expected 0, 1 or nothing"):
        read(films(flags.format("2")))
    with pytest.raises(DataError, match=r"films\.csv, line 4: 'Edema' is '-1'.*--data.uncertain ignore"):
        read(films(flags.format("-1")))
    source = read(films(flags.format("-1")), uncertain="ignore")
    assert source.task == "multilabel" and np.isnan(source.targets[:, 0]).tolist() == [False, False, True, True]
    soft = read(films("path,cat,dog\na.png,0.9,0.1\nb.png,0.5,0.5\n"))
    assert soft.has_soft_labels and soft.classes == ("cat", "dog")


def test_D11_rows_left_out_are_left_out_of_every_column(films):
    text = (
        "path,label,split,patient,age\na.png,,train,p1,1\nb.png,x,train,p2,2\nc.png,y,train,p3,3\nd.png,x,test,p4,4\n"
    )
    source = read(films(text), uncertain="ignore", group="patient")
    assert list(source.ids) == ["b.png", "c.png", "d.png"] and source.images[0].name == "b.png"
    assert source.groups is not None and source.groups.tolist() == ["p2", "p3", "p4"]
    assert list(source.metadata["age"]) == ["2", "3", "4"]
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1], "test": [2]}


def test_D12_a_repeated_path_with_the_same_label_is_kept_once_with_a_note(films):
    source = read(films("path,label\na.png,cat\nb.png,dog\n./a.png,cat\na.png,cat\n"))
    assert list(source.ids) == ["a.png", "b.png"] and words(source) == ["cat", "dog"]
    assert source.notes[0].startswith("2 rows name a picture that an earlier row names with the same labels, such as")
    assert "'a.png' (films.csv, line 4)" in source.notes[0]


def test_D12_a_repeated_path_with_another_label_or_split_stops_with_both_lines(films):
    with pytest.raises(DataError, match=r"line 2 and films\.csv, line 4 both name 'a\.png', with different labels"):
        read(films("path,label\na.png,cat\nb.png,dog\na.png,dog\n"))
    with pytest.raises(
        DataError, match=r"line 2 and films\.csv, line 4 both name 'a\.png', for the splits train and te"
    ):
        read(films("path,label,split\na.png,cat,train\nb.png,dog,train\na.png,cat,test\n"))


def test_D1_a_class_that_only_the_test_split_has_stops(films):
    with pytest.raises(DataError, match=r"^test of films\.csv has classes that train does not.*'owl' \(1 picture\)"):
        read(films("path,label,split\na.png,cat,train\nb.png,dog,train\nc.png,owl,test\n"))


def test_D16_formulas_are_text(films):
    text = 'path,label,note\na.png,=cmd(),"=HYPERLINK(""x"")"\nb.png,+1+1,@SUM(A1)\n'
    source = read(films(text))
    assert words(source) == ["=cmd()", "+1+1"]
    assert list(source.metadata["note"]) == ['=HYPERLINK("x")', "@SUM(A1)"]


@pytest.mark.parametrize("between", ["", "\ufeff", "\n"])
def test_tables_that_were_joined_repeat_their_header_and_it_is_left_out_with_a_note(films, between):
    table = "path,label\na.png,cat\nb.png,dog\n"
    source = read(films("\ufeff" + table + between + table.replace("a.png", "c.png").replace("b.png", "d.png")))
    assert [str(name) for name in source.ids] == ["a.png", "b.png", "c.png", "d.png"]
    assert words(source) == ["cat", "dog", "cat", "dog"]
    line = 4 + (between == "\n")
    assert f"films.csv repeats its header in line {line}, as joined tables do; it names no picture." in source.notes


@pytest.mark.parametrize(
    "text, line",
    [
        (b"path,label\na.png,cat\nb.png,dog\0\n", 3),
        (b"path,label\na.png,cat\nb.png,dog\n" + bytes(4096), 4),
    ],
)
def test_a_nul_byte_is_named_by_its_line_and_never_part_of_a_class(films, text, line):
    with pytest.raises(DataError, match=rf"films\.csv, line {line}: holds a NUL byte.*Copy it again"):
        read(films(text))


@pytest.mark.parametrize(
    "start, remedy",
    [
        (b"PK\x03\x04 a book of Excel", r"a ZIP archive, as the files of Excel are\. Save the sheet as CSV"),
        (b"\x1f\x8b\x08", r"packed with gzip\. Unpack it: gzip -d"),
        (b"<!DOCTYPE html><title>Log in</title>", r"a web page, .*Download it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", r"a Git LFS pointer, .*git lfs pull"),
    ],
)
@pytest.mark.parametrize("name", ["films.csv", "films.tsv", "films.jsonl", "films.parquet"])
def test_a_file_that_is_only_called_like_a_table_is_named_as_what_it_is(films, name, start, remedy):
    with pytest.raises(DataError, match=rf"is no table but {remedy}"):
        read(films(start + b"\n" * 9, name))


def test_a_manifest_without_pictures_or_labels_says_which_flag_names_them(films):
    with pytest.raises(DataError, match=r"No column of films\.csv names pictures.*'alpha', 'label'.*--data.path alpha"):
        read(films("alpha,label\n1,x\n2,y\n"))
    with pytest.raises(DataError, match=r"No column of films\.csv says what the pictures show.*--data.targets COLUMN"):
        read(films("path\na.png\nb.png\n"))


def test_the_lines_of_a_table_are_where_its_rows_begin(films):
    table = read_manifest_table(films('path,label\n\na.png,"x\ny"\nb.png,z\n'))
    assert table.lines.tolist() == [3, 5] and table.where(1) == "films.csv, line 5"


def test_the_user_s_file_is_never_modified(films):
    path = films(PLAIN)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    read(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_setting_for_folders_is_refused(films):
    with pytest.raises(UsageError, match=r"--data.keep_empty true keeps class folders without pictures"):
        read(films(PLAIN), keep_empty=True)
