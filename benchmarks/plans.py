"""The plan that picks itself against six plans that somebody might write by hand, on four cases, in the same minutes.

    python benchmarks/plans.py --elpv DATA                     # three seeds: about 3.5 hours, nothing else running
    python benchmarks/plans.py --cases fashion-mnist-1 digits-0.5 --seeds 0 1
    python benchmarks/plans.py --elpv DATA --stop-after 80     # begin no run after 80 minutes; go on another time

Every plan has the same source, split and seed, and as many steps as take the minutes on all cores of a quiet machine
(`making/paces.py`); the trainings themselves run two at a time with one thread each. The plan's own model is the one
that it chose in those minutes; where that makes it one of the six, word for word, the rows of that one are its own. The
figure is accuracy on validation pictures that no training has seen (official test pictures are not looked at). The
goal: nowhere more than half a point below the best of the six, which is chosen here after the fact.

Writes benchmarks/results/plans.json, a table in Markdown beside it, and the paces.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path

from making.cases import Case, cases, train_and_validate
from making.paces import row_of, steps_of
from making.records import RESULTS, Job, Results, Row, number, paired_difference, spread

CASES = {
    "fashion-mnist-1": ("fashion-mnist", 1.0),
    "fashion-mnist-5": ("fashion-mnist", 5.0),
    "digits-0.5": ("digits", 0.5),
    "elpv-3": ("elpv", 3.0),
}
OURS = "the plan's own"


def by_hand(case: Case) -> dict[str, tuple[object, ...]]:
    """Six plans as people write them, for pictures of one size from the first step to the last."""
    doubled = 2 * case.patch
    fine, coarse = f"patch{case.patch}_{case.size}", f"patch{doubled}_{case.size // doubled * doubled}"
    plain = ("--recipe.patch_keep_until", 0, "--recipe.mixup", 0, "--recipe.cutmix", 0, "--model.drop_path", 0)
    textbook = ("--recipe.optimizer", "adamw", "--recipe.lr", 1e-3, "--recipe.lr_schedule", "cosine")
    rich = (
        "--recipe.auto_augment",
        "trivial",
        "--recipe.mixup",
        0.8,
        "--recipe.cutmix",
        1,
        "--recipe.label_smoothing",
        0.1,
    )
    plans: dict[str, tuple[object, ...]] = {
        "textbook: AdamW, cosine, all patches": ("--model", f"vit_nano_{fine}", *plain, *textbook),
        "Muon, all patches": ("--model", f"vit_pico_{fine}", *plain),
        "larger": ("--model", f"vit_nano_{fine}"),
        "smaller": ("--model", f"vit_femto_{fine}"),
        "coarser patches": ("--model", f"vit_nano_{coarse}", "--recipe.patch_keep_until", 0),
        "strongly augmented": ("--model", f"vit_pico_{fine}", *rich),
    }
    return {name: (*words, *case.one_size) for name, words in plans.items()}


def main() -> None:
    """Run what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="begin no run after so many minutes")
    parser.add_argument("--elpv", type=Path, help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    sources, results = cases(options.elpv, options.folder), Results("plans")
    jobs: list[tuple[int, Job]] = []
    twins: dict[str, str] = {}
    for name in options.cases:
        source, minutes = CASES[name]
        if source not in sources:
            print(f"{name}: left out, needs --elpv DATA")
            continue
        words = sources[source].words
        plans = {plan: (*words, *more) for plan, more in {**by_hand(sources[source]), OURS: ()}.items()}
        steps = steps_of(f"plans-{name}-paces", plans, minutes)
        plans[OURS] = (*plans[OURS], "--model", row_of(f"plans-{name}-paces", OURS)["model"])
        if twin := twin_of(OURS, plans):
            twins[name] = twin
            del plans[OURS]
        for seed, plan in product(options.seeds, plans):
            folder = options.folder / f"plans-{name}-{''.join(filter(str.isalnum, plan))}-seed{seed}"
            words = (*plans[plan], *steps[plan], "--seed", seed, "--compute.threads", 1)
            jobs.append(
                (seed, ({"case": name, "plan": plan, "seed": seed}, partial(train_and_validate, folder, *words)))
            )
    jobs.sort(key=itemgetter(0))  # all cases with the first seed, then with the next
    for row in results.side_by_side([job for _, job in jobs], options.stop_after):
        print(f"{row['case']}, seed {row['seed']}, {row['plan']}: {number(row, 'val_accuracy'):.4f}", flush=True)
    for name, twin in twins.items():
        lend(results, name, twin)
    compared = [comparison(results.rows, name) for name in CASES if any(row["case"] == name for row in results.rows)]
    results.write({"comparison": compared})
    (RESULTS / "plans.md").write_text(table(compared), encoding="utf-8")
    print(table(compared))


def twin_of(plan: str, plans: Mapping[str, Sequence[object]]) -> str | None:
    """Another plan of the very same words, if there is one: two measured paces would make two lengths of one plan."""
    return next((other for other, words in plans.items() if other != plan and tuple(words) == tuple(plans[plan])), None)


def lend(results: Results, case: str, twin: str) -> None:
    """Our plan's rows where it is `twin` word for word: those of the twin, which the same training would make again."""
    for row in [row for row in results.rows if row["case"] == case and row["plan"] == twin]:
        key = {"case": case, "plan": OURS, "seed": row["seed"]}
        results.row(key, partial(dict, {**row, "plan": OURS, "same_as": twin}))


def comparison(rows: list[Row], case: str) -> Row:
    """Our plan and the best of the others by their means over the seeds that all have."""
    here = [row for row in rows if row["case"] == case]
    twin = next((row["same_as"] for row in here if "same_as" in row), None)
    plans = {str(row["plan"]) for row in here}
    seeds = sorted(set.intersection(*({row["seed"] for row in here if row["plan"] == plan} for plan in plans)))
    found = {(row["plan"], row["seed"]): number(row, "val_accuracy") for row in here}
    by_plan = {plan: [found[plan, seed] for seed in seeds] for plan in sorted(plans)}
    hand = {plan: each for plan, each in by_plan.items() if plan != OURS and each}
    best = max(hand, key=lambda plan: sum(hand[plan]), default=None)
    worth = paired_difference(by_plan[OURS], hand[best]) if best and by_plan.get(OURS) else None
    accuracies = {plan: spread(each) for plan, each in by_plan.items() if each}
    return {
        "case": case, "seeds": seeds, "same_as": twin, "best_by_hand": best, "difference": worth,
        "accuracies": accuracies,
    }  # fmt: skip


def table(compared: list[Row]) -> str:
    """The comparison in Markdown; points are hundredths of accuracy."""
    head = ("case", "seeds", "the plan's own", "best of six by hand", "which", "difference, points")
    rows = [f"| {' | '.join(head)} |", "|---|---:|---:|---:|---|---:|"]
    for row in compared:
        if row["difference"] is None:
            continue
        ours, best = (f"{100 * row['accuracies'][plan]['mean']:.2f} %" for plan in (OURS, row["best_by_hand"]))
        difference = f"{100 * row['difference']['mean']:+.2f}"
        ours += f" ({row['same_as']})" if row["same_as"] else ""
        cells = (row["case"], len(row["seeds"]), ours, best, row["best_by_hand"], difference)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
