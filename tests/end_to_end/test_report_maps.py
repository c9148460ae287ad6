"""Maps in the report: made by the training, drawn from what is stored, whatever becomes of model and pictures."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import vitrail as package
from end_to_end.conftest import TINY, draw_flowers
from vitrail.evaluate.predictions import read_predictions_csv
from vitrail.report import saliency

HEADING = "Where its answers come from"


def test_the_report_of_a_training_shows_maps_and_they_are_those_of_explain(run_folder, flowers):
    assert HEADING in (run_folder / "report.html").read_text(encoding="utf-8")
    kept = saliency.load_explanations(run_folder)
    answers = read_predictions_csv(run_folder / "predictions" / "test.csv", "classification")
    run = package.open(run_folder)
    assert len(kept.rows) + len(kept.about.nothing) > 0
    for row, of, values in zip(kept.rows.tolist(), kept.targets.tolist(), kept.values, strict=True):
        (one,) = run.explain(answers.paths[row], target=answers.classes[of])
        np.testing.assert_allclose(one.heatmap.values[0], values, atol=1e-6)
        assert one.heatmap.method == kept.about.method


def test_a_run_whose_model_and_pictures_are_gone_reports_the_same_bytes(vitrail, tmp_path):
    (tmp_path / "pictures").mkdir()
    draw_flowers(tmp_path / "pictures")
    run = tmp_path / "run"
    assert vitrail("train", tmp_path / "pictures", *TINY, "--steps", "4", "--out", run).code == 0
    written = (run / "report.html").read_bytes()
    assert HEADING.encode() in written
    for gone in (tmp_path / "pictures", run / "model", run / "checkpoints"):
        shutil.rmtree(gone)
    (run / "report.html").unlink()
    assert vitrail("report", run).code == 0
    assert (run / "report.html").read_bytes() == written


def test_of_folds_each_map_is_of_the_model_that_has_not_seen_the_picture(vitrail, flowers, tmp_path):
    folder = tmp_path / "folds"
    assert vitrail("train", flowers, *TINY, "--folds", "2", "--steps", "4", "--out", folder).code == 0
    assert HEADING in (folder / "report.html").read_text(encoding="utf-8")
    kept, answers = (
        saliency.load_explanations(folder),
        read_predictions_csv(folder / "predictions" / "out-of-fold.csv", "classification"),
    )
    held = [
        set(read_predictions_csv(folder / f"fold-{k}" / "predictions" / "test.csv", "classification").ids)
        for k in range(2)
    ]
    for row, of, values in zip(kept.rows.tolist(), kept.targets.tolist(), kept.values, strict=True):
        (fold,) = [k for k in range(2) if answers.ids[row] in held[k]]
        (one,) = package.open(folder / f"fold-{fold}").explain(Path(answers.paths[row]), target=answers.classes[of])
        np.testing.assert_allclose(one.heatmap.values[0], values, atol=1e-6)
