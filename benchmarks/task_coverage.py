"""Coverage and width of the intervals of numbers, labels and anomalies, by simulated studies with known true figures.

    python benchmarks/task_coverage.py [--studies 1000] [--only numbers|labels|anomalies]

Studies have 50, 200 or 1,000 images, each by itself or in groups of four that share half of the variance of every score
and error. Numbers have normal or exponential errors, or normal ones that grow with the target; four labels have shares
of 0.5 to 0.05; a share of 0.3 or 0.05 of the parts are defects. True figures are those of 400,000 independent images. A
cell with a coverage below 94 % is simulated again, with four times as many new studies, which count instead. Rows are
written after every cell to benchmarks/results/task-coverage.json, and those that are there are kept;
`docs/table_of_curves.py` makes a table of docs/evaluation.md of it. The key `before` of a row, the widths of the
intervals of an older version (four studies at commit b1968932), is not computed here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from figure_coverage import judge, shown_figures
from making.records import Results, Row, commit
from scipy.special import expit, logit, ndtr

from vitrail.evaluate.anomaly_metrics import compute_anomaly_metrics
from vitrail.evaluate.multilabel_metrics import compute_multilabel_metrics
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from vitrail.evaluate.regression_metrics import compute_regression_metrics

TRUE_IMAGES = 400_000
DOUBTFUL = 0.94
FIRST_STUDY = 10_000
"""The studies before it were those by which the methods were chosen."""
SHARED = 0.5
GROUP_SIZE = 4
SHARES = (0.5, 0.2, 0.1, 0.05)
NUMBERS = ("mae", "rmse", "r2", "spearman", "bias")
LABEL_MEANS = ("auroc", "average_precision", "f1")
OF_LABEL = ("auroc", "average_precision", "f1", "sensitivity", "specificity", "sensitivity_at_90")
OF_ANOMALIES = ("auroc", "average_precision", "f1", "recall", "false_alarms")


class Cell(NamedTuple):
    """One kind of study."""

    task: str
    """numbers, labels or anomalies."""
    kind: str
    """Numbers: the distribution of the errors. Labels: weak or strong. Anomalies: the share of defects."""
    n: int
    grouped: bool = False

    def draw(self, generator: np.random.Generator, n: int | None = None) -> tuple[Any, np.ndarray | None]:
        """The predictions and groups of one study, or of n independent images."""
        count, is_grouped = (self.n, self.grouped) if n is None else (n, False)
        groups = np.arange(count) // GROUP_SIZE if is_grouped else None
        ids = tuple(map(str, range(self.n))) if n is None else ("",) * count

        def noise(width: int) -> np.ndarray:
            own = generator.standard_normal((count, width))
            if groups is None:
                return own
            common = generator.standard_normal((groups[-1] + 1, width))[groups]
            return np.sqrt(SHARED) * common + np.sqrt(1 - SHARED) * own

        return {"numbers": self._numbers, "labels": self._labels, "anomalies": self._anomalies}[self.task](
            noise, generator, count, ids
        ), groups

    def _numbers(self, noise: Any, _: Any, n: int, ids: tuple[str, ...]) -> RegressionPredictions:
        targets, errors = noise(2).T
        if self.kind == "exponential":
            errors = -np.log(ndtr(-errors)) - 1
        if self.kind == "growing":
            errors *= np.exp(targets / 2 - 0.25)
        values = np.stack([targets + errors / 2 + 0.1], 1)
        return RegressionPredictions(
            paths=ids, ids=ids, split="test", targets=targets[:, None], values=values, columns=("it",)
        )

    def _labels(self, noise: Any, generator: np.random.Generator, n: int, ids: tuple[str, ...]) -> Any:
        distance = {"weak": 1.5, "strong": 3.0}[self.kind]
        present = generator.random((n, len(SHARES))) < SHARES
        # labels of an image share a third of the variance: a bad picture is bad for all of them
        common, own = noise(1), noise(len(SHARES))
        scores = distance * present + np.sqrt(1 / 3) * common + np.sqrt(2 / 3) * own
        chances = expit(distance * scores - distance**2 / 2 + logit(SHARES)).astype(np.float32)
        return MultilabelPredictions(
            paths=ids, ids=ids, split="test", targets=present.astype(np.float32), probabilities=chances,
            classes=tuple(f"{share:g}" for share in SHARES), predicted=chances >= np.minimum(SHARES, 0.4),
        )  # fmt: skip

    def _anomalies(self, noise: Any, generator: np.random.Generator, n: int, ids: tuple[str, ...]) -> Any:
        defect = (generator.random(n) < float(self.kind)).astype(np.int64)
        scores = 2 * defect + noise(1)[:, 0]
        chances = np.stack([scores < 1.6, scores >= 1.6], 1).astype(np.float32)
        return ClassificationPredictions(
            paths=ids, ids=ids, split="test", classes=("good", "defect"), targets=defect, probabilities=chances,
            scores=scores,
        )  # fmt: skip


def measure(task: str, table: Any, groups: np.ndarray | None = None, samples: int = 1000) -> Any:
    """The metrics of a table."""
    if task == "numbers":
        return compute_regression_metrics(table, None, groups, samples=samples)
    return (
        compute_multilabel_metrics(table, groups, samples=samples)
        if task == "labels"
        else compute_anomaly_metrics(table, groups)
    )


@cache
def true_metrics(task: str, kind: str) -> Any:
    """The metrics of very many independent images."""
    return measure(task, Cell(task, kind, 0).draw(np.random.default_rng(11), TRUE_IMAGES)[0], samples=1)


def intervals_of(task: str, found: Any, truth: Any) -> Iterator[tuple[str, Any, float]]:
    """Name, interval and true value of each figure of a study."""
    if task == "numbers":
        (found,), (truth,) = found.per_column, truth.per_column
        for name in NUMBERS:
            yield name, getattr(found, f"{name}_interval"), getattr(truth, name)
        limits = getattr(found, "agreement_intervals", None) or (None, None)
        for name, interval, value in zip(("lower limit", "upper limit"), limits, truth.agreement, strict=True):
            yield name, interval, value
    elif task == "labels":
        pairs = list(zip(found.per_label, truth.per_label, strict=True))
        counted = [true for one, true in pairs if not one.rare]
        for name in LABEL_MEANS:
            if counted:
                yield f"mean {name}", getattr(found, f"{name}_interval"), np.mean([getattr(t, name) for t in counted])
        for (one, true), name in product(pairs, OF_LABEL):
            yield f"{name} of {one.name}", None if one.rare else getattr(one, f"{name}_interval"), getattr(true, name)
    else:
        for name in OF_ANOMALIES:
            yield name, getattr(found, f"{name}_interval"), getattr(truth, name)


def simulate(cell: Cell, studies: int, first: int = 0) -> Row:
    """Of each figure the coverage, the mean width and in how many studies it was shown."""
    truth = true_metrics(cell.task, cell.kind)
    found: dict[str, list[tuple[float, float]]] = {}
    for study in range(first, first + studies):
        table, groups = cell.draw(np.random.default_rng((3, study)))
        for name, interval, value in intervals_of(cell.task, measure(cell.task, table, groups), truth):
            if interval is not None:
                found.setdefault(name, []).append(judge(interval, value))
    row: Row = {"studies": studies, "commit": commit()}
    for name, pairs in found.items():
        inside, width = np.mean(pairs, axis=0)
        row[name] = {"coverage": round(float(inside), 4), "width": round(float(width), 4), "shown": len(pairs)}
    return row


def simulate_and_repeat(cell: Cell, studies: int) -> Row:
    """`simulate`; where a coverage is below DOUBTFUL, four times as many new studies instead."""
    row = simulate(cell, studies, first=FIRST_STUDY)
    is_doubtful = any(one["coverage"] < DOUBTFUL for one in shown_figures(row).values())
    return simulate(cell, 4 * studies, first=FIRST_STUDY + studies) if is_doubtful else row


CELLS = [
    Cell(task, kind, n, grouped)
    for task, kinds in {
        "numbers": ("normal", "exponential", "growing"), "labels": ("weak", "strong"), "anomalies": ("0.3", "0.05"),
    }.items()
    for kind, grouped, n in product(kinds, (False, True), (50, 200, 1000))
]  # fmt: skip


def main() -> None:
    """Simulate every cell that is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--only", choices=dict.fromkeys(cell.task for cell in CELLS))
    options = parser.parse_args()
    results = Results("task-coverage")
    for cell in CELLS:
        if options.only not in (None, cell.task):
            continue
        row = results.row(cell._asdict(), partial(simulate_and_repeat, cell, options.studies))
        low = {name: one["coverage"] for name, one in shown_figures(row).items() if one["coverage"] < 0.93}
        print(*cell, row["studies"], low, flush=True)


if __name__ == "__main__":
    main()
