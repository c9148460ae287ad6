"""Do class weights pay? Fashion-MNIST made imbalanced, fixed steps, paired seeds, every weighting from the same start.

    python benchmarks/imbalance.py                      # about 20 minutes on two cores
    python benchmarks/imbalance.py --seeds 0 --ratios 10

A rule for plans is chosen by this, so the official test is not looked at: 5,000 training pictures are held out, and
class k keeps the first LARGEST * ratio ** (-k / 9) of its others, in an order of classes and pictures by the seed.
Two figures on what is held out: balanced accuracy, which is the mean recall, and the accuracy that pictures in the
training's own proportions would give, which is the recalls weighted by them. Rows that are there are not run again.
Writes benchmarks/results/imbalance.json.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from making.records import Results, Row, number, paired_difference

from vitrail.data.loader import InMemoryImageStore
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.evaluate.inference import InferenceSettings, run_inference
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.randomness import permutation
from vitrail.spec import ImageSpec
from vitrail.train.loop import build_train_state, train_steps
from vitrail.train.plan import ComputeSettings, Plan, Recipe

KINDS = ("none", "root", "balanced")
HELD_OUT = 5000
MODEL = "vit_femto_patch4_28"
SPEC = ImageSpec(height=28, width=28, channels=1, mean=(0.286,), std=(0.353,))


def main() -> None:
    """Run what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ratios", type=float, nargs="+", default=[10.0, 100.0, 3.0])
    parser.add_argument("--largest", type=int, nargs="+", default=[4500])
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    source = open_source("fashion-mnist", DataSettings(source="fashion-mnist"))
    results = Results("imbalance")
    for largest in options.largest:
        for ratio in options.ratios:
            for seed in options.seeds:
                for kind in KINDS:
                    key = {"largest": largest, "ratio": ratio, "steps": options.steps, "seed": seed, "weights": kind}
                    row = results.row(key, partial(measure, source, largest, ratio, options.steps, seed, kind))
                    figures = f"balanced {number(row, 'balanced_accuracy'):.4f}, own {number(row, 'accuracy'):.4f}"
                    print(f"{largest} {ratio:g} seed {seed} {kind}: {figures}", flush=True)
    results.write({"comparisons": comparisons(results.rows)})


def measure(source: Source, largest: int, ratio: float, steps: int, seed: int, kind: str) -> Row:
    """Train once on imbalanced pictures and measure on those that are held out, which are balanced."""
    pool = source.splits["train"]
    shuffled = pool[permutation(seed, "held out", 0, len(pool))]
    held_out = np.sort(shuffled[:HELD_OUT])
    rows = imbalanced_rows(source.targets, shuffled[HELD_OUT:], largest, ratio, seed)
    recipe = Recipe(
        steps=steps,
        batch_size=64,
        patch_keep_rate=0.5,
        patch_keep_until=0.7,
        crop_padding=1,
        flip=True,
        class_weights=kind,
    )
    plan = Plan(
        seed=seed,
        image=SPEC,
        model=replace(config_from_name(MODEL), channels=1, outputs=10),
        recipe=recipe,
        compute=ComputeSettings(threads=1),
    )
    learner = build_train_state(create_model(plan.model, seed), plan)
    began = time.perf_counter()
    for _ in train_steps(learner, resident(source, rows), source.targets[rows], plan):
        pass
    settings = InferenceSettings(batch_size=250)
    answers = run_inference(learner.model, resident(source, held_out), held_out, SPEC, settings).argmax(1)
    counts = np.bincount(source.targets[rows], minlength=len(source.classes))
    return {**figures(answers, source.targets[held_out], counts), "seconds": round(time.perf_counter() - began, 1)}


def imbalanced_rows(targets: np.ndarray, pool: np.ndarray, largest: int, ratio: float, seed: int) -> np.ndarray:
    """Rows of the pool, sorted: from each class fewer by the same factor than from the one before it."""
    classes = np.unique(targets)
    order = classes[permutation(seed, "which class is rare", 0, len(classes))]
    shuffled = pool[permutation(seed, "which pictures", 0, len(pool))]
    kept = []
    for place, number_of in enumerate(order.tolist()):
        count = max(1, round(largest * ratio ** (-place / (len(classes) - 1))))
        kept.append(shuffled[targets[shuffled] == number_of][:count])
    return np.sort(np.concatenate(kept))


def resident(source: Source, rows: np.ndarray) -> InMemoryImageStore:
    """Pictures in memory."""
    assert isinstance(source.images, np.ndarray)
    return InMemoryImageStore(torch.from_numpy(source.images[rows])[:, None], rows)


def figures(answers: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> Row:
    """Balanced accuracy, accuracy under the proportions of `counts`, and recall of the rarest class."""
    recalls = np.array([(answers[targets == number_of] == number_of).mean() for number_of in range(len(counts))])
    return {
        "balanced_accuracy": float(recalls.mean()),
        "accuracy": float((recalls * counts / counts.sum()).sum()),
        "rarest_recall": float(recalls[counts.argmin()]),
        "pictures": int(counts.sum()),
    }


def comparisons(rows: list[Row]) -> list[Row]:
    """Each weighting minus none, paired by seed."""
    found = []
    for largest, ratio, steps in sorted({(row["largest"], row["ratio"], row["steps"]) for row in rows}, key=str):
        case = {"largest": largest, "ratio": ratio, "steps": steps}
        here = [row for row in rows if all(row[name] == value for name, value in case.items())]
        by_kind = {kind: {row["seed"]: row for row in here if row["weights"] == kind} for kind in KINDS}
        seeds = sorted(set.intersection(*map(set, by_kind.values())), key=str)
        for kind in KINDS[1:]:
            for name in ("balanced_accuracy", "accuracy"):
                pairs = [[number(by_kind[which][seed], name) for seed in seeds] for which in (kind, "none")]
                if seeds:
                    found.append({**case, "weights": kind, "figure": name, **paired_difference(*pairs)})
    return found


if __name__ == "__main__":
    main()
