"""Write the coverage of intervals and bands of curves into docs/evaluation.md, from benchmarks/results/."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evaluation.md"
RESULT = ROOT / "benchmarks" / "results" / "curve-coverage.json"


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "curves", content(json.loads(RESULT.read_text(encoding="utf-8"))))


def content(found: dict[str, Any]) -> str:
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
        f"{table}\n\n`python benchmarks/curve_coverage.py`: {len(cells)} cells of {studies:,} studies, whose chance is "
        f"{100 * (0.0475 / studies) ** 0.5:.1f} points, with a share of positives of {shares} and an AUROC of {areas}, "
        "without groups, and in groups of four pictures whose scores share half of their variance, with labels of "
        "their own or one label. A cell that shows an interval in fewer than one of ten studies is left out."
    )


if __name__ == "__main__":
    main()
