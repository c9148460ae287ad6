"""Write the table of speeds beside other libraries into README.md between its two markers, from benchmarks/results/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markers import fill

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "speed.md")
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
OWN = ("vitrail predict", "vitrail loop")
HEAD = (
    "pictures/s", "batch", "Vitrail", "of the limit", "best of the others", "which", "ratio", "timm as it comes",
    "`vitrail predict`, `train`",
)  # fmt: skip


def main() -> None:
    """Replace what stands between the markers."""
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"rows": []}
    for page in PAGES:
        fill(page, "speed", content(found["rows"]))


def content(rows: Sequence[dict[str, Any]]) -> str:
    """The table and its conditions; of nothing measured a sentence."""
    if not rows:
        return "Not measured with this version yet: `python benchmarks/peers.py`, about 80 minutes on two cores."
    return f"{table(rows)}\n\n{around(rows)}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One row a cell; ours is the better of the settings that the others have, too."""
    lines = [f"| {' | '.join(HEAD)} |", "|---|---:|---:|---:|---:|---|---:|---:|---:|"]
    for row in rows:
        if any(best_or_none(row, wanted) is None for wanted in (True, False)):
            lines.append(f"| {row['cell']} | {row['batch']} | not measured | | | | | | |")
            continue
        ours = best([one for one in row["contestants"] if is_ours(one) and one["name"] not in OWN])
        theirs = best([one for one in row["contestants"] if not is_ours(one)])
        timm = [one for one in row["contestants"] if one["name"].startswith("timm")]
        own = [rate(one) for one in row["contestants"] if one["name"] in OWN]
        ratio = ours["pictures_per_second"] / theirs["pictures_per_second"]
        lines.append(
            f"| {row['cell']} | {row['batch']} | {rate(ours)} | {share(ours)} | {rate(theirs)} | "
            f"{theirs['name']} | {ratio:.2f} | {rate(timm[0])} | {' '.join(own)} |"
        )
    return "\n".join(lines)


def around(rows: Sequence[dict[str, Any]]) -> str:
    """What the figures depend on, in a sentence."""
    machine = rows[0]["machine"]
    peers = ", ".join(f"{name} {version}" for name, version in machine["peers"].items())
    minutes = sum(row.get("wall_seconds", 0.0) for row in rows) / 60
    return (
        f"Medians of {rows[0]['rounds']} interleaved rounds on {machine['cpu']}, {threads(rows[0]['threads'])}, torch "
        f"{machine['versions']['torch']}, {peers}; the limit is the rate of the model's own matrix products alone, in "
        "the same minutes. `python benchmarks/peers.py` measures it again and says what is done with each; "
        f"all of it took {minutes:.0f} minutes."
    )


def best(contestants: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of them."""
    return max(contestants, key=lambda one: float(one["pictures_per_second"] or 0.0))


def best_or_none(row: dict[str, Any], ours: bool) -> dict[str, Any] | None:
    """The fastest of one side, our own lines left out; None where none of it has a figure."""
    side = [one for one in row["contestants"] if is_ours(one) == ours and one["name"] not in OWN]
    found = best(side) if side else None
    return None if found is None or found["pictures_per_second"] is None else found


def share(one: dict[str, Any]) -> str:
    """Of the limit, in percent."""
    return "" if one["utilisation"] is None else f"{one['utilisation']:.0%}"


def threads(count: int) -> str:
    """1 thread, 2 threads."""
    return f"{count} thread{'' if count == 1 else 's'}"


def is_ours(one: dict[str, Any]) -> bool:
    """Whether a contestant is Vitrail."""
    return str(one["name"]).startswith("vitrail")


def rate(one: dict[str, Any]) -> str:
    """Pictures a second, with one decimal; "failed" for a contestant that died."""
    return "failed" if one["pictures_per_second"] is None else f"{one['pictures_per_second']:,.1f}"


if __name__ == "__main__":
    main()
