"""What each lever of a training from scratch is worth: one change at a time, equal time, paired seeds.

    python benchmarks/ablation.py                                  # Fashion-MNIST, 3 minutes a run: about 2.5 hours
    python benchmarks/ablation.py --stop-after 80                  # begin no run after 80 minutes; go on another time
    python benchmarks/ablation.py --levers adamw "all patches" --minutes 10
    python benchmarks/ablation.py --source digits --minutes 0.5
    python benchmarks/ablation.py --source elpv --elpv DATA --minutes 5 --levers "masked pictures first" "a CNN teaches"

The baseline is the plan's own choice with the model of longer runs, pico, but for the smaller pictures of early steps,
which the plan has from this comparison; every lever changes the named fields of it and is compared with the baseline of
the same seed (same split, same initial values where the shape is the same). Each makes as many steps as take the
minutes on all cores of a quiet machine (`making/paces.py`); the trainings themselves run two at a time with one thread
each. The figure is accuracy on validation pictures, which no training has seen. Runs that are there are not run again.
Writes benchmarks/results/ablation-SOURCE-MINUTESmin.json, a table in Markdown beside it, and the paces.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from making.cases import cases, train_and_validate
from making.paces import steps_of
from making.records import RESULTS, Job, Results, Row, number, paired_difference, spread

Words = tuple[object, ...]

LEVERS: dict[str, Words] = {
    "adamw": ("--recipe.optimizer", "adamw"),
    "all patches": ("--recipe.patch_keep_until", 0),
    "class token": ("--model.class_token", "true", "--model.pool", "class"),
    "no rotation": ("--model.rotary", "none"),
    "no table": ("--model.positions", "none"),
    "relative positions": ("--model.rotary", "none", "--model.relative", 2),
    "mimetic": ("--model.init", "mimetic"),
    "small pictures": ("--recipe.progressive_size", 0.6, "--recipe.progressive_until", 0.5),
    "small, longer": ("--recipe.progressive_size", 0.6, "--recipe.progressive_until", 0.7),
    "small, no dropping": (
        "--recipe.progressive_size",
        0.7,
        "--recipe.progressive_until",
        0.7,
        "--recipe.patch_keep_until",
        0,
    ),
    "trivial augment": ("--recipe.auto_augment", "trivial"),
    "mixup 0.2": ("--recipe.mixup", 0.2),
    "mean of weights": ("--recipe.ema_decay", 0.998),
    "stochastic depth": ("--model.drop_path", 0.1),
    "smoothing": ("--recipe.label_smoothing", 0.1),
    "no smoothing": ("--recipe.label_smoothing", 0),
    "no mixup": ("--recipe.mixup", 0),
    "no turns": ("--recipe.rotate", 0, "--recipe.scale", 0, "--recipe.translate", 0),
    "repeats": ("--recipe.repeated_augmentation", 2),
    "smaller model": ("--model.width", 64, "--model.heads", 2, "--model.mlp_width", 128),
    "masked pictures first": ("--pretrain",),
    "a CNN teaches": ("--distill.teacher", "cnn"),
    "no mirror in answers": ("--recipe.tta_flip", "false"),
    "no shifts in answers": ("--recipe.tta_shift", 0),
}
"""What is changed, in the order of interest; a lever that the plan uses already is measured by leaving it out."""
BASELINE = "baseline"


def main() -> None:
    """Run what is missing, seed by seed, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="fashion-mnist", choices=("fashion-mnist", "digits", "elpv"))
    parser.add_argument("--levers", nargs="+", choices=LEVERS, default=list(LEVERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="begin no run after so many minutes")
    parser.add_argument("--elpv", type=Path, help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    case = cases(options.elpv, options.folder).get(options.source)
    if case is None:
        raise SystemExit("The solar cells need --elpv DATA, the folder with labels.csv and images/.")
    name = f"ablation-{options.source}-{options.minutes:g}min"
    levers = (BASELINE, *options.levers)
    model = ("--model", f"vit_pico_patch{case.patch}_{case.size}")
    plans = {lever: (*case.words, *model, *override_lever(lever, case.one_size)) for lever in levers}
    steps = steps_of(f"{name}-paces", plans, options.minutes)
    jobs: list[Job] = []
    for seed in options.seeds:
        for lever in levers:
            folder = options.folder / f"{name}-{lever.replace(',', '').replace(' ', '-')}-seed{seed}"
            words = (*plans[lever], *steps[lever], "--seed", seed, "--compute.threads", 1)
            jobs.append(({"lever": lever, "seed": seed}, partial(train_and_validate, folder, *words)))
    results = Results(name)
    for row in results.side_by_side(jobs, options.stop_after):
        shown = f"{number(row, 'val_accuracy'):.4f}, {row['steps']:,} steps"
        print(f"seed {row['seed']}, {row['lever']}: {shown}", flush=True)
    compared = comparison(results.rows, case.one_size)
    results.write({"comparison": compared})
    (RESULTS / f"{results.path.stem}.md").write_text(table(compared), encoding="utf-8")
    print(table(compared))


def override_lever(lever: str, one_size: Words) -> Words:
    """What a lever changes of the plan's own choice, without smaller pictures unless it is about them."""
    words = LEVERS.get(lever, ())
    return words if "--recipe.progressive_until" in words else (*one_size, *words)


def comparison(rows: list[Row], one_size: Words) -> list[Row]:
    """For each lever: accuracy, and what it is worth against the baseline of the same seeds."""
    by_lever: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_lever.setdefault(str(row["lever"]), {})[int(row["seed"])] = row
    base = by_lever.get(BASELINE, {})
    found: list[Row] = []
    for lever in (BASELINE, *LEVERS):
        seeds = sorted(by_lever.get(lever, {}).keys() & base.keys())
        if not seeds:
            continue
        ours = [number(by_lever[lever][seed], "val_accuracy") for seed in seeds]
        theirs = [number(base[seed], "val_accuracy") for seed in seeds]
        steps = spread(number(by_lever[lever][seed], "steps") for seed in seeds)["mean"]
        fields = " ".join(map(str, LEVERS.get(lever, one_size)))
        worth = None if lever == BASELINE else paired_difference(ours, theirs)
        found.append({"lever": lever, "changed": fields, "accuracy": spread(ours), "steps": steps, "worth": worth})
    return found


def table(compared: list[Row]) -> str:
    """The comparison in Markdown, the most harmful change first; points are hundredths of accuracy."""
    rows = ["| change | fields | steps | validation accuracy | difference, points (95 %) |", "|---|---|---:|---:|---:|"]
    base = [row for row in compared if row["worth"] is None]  # its fields are what it has not from the plan
    rest = sorted((row for row in compared if row["worth"]), key=lambda row: row["worth"]["mean"])
    for row in (*base, *rest):
        worth, interval = row["worth"], (row["worth"] or {}).get("interval")
        shown = "" if worth is None else f"{100 * worth['mean']:+.2f}"
        shown += f" ({100 * interval[0]:+.2f} to {100 * interval[1]:+.2f})" if interval else ""
        fields = f"`{row['changed']}`" if row["changed"] else "the plan's own choice, for pico"
        accuracy = f"{100 * row['accuracy']['mean']:.2f} % (n = {row['accuracy']['n']})"
        rows.append(f"| {row['lever']} | {fields} | {row['steps']:,.0f} | {accuracy} | {shown} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
