"""The log of scores: what is written is read, and what is none is refused with its line."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.evaluate.decisions import predictions_from_outputs
from vitrail.evaluate.score_log import (
    build_scored_images,
    format_score_lines,
    is_score_log,
    read_score_log,
    score_names,
)

ROWS = [("a/1.png", "1.png"), ("a/2.png", "2.png")]
OUTPUTS = np.array([[0.5, 2.0], [3.0, -1.0]], np.float32)


def table(task: str = "classification", distances: np.ndarray | None = None):
    return predictions_from_outputs(task, OUTPUTS, ("cat", "dog"), None, ROWS, distances=distances)


def write(path, *tables) -> None:
    lines = [line for one in tables for line in format_score_lines(one, one.ids, "2026-11-28T10:12:00")]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_what_is_written_is_read_to_the_last_bit(task, tmp_path):
    written = table(task, np.array([0.1, 1 / 3]))
    log = tmp_path / "log.jsonl"
    write(log, written)
    rows = read_score_log(log)
    assert is_score_log(log) and [row["image"] for row in rows] == ["1.png", "2.png"]
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    images = build_scored_images(rows, score_names(written), written.ids, times)
    expected = written.values if task == "regression" else written.probabilities
    assert np.array_equal(images.scores, expected.astype(np.float64)) and images.distances.tolist() == [0.1, 1 / 3]
    assert images.times[0] == np.datetime64("2026-11-28T10:12:00") and not images.abstained.any()
    assert "png" not in json.dumps([{**row, "image": ""} for row in rows])  # nothing else of the picture


def test_abstentions_and_models_without_distances_are_kept(tmp_path):
    write(tmp_path / "log.jsonl", replace(table(), abstain_reasons=("unlike", "")))
    rows = read_score_log(tmp_path / "log.jsonl")
    images = build_scored_images(rows, ("cat", "dog"), ("1", "2"), [datetime(2026, 1, 1)] * 2)
    assert images.abstained.tolist() == [True, False] and images.distances is None


def test_a_line_that_a_crash_cut_short_is_left_out_and_any_other_refused(tmp_path):
    log = tmp_path / "log.jsonl"
    write(log, table())
    whole = log.read_text()
    log.write_text(whole + whole[:30])
    assert len(read_score_log(log)) == 2
    for wrong in (whole[:30] + "\n" + whole, "[]\n", whole.replace("2026-11-28T10:12:00", "noon", 1)):
        log.write_text(wrong)
        with pytest.raises(DataError, match=r"log\.jsonl, line 1: a score log has a time"):
            read_score_log(log)
    log.write_text(whole.replace('"cat": ', '"cat": NaN, "was": ', 1))
    with pytest.raises(DataError, match=r"line 1.*finite"):
        read_score_log(log)


def test_the_log_of_another_model_is_refused_by_its_classes():
    rows = [json.loads(line) for line in format_score_lines(table(), ("1", "2"), "2026-01-01")]
    with pytest.raises(DataError, match=r"of 1 are of cat, dog, and the run answers with bird\."):
        build_scored_images(rows, ("bird",), ("1", "2"), [datetime(2026, 1, 1)] * 2)


def test_other_files_are_no_score_logs(tmp_path):
    (tmp_path / "manifest.jsonl").write_text('{"path": "a.png"}\n')
    assert not is_score_log(tmp_path / "manifest.jsonl") and not is_score_log(tmp_path / "no.jsonl")
    assert not is_score_log(tmp_path)
