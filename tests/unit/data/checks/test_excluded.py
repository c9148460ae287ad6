"""The list to exclude goes out, is edited, and comes back."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from unit.data.doctored import of_arrays
from vitrail.data.checks import findings
from vitrail.data.open import open_source
from vitrail.errors import DataError

SOURCE = of_arrays(images=np.zeros((5, 2, 2), np.uint8), targets=np.arange(5) % 2, ids=("a", "b", "c,1", "=d", "'e"))


def test_what_was_written_is_read(tmp_path):
    findings.write_exclude_list(tmp_path / "x.csv", SOURCE, [(1, "bad"), (2, "worse"), (4, "worst")])
    assert findings.read_exclude_list(tmp_path / "x.csv", SOURCE).tolist() == [1, 2, 4]


def test_the_file_has_id_path_and_reason(tmp_path, draw):
    source = open_source(str(draw("cat/1.png", "dog/1.png")))
    findings.write_exclude_list(tmp_path / "x.csv", source, [(1, "blurred")])
    with (tmp_path / "x.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"id": "dog/1.png", "path": str(tmp_path / "dog/1.png"), "reason": "blurred"}
        ]


def test_D16_no_cell_is_a_formula_for_a_spreadsheet(tmp_path):
    findings.write_exclude_list(tmp_path / "x.csv", SOURCE, [(3, "=1+1"), (4, "-")])
    cells = [cell for line in (tmp_path / "x.csv").read_text().splitlines() for cell in line.split(",")]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert findings.read_exclude_list(tmp_path / "x.csv", SOURCE).tolist() == [3, 4]


def test_ids_alone_or_paths_alone_suffice(tmp_path, draw):
    source = open_source(str(draw("cat/1.png", "cat/2.png", "dog/1.png")))
    (tmp_path / "ids.csv").write_text("id\ndog/1.png\n\ncat/2.png\n")
    assert findings.read_exclude_list(tmp_path / "ids.csv", source).tolist() == [1, 2]
    (tmp_path / "paths.csv").write_text(f"\ufeffreason,path\nold,{tmp_path / 'cat/1.png'}\n")
    assert findings.read_exclude_list(tmp_path / "paths.csv", source).tolist() == [0]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_spreadsheet_may_have_changed_the_delimiter(delimiter, tmp_path, draw):
    source = open_source(str(draw("cat/1.png", "cat/2.png", "dog/1.png")))
    lines = (("id", "path", "reason"), ("cat/2.png", "", "dark, and soft"))
    (tmp_path / "x.csv").write_text("\r\n".join(delimiter.join(cells) for cells in lines) + "\r\n")
    assert findings.read_exclude_list(tmp_path / "x.csv", source).tolist() == [1]


def test_names_that_are_no_utf8_come_back(tmp_path):
    source = of_arrays(images=np.zeros((2, 2, 2), np.uint8), targets=np.array([0, 1]), ids=("caf\udce9", "b"))
    findings.write_exclude_list(tmp_path / "x.csv", source, [(0, "")])
    assert findings.read_exclude_list(tmp_path / "x.csv", source).tolist() == [0]


def test_an_empty_list_leaves_nothing_out(tmp_path):
    findings.write_exclude_list(tmp_path / "x.csv", SOURCE, [])
    assert findings.read_exclude_list(tmp_path / "x.csv", SOURCE).tolist() == []


def test_pictures_that_the_source_does_not_have_are_an_error(tmp_path):
    (tmp_path / "x.csv").write_text("id\na\nzebra\n")
    with pytest.raises(
        DataError, match=r"leaves out 1 picture that drawn does not have: zebra\. Is it the list of ano"
    ):
        findings.read_exclude_list(tmp_path / "x.csv", SOURCE)


def test_a_file_that_is_no_such_list_is_an_error(tmp_path):
    (tmp_path / "x.csv").write_text("name\na\n")
    with pytest.raises(DataError, match=r"needs a first line with id or path among its columns. Got \['name'\]"):
        findings.read_exclude_list(tmp_path / "x.csv", SOURCE)
    with pytest.raises(DataError, match=r"y.csv: the list to exclude cannot be read \(no such file"):
        findings.read_exclude_list(tmp_path / "y.csv", SOURCE)


def test_a_carriage_return_in_a_name_comes_back(tmp_path):
    source = of_arrays(images=np.zeros((2, 2, 2), np.uint8), targets=np.array([0, 1]), ids=("a\rb", "c"))
    findings.write_exclude_list(tmp_path / "x.csv", source, [(0, "two\rlines"), (1, "")])
    assert findings.read_exclude_list(tmp_path / "x.csv", source).tolist() == [0, 1]
