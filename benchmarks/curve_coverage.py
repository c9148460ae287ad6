"""Coverage of the intervals and bands of curves, by simulated studies whose true curves are known.

    python benchmarks/curve_coverage.py [--studies 1000] [--only bands|numbers] [--levels]

Scores are normal with means 0 and `distance` for images without and with the label; images of a group share a part of
their score. Probabilities are those of the true distribution. A cell with a place whose coverage is below 94 % is
simulated again, with four times as many new studies, which count instead. Rows are written after every cell to
benchmarks/results/curve-coverage.json, and those that are there are kept; with --levels prints the table
`vitrail.evaluate.threshold_curves.EQUAL_LEVELS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from making.records import Results, Row, commit
from scipy.special import betainc, expit, logit, ndtr, ndtri

from vitrail.evaluate import threshold_curves as curves
from vitrail.evaluate.calibration import calibration_intercept, fit_calibration_slope
from vitrail.evaluate.decision_figures import estimate_rate
from vitrail.evaluate.threshold_curves import CurveBand, CurveSample
from vitrail.stats.predictive import likelihood_ratios

DOUBTFUL = 0.94
FALSE_RATES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])
RECALLS = np.array([0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
THRESHOLDS = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
GRID = np.linspace(0.02, 0.98, 49)
FIXED = (0.8, 0.9, 0.95)
COSTS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


Judge = Callable[["Cell", CurveSample], dict[str, list[float]]]


class Cell(NamedTuple):
    """One kind of study."""

    n: int
    prevalence: float
    distance: float
    """Of the means of the scores, in deviations: 1 is an AUROC of 0.76, 2.5 of 0.96."""
    grouping: str
    """none; image: four images a group, each with its own label; group: four images with one label."""

    def draw(self, generator: np.random.Generator) -> CurveSample:
        """The probabilities of one study."""
        n, size = self.n, 1 if self.grouping == "none" else 4
        numbers = np.arange(n) // size
        labelled = generator.random(n) if self.grouping != "group" else generator.random(n // size + 1)[numbers]
        positive = labelled < self.prevalence
        shared = 0.0 if size == 1 else 0.5
        noise = np.sqrt(shared) * generator.normal(size=n // size + 1)[numbers]
        scores = self.distance * positive + noise + np.sqrt(1 - shared) * generator.normal(size=n)
        return CurveSample(positive, self.probability(scores), None if size == 1 else numbers)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The true probability of the label."""
        return np.asarray(expit(self.distance * scores - self.distance**2 / 2 + logit(self.prevalence)))

    def score(self, probabilities: np.ndarray) -> np.ndarray:
        """The inverse of `probability`."""
        return np.asarray((logit(probabilities) - logit(self.prevalence) + self.distance**2 / 2) / self.distance)

    def rates(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """True sensitivity and false positive rate at thresholds of the score."""
        return np.asarray(ndtr(self.distance - scores)), np.asarray(ndtr(-scores))


def true_precision(cell: Cell, recalls: np.ndarray) -> np.ndarray:
    """Precision at these recalls."""
    false_rates = cell.rates(cell.distance + ndtri(1 - recalls))[1]
    hits = cell.prevalence * recalls
    return np.asarray(hits / (hits + (1 - cell.prevalence) * false_rates))


def true_benefit(cell: Cell, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Net benefit of the model, and of acting on all."""
    hits, alarms = cell.rates(cell.score(thresholds))
    odds = thresholds / (1 - thresholds)
    prevalence = cell.prevalence
    return prevalence * hits - (1 - prevalence) * alarms * odds, prevalence - (1 - prevalence) * odds


def covered(band: CurveBand, truth: np.ndarray, everywhere: bool = False) -> np.ndarray:
    """Whether the pointwise band holds each true value, or the simultaneous one all of them."""
    low, high = (band.all_low, band.all_high) if everywhere else (band.low, band.high)
    inside = (low <= truth + 1e-9) & (truth <= high + 1e-9)
    return np.array([inside.all()]) if everywhere else inside


def holds(interval: tuple[float, float], truth: float) -> float:
    """1 if the interval holds the true value, else 0."""
    return float(interval[0] <= truth + 1e-9 and truth <= interval[1] + 1e-9)


def judge(cell: Cell, sample: CurveSample) -> dict[str, list[float]]:
    """Of one study what each interval and band covers."""
    return judge_bands(cell, sample) | judge_numbers(cell, sample)


def judge_bands(cell: Cell, sample: CurveSample) -> dict[str, list[float]]:
    """Of one study what each band covers, and the intervals that are read from one."""
    found: dict[str, list[float]] = {}
    roc_truth = lambda x: ndtr(cell.distance + ndtri(x))  # noqa: E731
    found["ROC, pointwise"] = covered(curves.roc_band(sample, FALSE_RATES), roc_truth(FALSE_RATES)).tolist()
    found["ROC, simultaneous"] = covered(curves.roc_band(sample, GRID), roc_truth(GRID), True).tolist()
    precision = curves.precision_recall_band(sample, RECALLS)
    found["precision, pointwise"] = covered(precision, true_precision(cell, RECALLS)).tolist()
    everywhere = curves.precision_recall_band(sample, GRID)
    found["precision, simultaneous"] = covered(everywhere, true_precision(cell, GRID), True).tolist()
    fixed = [(one, ndtr(cell.distance + ndtri(1 - one))) for one in FIXED]
    found["sensitivity at specificity"] = [holds(curves.sensitivity_at(sample, one)[1], truth) for one, truth in fixed]
    found["specificity at sensitivity"] = [holds(curves.specificity_at(sample, one)[1], truth) for one, truth in fixed]
    decisions = curves.decision_curve(sample, THRESHOLDS.tolist())
    benefit, on_all = true_benefit(cell, THRESHOLDS)
    found["net benefit, pointwise"] = covered(decisions.model, benefit).tolist()
    found["gain over all, pointwise"] = covered(decisions.gain, benefit - on_all).tolist()
    whole = curves.decision_curve(sample)
    benefit, on_all = true_benefit(cell, np.array(curves.DECISION_THRESHOLDS))
    found["net benefit, simultaneous"] = covered(whole.model, benefit, True).tolist()
    found["gain over all, simultaneous"] = covered(whole.gain, benefit - on_all, True).tolist()
    return found


def judge_numbers(cell: Cell, sample: CurveSample) -> dict[str, list[float]]:
    """Of one study what the intervals of single numbers cover."""
    found: dict[str, list[float]] = {}
    at = 0.3  # the threshold of a fixed decision
    predicted, (hits, alarms) = sample.scores >= at, cell.rates(cell.score(np.array([at])))
    rates = []
    for mask, right in ((sample.positive, predicted), (~sample.positive, ~predicted)):
        rates.append(estimate_rate(right[mask], None if sample.groups is None else sample.groups[mask]))
    assert rates[0] is not None and rates[1] is not None
    ratios = likelihood_ratios(rates[0], rates[1])
    truths = (hits[0] / alarms[0], (1 - hits[0]) / (1 - alarms[0]))
    found["likelihood ratios"] = [
        holds(one.interval, truth) for one, truth in zip(ratios, truths, strict=True) if one is not None
    ]
    misses, false_rate = np.full(len(COSTS), 1 - rates[0].value), np.full(len(COSTS), 1 - rates[1].value)
    cost = curves.cost_band(misses, false_rate, sample, COSTS)
    found["cost"] = covered(cost, COSTS * (1 - hits[0]) + (1 - COSTS) * alarms[0]).tolist()
    slope = fit_calibration_slope(sample.scores, sample.positive, sample.groups)
    if slope is not None:
        found["calibration slope"] = [holds(slope[1], 1.0)]
    intercept = calibration_intercept(sample.scores, sample.positive, sample.groups)
    if intercept is not None:
        found["calibration intercept"] = [holds(intercept.interval, 0.0)]
    return found


PARTS: dict[str, Judge] = {"bands": judge_bands, "numbers": judge_numbers}
CELLS = [
    Cell(n, prevalence, distance, grouping)
    for (prevalence, distance), grouping, n in product(
        ((0.5, 1.0), (0.2, 2.5), (0.2, 1.0), (0.5, 2.5)), ("none", "image", "group"), (50, 200, 1000)
    )
]


def simulate_and_repeat(cell: Cell, studies: int, judge: Judge) -> Row:
    """`simulate`; where a place is below DOUBTFUL, four times as many new studies instead."""
    found, count = simulate(cell, studies, judge), studies
    if any(one["worst"] < DOUBTFUL for one in shown_intervals(found, count).values()):
        count = 4 * studies
        found = simulate(cell, count, judge, first=studies)
    return {"studies": count, "commit": commit(), "coverage": found}


def shown_intervals(found: dict[str, dict[str, float]], studies: int) -> dict[str, dict[str, float]]:
    """The intervals that at least every tenth study shows."""
    return {name: one for name, one in found.items() if one["shown"] >= studies / 10}


def simulate(cell: Cell, studies: int, judge: Judge = judge, first: int = 0) -> dict[str, dict[str, float]]:
    """Of each interval the mean coverage, that of its worst place, and in how many studies it was shown."""
    sums: dict[str, list[list[float]]] = {}
    for study in range(first, first + studies):
        sample = cell.draw(np.random.default_rng((0, study)))
        if sample.unsupported_reason("it"):
            continue
        for name, values in judge(cell, sample).items():
            sums.setdefault(name, []).append(values)
    found = {}
    for name, rows in sums.items():
        places = np.array([row for row in rows if len(row) == len(rows[0])]).mean(0)
        found[name] = {
            "mean": round(float(places.mean()), 4),
            "worst": round(float(places.min()), 4),
            "shown": len(rows),
        }
    return found


def equal_levels(n: int, runs: int, seed: int = 0) -> float:
    """The level of exact intervals at all thresholds of n images at which one case of sixty is missed anywhere."""
    generator, ranks, least = np.random.default_rng(seed), np.arange(1, n + 1), []
    for _ in range(runs):
        below = betainc(ranks, n + 1 - ranks, np.sort(generator.random(n)))
        least.append(float((2 * np.minimum(below, 1 - below)).min()))
    return float(np.quantile(least, 1 / 60))


def main() -> None:
    """Simulate every cell that is not there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--levels", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    if options.levels:
        for n, level in curves.EQUAL_LEVELS:
            print(f"{n:6d}  {equal_levels(n, max(500, min(100_000, 10_000_000 // n))):.6f}  in use {level}")
        return
    results = Results("curve-coverage")
    for part, cell in product((options.only,) if options.only else PARTS, CELLS):
        make = partial(simulate_and_repeat, cell, options.studies, PARTS[part])
        row = results.row({"part": part, **cell._asdict()}, make)
        shown = shown_intervals(row["coverage"], row["studies"])
        low = {name: one["worst"] for name, one in shown.items() if one["worst"] < 0.93}
        print(part, *cell, f"{row['studies']:,} studies", low, flush=True)


if __name__ == "__main__":
    main()
