"""Good pictures only: solar cells and garments by a bank of patches, and whether its promise of false alarms holds.

    python benchmarks/anomaly.py DINOV2 ELPV        # see elpv.py for both folders; Fashion-MNIST from Debian
    python benchmarks/anomaly.py DINOV2 ELPV --parts cells tokens

cells: of each kind (mono, poly) 160 cells that the experts call certainly sound (a chance of 0) are good and 60 that
they call certainly defective (1) are defects, all drawn by chance and dealt into five folds in turn. The bank of a fold
is made of 10, 50, 100 or all 128 good cells of the other folds, and tested on the good cells and the defects of the
fold. The plan is that of `vitrail train CELLS --task anomaly --weights DINOV2`, which is run once on ten cells and
chooses 224 pixels, and the same with --image-size 448. The features of every cell are computed once, in float32 as a
training does, and kept under --folder; banks, scores and decisions come from the functions of the commands.
every: the same from 200 and from all certainly sound cells of a kind, tested on all cells of the fold; 224 pixels.
tokens: the same folds by the class token alone: cosine to the nearest good cell, and scikit-learn's one-class SVM.
reconstruction: the same folds by a masked autoencoder of our own, trained on the good cells that no fold has.
promise: 200 drawings of 10, 30 and 100 good cells, alone and in lots of cells that look alike; banks with one defect.
coreset: banks of fewer patches beside all of them. time: seconds of a training, and scores beside features alone.
classes: Fashion-MNIST, each class as the good one, against the others of the official test pictures, by DINOv2 and by
weights of our own, pre-trained on the training pictures without labels.

Rows and features are kept. Writes benchmarks/results/anomaly.json and .md.
"""

from __future__ import annotations

import argparse
import csv
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from elpv import read_cells
from making.reconstruction import fit_autoencoder, score_reconstruction
from making.records import RESULTS, VITRAIL, Results, Row, commit, number
from sklearn.cluster import KMeans
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM
from torch import nn

from vitrail.data.preprocess import preprocess_image
from vitrail.data.source import ImageInput
from vitrail.data.sources.builtin import FASHION, open_fashion_mnist
from vitrail.evaluate.decisions import Decisions, fit_anomaly_decisions
from vitrail.evaluate.inference import FeatureExtractor, InferenceSettings, cast_weights, forward_batch, inference_mode
from vitrail.evaluate.thresholds import DecisionSettings
from vitrail.files.safetensors_file import load_tensors
from vitrail.model.config import ViTConfig
from vitrail.model.patch_bank import mean_largest, nearest_distances, normalize_patches
from vitrail.model.vit import ViT
from vitrail.predict.predictor import Predictor
from vitrail.spec import ImageSpec
from vitrail.stats.intervals import proportion_interval
from vitrail.train.calibration_file import find_odd_images
from vitrail.train.finetune.coreset import choose_patches, fill_bank, pack_patches, sample_images
from vitrail.train.finetune.finetune_planner import BANK_DEPTH, BANK_SIZE
from vitrail.train.finetune.weights import BANK_ROWS, StartCheckpoint, build_start_model, open_checkpoint
from vitrail.train.plan import FinetuneSettings
from vitrail.train.run_folder import RunFolder

FOLDS, KINDS, GOOD, DEFECTS, ALPHAS = 5, ("mono", "poly"), 160, 60, (0.01, 0.05)
SMALL, LARGE = 224, 448
COUNTS = {10: (SMALL, LARGE), 100: (SMALL, LARGE), 0: (SMALL, LARGE), 50: (SMALL,)}
"""Numbers of good cells in a bank, in the order of measuring, 0 is all of the other folds; and pixels."""
EVERY = (200, 0)
DRAWINGS, LOTS, BATCH = 200, 40, 4
SPOILERS = 10
"""Defects that a bank may be given by mistake."""
FRACTIONS = (1.0, 0.25, 0.1, 0.05)
"""Of all patches, that a smaller bank has."""
GARMENTS, GARMENT_SIDE, GARMENT_MINUTES = 200, 112, 3
"""Good pictures of a class, pixels that DINOv2 is shown, and minutes of pre-training."""
RECONSTRUCTION_SIDE, RECONSTRUCTION_SECONDS = 112, 120


