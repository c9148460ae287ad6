"""Coverage of the intervals of masks: conformal ranges of areas, and bootstrap intervals of mean IoU and Dice.

    python benchmarks/mask_coverage.py [--studies 300]

A population of drawn pictures (benchmarks/masks.py, at 64 pixels) has answers that err as models do: borders are off by
a few pixels and parts of the cracks are missed, more in some groups of four pictures (patients, modules) than in
others. A study draws some pictures, each by itself or whole groups. Ranges of areas are fitted to it as validation
pictures and judged on the whole population, whose IoU, Dice and boundary F are those that the intervals should hold:
means, and those of the cracks, which in some studies seven of ten groups lack. What has no interval is left out.
Writes benchmarks/results/mask-coverage.json and .md.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product

import numpy as np
from making.records import RESULTS, Results, Row, commit
from masks import CLASSES, draw_picture
from planted_heads import table
from scipy.ndimage import gaussian_filter

from vitrail.evaluate.decisions import Decisions, fit_rules
from vitrail.evaluate.mask_overlap import count_overlaps
from vitrail.evaluate.predictions import RegressionPredictions
from vitrail.evaluate.segmentation_metrics import compute_segmentation_metrics, known_areas
from vitrail.evaluate.thresholds import DecisionSettings

GROUPS, GROUP_SIZE, SIDE = 400, 4, 64
KINDS = ((20, False), (20, True), (32, True), (48, True), (200, False), (200, True))
"""Pictures of a study, and whether in groups."""
WITHOUT = 0.7
"""Fraction of the groups without a crack, where cracks are rare."""
MEANS = {"iou": "mean_iou", "dice": "mean_dice", "boundary_f": "mean_boundary_f"}
PROMISE = DecisionSettings(conformal_alpha=0.1)


def main() -> None:
    """Simulate, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=300)
    options = parser.parse_args()
    overlaps = draw_population(GROUPS)
    results = Results("mask-coverage")
    for rare, (n, grouped) in product((False, True), KINDS):
        if rare and not grouped:
            continue
        key = {"pictures": n, "groups": grouped, "rare": rare, "studies": options.studies}
        population = forget_cracks(overlaps) if rare else overlaps
        print(results.row(key, partial(measure, population, n, grouped, options.studies)), flush=True)
    results.write({"commit": commit()})
    (RESULTS / "mask-coverage.md").write_text(table(COLUMNS, results.rows), encoding="utf-8")
    print(table(COLUMNS, results.rows))


def draw_population(groups: int) -> np.ndarray:
    """Overlaps float64 [groups * GROUP_SIZE, K, 8] of pictures, group after group, and of answers to them."""
    return np.stack([draw_overlaps(number, number // GROUP_SIZE) for number in range(groups * GROUP_SIZE)])


def forget_cracks(overlaps: np.ndarray) -> np.ndarray:
    """The same without cracks in most groups, by mask and answer."""
    few = overlaps.reshape(-1, GROUP_SIZE, *overlaps.shape[1:]).copy()
    few[np.random.default_rng(3).random(len(few)) < WITHOUT, :, CLASSES.index("crack")] = 0
    return few.reshape(overlaps.shape)


def draw_overlaps(number: int, group: int) -> np.ndarray:
    """`count_overlaps` of an answer to one drawn picture."""
    shared, own = np.random.default_rng([1, group]), np.random.default_rng([2, number])
    truth = draw_picture(number, SIDE)[1]
    moved = np.roll(truth, np.rint(shared.normal(0, 1, 2) + own.normal(0, 0.7, 2)).astype(int), (0, 1))
    soft = gaussian_filter((moved == CLASSES.index("stone")).astype(float), 3)
    stone = soft + gaussian_filter(own.normal(size=truth.shape), 4) > 0.5 + shared.normal(0, 0.12) + own.normal(0, 0.08)
    moved = np.where(moved == CLASSES.index("crack"), moved, stone.astype(np.uint8))
    noise = gaussian_filter(own.normal(size=truth.shape), 3)
    missed = noise / noise.std() > shared.normal(0.3, 0.7)
    moved[missed & (moved == CLASSES.index("crack"))] = 0
    return count_overlaps(moved, np.full(truth.shape, 230, np.uint8), truth, len(CLASSES))


def measure(overlaps: np.ndarray, n: int, grouped: bool, studies: int, samples: int = 300) -> Row:
    """How often intervals of studies of n pictures hold the value of the population."""
    answered, true = known_areas(overlaps)
    whole = compute_segmentation_metrics(make_table(overlaps), samples=1)
    held: dict[str, list[float]] = {"areas": [], "iou_width": []}
    for study in range(studies):
        generator = np.random.default_rng([n, grouped, study])
        groups = None
        if grouped:
            drawn = generator.integers(0, len(overlaps) // GROUP_SIZE, n // GROUP_SIZE)
            rows = (drawn[:, None] * GROUP_SIZE + np.arange(GROUP_SIZE)).ravel()
            groups = np.repeat(np.arange(len(drawn)), GROUP_SIZE)
        else:
            rows = generator.integers(0, len(overlaps), n)
        fitted = fit_rules(Decisions(), "segmentation", PROMISE, CLASSES, answered[rows], true[rows])
        held["areas"].append(float((np.abs(answered - true) <= fitted.reach).mean()))
        found = compute_segmentation_metrics(make_table(overlaps[rows]), groups, study, samples)
        pairs = [(name, kind, found, whole) for name, kind in MEANS.items()]
        crack = CLASSES.index("crack")
        pairs += [(f"crack_{name}", name, found.per_class[crack], whole.per_class[crack]) for name in MEANS]
        for name, kind, ours, theirs in pairs:
            if span := getattr(ours, f"{kind}_interval"):
                held.setdefault(name, []).append(span[0] <= getattr(theirs, kind) <= span[1])
        if found.mean_iou_interval:
            held["iou_width"].append(found.mean_iou_interval[1] - found.mean_iou_interval[0])
    without = 1 - len(held["crack_iou"]) / studies
    return {name: round(float(np.mean(values)), 4) for name, values in held.items()} | {"without": round(without, 4)}


def make_table(overlaps: np.ndarray) -> RegressionPredictions:
    """The table of predictions that holds these overlaps."""
    ids = tuple(map(str, range(len(overlaps))))
    areas = known_areas(overlaps)[0].astype(np.float32)
    return RegressionPredictions(
        paths=ids, ids=ids, split="test", targets=None, values=areas, columns=CLASSES, overlaps=overlaps
    )


COLUMNS = {
    "cracks": lambda row: "rare" if row["rare"] else "common",
    "pictures": lambda row: f"{row['pictures']}{', in groups of four' if row['groups'] else ''}",
    "areas within 90 % ranges": lambda row: f"{row['areas']:.1%}",
    "mean IoU within 95 % intervals": lambda row: f"{row['iou']:.1%}",
    "mean Dice": lambda row: f"{row['dice']:.1%}",
    "mean boundary F": lambda row: f"{row['boundary_f']:.1%}",
    "width of the IoU's": lambda row: f"{row['iou_width']:.3f}",
    "crack's IoU": lambda row: f"{row['crack_iou']:.1%}",
    "Dice": lambda row: f"{row['crack_dice']:.1%}",
    "boundary F": lambda row: f"{row['crack_boundary_f']:.1%}",
    "cracks without interval": lambda row: f"{row['without']:.1%}",
}


if __name__ == "__main__":
    main()
