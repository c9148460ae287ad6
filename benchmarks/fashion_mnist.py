"""Fashion-MNIST from scratch in ten minutes: official test accuracy over seeds, nothing chosen on the test set.

    python benchmarks/fashion_mnist.py                 # seeds 0, 1, 2: about 35 minutes, nothing else running
    python benchmarks/fashion_mnist.py --seeds 0 --minutes 1

Seeds whose run folder is there already are not run again. Writes benchmarks/results/fashion-mnist-10min.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
VITRAIL = Path(sys.executable).with_name("vitrail")


def main() -> None:
    """Run what is missing, then collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    name = f"fashion-mnist-{options.minutes:g}min"
    rows = []
    for seed in options.seeds:
        run = options.folder / f"{name}-seed{seed}"
        if not (run / "report.json").exists():
            words = ["train", "fashion-mnist", "--minutes", options.minutes, "--seed", seed, "--out", run]
            subprocess.run([VITRAIL, *map(str, words)], check=True)
        rows.append(row(run, seed))
        print(f"seed {seed}: {rows[-1]['accuracy']:.4f} after {rows[-1]['seconds']:.0f} s", flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(summary(rows), indent=1) + "\n")


def row(run: Path, seed: int) -> dict[str, object]:
    """What one run folder says of itself."""
    facts = json.loads((run / "report.json").read_text(encoding="utf-8"))
    test = json.loads((run / "metrics-test.json").read_text(encoding="utf-8"))
    machine = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    plan = tomllib.loads((run / "plan.toml").read_text(encoding="utf-8"))
    return {
        "seed": seed,
        "accuracy": test["accuracy"],
        "number_format": plan["compute"]["number_format"],
        **{key: facts[key] for key in ("seconds", "steps", "images_seen", "model", "parameters")},
        "machine": machine,
    }


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """All rows, and mean and standard deviation of the accuracy."""
    found = [float(str(one["accuracy"])) for one in rows]
    spread = statistics.stdev(found) if len(found) > 1 else None
    return {"mean_accuracy": statistics.mean(found), "standard_deviation": spread, "rows": rows}


if __name__ == "__main__":
    main()
