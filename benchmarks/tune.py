"""What tuning finds beside the plan itself: six trials by `vitrail tune`, and the plan with the minutes of the winner.

    python benchmarks/tune.py                                           # about two hours, nothing else running
    python benchmarks/tune.py --sources digits --minutes 2 --seeds 0    # a trial of it
    python benchmarks/tune.py --sources digits --steps 1700             # the same bits on a busy machine too

The goals: the plan within half a point of the best of six trials, by the accuracy on the test pictures, and the minutes
of all trials within 5 % of those asked for. Writes benchmarks/results/tune.json and a table in Markdown beside it; rows
that are there are kept, and a tuning that was cut short is gone on with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from functools import partial
from pathlib import Path
from statistics import fmean

from making.records import RESULTS, VITRAIL, Results, Row, train_run

TRIALS, SHARES, WINNER = 6, 17, 8
"""Six trials cost 17 shares, of which the winner has had 8."""
MINUTES = {"digits": 10.0, "fashion-mnist": 30.0}


def main() -> None:
    """Tune and train what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--sources", nargs="+", default=list(MINUTES), choices=list(MINUTES))
    parser.add_argument("--minutes", type=float, help="instead of 10 for digits and 30 for Fashion-MNIST")
    parser.add_argument("--steps", type=int, help="of all trials together, instead of minutes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    results = Results("tune")
    for source in options.sources:
        for seed in options.seeds:
            unit, budget = "minutes", options.minutes or MINUTES[source]
            if options.steps:
                unit, budget = "steps", options.steps
            key = {"source": source, unit: budget, "seed": seed}
            row = results.row(key, partial(compare, options.folder / f"tune-{source}-{budget:g}-{seed}", key))
            print(f"{source}, seed {seed}: plan {row['plan']:.4f}, best of six {row['tuned']:.4f}", flush=True)
    gains = [row["tuned"] - row["plan"] for row in results.rows]
    results.write({"mean_gain": fmean(gains), "largest_gain": max(gains)})
    (RESULTS / "tune.md").write_text(table(results.rows), encoding="utf-8")
    print(table(results.rows))


def compare(folder: Path, key: Row) -> Row:
    """The test accuracy of the tuned run and of the plan with the same minutes, and what the tuning took."""
    unit = "steps" if "steps" in key else "minutes"
    words = [key["source"], "--trials", TRIALS, f"--{unit}", key[unit], "--seed", key["seed"], "--out", folder]
    words = ["--resume", folder] if (folder / "tune.json").is_file() else words
    done = subprocess.run([VITRAIL, "tune", *map(str, words), "--json"], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    tuned = json.loads((Path(found["run"]) / "metrics-test.json").read_text(encoding="utf-8"))
    own = key[unit] * WINNER / SHARES if unit == "minutes" else max(int(trial["steps"]) for trial in found["trials"])
    plan = train_run(folder.with_name(f"{folder.name}-plan"), key["source"], f"--{unit}", own, "--seed", key["seed"])
    trials = found["trials"]
    return {
        "tuned": tuned["accuracy"],
        "plan": plan["accuracy"],
        "winner": Path(found["run"]).name,
        "trials": trials,
        "minutes_taken": sum(float(trial["seconds"]) for trial in trials) / 60,
    }


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| source | seed | asked for | minutes taken | the plan | best of six | which |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        asked = f"{row['steps']:,} steps" if "steps" in row else f"{row['minutes']:g} minutes"
        figures = f"{asked} | {row['minutes_taken']:.2f} | {row['plan']:.2%} | {row['tuned']:.2%}"
        lines.append(f"| {row['source']} | {row['seed']} | {figures} | {row['winner']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
