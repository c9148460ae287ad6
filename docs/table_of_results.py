"""Write the table of measured figures into README.md between its two markers, from benchmarks/results/."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def main() -> None:
    """Replace what stands between the markers."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} must hold the lines {BEGIN} and {END}. Put them where the table belongs.")
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
    print(f"wrote the table of results into {PAGE.relative_to(ROOT)}")


def table() -> str:
    """One row a benchmark of whole trainings."""
    lines = ["| command | official test accuracy | seeds | seconds | on |", "|---|---:|---:|---:|---|"]
    for path in sorted((ROOT / "benchmarks" / "results").glob("fashion-mnist-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, spread = found["rows"], found["standard_deviation"]
        accuracy = f"{found['mean_accuracy']:.2%}" + (f" ± {spread:.2%}" if spread is not None else "")
        seconds = sum(one["seconds"] for one in rows) / len(rows)
        machine = f"{rows[0]['machine']['threads']} cores, {rows[0]['machine']['cpu_capability']}, float32"
        minutes = path.stem.rpartition("-")[2].removesuffix("min")
        command = f"`vitrail train fashion-mnist --minutes {minutes}`"
        size = f"{rows[0]['parameters']:,} parameters"
        lines.append(f"| {command}, {size} | {accuracy} | {len(rows)} | {seconds:.0f} | {machine} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
