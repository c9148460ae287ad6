"""Small runs of two classes, of several and of labels, with everything that a first page reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from unit.evaluate import test_multilabel_metrics
from unit.evaluate.test_decisions import CLASSES, answered, table_of
from unit.report.report_sample import facts_of, predictions_of
from vitrail.evaluate.decisions import Decisions, fit_decisions
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, TaskPredictions
from vitrail.evaluate.task_metrics import compute_metrics
from vitrail.evaluate.thresholds import DecisionSettings
from vitrail.report import image_selection, provenance, thumbnails

HASH, FINGERPRINT = "ab" * 32, "cd" * 32


def two_classes(
    seed: int = 5, n: int = 1000, positive: str = "defect"
) -> tuple[ClassificationPredictions, ClassificationPredictions, Decisions]:
    """Answers on test and validation pictures, and what was decided on the latter."""
    outputs, targets = answered(n=n, seed=seed)
    settings = DecisionSettings(positive=positive, threshold_rule="youden") if positive else DecisionSettings()
    decided = fit_decisions("classification", settings, CLASSES, outputs, targets)
    valid = table_of(decided, outputs, targets)
    fresh, truth = answered(n=n, seed=seed + 1)
    test = table_of(decided, fresh, truth)
    assert isinstance(valid, ClassificationPredictions) and isinstance(test, ClassificationPredictions)
    return test, replace(valid, split="val"), decided


def labels(n: int = 400) -> tuple[MultilabelPredictions, MultilabelPredictions]:
    """Three labels on test and validation pictures; one is rare."""
    return test_multilabel_metrics.drawn(n), replace(test_multilabel_metrics.drawn(n, seed=1), split="val")


def stored(
    folder: Path,
    test: TaskPredictions,
    valid: TaskPredictions | None = None,
    decided: Decisions | None = None,
    groups: np.ndarray | None = None,
    sizes: int = 8,
) -> Path:
    """A run folder with these answers, in place."""
    (folder / "predictions").mkdir(parents=True)
    for table in [test] if valid is None else [test, valid]:
        table.write_csv(folder / "predictions" / f"{table.split}.csv")
    by = decided or Decisions()
    known, figures = facts_of(predictions_of()), compute_metrics(test, None, groups)
    task = "multilabel" if isinstance(test, MultilabelPredictions) else "classification"
    assert isinstance(test, ClassificationPredictions | MultilabelPredictions)
    own = {"metrics": (), "task": task, f"{'label_' if task == 'multilabel' else ''}metrics": (figures,)}
    environment = provenance.to_entries({"cpu": "a slow one", "versions": '{"vitrail": "0.1.0"}'})
    more = {"classes": test.classes, "decisions": by, "environment": environment, "created": "2026-11-22 06:00"}
    provenance.write_facts(folder, provenance.ReportFacts(**{**vars(known), **own, **more}))
    chosen = image_selection.select_with_worst(test, by, thumbnails.MAX_THUMBNAILS)
    images = np.random.default_rng(0).integers(0, 256, (len(chosen), sizes, sizes, 1), dtype=np.uint8)
    thumbnails.save_thumbnails(folder, images, chosen, np.ones(len(chosen)))
    provenance.save_groups(folder, groups)
    write(folder / "check.json", CHECK)
    write(folder / "data.json", {"fingerprint": FINGERPRINT})
    write(folder / "model" / "manifest.json", {"files": {"model.safetensors": {"size": 1, "sha256": HASH}}})
    write(folder / "cost.json", {"predicted": None, "actual": {"evaluation": 4.0}})
    return folder


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


CHECK = {
    "name": "zoo",
    "pictures": 120,
    "looked_at": 100,
    "bad": [{"id": "x.png", "reason": "torn"}],
    "stops": [],
    "concerns": [
        {
            "code": "near-copies-in-train-and-test",
            "severity": "warning",
            "text": "8 pictures of test are nearly the same as one in train.",
            "advice": "Leave <them> out.",
            "pictures": ["1.png", "2.png"],
            "groups": [["1.png", "2.png"], *([f"{k}.png", f"{k}-again.png"] for k in range(3, 10))],
        },
        {
            "code": "odd-shapes",
            "severity": "hint",
            "text": "2 pictures are long.",
            "advice": "",
            "pictures": ["a.png", "b.png"],
        },
    ],
    "class_counts": {"train": {"cat": 40, "dog": 20}, "val": {"cat": 0, "dog": 0}, "test": {"cat": 10, "dog": 9}},
    "smallest": {"height": 20, "width": 24, "id": "a.png"},
    "largest": {"height": 200, "width": 240, "id": "b.png"},
    "stored_values": {"uint8": 120},
    "formats": {"PNG": 118, "JPEG": 2},
    "remarks": {"turned by EXIF": 3},
    "notes": ["Nothing else is known."],
}
