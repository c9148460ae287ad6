"""Coverage and width of the intervals of figures, by simulated studies whose true figures are known.

    python benchmarks/figure_coverage.py [--studies 200]

The scores of an image are normal with mean `distance` at its class and 0 at the others; images of a group share a part
of them. Probabilities are those of the true distribution, with their log-odds multiplied by `sharpness`: 1 is a
calibrated model. True figures come from 100,000 independent images, those of a loss from the true probabilities of all
classes of each. A cell with a coverage below 94 % is simulated again, with four times as many new studies, which count
instead. Accuracies and recalls of ungrouped images are proportions of independent ones: their coverage is the sum over
all outcomes, and is not simulated (`exact` in the row). Rows are written after every cell to
benchmarks/results/figure-coverage.json, and those that are there are kept; `docs/table_of_curves.py` makes the table of
docs/evaluation.md of it. The key `before` of a row, the widths of the intervals of an older version (six studies at
commit 76258cab, 400 bootstrap samples), is not computed here.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
from making.records import Results, Row, commit
from scipy.stats import binom

from vitrail.evaluate.metrics import ClassificationMetrics, compute_classification_metrics
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.stats.intervals import wilson_interval

TRUE_IMAGES = 100_000
DOUBTFUL = 0.94
FIGURES = (
    "accuracy", "balanced_accuracy", "macro_f1", "top_accuracy", "kappa", "quadratic_kappa", "auroc", "log_loss",
    "brier", "calibration_error", "calibration_in_the_large", "calibration_slope",
)  # fmt: skip
OF_CLASSES = ("recall", "precision", "f1", "auroc")


class Cell(NamedTuple):
    """One kind of study."""

    n: int
    accuracy: float
    priors: tuple[float, ...]
    """Share of each class."""
    groups: int = 0
    """Number of groups; 0 without."""
    shared: float = 0.5
    """Share of the variance of a score that images of a group have in common."""
    labels: str = "image"
    """With groups: every image has its own label, or all of a group have one (group)."""
    sharpness: float = 1.0

    def name(self) -> str:
        """In words, for the table."""
        K, equal = len(self.priors), len(set(self.priors)) == 1
        classes = f"{K} classes" if equal else "classes " + " ".join(f"{one:.2f}".lstrip("0") for one in self.priors)
        parts = [f"n {self.n}", f"p {self.accuracy:g}".replace("0.", "."), classes]
        if self.groups:
            parts.append(f"{self.groups} groups" + (" of one label" if self.labels == "group" else ""))
            parts[-1] += "" if self.shared == 0.5 else f", {self.shared:g} shared"
        if self.sharpness != 1:
            parts.append("overconfident" if self.sharpness > 1 else "underconfident")
        return ", ".join(parts)

    def draw(
        self, generator: np.random.Generator, n: int | None = None
    ) -> tuple[ClassificationPredictions, np.ndarray | None]:
        """The predictions and groups of one study, or of n independent images."""
        count, K = self.n if n is None else n, len(self.priors)
        numbers = None if n is not None or not self.groups else np.arange(count) * self.groups // count
        cuts = np.cumsum(self.priors)[:-1]
        if numbers is not None and self.labels == "group":
            targets = np.searchsorted(cuts, generator.random(self.groups))[numbers]
        else:
            targets = np.searchsorted(cuts, generator.random(count))
        noise = generator.standard_normal((count, K))
        if numbers is not None:
            own = generator.standard_normal((self.groups, K))[numbers]
            noise = np.sqrt(self.shared) * own + np.sqrt(1 - self.shared) * noise
        distance = distance_of(self.accuracy, self.priors)
        return predictions_of(targets, noise, distance, self.priors, self.sharpness), numbers


def predictions_of(
    targets: np.ndarray, noise: np.ndarray, distance: float, priors: tuple[float, ...], sharpness: float
) -> ClassificationPredictions:
    """Stored predictions of images with these classes and noise."""
    n, K = noise.shape
    scores = noise.copy()
    scores[np.arange(n), targets] += distance
    odds = sharpness * (distance * scores + np.log(priors))
    chances = np.exp(odds - odds.max(1, keepdims=True))
    return ClassificationPredictions(
        paths=("",) * n, ids=("",) * n, split="test", classes=tuple(f"c{k}" for k in range(K)), targets=targets,
        probabilities=(chances / chances.sum(1, keepdims=True)).astype(np.float32),
    )  # fmt: skip


@lru_cache
def distance_of(accuracy: float, priors: tuple[float, ...]) -> float:
    """Distance of the means at which so many images are answered rightly, by bisection on 100,000 images."""
    generator, K = np.random.default_rng(5), len(priors)
    targets = np.searchsorted(np.cumsum(priors)[:-1], generator.random(TRUE_IMAGES))
    noise, places = generator.standard_normal((TRUE_IMAGES, K)), np.arange(TRUE_IMAGES)
    low, high = 0.05, 20.0
    for _ in range(18):
        distance = (low + high) / 2
        odds = distance * noise + np.log(priors)
        odds[places, targets] += distance**2
        right = float((odds.argmax(1) == targets).mean())
        low, high = (low, distance) if right > accuracy else (distance, high)
    return low


@lru_cache
def true_figures(priors: tuple[float, ...], accuracy: float, sharpness: float) -> ClassificationMetrics:
    """The figures of very many independent images."""
    cell, K = Cell(0, accuracy, priors, sharpness=sharpness), len(priors)
    table, _ = cell.draw(np.random.default_rng(11), TRUE_IMAGES)
    metrics = compute_classification_metrics(table, None, ordered=K > 2, samples=1)
    said = np.maximum(table.probabilities.astype(np.float64), np.finfo(np.float32).tiny)
    true = said ** (1 / sharpness)
    true /= true.sum(1, keepdims=True)
    squares = np.square(said).sum(1, keepdims=True) - 2 * said + 1
    return replace(
        metrics,
        log_loss=float(-(true * np.log(said)).sum(1).mean()),
        brier=float((true * squares).sum(1).mean()) / (2 if K == 2 else 1),
    )


def simulate_and_repeat(cell: Cell, studies: int) -> Row:
    """`simulate`; where a coverage is below DOUBTFUL, four times as many new studies instead."""
    row = simulate(cell, studies)
    is_doubtful = any(one["coverage"] < DOUBTFUL for one in shown_figures(row).values())
    return simulate(cell, 4 * studies, first=studies) if is_doubtful else row


def shown_figures(row: Row) -> dict[str, dict[str, float]]:
    """The figures whose interval at least every tenth study shows."""
    figures = {name: one for name, one in row.items() if isinstance(one, dict) and "shown" in one}
    return {name: one for name, one in figures.items() if one["shown"] >= row["studies"] / 10}


def simulate(cell: Cell, studies: int, first: int = 0) -> Row:
    """Of each figure the coverage, the mean width and in how many studies it was shown."""
    truth = true_figures(cell.priors, cell.accuracy, cell.sharpness)
    found: dict[str, list[tuple[float, float]]] = {}
    for study in range(first, first + studies):
        table, groups = cell.draw(np.random.default_rng((3, study)))
        metrics = compute_classification_metrics(table, groups, ordered=len(cell.priors) > 2)
        occurring = [k for k, one in enumerate(metrics.per_class) if one.n]
        for name in FIGURES:
            interval = getattr(metrics, f"{name}_interval")
            if interval is None:
                continue
            if name in ("balanced_accuracy", "macro_f1", "auroc"):  # of the classes that occur
                part = {"balanced_accuracy": "recall", "macro_f1": "f1"}.get(name, name)
                value = float(np.mean([getattr(truth.per_class[k], part) for k in occurring]))
            else:
                value = getattr(truth, name)
            found.setdefault(name, []).append(judge(interval, value))
        for part in OF_CLASSES:
            for one, true in zip(metrics.per_class, truth.per_class, strict=True):
                interval = getattr(one, f"{part}_interval")
                if interval is not None and one.n:
                    kind = "a class" if len(set(cell.priors)) == 1 else one.name  # equal classes are one sample
                    found.setdefault(f"{part} of {kind}", []).append(judge(interval, getattr(true, part)))
    row: Row = {"studies": studies, "commit": commit()}
    for name, pairs in found.items():
        inside, width = np.mean(pairs, axis=0)
        row[name] = {"coverage": round(float(inside), 4), "width": round(float(width), 4), "shown": len(pairs)}
    return row if cell.groups else row | exact_figures(cell, row)


def exact_figures(cell: Cell, row: Row) -> Row:
    """The figures of a row that are proportions of independent images, as they stand in the row, but exact."""
    truth = true_figures(cell.priors, cell.accuracy, cell.sharpness)
    found: dict[str, tuple[float, float]] = {}
    for name in ("accuracy", "top_accuracy"):
        if name in row:
            found[name] = exact_coverage(cell.n, getattr(truth, name))
    recalls = [
        exact_coverage_of_part(cell.n, prior, one.recall or 0.0)
        for prior, one in zip(cell.priors, truth.per_class, strict=True)
    ]
    if len(set(cell.priors)) == 1:
        inside, width = np.mean(recalls, axis=0)
        found["recall of a class"] = float(inside), float(width)
    else:
        found |= {f"recall of {one.name}": pair for one, pair in zip(truth.per_class, recalls, strict=True)}
    return {
        name: {"coverage": round(float(inside), 4), "width": round(float(width), 4), "shown": row[name]["shown"],
               "exact": True}
        for name, (inside, width) in found.items()
        if name in row
    }  # fmt: skip


@cache
def exact_coverage(n: int, share: float) -> tuple[float, float]:
    """Coverage and mean width of the interval of a proportion of n independent images: the sum over all outcomes."""
    hits, chances = likely_counts(n, share)
    inside, width = chances @ np.array([judge(wilson_interval(int(one), n), share) for one in hits])
    return float(inside), float(width)


def exact_coverage_of_part(n: int, part: float, share: float) -> tuple[float, float]:
    """`exact_coverage` of the proportion among those of n images that are of a class, of which there is at least one.

    Args:
        part: chance of an image to be of the class.
    """
    counts, chances = likely_counts(n, part)
    chances = np.where(counts, chances, 0)
    pairs = [exact_coverage(int(one), share) if one else (0.0, 0.0) for one in counts]
    inside, width = chances @ np.array(pairs) / chances.sum()
    return float(inside), float(width)


def likely_counts(n: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of successes of n, and their chances, without those that are rarer than one in 10 ** 10."""
    counts = np.arange(n + 1)
    chances = binom.pmf(counts, n, share)
    likely = chances > 1e-10
    return counts[likely], chances[likely] / chances[likely].sum()


