"""The table is short, and the JSON holds all."""

from __future__ import annotations

import numpy as np

from vitrail.data.checks.findings import DataCheckReport, DataIssue, join_names


def findings(*concerns: DataIssue, bad: int = 0) -> DataCheckReport:
    return DataCheckReport(
        name="zoo",
        image_count=100,
        checked_count=100,
        compared_count=80,
        bad_images=[(f"p{row}", "broken") for row in range(bad)],
        bad_indices=np.arange(bad),
        class_counts={},
        smallest=None,
        largest=None,
        depths={"uint8": 90, "uint16": 10},
        kinds={"PNG": 100},
        remark_counts={},
        issues=concerns,
        notes=("Read from a CSV.",),
        ids=tuple(f"p{row}" for row in range(100)),
    )


def test_every_bad_picture_is_named_and_other_lists_are_cut_short():
    many = DataIssue(code="x", severity="hint", text="Odd ones.", rows=tuple(range(30, 60)))
    table = findings(many, bad=30).table()
    assert all(f"           p{row}  broken" in table for row in range(30))
    assert "p30, p31," in table and "p35 and 24 more" in table and "p36" not in table


def test_groups_are_shown_as_equal_and_cut_short():
    groups = tuple((row, row + 50) for row in range(9))
    table = findings(DataIssue(code="x", severity="warning", text="Copies.", groups=groups, advice="Do.")).table()
    assert "p0 = p50" in table and "p5 = p55" in table and "p6" not in table.replace("p60", "")
    assert "and 3 more" in table
    assert table.index("Copies.") < table.index("p0 = p50") < table.index("Do.")


def test_the_json_holds_all():
    groups = tuple((row, row + 50) for row in range(9))
    told = findings(DataIssue(code="x", severity="warning", text="Copies.", groups=groups)).to_json()["concerns"][0]
    assert told["groups"][-1] == ["p8", "p58"] and len(told["groups"]) == 9


def test_only_stops_stop():
    found = findings(
        DataIssue(code="x", severity="warning", text="W."),
        DataIssue(code="y", severity="stop", text="S.", advice="A."),
        DataIssue(code="z", severity="stop", text="T."),
    )
    assert found.blocking_reasons == ("S. A.", "T.")


def test_each_picture_is_left_out_once_with_its_first_reason():
    found = findings(
        DataIssue(code="x", severity="warning", text="W.", rows_to_exclude=((5, "copy"), (0, "copy"))),
        DataIssue(code="y", severity="warning", text="W.", rows_to_exclude=((5, "label"), (2, "label"))),
        bad=1,
    )
    assert found.rows_to_exclude() == [(0, "broken"), (2, "label"), (5, "copy")]

    assert join_names(list("abc")) == "a, b, c"
    assert join_names(["a"] * 20, 23).endswith("a and 3 more")


def test_the_same_advice_is_given_once_and_names_the_folder_of_the_list():
    advice = "exclude.csv, which vitrail check SOURCE --out DIR writes: --exclude DIR/exclude.csv leaves them out."
    issues = [DataIssue(code=str(n), severity="warning", text=f"Copies {n}.", advice=advice) for n in range(3)]
    group = DataIssue(code="g", severity="hint", text="Groups.", advice="--group DIR keeps them together.")
    table = findings(*issues, group).with_folder("films", "'my check'").table()
    assert table.count("leaves them out") == 1 and table.index("Copies 2.") < table.index("leaves them out")
    assert "vitrail check films --out 'my check' writes" in table and "--exclude 'my check'/exclude.csv" in table
    assert "--group DIR keeps" in table, "a column may be called so"
