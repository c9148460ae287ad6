"""Write the coverage of intervals of figures and of bands of curves into docs/evaluation.md."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evaluation.md"
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced", "macro_f1": "macro F1", "kappa": "kappa",
    "auroc": "AUROC", "log_loss": "log loss", "brier": "Brier",
}  # fmt: skip
OTHERS = {
    "top_accuracy": "top-2 accuracy",
    "quadratic_kappa": "quadratic kappa",
    "calibration_error": "calibration error",
    "calibration_in_the_large": "calibration in the large",
    "calibration_slope": "calibration slope",
}
OF_CLASSES = {"recall": "recall", "precision": "precision", "f1": "F1", "auroc": "AUROC"}


def main() -> None:
    """Replace what stands between the markers."""
    figures, curves, doubling = (_read_rows(name) for name in ("figure-coverage", "curve-coverage", "doubling"))
    fill(PAGE, "figures", figure_content(figures))
    fill(PAGE, "doubling", doubling_content(doubling))
    fill(PAGE, "curves", curve_content(curves))


def _read_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def doubling_content(rows: list[dict[str, Any]]) -> str:
    """A row for each set of features and number of training pictures."""
    lines = [
        "| frozen features | pictures, then twice as many | accuracy | forecast | really | mean width | held |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        gains = " | ".join(f"{100 * row[name]:+.1f} points" for name in ("forecast", "real"))
        lines.append(
            f"| {row['features']} | {row['images']:,} | {row['accuracy']:.1%} | {gains} | {100 * row['width']:.1f} "
            f"points | {round(row['held'] * row['repeats'])} of {row['repeats']} times |"
        )
    note = (
        "`python benchmarks/doubling.py`: the change that fits to twice the pictures showed on the same held-out ones, "
        "and how often the interval held it."
    )
    return "\n".join(lines) + f"\n\n{note}"


def figure_content(rows: list[dict[str, Any]]) -> str:
    """A row for each cell: coverage, and the mean width after that of the intervals before them."""
    few = min(row["studies"] for row in rows) / 10
    lines = [f"| studies | {' | '.join(FIGURES.values())} | other |", f"|---|{'---|' * (len(FIGURES) + 1)}"]
    for row in rows:
        shown = {name: one for name, one in row.items() if isinstance(one, dict) and one.get("shown", 0) >= few}
        cells = [_cell(shown[name], row["before"].get(name)) if name in shown else "-" for name in FIGURES]
        lowest, what = min((shown[name]["coverage"], name) for name in shown if name not in FIGURES)
        kind, of, _ = what.partition(" of ")
        what = f"{OF_CLASSES[kind]} of a class" if of else OTHERS[what]
        lines.append(f"| {row['cell']} | {' | '.join(cells)} | {_percent(lowest)} {what} |")
    fewest, most = (choose(row["studies"] for row in rows) for choose in (min, max))
    chance, less = (100 * (0.05 * 0.95 / studies) ** 0.5 for studies in (fewest, most))
    note = (
        f"`python benchmarks/figure_coverage.py`: coverage of nominal 95 % in {fewest} studies (chance: {chance:.1f} "
        f"points), or in {most} others ({less:.1f} points) where one was below 94 %; behind it the mean width of the "
        "intervals before this table (percentile bootstrap, plain Wilson) and now. n pictures, of which a share p is "
        "answered rightly; images of a group share half of the variance of their scores. *other*: the lowest of top-2 "
        "accuracy, quadratic kappa, the figures of calibration, and recall, precision, F1 and AUROC of each class."
    )
    return "\n".join([*lines, "", note])


def _cell(now: dict[str, float], before: float | None) -> str:
    widths = f"{now['width']:.3f}" if before is None else f"{before:.3f} → {now['width']:.3f}"
    return f"{_percent(now['coverage'])} ({widths})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def curve_content(rows: list[dict[str, Any]]) -> str:
    """A row for each kind of interval, a column for each number of pictures, the lowest cell and its worst place."""
    sizes = sorted({row["n"] for row in rows})
    lines = [
        f"| coverage of nominal 95 % | {' | '.join(f'{n:,} pictures' for n in sizes)} | lowest cell | worst place |",
        f"|---|{'---:|' * (len(sizes) + 2)}",
    ]
    for name in dict.fromkeys(name for row in rows for name in row["coverage"]):
        shown = [(row["n"], row["coverage"][name]) for row in rows if _is_shown(row, name)]
        means = {n: [one["mean"] for size, one in shown if size == n] for n in sizes}
        columns = [f"{_percent(sum(values) / len(values))} %" if values else "not shown" for values in means.values()]
        lowest, worst = (f"{_percent(min(one[kind] for _, one in shown))} %" for kind in ("mean", "worst"))
        lines.append(f"| {name} | {' | '.join(columns)} | {lowest} | {worst} |")
    shares = " or ".join(f"{share:g}" for share in sorted({row["prevalence"] for row in rows}))
    areas = " or ".join(f"{NormalDist().cdf(one / 2**0.5):.2f}" for one in sorted({row["distance"] for row in rows}))
    cells = len({tuple(row[name] for name in ("n", "prevalence", "distance", "grouping")) for row in rows})
    fewest, most = (choose(row["studies"] for row in rows) for choose in (min, max))
    return "\n".join(lines) + (
        f"\n\n`python benchmarks/curve_coverage.py`: {cells} cells of {fewest:,} studies, or {most:,} others where a "
        "place was below 94 %. Columns are means over places and cells, the *lowest cell* is a mean over the places of "
        "a band (or over both likelihood ratios), and the *worst place* is one of five to eight of a pointwise band; a "
        f"simultaneous one holds at all of 49 or 99 places or not at all. The share of positives is {shares} and the "
        f"AUROC {areas}, without groups, and in groups of four pictures whose scores share half of their variance, "
        "with labels of their own or one label. A cell that "
        "shows an interval in fewer than one of ten studies is left out."
    )


def _is_shown(row: dict[str, Any], name: str) -> bool:
    return row["coverage"].get(name, {"shown": 0})["shown"] >= row["studies"] / 10


if __name__ == "__main__":
    main()
