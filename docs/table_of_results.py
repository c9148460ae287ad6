"""Write the table of measured figures into README.md between its two markers, from benchmarks/results/."""

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
    "scratch": "solar cells, defective or not, from scratch",
    "chances": "the same, learnt from the experts' chances",
    "probe": "the same from DINOv2-S/14, frozen",
    "tuned": "the same from DINOv2-S/14",
}
"""Of benchmarks/elpv.py, those whose figure is an accuracy, in the order of the table."""


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "results", table())
    fill(PAGE, "peers", peers())


def table() -> str:
    """One row a benchmark of whole trainings."""
    lines = ["| trained on | minutes asked for | test accuracy | trainings | seconds each | on |"]
    lines.append("|---|---:|---|---|---:|---|")
    return "\n".join([*lines, *fashion(), *digits(), *cells()])


def fashion() -> Iterator[str]:
    """Fashion-MNIST, the official test pictures."""
    for path in sorted(RESULTS.glob("fashion-mnist-*.json")):
        rows = _read(path)["rows"]
        minutes = path.stem.rpartition("-")[2].removesuffix("min")
        found = _read(path)
        spread = {"mean": found["mean_accuracy"], "standard_deviation": found["standard_deviation"]}
        yield _row("`fashion-mnist`, official test", minutes, _accuracy(spread), _counted(len(rows), "seed"), rows)


def digits() -> Iterator[str]:
    """scikit-learn's digits in five folds."""
    path = RESULTS / "digits-5-folds.json"
    for case in _read(path)["summary"] if path.is_file() else ():
        rows = [row for row in _read(path)["rows"] if row["minutes"] == case["minutes"]]
        seeds = _counted(case["seeds"]["n"], "seed")
        yield _row("`digits`, 5 folds", f"{case['minutes']:g}", _accuracy(case["seeds"]), seeds, rows)


def cells() -> Iterator[str]:
    """ELPV in five folds; the deviation is between folds."""
    path = RESULTS / "elpv.json"
    whole = [case for case in _read(path)["summary"] if case["folds"] == 5] if path.is_file() else []
    for case in (case for way in WAYS for case in whole if case["way"] == way):
        rows = [row for row in _read(path)["rows"] if all(row[key] == case[key] for key in ("way", "minutes", "seed"))]
        figure = f"{_accuracy(case['accuracy'])}, AUROC {case['auroc']['mean']:.3f}"
        yield _row(f"{WAYS[case['way']]}, 5 folds", f"{case['minutes']:g}", figure, "1 seed", rows)


def peers() -> str:
    """What timm's ViT of the same shape makes of the same minutes, and how it was trained."""
    lines = ["| Fashion-MNIST from scratch | Vitrail | timm's ViT of the same shape |", "|---|---:|---:|"]
    for path in sorted(RESULTS.glob("peer-fashion-mnist-*min.json")):
        minutes, found = path.stem.rpartition("-")[2].removesuffix("min"), _read(path)
        lines.append(f"| {minutes} minutes each, the same two cores | {found['ours']:.2%} | {found['peer']:.2%} |")
        lines.append(f"| Vitrail after {found['short_seconds']:.0f} seconds | {found['short']:.2%} | |")
    how = "timm's ViT by AdamW at the best of three rates, mixup, label smoothing; pictures, batches, number format are"
    return "\n".join([*lines, "", f"{how} the same. `python benchmarks/fashion_mnist_peer.py`"])


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _accuracy(spread: dict[str, Any]) -> str:
    deviation = spread["standard_deviation"]
    return f"{spread['mean']:.2%}" + (f" ± {deviation:.2%}" if deviation is not None else "")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count > 1)}"


def _row(source: str, minutes: str, figure: str, trainings: str, rows: Sequence[dict[str, Any]]) -> str:
    seconds, first = sum(row["seconds"] for row in rows) / len(rows), rows[0]
    machine = f"{first['machine']['threads']} cores, {first['machine']['cpu_capability']}, {first['number_format']}"
    return f"| {source} | {minutes} | {figure} | {trainings} | {seconds:.0f} | {machine} |"


if __name__ == "__main__":
    main()
