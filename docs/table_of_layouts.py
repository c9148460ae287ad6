"""Write the tables of docs/checkpoints.md: what was measured for every layout, and the numerics card of every family.

    python docs/table_of_layouts.py             # from the stored measurements
    python docs/table_of_layouts.py --measure   # runs tests/parity first, about ten minutes

The measurements are the largest differences that the tests of tests/parity found against the libraries and repositories
themselves; they are stored in benchmarks/results/layout-differences.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markers import fill

from vitrail.checkpoints.numerics import NumericsCard, list_cards, load_card

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "checkpoints.md"
STORED = ROOT / "benchmarks" / "results" / "layout-differences.json"
FUZZES = tuple(STORED.with_name(f"checkpoint-fuzz{end}.json") for end in ("-before", ""))
"""What benchmarks/checkpoint_fuzz.py wrote: of the code before the families of version 3, and of today's."""
OUTCOMES = ("exact", "asked", "assumed", "unlike", "refused", "unanswered", "damaged", "wrong")
COLUMNS = ("read", "read, other grids", "gradients", "written")
NUMERICS = ("norm_eps", "activation", "resample", "pool")
"""Fields of a card that a reader of the table wants to compare."""


def main() -> None:
    """Measure if asked, then replace what stands between the markers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        measure()
    fill(PAGE, "differences", differences(json.loads(STORED.read_text(encoding="utf-8"))))
    fill(PAGE, "cards", cards())
    fill(PAGE, "fuzz", fuzz(*(json.loads(path.read_text(encoding="utf-8")) for path in FUZZES)))


def measure() -> None:
    """Run the comparisons and keep the largest difference of every layout in every direction."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "differences.jsonl"
        words = [sys.executable, "-m", "pytest", "tests/parity"]
        subprocess.run(words, cwd=ROOT, env=os.environ | {"VITRAIL_DIFFERENCES": str(lines)}, check=True)
        found: dict[str, dict[str, float]] = {}
        for line in lines.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            of_layout = found.setdefault(row["layout"], {})
            of_layout[row["direction"]] = max(of_layout.get(row["direction"], 0.0), row["difference"])
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def differences(found: Mapping[str, Mapping[str, float]]) -> str:
    """One row a layout, one column a direction: the largest absolute difference in float32."""
    lines = [f"| layout | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    for layout, measured in sorted(found.items()):
        cells = {column: [gap for way, gap in measured.items() if column_of(way) == column] for column in COLUMNS}
        shown = " | ".join(f"{max(gaps):.1e}" if gaps else "" for gaps in cells.values())
        lines.append(f"| {layout} | {shown} |")
    return "\n".join(lines)


def fuzz(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The counts of outcomes, then and now, and the reasons for the refusals of now."""
    lines = [f"| opened | code | models | {' | '.join(OUTCOMES)} |", "|---|---|" + "---:|" * (1 + len(OUTCOMES))]
    for form, counts in now["counts"].items():
        for code, found in (("before", before["counts"][form]), ("now", counts)):
            shown = " | ".join(str(found.get(kind, 0)) for kind in OUTCOMES)
            lines.append(f"| {form} | {code} | {sum(found.values())} | {shown} |")
    lines += ["", "| refused because | folders | bare files |", "|---|---:|---:|"]
    lines += [f"| {reason} | {forms['folder']} | {forms['bare']} |" for reason, forms in now["reasons"].items()]
    return "\n".join(lines)


def column_of(way: str) -> str:
    """The column for a direction as a test has called it, such as "read, native grid"."""
    if "gradient" in way:
        return "gradients"
    if way.startswith("written"):
        return "written"
    return "read" if "native" in way or way == "read" else "read, other grids"


def cards() -> str:
    """One row a family: the authors' numerics, what timm and transformers run instead, the licence."""
    lines = [
        "| family | eps | activation | positions resized | pooling | timm runs | transformers runs | licence |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in list_cards():
        known = load_card(name)
        ours = known.numerics()
        cells = [_cell(ours.get(field)) for field in NUMERICS]
        others = [_other(known, whose, ours) for whose in ("timm", "transformers")]
        lines.append(f"| {name} | {' | '.join([*cells, *others])} | {known.licence} |")
    return "\n".join(lines)


def _other(known: NumericsCard, whose: str, ours: Mapping[str, object]) -> str:
    """What an implementation runs otherwise; a dash if the card knows none."""
    if whose not in known.tables:
        return "–"
    theirs = known.numerics(whose)
    return ", ".join(_cell(theirs[field]) for field in NUMERICS if theirs.get(field) != ours.get(field)) or "the same"


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if value is not None else ""


if __name__ == "__main__":
    main()
