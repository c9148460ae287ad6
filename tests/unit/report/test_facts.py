"""report.json: everything survives it, and a wrong one is refused in words."""

from __future__ import annotations

import json

import pytest

from unit.report.report_sample import facts_of, predictions_of
from vitrail.errors import DamagedFileError, UsageError
from vitrail.report import provenance


def test_facts_survive_the_file(tmp_path):
    given = facts_of(predictions_of())
    provenance.write_facts(tmp_path, given)
    assert provenance.read_facts(tmp_path) == given


def test_the_headline_is_of_the_test_split_and_else_of_val():
    given = facts_of(predictions_of())
    assert given.held_out_split == "test"
    assert given.metrics_for_split("test").n == 40
    assert given.metrics_for_split("train") is None
    without = facts_of(predictions_of("val"), splits=("train", "val"))
    assert without.held_out_split == "val"


def test_a_run_that_has_not_ended_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"There is none in .*a run writes it when it ends"):
        provenance.read_facts(tmp_path)


def test_damaged_and_unknown_contents_are_refused(tmp_path):
    path = provenance.write_facts(tmp_path, facts_of(predictions_of()))
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "titel": "x"}))
    with pytest.raises(UsageError, match=r"report\.json.*titel.*title"):
        provenance.read_facts(tmp_path)
    path.write_text("{")
    with pytest.raises(DamagedFileError, match=r"report\.json must be JSON"):
        provenance.read_facts(tmp_path)


def test_entries_keep_their_order():
    assert [(e.name, e.text) for e in provenance.to_entries({"b": "1", "a": "2"})] == [("b", "1"), ("a", "2")]
