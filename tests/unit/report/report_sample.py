"""A tiny run to report on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from vitrail.evaluate.metrics import compute_classification_metrics
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.report import provenance, thumbnails
from vitrail.report.provenance import ReportFacts, SplitCount

CLASSES = ("cat", "dog & <b>bold</b>", "fish")


def predictions_of(split: str = "test", n: int = 40, seed: int = 0) -> ClassificationPredictions:
    generator = np.random.default_rng(seed)
    targets = np.arange(n) % 3
    logits = generator.normal(size=(n, 3)) + 1.5 * np.eye(3)[targets]
    return ClassificationPredictions(
        paths=tuple(f"pictures/{i}.png" for i in range(n)),
        ids=tuple(map(str, range(n))),
        split=split,
        targets=targets,
        probabilities=np.exp(logits) / np.exp(logits).sum(1, keepdims=True),
        classes=CLASSES,
    )


def facts_of(predictions: ClassificationPredictions, splits: tuple[str, ...] = ("train", "val", "test")) -> ReportFacts:
    return ReportFacts(
        title="Three <animals>",
        source="zoo",
        counts=tuple(SplitCount(split=name, n=40, origin="official") for name in splits),
        classes=CLASSES,
        model="vit_pico_patch2_8",
        parameters=1_234_567,
        seconds=598.4,
        steps=2000,
        images_seen=128_000,
        images_per_second=2054.6,
        command="vitrail train zoo --minutes 10",
        plan='[data]\nsource = "zoo"  # asked for',
        reasons=provenance.to_entries({"recipe.steps": "812 images/s were measured"}),
        environment=provenance.to_entries({"PyTorch": "2.13.0"}),
        metrics=(compute_classification_metrics(predictions, samples=10),),
        notes=("Two pictures were skipped.",),
    )


def run_folder(folder: Path, split: str = "test") -> Path:
    """A folder with everything that the page reads."""
    predictions = predictions_of(split)
    (folder / "predictions").mkdir(parents=True)
    predictions.write_csv(folder / "predictions" / f"{split}.csv")
    provenance.write_facts(folder, facts_of(predictions, ("train", split)))
    chosen = thumbnails.select_class_images(predictions, 3)
    images = np.random.default_rng(0).integers(0, 256, (len(chosen), 8, 8, 1), dtype=np.uint8)
    thumbnails.save_thumbnails(folder, images, chosen, np.ones(len(chosen)))
    lines = [{"step": s, "loss": 2.0 / s, "lr": 0.01, "images_per_second": 800.0} for s in range(1, 30)]
    lines += [{"step": 10, "val_accuracy": 0.8, "val_loss": 0.5}, {"step": 20, "val_accuracy": 0.9, "val_loss": 0.4}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
