"""Write the table of measured figures into README.md between its two markers, from benchmarks/results/."""

from __future__ import annotations

import json
from pathlib import Path

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "results", table())


def table() -> str:
    """One row a benchmark of whole trainings."""
    lines = ["| command | official test accuracy | seeds | seconds | on |", "|---|---:|---:|---:|---|"]
    for path in sorted((ROOT / "benchmarks" / "results").glob("fashion-mnist-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, spread = found["rows"], found["standard_deviation"]
        accuracy = f"{found['mean_accuracy']:.2%}" + (f" ± {spread:.2%}" if spread is not None else "")
        seconds = sum(one["seconds"] for one in rows) / len(rows)
        first = rows[0]
        machine = f"{first['machine']['threads']} cores, {first['machine']['cpu_capability']}, {first['number_format']}"
        minutes = path.stem.rpartition("-")[2].removesuffix("min")
        command = f"`vitrail train fashion-mnist --minutes {minutes}`"
        size = f"{first['parameters']:,} parameters"
        lines.append(f"| {command}, {size} | {accuracy} | {len(rows)} | {seconds:.0f} | {machine} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
