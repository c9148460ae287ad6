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
    figures, curves = (
        json.loads((RESULTS / f"{name}-coverage.json").read_text(encoding="utf-8")) for name in ("figure", "curve")
    )
    fill(PAGE, "figures", figure_content(figures["rows"]))
    rows = json.loads((RESULTS / "doubling.json").read_text(encoding="utf-8"))["rows"]
    fill(PAGE, "doubling", doubling_content(rows))
    tables = [curve_content(curves[part]) for part in ("bands", "numbers")]
    fill(PAGE, "curves", "\n\n".join(tables) + NOTE)


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


NOTE = (
    "\n\n`python benchmarks/curve_coverage.py`: cells without groups, and in groups of four pictures whose scores "
    "share half of their variance, with labels of their own or one label. A cell that shows an interval in fewer than "
    "one of ten studies is left out."
)


def curve_content(found: dict[str, Any]) -> str:
    """A row for each kind of interval, a column for each number of pictures; the mean, and the lowest of all cells."""
    cells, studies = found["cells"], found["studies"]
    sizes = sorted({cell["n"] for cell in cells})
    names = dict.fromkeys(name for cell in cells for name in cell["coverage"])
    lines = [
        f"| coverage of nominal 95 % | {' | '.join(f'{n:,} pictures' for n in sizes)} | lowest cell |",
        f"|---|{'---:|' * (len(sizes) + 1)}",
    ]
    for name in names:
        shown = [cell for cell in cells if cell["coverage"].get(name, {"shown": 0})["shown"] >= studies / 10]
        means = {n: [cell["coverage"][name]["mean"] for cell in shown if cell["n"] == n] for n in sizes}
        cells_of = [100 * value for values in means.values() for value in values]
        columns = [f"{100 * sum(values) / len(values):.1f} %" if values else "not shown" for values in means.values()]
        lines.append(f"| {name} | {' | '.join(columns)} | {min(cells_of):.1f} % |")
    table = "\n".join(lines)
    shares = " or ".join(f"{share:g}" for share in sorted({cell["prevalence"] for cell in cells}))
    areas = " or ".join(f"{NormalDist().cdf(one / 2**0.5):.2f}" for one in sorted({cell["distance"] for cell in cells}))
    return (
        f"{table}\n\n{len(cells)} cells of {studies:,} studies, whose chance is "
        f"{100 * (0.0475 / studies) ** 0.5:.1f} points, with a share of positives of {shares} and an AUROC of {areas}."
    )


if __name__ == "__main__":
    main()
