"""Is the default map of a training the right one where the evidence is known, and withheld where there is none?

    python benchmarks/map_choice.py                     # six trainings of 450 steps and one minute, one after the other
    python benchmarks/map_choice.py --cases mean

Models learn `planted` pictures, of which the glyph that makes the class is known, and one learns labels that were
shuffled. Each training chooses by its own check on validation pictures, which knows nothing of glyphs; then the share
of maps whose largest patch lies on the glyph (pointing) is measured on test pictures for every candidate. Rows that are
there are kept. Writes benchmarks/results/map-choice.json and a table beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from making.records import RESULTS, Results, Row, train_run
from planted_heads import HEADS, STEPS, USUAL, shuffle_labels, table

from vitrail.data.sources.synthetic import open_synthetic
from vitrail.explain.faithfulness.map_choice import CANDIDATES
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import LabelledImages
from vitrail.services.map_faithfulness import get_map_function, measure_faithfulness

FIXED = (*USUAL, "--steps", STEPS)
REGISTERS = ("--model.registers", 4)
CASES: dict[str, tuple[object, ...]] = {
    "class+mean, 4 registers": (*HEADS["class+mean"], *REGISTERS, *FIXED),
    "the plan of one minute": ("--minutes", 1),
    "mean": (*HEADS["mean"], *FIXED),
    "class": (*HEADS["class"], *FIXED),
    "class+mean": (*HEADS["class+mean"], *FIXED),
    "class+mean, shuffled labels": (*HEADS["class+mean"], *FIXED),
}
PICTURES = 100


def main() -> None:
    """Train what is missing, measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("map-choice")
    for case in options.cases:
        key = {"case": case, "seed": options.seed}
        print(results.row(key, lambda case=case: measure(options.folder, case, options.seed)), flush=True)
    results.write({})
    text = table(COLUMNS, results.rows)
    (RESULTS / "map-choice.md").write_text(text, encoding="utf-8")
    print(text)


def measure(folder: Path, case: str, seed: int) -> Row:
    """Train one model; what it chose, by which gaps, and where the maps of each candidate point."""
    planted = open_synthetic()
    name = "".join(sign if sign.isalnum() else "-" for sign in case)
    shuffled = folder / f"map-choice-shuffled-seed{seed}.npz"
    source = shuffle_labels(planted, shuffled, seed) if "shuffled" in case else "planted"
    run = folder / f"map-choice-{name}-seed{seed}"
    row = train_run(run, source, *CASES[case], "--seed", seed)
    predictor = Predictor.open(run)
    choice = predictor.single_member().map_choice
    assert choice is not None
    held = LabelledImages(planted, planted.splits["test"], "test")
    methods = {method: get_map_function(method) for method in CANDIDATES}
    truth = measure_faithfulness(predictor, held, methods, PICTURES, num_randomized=0)
    return {
        "accuracy": row["accuracy"],
        "chosen": choice.method,
        "passed": list(choice.passed),
        "checked_on": choice.pictures,
        "gaps": {one.name: one.gap for one in choice.gaps},
        "pictures": PICTURES,
        **{f"pointing_{one.method}": one.located.pointing.value for one in truth.rows if one.located},
        "commit": row["commit"],
    }


def format_gaps(row: Row, *names: str) -> str:
    """Gaps of some methods or baselines, in their order."""
    return ", ".join(f"{row['gaps'][name]:+.2f}" for name in names if name in row["gaps"])


COLUMNS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row["case"],
    "right": lambda row: f"{row['accuracy']:.1%}",
    "chosen": lambda row: row["chosen"] or "none: withheld",
    "gap of relevance, integrated": lambda row: format_gaps(row, *CANDIDATES),
    "of edges, centre, noise": lambda row: format_gaps(row, "edges", "centre", "random"),
    "relevance points at the glyph": lambda row: f"{row['pointing_relevance']:.0%}",
    "integrated": lambda row: f"{row['pointing_integrated']:.0%}",
}


if __name__ == "__main__":
    main()