def main() -> None:
    """Measure the parts that are asked for and missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("data", type=Path, nargs="?", help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.data is None:
        print("anomaly: left out, needs a folder with DINOv2 and the ELPV pictures; see --help")
        return
    torch.set_grad_enabled(False)
    results, world = Results("anomaly"), World(options.dinov2, options.data, options.folder)
    for part in options.parts:
        for key, make in PARTS[part](world):
            key = {"part": part, **key}
            if results.find(key) is None:
                print(results.row(key, make), flush=True)
    results.write({"commit": commit()})
    (RESULTS / "anomaly.md").write_text(tables(results.rows), encoding="utf-8")
    print(tables(results.rows))


class World:
    """The cells, their folds, the plan of the command, and the features of every cell."""

    def __init__(self, dinov2: Path, data: Path, folder: Path):
        self.dinov2, self.data, self.folder = dinov2, data, folder
        cells = [cell for cell in read_cells(data / "labels.csv") if cell[1] in (0.0, 1.0)]
        chances, kinds = np.array([chance for _, chance, _ in cells]), np.array([kind for _, _, kind in cells])
        generator = np.random.default_rng(7)
        self.paths: dict[str, list[Path]] = {kind: [] for kind in KINDS}
        self.others: dict[str, tuple[list[Path], list[Path]]] = {}  # good cells and defects that no fold has
        for kind in KINDS:
            parts = []
            for chance, most in ((0.0, GOOD), (1.0, DEFECTS)):
                drawn = generator.permutation(np.flatnonzero((kinds == kind) & (chances == chance)))
                paths = [data / cells[row][0] for row in drawn]
                self.paths[kind] += paths[:most]
                parts.append(paths[most:])
            self.others[kind] = (parts[0], parts[1])

    def plan(self, count: int = 10, *words: object) -> RunFolder:
        """The run of the command on so many good cells of the first kind, with further words."""
        run = self.folder / "-".join(map(str, ["anomaly", count, *words[1:]]))
        if not (run / "model").is_dir():
            self.train(run, count, *words)
        return RunFolder(run)

    def train(self, run: Path, count: int, *words: object) -> float:
        """Seconds of the command on the first good cells of the first kind."""
        table = run.with_suffix(".csv")
        table.parent.mkdir(parents=True, exist_ok=True)
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["path", "state"])
            writer.writerows([str(path.relative_to(self.data)), "good"] for path in self.paths[KINDS[0]][:count])
        command = [VITRAIL, "train", table, "--data-root", self.data, "--task", "anomaly", "--weights", self.dinov2]
        began = time.perf_counter()
        subprocess.run([*map(str, [*command, *words, "--out", run])], check=True, capture_output=True)
        return time.perf_counter() - began

    def features(self, kind: str, side: int) -> tuple[np.ndarray, ViTConfig]:
        """The patch features of the cells of a kind, float16 [n, N, P], and the shape of the model."""
        shape = replace(self.plan().read_plan().model, image_size=(side, side))
        return self.features_by(shape, self.paths[kind], f"{kind}-{side}"), shape

    def features_by(self, shape: ViTConfig, pictures: Sequence[ImageInput], name: str) -> np.ndarray:
        """The patch features of pictures by DINOv2 in this shape."""
        plan, (height, width) = self.plan().read_plan(), shape.image_size
        file = self.folder / f"anomaly-{name}-{shape.depth}-{shape.pool_blocks}.npy"

        def make_model() -> nn.Module:
            return FeatureExtractor(build_start_model(open_checkpoint(str(self.dinov2)), shape, plan.finetune))

        return compute_features(make_model, replace(plan.image, height=height, width=width), pictures, file)

    def every_cell(self, kind: str) -> tuple[np.ndarray, ViTConfig, np.ndarray, np.ndarray]:
        """Features of all cells of a kind, the shape, and rows of the good ones and of the defects: first those of
        `paths`."""
        features, shape = self.features(kind, SMALL)
        good, defects = self.others[kind]
        more = self.features_by(shape, [*good, *defects], f"{kind}-others-{SMALL}")
        rows = np.arange(len(features), len(features) + len(more))
        of_good = np.concatenate([np.arange(GOOD), rows[: len(good)]])
        of_defects = np.concatenate([np.arange(GOOD, len(features)), rows[len(good) :]])
        return np.concatenate([features, more]), shape, of_good, of_defects

    def tokens(self, kind: str) -> np.ndarray:
        """The class tokens of the cells of a kind after the last block and the final norm, [n, D], of length 1."""
        plan, file = self.plan().read_plan(), self.folder / f"anomaly-{kind}-tokens.npy"

        def make_model() -> nn.Module:
            checkpoint = open_checkpoint(str(self.dinov2))
            shape = replace(plan.model, depth=checkpoint.config.depth, image_size=(SMALL, SMALL))
            return ClassToken(build_start_model(checkpoint, shape, plan.finetune))

        spec = replace(plan.image, height=SMALL, width=SMALL)
        tokens = compute_features(make_model, spec, self.paths[kind], file)
        return tokens / np.linalg.norm(tokens.astype(np.float32), axis=1, keepdims=True)


def bank_cells(fold: int, count: int, good: int = GOOD) -> np.ndarray:
    """So many good cells of the other folds, each fold from another place on; 0 for all of them."""
    others = np.flatnonzero(np.arange(good) % FOLDS != fold)
    return np.roll(others, -fold * len(others) // FOLDS)[: count or None]


def tested_cells(fold: int) -> tuple[np.ndarray, np.ndarray]:
    """The good cells and the defects of a fold."""
    return np.arange(fold, GOOD, FOLDS), GOOD + np.arange(fold, DEFECTS, FOLDS)


class ClassToken(nn.Module):
    """A ViT that answers with its class token."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [B, C, H, W] to tokens [B, D]."""
        return self.model.features(images)["tokens"][:, 0]


