"""`--track.report_to`: the numbers of a run elsewhere too, and results.csv for spreadsheets."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping

import numpy as np
import pytest

from curves_of_tensorboard import curves, texts
from end_to_end.conftest import TINY
from vitrail.train import plan, trackers
from vitrail.train.trackers import TensorBoardTracker


def recorded(run) -> dict[str, list[tuple[int, float]]]:
    """The curves that metrics.jsonl holds, as float32."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row.pop("step")
        for name, value in row.items():
            found.setdefault(name, []).append((step, float(str(np.float32(value)))))
    return found


@pytest.mark.slow
def test_tensorboard_has_the_curves_of_metrics_jsonl_also_after_more_time(vitrail, flowers, tmp_path):
    run = tmp_path / "run"
    words = ["train", flowers, *TINY, "--steps", 8, "--recipe.evaluate_every", 4]
    assert vitrail(*words, "--out", tmp_path / "plain").code == 0
    assert vitrail(*words, "--out", run, "--track.report_to", "tensorboard").code == 0
    ours, theirs = ((folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "plain"))
    assert ours == theirs  # whoever watches changes nothing

    assert vitrail("train", "--resume", run, "--extend", "--steps", 4).code == 0
    found = curves(run / "tensorboard")
    figures = {name: found.pop(name) for name in list(found) if name.startswith("final/")}
    assert found == recorded(run) and [step for step, _ in found["loss"]] == list(range(1, 13))
    test = json.loads((run / "metrics-test.json").read_text()) if (run / "metrics-test.json").is_file() else None
    val = json.loads((run / "metrics-val.json").read_text())
    assert figures["final/val_accuracy"][-1] == (12, pytest.approx(val["accuracy"]))
    assert test is None or figures["final/test_accuracy"][-1] == (12, pytest.approx(test["accuracy"]))
    assert "| recipe.steps | 8 |" in texts(run / "tensorboard")["plan"]


class Gone(TensorBoardTracker):
    """A server that goes away after two rows."""

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        if step > 2:
            raise ConnectionError("connection refused")
        super().record(axis, step, numbers)


@pytest.mark.slow
def test_a_tracker_that_goes_away_costs_its_rows_and_nothing_else(vitrail, flowers, tmp_path, monkeypatch):
    monkeypatch.setitem(trackers.TRACKER_CLASSES, "tensorboard", Gone)
    run = tmp_path / "run"
    done = vitrail("train", flowers, *TINY, "--steps", 8, "--out", run, "--track.report_to", "tensorboard")
    told = "tensorboard gets no more rows: connection refused. The training goes on; metrics.jsonl has them all."
    assert done.code == 0 and done.err.count(told) == 1 and told in (run / "log.txt").read_text()
    assert len(recorded(run)["loss"]) == 8 and (run / "report.html").is_file()


def test_a_tracker_that_is_not_here_is_refused_before_a_picture_is_read(vitrail, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    asked = vitrail("train", tmp_path / "nowhere", "--track.report_to", "wandb", "--out", tmp_path / "run")
    assert asked.code == 2 and asked.err == (
        "vitrail: track.report_to wandb needs the package wandb, which is not here. Install it, pip install wandb, "
        "or leave "
        "it out: --track.report_to ''.\n"
    )
    asked = vitrail("train", "digits", "--track.report_to", "tensorboard", "--out", tmp_path / "run")
    assert asked.code == 2 and "Install it, pip install 'vitrail[track]', or" in asked.err
    assert not (tmp_path / "run").exists()


def test_a_misspelt_tracker_is_told_its_name(vitrail, tmp_path):
    asked = vitrail("train", "digits", "--track.report_to", "tensorbord", "--out", tmp_path / "run")
    assert asked.code == 2 and asked.err == (
        "vitrail: the command line: track.report_to[0] must be one of tensorboard, wandb, mlflow, trackio. Got "
        "'tensorbord' "
        "(text). Did you mean tensorboard?\n"
    )


def test_a_run_may_be_tracked_from_a_resume_on_without_another_bit(vitrail, flowers, tmp_path):
    run = tmp_path / "run"
    assert vitrail("train", flowers, *TINY, "--steps", 4, "--out", run).code == 0
    (run / "report.html").unlink()
    again = vitrail("train", "--resume", run, "--track.report_to", "tensorboard")
    assert again.code == 0 and "The results stay the same bit for bit." in again.err
    assert 'report_to = ["tensorboard"]' in (run / "plan.toml").read_text()
    assert curves(run / "tensorboard")["final/val_accuracy"]


def test_results_csv_has_the_figures_of_both_splits(run_folder):
    with (run_folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for split in ("val", "test"):
        path = run_folder / f"metrics-{split}.json"
        whole = {row["figure"]: row for row in rows if (row["split"], row["of"]) == (split, "")}
        assert bool(whole) == path.is_file()
        if whole:
            known = json.loads(path.read_text())
            assert float(whole["accuracy"]["value"]) == known["accuracy"]
            assert [float(whole["accuracy"][end]) for end in ("low", "high")] == known["accuracy_interval"]
    assert rows
