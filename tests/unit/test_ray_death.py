"""What the script of a dying worker makes of two files of answers."""

from __future__ import annotations

import pytest

from scripts import script

HEAD = "path,id,split,target,label,probability,prob_a,prob_b,abstain\n"
ROWS = ["a.png,a,,,a,0.75,0.75,0.25,no\n", "b.png,b,,,b,0.625,0.375,0.625,no\n"]


@pytest.mark.parametrize(
    ("rows", "complete", "apart", "changed"),
    [
        (ROWS, True, 0, 0),
        (ROWS[:1], False, 0, 0),
        (ROWS[::-1], False, 0.375, 2),
        ([ROWS[0].replace("0.25", "0.2505"), ROWS[1].replace(",no", ",unsure")], True, 0.0005, 1),
    ],
)
def test_files_are_compared_row_by_row(rows, complete, apart, changed, tmp_path):
    alone, shared = tmp_path / "alone.csv", tmp_path / "ray.csv"
    alone.write_text(HEAD + "".join(ROWS))
    shared.write_text(HEAD + "".join(rows))
    found = script("ray_death").compare_predictions(alone, shared)
    assert (found["complete"], found["decisions_changed"]) == (complete, changed)
    assert found["largest_difference"] == pytest.approx(apart) and found["equal_bytes"] == (rows == ROWS)
    assert found["rows_on_ray"] == len(rows)
