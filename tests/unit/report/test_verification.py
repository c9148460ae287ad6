"""Every stored figure follows from the stored predictions, and what was changed is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import vitrail
from good_parts import draw_parts, save_weights
from quick_fits import QUICK, digits
from vitrail.errors import DamagedFileError, UsageError
from vitrail.files.checksums import sha256
from vitrail.report.verification import VERIFICATION_FILE, verify_run

IMAGES, LABELS = digits(120)
GROUPS = np.arange(len(IMAGES)) // 4
SOURCES = {
    "classification": (IMAGES, np.array(["odd", "even"])[LABELS % 2]),
    "multilabel": (IMAGES, np.stack([LABELS % 2, LABELS > 4], 1).astype(float)),
    "regression": (IMAGES, LABELS * 1.5 + 300),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        task: vitrail.fit(source, task=task, out=folder / task, quiet=True, **QUICK).path
        for task, source in SOURCES.items()
    }


@pytest.mark.parametrize("task", SOURCES)
def test_all_figures_of_every_task_follow_exactly(task, runs):
    found = vitrail.open(runs[task]).verify()
    stored = json.loads((runs[task] / VERIFICATION_FILE).read_text(encoding="utf-8"))
    assert found.figures == stored["figures"] > 20 and found.splits == ("val", "test") and found.largest < 1e-12
    assert stored["files"]["model/model.safetensors"] == sha256(runs[task] / "model" / "model.safetensors")
    assert {"predictions/test.csv", "metrics-val.json", "plan.toml", "report.json"} < set(stored["files"])


@pytest.fixture
def copied(runs, tmp_path) -> Path:
    return Path(shutil.copytree(runs["classification"], tmp_path / "run", ignore=lambda *_: [VERIFICATION_FILE]))


def test_a_figure_that_does_not_follow_is_named(copied):
    facts = json.loads((copied / "report.json").read_text(encoding="utf-8"))
    facts["metrics"][1]["accuracy"] += 0.01
    (copied / "report.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"does not verify\. test accuracy: 0\.\d+ is stored, and 0\.\d+ fol"):
        verify_run(copied)
    assert not (copied / VERIFICATION_FILE).exists()


def test_an_answer_that_was_edited_is_named(copied):
    path = copied / "predictions" / "test.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = lines[1].split(",")
    cells[4] = "odd" if cells[4] == "even" else "even"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n", encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"predictions/test\.csv: the answers do not follow from"):
        verify_run(copied)


def test_files_that_changed_since_the_last_time_are_named(copied):
    assert verify_run(copied).changed == ()
    before = verify_run(copied)
    (copied / "splits.csv").write_text("changed", encoding="utf-8")
    after = verify_run(copied)
    assert after.changed == ("splits.csv",) and after.sha256 != before.sha256


def test_groups_are_counted_again(tmp_path):
    frame = {"images": IMAGES, "labels": SOURCES["classification"][1]}
    run = vitrail.ViTClassifier(minutes=None, steps=3, device="cpu", settings=QUICK["settings"], out=tmp_path / "run")
    run.fit(frame["images"], frame["labels"], groups=GROUPS)
    found = verify_run(run.run_.path)
    assert found.largest < 1e-12 and "groups.npy" in found.files


def test_figures_of_good_parts_follow_but_for_those_of_pixels_which_need_the_maps(tmp_path):
    parts, start = draw_parts(tmp_path / "parts"), save_weights(tmp_path / "start")
    run = vitrail.fit(parts, task="anomaly", weights=start, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.metrics.to_json()["pixel_auroc"] > 0 and verify_run(run.path).largest < 1e-12


def test_folds_are_verified_one_by_one(copied):
    shutil.move(copied / "model", copied / "fold-0")
    with pytest.raises(UsageError, match=r"has no model of its own\. Verify one of its folds, such as .*fold-0"):
        verify_run(copied)