def compute_features(
    make_model: Callable[[], nn.Module], spec: ImageSpec, pictures: Sequence[ImageInput], file: Path
) -> np.ndarray:
    """The answers of a model in float32 to every picture, kept in 16 bits in a file that grows batch by batch."""
    done_file = file.with_suffix(".done")
    done = int(done_file.read_text()) if done_file.is_file() else 0
    if done == len(pictures):
        return np.load(file, mmap_mode="r")
    model, settings = make_model().eval(), InferenceSettings()
    found: np.ndarray | None = np.load(file, mmap_mode="r+") if done else None
    with inference_mode(model):
        while done < len(pictures):
            images = torch.stack([preprocess_image(each, spec) for each in pictures[done : done + BATCH]])
            answers = forward_batch(model, images, spec, settings)[0].numpy()
            if found is None:
                shape = (len(pictures), *answers.shape[1:])
                found = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
            found[done : done + len(answers)] = answers
            done += len(answers)
            done_file.write_text(str(done))
    assert found is not None
    return found


# -- Cells


class Bank:
    """A bank of good pictures and the promise of its scores, as a training makes them."""

    def __init__(self, features: np.ndarray, rows: np.ndarray, shape: ViTConfig, groups: np.ndarray | None = None):
        self.shape, self.rows = shape, sample_images(np.sort(rows), shape, 0)
        good = torch.from_numpy(features[self.rows].astype(np.float32))
        labels = np.arange(len(self.rows)) if groups is None else groups[self.rows]
        self.patches, self.calibration = fill_bank(good, labels, shape, 0, torch.device("cpu"))
        self.groups = None if groups is None else labels

    def scores(self, features: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The score of each picture, [n]."""
        return score_cells(features, self.shape, self.patches, rows)

    def decisions(self, alpha: float) -> Decisions:
        """What is called a defect at this rate of false alarms."""
        return fit_anomaly_decisions(DecisionSettings(alpha=alpha), self.calibration, self.groups)


def score_cells(features: np.ndarray, shape: ViTConfig, bank: torch.Tensor, rows: np.ndarray) -> np.ndarray:
    """The score of each of some pictures by the patches of a bank, [n]."""
    batches = (features[rows[at : at + BATCH]].astype(np.float32) for at in range(0, len(rows), BATCH))
    patches = (normalize_patches(torch.from_numpy(batch), shape.pool_blocks) for batch in batches)
    return torch.cat([mean_largest(nearest_distances(x, bank)) for x in patches]).numpy()


def list_cells(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Every size, kind, number of good cells and fold."""
    for count, sides in COUNTS.items():
        for side in sides:
            for kind in KINDS:
                for fold in range(FOLDS):
                    key = {"side": side, "kind": kind, "good": count, "fold": fold}
                    yield key, partial(measure_cells, world, side, kind, count, fold)


def measure_cells(world: World, side: int, kind: str, count: int, fold: int) -> Row:
    """One bank on the good cells and the defects of its fold."""
    features, shape = world.features(kind, side)
    return measure_bank(features, shape, bank_cells(fold, count), *tested_cells(fold))


def list_everything(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """200 and all good cells of a kind, every fold."""
    for count in EVERY:
        for kind in KINDS:
            for fold in range(FOLDS):
                key = {"side": SMALL, "kind": kind, "good": count, "fold": fold}
                yield key, partial(measure_every_cell, world, kind, count, fold)


def measure_every_cell(world: World, kind: str, count: int, fold: int) -> Row:
    """One bank on all good cells and all defects of its fold."""
    features, shape, good, defects = world.every_cell(kind)
    tested = good[fold::FOLDS], defects[fold::FOLDS]
    return measure_bank(features, shape, good[bank_cells(fold, count, len(good))], *tested)


def measure_bank(
    features: np.ndarray, shape: ViTConfig, cells: np.ndarray, tested: np.ndarray, tested_defects: np.ndarray
) -> Row:
    """The bank of some cells on others."""
    began = time.perf_counter()
    bank = Bank(features, cells, shape)
    filled = time.perf_counter()
    good, defects = (bank.scores(features, rows) for rows in (tested, tested_defects))
    row: Row = {"pictures": len(bank.rows), "patches": len(bank.patches), "defects": len(defects)}
    row["auroc"] = area(good, defects)
    for alpha in ALPHAS:
        rules = bank.decisions(alpha)
        alarms, found = (rules.find_defects(rules.p_values(scores)) for scores in (good, defects))
        counts = {"false_alarms": int(alarms.sum()), "good": len(good), "recall": float(found.mean())}
        row[f"at_{alpha:g}"] = {"promised": rules.alpha, **counts}
    return row | {"fill_seconds": round(filled - began, 1), "score_seconds": round(time.perf_counter() - filled, 1)}


def area(good: np.ndarray, defects: np.ndarray) -> float:
    """The area under the ROC curve of scores that grow with the defect."""
    return float(roc_auc_score(np.repeat([0, 1], [len(good), len(defects)]), np.concatenate([good, defects])))


def list_tokens(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """The same banks of class tokens."""
    for count in sorted(COUNTS):
        for kind in KINDS:
            yield {"kind": kind, "good": count}, partial(measure_tokens, world, kind, count)


def measure_tokens(world: World, kind: str, count: int) -> Row:
    """Mean area over the folds by the nearest token and by a one-class SVM at scikit-learn's defaults."""
    tokens, areas = world.tokens(kind), {"nearest": [], "one_class_svm": []}
    for fold in range(FOLDS):
        parts, bank = tested_cells(fold), tokens[bank_cells(fold, count)]
        machine = OneClassSVM().fit(bank)
        areas["nearest"].append(area(*(1 - (tokens[rows] @ bank.T).max(1) for rows in parts)))
        areas["one_class_svm"].append(area(*(-machine.score_samples(tokens[rows]) for rows in parts)))
    return {name: statistics.fmean(each) for name, each in areas.items()}


def list_reconstructions(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Each kind."""
    for kind in KINDS:
        yield {"kind": kind}, partial(measure_reconstruction, world, kind)


def measure_reconstruction(world: World, kind: str) -> Row:
    """Mean area over the folds by the errors of an autoencoder that saw none of their cells."""
    side = RECONSTRUCTION_SIDE
    spec = replace(world.plan().read_plan().image, height=side, width=side)
    good, cells = (
        torch.stack([preprocess_image(path, spec)[:1] for path in paths])
        for paths in (world.others[kind][0], world.paths[kind])
    )
    autoencoder, steps = fit_autoencoder(good, RECONSTRUCTION_SECONDS)
    errors = score_reconstruction(autoencoder, cells)  # [n, N]
    ways = {"auroc": mean_largest(errors).numpy(), "auroc_of_all_patches": errors.mean(1).numpy()}
    row: Row = {"good": len(good), "seconds": RECONSTRUCTION_SECONDS, "steps": steps}
    for name, scores in ways.items():
        areas = [area(*(scores[rows] for rows in tested_cells(fold))) for fold in range(FOLDS)]
        row[name] = statistics.fmean(areas)
    return row


def compare_with_command(world: World) -> Row:
    """A bank of ten cells by the command, which then predicts a few cells, beside the stored features."""
    run = world.plan()
    features, shape = world.features(KINDS[0], run.read_plan().model.image_size[0])
    tested, answers = np.concatenate([part[-5:] for part in tested_cells(0)]), world.folder / "anomaly-answers.csv"
    paths = [world.paths[KINDS[0]][row] for row in tested]
    words = ["predict", run.path, *paths, "--to", answers]
    subprocess.run([VITRAIL, *map(str, words)], check=True, capture_output=True)
    with answers.open(newline="", encoding="utf-8") as file:
        said = np.array([float(row["score"]) for row in csv.DictReader(file)])
    return {
        "largest_difference": float(np.abs(said - Bank(features, np.arange(10), shape).scores(features, tested)).max())
    }


# -- The promise


def list_drawings(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Numbers of good cells, of lots, and banks with a defect."""
    for kind in KINDS:
        for count in (10, 30, 100):
            yield {"kind": kind, "drawn": "cells", "good": count}, partial(measure_promise, world, kind, count, False)
        for count in (10, 30):
            yield {"kind": kind, "drawn": "lots", "good": count}, partial(measure_promise, world, kind, count, True)
        yield {"kind": kind, "drawn": "one defect", "good": 30}, partial(measure_contamination, world, kind, 30)


class Distances:
    """Of the cells of a kind: the distance of every patch to the nearest one of every good cell and of some defects.

    So a bank of any of these, all patches kept, has its scores at once; `check` compares it with `Bank`.
    """

    def __init__(self, world: World, kind: str):
        self.features, self.shape = world.features(kind, SMALL)
        self.good, self.defects = np.arange(GOOD), GOOD + np.arange(DEFECTS)
        patches = normalize_patches(torch.from_numpy(self.features.astype(np.float32)), self.shape.pool_blocks)
        N = patches.shape[1]
        columns = GOOD + SPOILERS
        rows = patches[:columns].flatten(0, 1).T
        self.nearest = torch.stack(
            [1 - (one @ rows).view(N, columns, N).amax(-1) for one in patches]
        )  # [n, N, columns]
        means = patches[self.good].mean(1).numpy()
        self.lots = KMeans(LOTS, random_state=0, n_init=1).fit_predict(means)

    def scores(self, rows: np.ndarray, bank: np.ndarray) -> np.ndarray:
        """The scores of cells by a bank of others."""
        return mean_largest(self.nearest[torch.from_numpy(rows)][:, :, torch.from_numpy(bank)].amin(-1)).numpy()

    def calibration(self, bank: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """The score of every cell of a bank without the cells of its group."""
        cells, is_own = torch.from_numpy(bank), torch.from_numpy(groups[:, None] == groups)
        nearest = self.nearest[cells][:, :, cells].masked_fill(is_own[:, None], torch.inf).amin(-1)
        return mean_largest(nearest).numpy()

    def check(self) -> float:
        """The largest difference to the scores of `Bank` for 20 cells."""
        bank, others = self.good[:20], self.good[20:30]
        made = Bank(self.features, bank, replace(self.shape, bank_size=10**6))
        pairs = (
            (made.scores(self.features, others), self.scores(others, bank)),
            (made.calibration, self.calibration(bank, bank)),
        )
        return max(float(np.abs(one - other).max()) for one, other in pairs)


@cache
def distances(world: World, kind: str) -> Distances:
    """Those of a kind, once."""
    return Distances(world, kind)


def measure_promise(world: World, kind: str, count: int, is_grouped: bool) -> Row:
    """False alarms on the cells, or lots, that were not drawn, over many drawings."""
    found = distances(world, kind)
    lots = found.lots if is_grouped else found.good
    rates: dict[str, list[float]] = {f"{alpha:g}": [] for alpha in ALPHAS}
    alone: dict[str, list[float]] = {f"{alpha:g}": [] for alpha in ALPHAS}
    promised: dict[str, float] = {}
    for seed in range(DRAWINGS):
        drawn = np.random.default_rng([seed, count]).permutation(np.unique(lots))[:count]
        inside = np.isin(lots, drawn)
        bank, groups, others = found.good[inside], lots[inside], lots[~inside]
        scores = found.scores(found.good[~inside], bank)
        for ways, labels in ((rates, groups), (alone, bank)):
            calibration = found.calibration(bank, labels)
            for alpha in ALPHAS:
                rules = fit_anomaly_decisions(DecisionSettings(alpha=alpha), calibration, labels)
                called = rules.find_defects(rules.p_values(scores))
                ways[f"{alpha:g}"].append(statistics.fmean(called[others == lot].mean() for lot in np.unique(others)))
                if ways is rates:
                    promised[f"{alpha:g}"] = rules.alpha
            if not is_grouped:
                break
    errors = {alpha: statistics.stdev(each) / DRAWINGS**0.5 for alpha, each in rates.items()}
    row: Row = {"promised": promised, "false_alarms": {alpha: statistics.fmean(each) for alpha, each in rates.items()}}
    row |= {"standard_error": errors, "largest_difference_to_bank": found.check()}
    if is_grouped:
        row["false_alarms_without_groups"] = {alpha: statistics.fmean(each) for alpha, each in alone.items()}
    return row


def measure_contamination(world: World, kind: str, count: int) -> Row:
    """Banks of good cells and one defect beside those of the good cells alone."""
    found, places, clean, spoiled, recalls = distances(world, kind), [], [], [], []
    named, named_clean = [], []
    for seed in range(DRAWINGS):
        generator = np.random.default_rng([seed, count])
        good, spoiler = generator.permutation(found.good), GOOD + generator.integers(SPOILERS)
        bank = np.append(good[: count - 1], spoiler)
        calibration = found.calibration(bank, bank)
        places.append(int((calibration > calibration[-1]).sum()) + 1)
        named.append(count - 1 in find_odd_images(calibration))
        named_clean.append(len(find_odd_images(found.calibration(good[:count], good[:count]))) > 0)
        for areas, cells in ((clean, good[:count]), (spoiled, bank)):
            scores = [found.scores(rows, cells) for rows in (good[count:], found.defects[found.defects != spoiler])]
            areas.append(area(*scores))
            rules = fit_anomaly_decisions(DecisionSettings(), found.calibration(cells, cells))
            recalls.append(float(rules.find_defects(rules.p_values(scores[1])).mean()))
    return {
        "named": statistics.fmean(named), "clean_with_a_name": statistics.fmean(named_clean),
        "oddest": float(np.mean(np.array(places) == 1)), "among_three_oddest": float(np.mean(np.array(places) <= 3)),
        "auroc_clean": statistics.fmean(clean), "auroc_spoiled": statistics.fmean(spoiled),
        "recall_clean": statistics.fmean(recalls[::2]), "recall_spoiled": statistics.fmean(recalls[1::2]),
    }  # fmt: skip


# -- Smaller banks, and time


def list_coresets(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Fractions of the patches of 100 good cells."""
    for kind in KINDS:
        for fraction in FRACTIONS:
            yield {"kind": kind, "good": 100, "fraction": fraction}, partial(measure_coreset, world, kind, fraction)


def measure_coreset(world: World, kind: str, fraction: float) -> Row:
    """The area by so much of the patches at 224 pixels, on the other good cells and all defects."""
    features, shape = world.features(kind, SMALL)
    patches = pack_patches(torch.from_numpy(features[:100].astype(np.float32)), shape).flatten(0, 1)
    rows = patches[choose_patches(patches, round(fraction * len(patches)), 0, torch.device("cpu"))]
    scores = [score_cells(features, shape, rows, cells) for cells in (np.arange(100, GOOD), GOOD + np.arange(DEFECTS))]
    return {"patches": len(rows), "auroc": area(*scores)}


def list_times(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Seconds of the command, and of scores beside features."""
    yield {"of": "command"}, partial(compare_with_command, world)
    yield {"of": "training on ten pictures"}, partial(measure_training, world)
    for precision in ("float32", "bfloat16"):
        yield {"of": "scores beside features", "precision": precision}, partial(measure_speed, world, precision)


def measure_training(world: World) -> Row:
    """The shortest of three trainings on ten cells."""
    seconds, run = [], world.folder / "anomaly-timed"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        shutil.rmtree(run, ignore_errors=True)
        seconds.append(round(world.train(run, 10), 1))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / len(seconds)
    bank = load_tensors(run / "model" / "model.safetensors")[BANK_ROWS]
    row: Row = {"shortest_seconds": min(seconds), "seconds": seconds, "processor_seconds": round(spent, 1)}
    row["patches"] = len(bank)
    return row | {"bytes_of_50000_patches": 50_000 * bank[0].nbytes}


def measure_speed(world: World, precision: str) -> Row:
    """How fast pictures are scored beside their features alone, in interleaved runs on one thread."""
    predictor = Predictor.open(world.plan(20, "--image-size", LARGE).path, precision=precision)
    model, spec, threads = predictor.single_member().model, predictor.spec, torch.get_num_threads()
    assert isinstance(model, ViT)
    settings = InferenceSettings(precision=precision)
    images = torch.stack([preprocess_image(path, spec) for path in world.paths[KINDS[0]][:2]])
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"features": [], "scores": []}
    ways = {"features": cast_weights(FeatureExtractor(model), precision), "scores": cast_weights(model, precision)}
    for _ in range(12):
        for name, way in ways.items():
            with inference_mode(way):
                began = time.process_time()
                forward_batch(way, images, spec, settings)
                seconds[name].append(time.process_time() - began)
    torch.set_num_threads(threads)
    ratios = [one / other for one, other in zip(seconds["features"], seconds["scores"], strict=True)]
    return {"patches": model.config.bank_size, "speed": statistics.median(ratios[2:]), "side": spec.height}


# -- Garments


def list_garments(world: World) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Every class as the good one, by weights of our own and by DINOv2."""
    for weights in ("own", "dinov2-small"):
        for good in range(len(FASHION)):
            key = {"weights": weights, "class": FASHION[good], "good": GARMENTS}
            yield key, partial(measure_garment, world, weights, good)


def measure_garment(world: World, weights: str, good: int) -> Row:
    """The area of the first training pictures of a class, on the official test pictures of all classes."""
    source = open_fashion_mnist(None)
    train, test = source.splits["train"], source.splits["test"]
    banks = [train[source.targets[train] == k][:GARMENTS] for k in range(len(FASHION))]
    rows = np.concatenate([*banks, test])
    images = [source.images[row] for row in rows]
    if weights == "own":
        checkpoint = pretrain_on_garments(world.folder)
        shape, file = bank_shape(checkpoint), world.folder / "anomaly-garments-own.npy"
        spec = replace(checkpoint.spec, fit="squash", crop_fraction=1.0)
        features = compute_features(
            lambda: FeatureExtractor(build_start_model(checkpoint, shape, FinetuneSettings())), spec, images, file
        )
    else:
        shape = replace(world.plan().read_plan().model, image_size=(GARMENT_SIDE, GARMENT_SIDE))
        features = world.features_by(shape, images, "garments")
    bank = Bank(features, np.arange(good * GARMENTS, (good + 1) * GARMENTS), shape)
    scores = bank.scores(features, np.arange(len(rows) - len(test), len(rows)))
    is_good = source.targets[test] == good
    return {"pictures": len(test), "auroc": area(scores[is_good], scores[~is_good])}


@cache
def pretrain_on_garments(folder: Path) -> StartCheckpoint:
    """A model that has learnt from all training pictures without labels; what was trained after it is not read."""
    run = folder / "anomaly-pretraining"
    if not (run / "pretrained").is_dir():
        words = ["train", "fashion-mnist", "--minutes", GARMENT_MINUTES, "--pretrain.budget_fraction", 0.95]
        subprocess.run([VITRAIL, *map(str, [*words, "--out", run])], check=True, capture_output=True)
    return open_checkpoint(str(run / "pretrained"))


def bank_shape(checkpoint: StartCheckpoint) -> ViTConfig:
    """The shape that the planner chooses for a small checkpoint."""
    own = checkpoint.config
    return replace(
        own, outputs=1, pool="patches", pool_blocks=1, pool_every=1, depth=max(1, round(BANK_DEPTH * own.depth)),
        head="bank", head_bias=True, bank_size=BANK_SIZE, distillation_head=False, dropout=0.0, attention_dropout=0.0,
        mlp_dropout=0.0, drop_path=0.0,
    )  # fmt: skip


def tables(rows: list[Row]) -> str:
    """What the rows add up to, in Markdown."""
    parts = (
        table_of_cells(rows), table_of_others(rows), table_of_promises(rows), table_of_spoiled(rows),
        table_of_coresets(rows), table_of_garments(rows), table_of_times(rows),
    )  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts if len(part) > 2) + "\n"


def table_of_cells(rows: list[Row]) -> list[str]:
    """Areas and false alarms of the folds together."""
    of_alpha = " | ".join(f"false alarms, alpha {alpha:g}" for alpha in ALPHAS)
    lines = [f"| pixels | cells | good | AUROC | folds | defects found, alpha 0.05 | {of_alpha} |"]
    lines.append("|---:|---|---:|---:|---|---:|---|---|")
    wanted = [(side, "cells", kind, n) for side in (SMALL, LARGE) for kind in KINDS for n in (10, 50, 100, 0)]
    wanted += [(SMALL, "every", kind, n) for kind in KINDS for n in EVERY]
    for side, part, kind, count in wanted:
        key = {"part": part, "side": side, "kind": kind, "good": count}
        here = [row for row in rows if all(row.get(name) == value for name, value in key.items())]
        if len(here) < FOLDS:
            continue
        areas = [number(row, "auroc") for row in here]
        alarms = [describe_alarms([row[f"at_{alpha:g}"] for row in here]) for alpha in ALPHAS]
        found = statistics.fmean(row["at_0.05"]["recall"] for row in here)
        pictures = count or f"all, {min(row['pictures'] for row in here)}"
        spread = f"{statistics.fmean(areas):.3f} | {min(areas):.3f} to {max(areas):.3f}"
        lines.append(f"| {side} | {kind} | {pictures} | {spread} | {found:.1%} | {' | '.join(alarms)} |")
    return lines


def table_of_others(rows: list[Row]) -> list[str]:
    """Areas by the class token alone, and by reconstruction."""
    names = ("nearest class token", "one-class SVM on it", "reconstruction")
    lines = [f"| cells | good | {' | '.join(names)} |", "|---|---:|---:|---:|---:|"]
    for row in (row for row in rows if row["part"] == "tokens"):
        areas = f"{number(row, 'nearest'):.3f} | {number(row, 'one_class_svm'):.3f}"
        lines.append(f"| {row['kind']} | {row['good'] or 'all'} | {areas} | |")
    for row in (row for row in rows if row["part"] == "reconstruction"):
        lines.append(f"| {row['kind']} | {row['good']} others | | | {number(row, 'auroc'):.3f} |")
    return lines


def table_of_spoiled(rows: list[Row]) -> list[str]:
    """Banks that were given one defect."""
    columns = ("AUROC", "defects found", "the defect is the oddest", "among three", "it is named", "a good one is")
    lines = [f"| 30 cells, one of them a defect | {' | '.join(columns)} |", "|---|---|---|---:|---:|---:|---:|"]
    for row in (row for row in rows if row["part"] == "promise" and "oddest" in row):
        areas = f"{number(row, 'auroc_spoiled'):.3f}, without it {number(row, 'auroc_clean'):.3f}"
        found = f"{number(row, 'recall_spoiled'):.1%}, without it {number(row, 'recall_clean'):.1%}"
        places = f"{number(row, 'oddest'):.0%} | {number(row, 'among_three_oddest'):.0%}"
        names = f"{number(row, 'named'):.0%} | {number(row, 'clean_with_a_name'):.0%}"
        lines.append(f"| {row['kind']} | {areas} | {found} | {places} | {names} |")
    return lines


def table_of_coresets(rows: list[Row]) -> list[str]:
    """Areas by fewer patches."""
    lines = ["| cells | patches of 100 cells | AUROC | less all patches |", "|---|---:|---:|---:|"]
    here = [row for row in rows if row["part"] == "coreset"]
    full = {row["kind"]: number(row, "auroc") for row in here if row["fraction"] == 1}
    for row in here:
        found, share = number(row, "auroc"), f"{row['patches']:,}, {row['fraction']:.0%}"
        less = f"{found - full[row['kind']]:+.4f}" if row["kind"] in full else ""
        lines.append(f"| {row['kind']} | {share} | {found:.4f} | {less} |")
    return lines


def table_of_garments(rows: list[Row]) -> list[str]:
    """Areas of each class, and their mean."""
    lines = ["| Fashion-MNIST, good class | DINOv2-S/14, 112 pixels | own pre-training |", "|---|---:|---:|"]
    of = {(row["weights"], row["class"]): number(row, "auroc") for row in rows if row["part"] == "classes"}
    names = [name for name in FASHION if any(name == one for _, one in of)]
    both = ("dinov2-small", "own")
    for name in names:
        lines.append(f"| {name} | {' | '.join(f'{of[w, name]:.3f}' if (w, name) in of else '' for w in both)} |")
    areas = [[area for (weights, _), area in of.items() if weights == each] for each in both]
    means = [f"{statistics.fmean(each):.3f}" if len(each) == len(FASHION) else "" for each in areas]
    return [*lines, f"| mean | {' | '.join(means)} |"] if names else lines


def table_of_times(rows: list[Row]) -> list[str]:
    """Seconds of a training, and scores beside features."""
    lines = ["| time | measured |", "|---|---|"]
    for row in (row for row in rows if row["part"] == "time"):
        if row["of"] == "training on ten pictures":
            wall = f"{number(row, 'shortest_seconds'):.1f} s, {number(row, 'processor_seconds'):.1f} s of processors"
            lines.append(f"| `train` on ten good pictures, the shortest of three | {wall} |")
            lines.append(f"| 50,000 patches in a bank | {number(row, 'bytes_of_50000_patches') / 1e6:.1f} MB |")
        elif row["of"] == "command":
            lines.append(f"| scores of `predict` less those here | at most {row['largest_difference']:.1e} |")
        else:
            speed = f"{number(row, 'speed'):.2f} of the speed of the features alone"
            scored = f"scores at {row['side']} pixels, {row['patches']:,} patches, {row['precision']}"
            lines.append(f"| {scored} | {speed} |")
    return lines


def describe_alarms(found: list[dict[str, Any]]) -> str:
    """False alarms of all folds, with their 95 % interval, and what was promised."""
    alarms, good = sum(one["false_alarms"] for one in found), sum(one["good"] for one in found)
    low, high = proportion_interval(np.arange(good) < alarms)
    return f"{alarms / good:.1%} ({low:.1%} to {high:.1%}), promised {max(one['promised'] for one in found):.1%}"


def table_of_promises(rows: list[Row]) -> list[str]:
    """Mean false alarms of all drawings."""
    lines = ["| drawn | promised | mono | poly |", "|---|---:|---:|---:|"]
    here = [row for row in rows if row["part"] == "promise" and "promised" in row]
    for drawn, count in dict.fromkeys((row["drawn"], row["good"]) for row in here):
        of = {row["kind"]: row for row in here if (row["drawn"], row["good"]) == (drawn, count)}
        for alpha in (f"{alpha:g}" for alpha in ALPHAS):
            cells = [f"{of[kind]['false_alarms'][alpha]:.2%}" if kind in of else "" for kind in KINDS]
            promised = f"{next(iter(of.values()))['promised'][alpha]:.1%}"
            lines.append(f"| {count} {drawn}, alpha {alpha} | {promised} | {' | '.join(cells)} |")
    return lines


PARTS = {
    "cells": list_cells, "time": list_times, "promise": list_drawings, "coreset": list_coresets, "tokens": list_tokens,
    "classes": list_garments, "reconstruction": list_reconstructions, "every": list_everything,
}  # fmt: skip

if __name__ == "__main__":
    main()