def judge(interval: tuple[float, float], truth: float) -> tuple[float, float]:
    """1 if the interval holds the true value, else 0; and its width."""
    return float(interval[0] <= truth + 1e-6 and truth <= interval[1] + 1e-6), interval[1] - interval[0]


def equal(K: int) -> tuple[float, ...]:
    """Classes of equal shares."""
    return (1 / K,) * K


RARE = ((0.8, 0.15, 0.05), (0.85, 0.1, 0.03, 0.02), (0.95, 0.05))
OF_FAULT = (  # rows of the first table
    Cell(24, 0.9, equal(3)), Cell(100, 0.9, equal(4)), Cell(359, 0.9, equal(10)), Cell(24, 0.99, equal(3)),
    Cell(100, 0.99, equal(4)), Cell(359, 0.99, equal(10)), Cell(100, 0.9, equal(3), 20), Cell(240, 0.9, equal(3), 12),
    Cell(400, 0.9, equal(3), 80), Cell(100, 0.9, RARE[0]), Cell(359, 0.9, RARE[1]),
)  # fmt: skip
CELLS = (
    *OF_FAULT,
    Cell(24, 0.8, equal(20)), Cell(100, 0.999, equal(2)), Cell(24, 0.999, equal(20)), Cell(1000, 0.8, equal(2)),
    Cell(1000, 0.999, equal(20)), Cell(24, 0.8, equal(2)), Cell(1000, 0.95, equal(5)), Cell(24, 0.999, equal(2)),
    Cell(32, 0.8, equal(3), 8), Cell(32, 0.99, equal(3), 8), Cell(200, 0.99, equal(3), 50),
    Cell(400, 0.95, equal(3), 100), Cell(160, 0.8, equal(2), 8, labels="group"),
    Cell(500, 0.99, equal(2), 50, labels="group"), Cell(100, 0.97, RARE[2]), Cell(1000, 0.97, RARE[2]),
    Cell(100, 0.97, RARE[1]), Cell(1000, 0.9, RARE[1]), Cell(50, 0.8, equal(3), sharpness=2.0),
    Cell(200, 0.99, equal(3), sharpness=2.0), Cell(1000, 0.8, equal(3), sharpness=2.0),
    Cell(50, 0.9, equal(4), 10, 0.0), Cell(50, 0.9, equal(4), 10, 1.0), Cell(1000, 0.9, equal(4), 200, 1.0),
)  # fmt: skip


def main() -> None:
    """Simulate every cell that is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--fault", action="store_true", help="only the eleven rows of the first table")
    parser.add_argument("--to", default="figure-coverage", help="name of the results")
    options = parser.parse_args()
    results = Results(options.to)
    for cell in OF_FAULT if options.fault else CELLS:
        row = results.row({"cell": cell.name()}, partial(simulate_and_repeat, cell, options.studies))
        low = {name: one["coverage"] for name, one in shown_figures(row).items() if one["coverage"] < 0.93}
        print(f"{cell.name():<40}", low, flush=True)
    results.write({})


if __name__ == "__main__":
    main()
