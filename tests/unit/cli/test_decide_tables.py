"""The comparison of two decisions on the terminal."""

from __future__ import annotations

from unit.services.test_deciding import store_run
from vitrail.cli.commands.decide import describe_comparison
from vitrail.services.deciding import DecisionRequest, decide


def sides(run, at: dict[str, float]) -> list[tuple[str, str]]:
    """Label and side of every row of figures on validation images."""
    lines = describe_comparison(decide(run, DecisionRequest(at=at)), run)
    start = next(number for number, line in enumerate(lines) if line.startswith("val: "))
    rows = lines[start + 1].splitlines()[1:]
    return [tuple(row[:14].split()) for row in rows]


def test_a_label_that_is_decided_as_before_has_one_row_instead_of_two(tmp_path):
    run = store_run(tmp_path / "run", "multilabel", K=3)
    assert sides(run, {"grade1": 0.3}) == [("grade0", "both"), ("grade1", "old"), ("new",), ("grade2", "both")]
