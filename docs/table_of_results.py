"""Write the tables of measured figures into README.md, docs/anomaly.md and docs/watch.md, from benchmarks/results/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
WAYS = {
    "scratch": "solar cells, defective or not, from scratch, 5 folds",
    "taught": "the same, beside a small CNN that is trained first",
    "chances": "the same, learnt from the experts' chances",
    "probe": "the same from DINOv2-S/14 at 168 pixels, frozen",
    "tuned": "the same from DINOv2-S/14 at 224 pixels, tuned where validation says so",
}
"""Of benchmarks/elpv.py, those whose figure is an accuracy, in the order of the table."""


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "results", table())
    fill(PAGE, "peers", peers())
    for page, block, name in (
        ("anomaly", "measured", "anomaly"), ("anomaly", "tiles", "anomaly-tiles"),
        ("anomaly", "trials", "anomaly-trials"), ("watch", "simulated", "watch"),
    ):  # fmt: skip
        fill(PAGE.parent / "docs" / f"{page}.md", block, (RESULTS / f"{name}.md").read_text(encoding="utf-8").strip())


def table() -> str:
    """One row a benchmark of whole trainings."""
    lines = [
        "| trained on | minutes asked for | test accuracy | ± between | seconds of training | of the command | on |"
    ]
    lines.append("|---|---:|---|---|---:|---:|---|")
    return "\n".join([*lines, *fashion(), *digits(), *cells(), "", overrun()])


def overrun() -> str:
    """How far the seconds of trainings are from the minutes that were asked for, in `minutes.json` and in the rows."""
    measured = [row["seconds"] / (60 * row["minutes"]) - 1 for row in _read(RESULTS / "minutes.json")["rows"]]
    off = [row["seconds"] / (60 * float(_minutes(path))) - 1 for path in _fashion() for row in _read(path)["rows"]]
    return (
        "Minutes are kept by the clock: the number of steps is planned anew on the way ([plans](docs/plans.md)). "
        f"{len(measured)} trainings of one and of five\nminutes, without and beside two busy processes, took from "
        f"{min(measured):+.1%} to {max(measured):+.1%} of what was asked for (`python benchmarks/minutes.py`).\nRows "
        f"of Fashion-MNIST are from {min(off):+.0%} to {max(off):+.0%}: some are older. In all: with looking at the "
        "pictures, evaluation and report. Seconds are means."
    )


def fashion() -> Iterator[str]:
    """Fashion-MNIST, the official test pictures."""
    for path in _fashion():
        found = _read(path)
        rows = found["rows"]
        several = len(rows) > 1
        spread = {
            "mean": found["mean_accuracy"],
            "standard_deviation": found["standard_deviation"] if several else None,
        }
        trainings = count_words(len(rows), "seed")
        yield _row("`fashion-mnist`, official test", _minutes(path), _accuracy(spread), trainings, rows)


def digits() -> Iterator[str]:
    """scikit-learn's digits in five folds."""
    path = RESULTS / "digits-5-folds.json"
    for case in _read(path)["summary"] if path.is_file() else ():
        rows = [row for row in _read(path)["rows"] if row["minutes"] == case["minutes"]]
        seeds = count_words(case["seeds"]["n"], "seed")
        yield _row(
            "`digits`, 5 folds",
            f"{case['minutes']:g}",
            _accuracy(case["seeds"]),
            seeds,
            rows,
        )


def cells() -> Iterator[str]:
    """ELPV in five folds; the deviation is between folds."""
    path = RESULTS / "elpv.json"
    whole = [case for case in _read(path)["summary"] if case["folds"] == 5] if path.is_file() else []
    for case in (case for way in WAYS for case in whole if case["way"] == way):
        rows = [row for row in _read(path)["rows"] if all(row[key] == case[key] for key in ("way", "minutes", "seed"))]
        figure = f"{_accuracy(case['accuracy'])}, AUROC {case['auroc']['mean']:.3f}"
        yield _row(WAYS[case["way"]], f"{case['minutes']:g}", figure, "5 folds, 1 seed", rows)


def peers() -> str:
    """What timm's ViT of the same shape makes of the same minutes, and how it was trained."""
    lines = ["| Fashion-MNIST from scratch, one seed | Vitrail | timm's ViT of the same shape |", "|---|---:|---:|"]
    how = []
    for path in sorted(RESULTS.glob("peer-fashion-mnist-*min.json")):
        found = _read(path)
        ours, peer = (next(row for row in found["rows"] if row["who"] == who) for who in ("ours", "peer"))
        lines.append(f"| {_minutes(path)} minutes asked for | {found['ours']:.2%} | {found['peer']:.2%} |")
        lines.append(f"| took | {_took(ours)} | {_took(peer)} |")
        lines.append(f"| Vitrail after {found['short_seconds']:.0f} seconds | {found['short']:.2%} | |")
        mixed = f"mixup {peer['mixup']:g}" if peer["mixup"] else "no mixup, which its recipe begins at 30 epochs"
        how.append(f"timm's ViT by AdamW at the best of three rates, label smoothing, {mixed}; pictures, batches")
        views = f"over the {peer['views']} views of Vitrail's answers, it has {peer['accuracy_with_our_views']:.2%}"
        how.append(f"and number format are the same; {views}.")
        how.append(f"`python benchmarks/fashion_mnist_peer.py --minutes {_minutes(path)}`")
    return "\n".join([*lines, "", *how])


def _took(row: dict[str, Any]) -> str:
    return f"{row['seconds']:.0f} s, {row['steps']:,} steps"


def _fashion() -> list[Path]:
    return sorted(RESULTS.glob("fashion-mnist-*.json"))


def _minutes(path: Path) -> str:
    return path.stem.rpartition("-")[2].removesuffix("min")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _accuracy(spread: dict[str, Any]) -> str:
    deviation = spread["standard_deviation"]
    return f"{spread['mean']:.2%}" + (f" ± {deviation:.2%}" if deviation is not None else "")


def count_words(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count > 1)}"


def _row(source: str, minutes: str, figure: str, trainings: str, rows: Sequence[dict[str, Any]]) -> str:
    first, walls = rows[0], [row["wall_seconds"] for row in rows if row.get("wall_seconds")]
    seconds = sum(row["seconds"] for row in rows) / len(rows)
    whole = f"{sum(walls) / len(walls):.0f}" if len(walls) == len(rows) else "not kept"
    machine = f"{first['machine']['threads']} cores, {first['machine']['cpu_capability']}, {first['number_format']}"
    return f"| {source} | {minutes} | {figure} | {trainings} | {seconds:.0f} | {whole} | {machine} |"


if __name__ == "__main__":
    main()
