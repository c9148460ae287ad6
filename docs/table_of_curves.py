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
    figures, tasks, curves, doubling = (
        _read_rows(name) for name in ("figure-coverage", "task-coverage", "curve-coverage", "doubling")
    )
    fill(PAGE, "figures", figure_content(figures))
    fill(PAGE, "tasks", task_content(tasks))
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
        lowest, name = min((shown[name]["coverage"], name) for name in shown if name not in FIGURES)
        kind, of, _ = name.partition(" of ")
        what = f"{OF_CLASSES[kind]} of a class" if of else OTHERS[name]
        mark = "*" if shown[name].get("exact") else ""
        lines.append(f"| {row['cell']} | {' | '.join(cells)} | {_percent(lowest)}{mark} {what} |")
    fewest, most = (choose(row["studies"] for row in rows) for choose in (min, max))
    chance, less = (100 * (0.05 * 0.95 / studies) ** 0.5 for studies in (fewest, most))
    note = (
        f"`python benchmarks/figure_coverage.py`: coverage of nominal 95 % in {fewest} studies (chance: {chance:.1f} "
        f"points), or in {most} others ({less:.1f} points) where one was below 94 %, and with * the exact coverage of "
        "proportions of independent pictures; behind it the mean width of the intervals before this table (percentile "
        "bootstrap, plain Wilson) and now. n pictures, of which a share p is "
        "answered rightly; images of a group share half of the variance of their scores. *other*: the lowest of top-2 "
        "accuracy, quadratic kappa, the figures of calibration, and recall, precision, F1 and AUROC of each class."
    )
    return "\n".join([*lines, "", note])


def _cell(now: dict[str, float], before: float | None) -> str:
    widths = f"{now['width']:.3f}" if before is None else f"{before:.3f} → {now['width']:.3f}"
    return f"{_percent(now['coverage'])}{'*' if now.get('exact') else ''} ({widths})"


TASKS = {
    "numbers": {"mae": "MAE", "rmse": "RMSE", "r2": "R2", "spearman": "rank correlation", "bias": "bias",
                "lower limit": "lower limit of agreement", "upper limit": "upper limit of agreement"},
    "labels": {"mean auroc": "mean AUROC", "mean average_precision": "mean average precision", "mean f1": "mean F1",
               "auroc": "AUROC", "average_precision": "average precision", "f1": "F1", "sensitivity": "sensitivity",
               "specificity": "specificity", "sensitivity_at_90": "sensitivity at 90 % specificity"},
    "anomalies": {"auroc": "AUROC", "average_precision": "average precision", "f1": "F1",
                  "recall": "recall (1 - escapes)", "false_alarms": "false alarms"},
}  # fmt: skip


def task_content(rows: list[dict[str, Any]]) -> str:
    """A row for each figure: the lowest coverage of all kinds of studies of a size, and the widths before and now."""
    sizes = [(n, grouped) for grouped in (False, True) for n in sorted({row["n"] for row in rows})]
    heads = [f"{n:,}{' in groups' if grouped else ' pictures'}" for n, grouped in sizes]
    lines = [f"| task | figure | {' | '.join(heads)} |", f"|---|---|{'---|' * len(sizes)}"]
    for task, figures in TASKS.items():
        for name, words in figures.items():
            cells = []
            for size in sizes:
                here = [row for row in rows if row["task"] == task and (row["n"], row["grouped"]) == size]
                found = [(one, row["before"].get(key)) for row in here for key, one in _shown_of(row, name)]
                cells.append(_lowest_cell(found) if found else "-")
            lines.append(f"| {task} | {words} | {' | '.join(cells)} |")
    fewest, most = (choose(row["studies"] for row in rows) for choose in (min, max))
    note = (
        f"`python benchmarks/task_coverage.py`: the lowest coverage of nominal 95 % of all cells, each of {fewest:,} "
        f"to {most:,} studies, new ones where one was below 94 %. The chance of one coverage is "
        f"{100 * (0.0475 / most) ** 0.5:.1f} to {100 * (0.0475 / fewest) ** 0.5:.1f} points, and the lowest of many is "
        "below its own. Behind it the mean width before (percentile "
        "bootstrap) and now. Numbers have normal errors, exponential ones, and errors that grow with the target; four "
        "labels with shares of 0.5 to 0.05 (the lowest of them) are found weakly or well; 30 or 5 % of the parts are "
        "defects. Groups are of four pictures that share half of the variance of scores and errors."
    )
    return "\n".join([*lines, "", note])


def _shown_of(row: dict[str, Any], name: str) -> list[tuple[str, dict[str, float]]]:
    """The intervals of a figure, or of it for each label, that at least every tenth study shows."""
    figures = [(key, one) for key, one in row.items() if key == name or key.startswith(f"{name} of ")]
    return [(key, one) for key, one in figures if one["shown"] >= row["studies"] / 10]


def _lowest_cell(found: list[tuple[dict[str, float], float | None]]) -> str:
    """The lowest coverage, and the mean widths of intervals that both versions show."""
    lowest = min(one["coverage"] for one, _ in found)
    both = [(before, one["width"]) for one, before in found if before is not None]
    now = sum(one["width"] for one, _ in found) / len(found)
    if not both:
        return f"{_percent(lowest)} ({now:.3f})"
    before, now = (sum(column) / len(both) for column in zip(*both, strict=True))
    return f"{_percent(lowest)} ({before:.3f} → {now:.3f})"


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
        f"{_describe_older(rows)}"
    )


def _describe_older(rows: list[dict[str, Any]]) -> str:
    older = sum(row["commit"].startswith("recorded") for row in rows)
    return f" {older} cells of the last four rows are older and were simulated once." if older else ""


def _is_shown(row: dict[str, Any], name: str) -> bool:
    return row["coverage"].get(name, {"shown": 0})["shown"] >= row["studies"] / 10


if __name__ == "__main__":
    main()
