"""Run folders that were never trained: a tiny model, a plan, and predictions drawn for a task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from exportable import spec_of
from kinds import TINY
from vitrail import config
from vitrail.checkpoints import bundle_weights
from vitrail.evaluate.decisions import DECISIONS_KEY, Decisions, fit_decisions, predictions_from_outputs
from vitrail.evaluate.thresholds import DecisionSettings
from vitrail.model.vit import create_model
from vitrail.train.plan import Plan

NAMES = {"multilabel": ("bars", "nodule"), "regression": ("power",), "classification": ("sound", "defect")}


def draw_outputs(task: str, n: int, seed: int, K: int = 2, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Logits or numbers [n, K] that mostly fit the targets, some of which are unknown."""
    generator = np.random.default_rng(seed)
    if task == "regression":
        targets = generator.normal(300, 20, (n, 1))
        outputs = (targets + generator.normal(0, 5, (n, 1))).astype(np.float32)
        targets[generator.random((n, 1)) < 0.1] = np.nan
        return outputs, targets
    if task == "multilabel":
        there = generator.random((n, K)) < share
        outputs = (generator.normal(0, 1.5, (n, K)) + 3 * there - 2.5).astype(np.float32)
        targets = there.astype(np.float32)
        targets[generator.random((n, K)) < 0.1] = np.nan
        return outputs, targets
    weights = [(1 - share) / (K - 1)] * (K - 1) + [share]
    targets = generator.choice(K, n, p=weights)
    outputs = generator.normal(0, 1.2, (n, K))
    outputs[np.arange(n), targets] += 1.5
    outputs[:, -1] += np.log(0.3 / (0.7 / (K - 1)))  # as a training with 30 % of the last class would weigh it
    targets[generator.random(n) < 0.05] = -1
    return outputs.astype(np.float32), targets


def table_of(task: str, names: tuple[str, ...], drawn: tuple[np.ndarray, np.ndarray], decided: Decisions, split: str):
    """The table that a training would store."""
    rows = [(f"{number}.png", str(number)) for number in range(len(drawn[0]))]
    return predictions_from_outputs(task, drawn[0], names, None, rows, split, drawn[1], decisions=decided)


def store_run(
    folder: Path, task: str = "classification", n: int = 400, settings: DecisionSettings | None = None, K: int = 2,
    share: float = 0.3, names: tuple[str, ...] = (), **info: Any,
) -> Path:  # fmt: skip
    """A run folder as a training leaves it, as far as decisions go; val has n images and test as many."""
    names = names or (tuple(f"grade{k}" for k in range(K)) if K > 2 else NAMES[task])
    settings = settings or DecisionSettings()
    drawn = {split: draw_outputs(task, n, seed, len(names), share) for seed, split in enumerate(("val", "test"))}
    decided = fit_decisions(task, settings, names, *drawn["val"])
    shape = dataclasses.replace(TINY, channels=1, outputs=len(names))
    notes = {"data": {"source": "drawn", "fingerprint": "f" * 64}, DECISIONS_KEY: config.write(decided), **info}
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_text(config.to_toml(Plan(decisions=settings), {}))
    bundle_weights.save_bundle(folder / "model", create_model(shape, seed=0).eval(), spec_of(shape), task, names, notes)
    (folder / "predictions").mkdir()
    for split, each in drawn.items():
        table_of(task, names, each, decided, split).write_csv(folder / "predictions" / f"{split}.csv")
    return folder
