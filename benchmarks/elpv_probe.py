"""A linear probe on real weights: are DINOv2 features of solar cells, as Vitrail computes them, as good as published?

    pip download --no-deps -d DIR elpv-dataset && unzip DIR/elpv_dataset-*.whl -d DIR
    python benchmarks/elpv_probe.py DINOV2 DIR/elpv_dataset/data

DINOV2 is a folder that benchmarks/making/real_dinov2.py makes. ELPV (Buerhop-Lutz et al. 2018) has 2,624 solar cells
with the chance that each is defective, by experts. Features of whole pictures at 168 pixels, standardised, logistic
regression with C = 0.1; five folds, stratified by label and kind of cell; defective means a chance above one half.
Writes benchmarks/results/elpv-dinov2-probe.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitrail.checkpoints.load import LoadOptions
from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.services.open_model import ModelInfo, find_model

RESULT = Path(__file__).parent / "results" / "elpv-dinov2-probe.json"
SIDE, BATCH, FOLDS = 168, 32, 5
EXPECTED = {"class": (0.861, 0.918), "class and mean": (0.865, 0.919)}
"""Accuracy and area under the ROC curve of the same probe on transformers' features."""


def main() -> None:
    """Features, probes, figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    options = parser.parse_args()
    if options.data is None:
        print("elpv_probe: left out, needs a folder with DINOv2 and the ELPV pictures; see --help")
        return
    paths, defective, kinds = labels(options.data)
    began = time.perf_counter()
    found = find_model(str(options.dinov2), LoadOptions(image_size=(SIDE, SIDE), match="transformers"))
    tokens = features(found, paths)
    seconds = time.perf_counter() - began
    strata = [f"{label} {kind}" for label, kind in zip(defective, kinds, strict=True)]
    rows = {name: probe(numbers, defective, strata) for name, numbers in tokens.items()}
    for name, row in rows.items():
        row["expected"] = dict(zip(("accuracy", "auroc"), EXPECTED[name], strict=True))
        print(f"{name}: accuracy {row['accuracy']:.3f}, AUROC {row['auroc']:.3f}; expected {EXPECTED[name]}")
    facts = {"pictures": len(paths), "side": SIDE, "folds": FOLDS, "seconds_for_features": round(seconds, 1)}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**facts, "probes": rows}, indent=1) + "\n")


def labels(data: Path) -> tuple[list[Path], np.ndarray, list[str]]:
    """Paths, whether each cell is defective, and its kind (mono, poly), from labels.csv."""
    rows = [line.split() for line in (data / "labels.csv").read_text().splitlines() if line.strip()]
    chances = np.array([float(chance) for _, chance, _ in rows])
    return [data / name for name, _, _ in rows], (chances > 0.5).astype(int), [kind for _, _, kind in rows]


def features(found: ModelInfo, paths: list[Path]) -> dict[str, np.ndarray]:
    """The class token after the final norm [n, D], and beside it the mean of the patch tokens [n, 2D]."""
    parts = []
    whole = replace(found.spec, fit="squash", crop_fraction=1.0)  # a defect may lie at the border of a cell
    with torch.inference_mode():
        for start in range(0, len(paths), BATCH):
            pictures = torch.stack([preprocess_image(path, whole) for path in paths[start : start + BATCH]])
            x = found.model.features(normalize(pictures, whole))["tokens"]  # [B, T, D]
            parts.append(torch.cat([x[:, 0], x[:, found.config.prefix :].mean(1)], -1).numpy())
            print(f"\r{min(start + BATCH, len(paths))} of {len(paths)} pictures", end="", flush=True)
    both = np.concatenate(parts)
    print()
    return {"class": both[:, : found.config.width], "class and mean": both}


def probe(numbers: np.ndarray, defective: np.ndarray, strata: list[str]) -> dict[str, object]:
    """Out-of-fold accuracy and area under the ROC curve, over all pictures and as means over the folds."""
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(numbers, strata))
    pipe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    chances = cross_val_predict(pipe, numbers, defective, cv=folds, method="predict_proba")[:, 1]
    right = (chances > 0.5) == (defective == 1)
    return {
        "accuracy": float(np.mean([right[rows].mean() for _, rows in folds])),
        "auroc": float(np.mean([roc_auc_score(defective[rows], chances[rows]) for _, rows in folds])),
        "accuracy_of_each_fold": [float(right[rows].mean()) for _, rows in folds],
    }


if __name__ == "__main__":
    main()
