"""What each lever of a training from scratch is worth: one change at a time, equal time, paired seeds.

    python benchmarks/ablation.py --screen                         # eight seeds of a minute; first what that takes
    python benchmarks/ablation.py --confirm                        # what passed: new seeds, 3 and 13 minutes
    python benchmarks/ablation.py                                  # Fashion-MNIST, 3 minutes a run, three seeds
    python benchmarks/ablation.py --stop-after 80                  # begin no run after 80 minutes; go on another time
    python benchmarks/ablation.py --levers adamw "all patches" --minutes 10
    python benchmarks/ablation.py --source digits --minutes 0.5
    python benchmarks/ablation.py --source elpv --elpv DATA --minutes 5 --levers "masked pictures first" "a CNN teaches"

The baseline is the plan's own choice with the model of longer runs, pico; every lever changes the named fields of it
and is compared with the baseline of the same seed (same split, same initial values where the shape is the same). Each
makes as many steps as take the minutes on all cores of a quiet machine (`making/paces.py`); the trainings themselves
run two at a time with one thread each. The figures are accuracy and log loss on validation pictures, which no training
has seen. Runs that are there are not run again. Writes benchmarks/results/ablation-SOURCE-MINUTESmin.json, a table in
Markdown beside it, and the paces.

`--screen` begins with a change without effect, the same pictures in another order, and says from its differences which
ones the screening can see. After four seeds levers that are worse get no more. A lever is better if the 95 %
interval of one figure lies on the good side and that of none on the bad side; of forty without effect two pass by luck,
so `--confirm` measures those that pass with other seeds. Without either the baseline is without the smaller pictures of
early steps, which the plan has from this comparison.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from making.cases import Case, cases, train_and_validate
from making.paces import ROUNDS, steps_of
from making.records import RESULTS, T95, Job, Results, Row, number, paired_difference, spread

Words = tuple[object, ...]

LEVERS: dict[str, Words] = {
    "adamw": ("--recipe.optimizer", "adamw"),
    "class token": ("--model.class_token", "true", "--model.pool", "class"),
    "no table": ("--model.positions", "none"),
    "relative positions": ("--model.rotary", "none", "--model.relative", 2),
    "mimetic": ("--model.init", "mimetic"),
    "impulse": ("--model.rotary", "none", "--lever", "impulse=5"),
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
    "stochastic depth": ("--model.drop_path", 0.1),
    "no smoothing": ("--recipe.label_smoothing", 0),
    "no mixup": ("--recipe.mixup", 0),
    "no turns": ("--recipe.rotate", 0, "--recipe.scale", 0, "--recipe.translate", 0),
    "repeats": ("--recipe.repeated_augmentation", 2),
    "smaller model": ("--model.width", 64, "--model.heads", 2, "--model.mlp_width", 128),
    "masked pictures first": ("--pretrain",),
    "a CNN teaches": ("--distill.teacher", "cnn"),
    "no mirror in answers": ("--recipe.tta_flip", "false"),
    "no shifts in answers": ("--recipe.tta_shift", 0),
    "mean of weights": ("--recipe.ema_decay", 0.998),
    "smoothing": ("--recipe.label_smoothing", 0.1),
    "no rotation": ("--model.rotary", "none"),
    "all patches": ("--recipe.patch_keep_until", 0),
    "one size": ("--recipe.progressive_until", 0),
    "three sizes": (
        "--recipe.progressive_size",
        0.6,
        "--recipe.progressive_until",
        0.5,
        "--lever",
        "three-sizes=0.75",
    ),
    "fewer patches": ("--recipe.patch_keep_rate", 0.35),
    "relative, far": ("--model.rotary", "none", "--model.relative", 6),
    "relative and rotary": ("--model.relative", 6),
    "relative bias": ("--model.rotary", "none", "--model.relative_bias", "true"),
    "relative bias and rotary": ("--model.relative_bias", "true"),
    "qk norm": ("--model.qk_norm", "true"),
    "4 registers": ("--model.registers", 4),
    "RMSNorm": ("--model.norm", "RMSNorm"),
    "layer scale 0.1": ("--model.layer_scale", 0.1),
    "ReLU squared": ("--model.activation", "ReLU", "--lever", "relu-squared=1"),
    "value residual": ("--lever", "value-residual=0.5"),
    "first skip": ("--lever", "first-skip=1"),
    "no zeros at first": ("--model.init", "truncated"),
    "AdamW rate 0.001": ("--recipe.lr", 0.001),
    "AdamW rate 0.004": ("--recipe.lr", 0.004),
    "Muon rate 0.014": ("--recipe.muon_lr", 0.014),
    "Muon rate 0.028": ("--recipe.muon_lr", 0.028),
    "decay 0.1": ("--recipe.weight_decay", 0.1),
    "Muon decay 0.1": ("--lever", "muon-decay=0.1"),
    "cautious decay 0.1": ("--recipe.weight_decay", 0.1, "--lever", "cautious-decay=1"),
    "NorMuon": ("--lever", "row-moments=0.95"),
    "NorMuon, cautious decay 0.1": ("--recipe.weight_decay", 0.1, "--lever", "row-moments=0.95,cautious-decay=1"),
    "momentum 0.9": ("--recipe.muon_momentum", 0.9),
    "momentum 0.85 at the ends": ("--lever", "momentum-ends=0.85"),
    "EMA-Nesterov 2": ("--lever", "lookahead=2"),
    "EMA-Nesterov 10": ("--lever", "lookahead=10"),
    "mean of the last tenth": ("--recipe.ema_decay", 0.5, "--lever", "mean-of-last=0.1"),
    "mean of the last third": ("--recipe.ema_decay", 0.5, "--lever", "mean-of-last=0.33"),
    "cosine": ("--recipe.lr_schedule", "cosine"),
    "batches of 64": ("--recipe.batch_size", 64),
    "batches of 256": ("--recipe.batch_size", 256),
    "smoothing 0.05": ("--recipe.label_smoothing", 0.05),
}
"""What is changed, in the order of interest; a lever that the plan uses already is measured by leaving it out. What
follows `--lever` is no setting yet: making/levers.py."""
SCREENED = tuple(LEVERS)[list(LEVERS).index("mean of weights") :]
"""Levers of `--screen`, unless some are named."""
SAME_PACE = (
    "--recipe.lr", "--recipe.muon_lr", "--recipe.muon_momentum", "--recipe.weight_decay", "--recipe.lr_schedule",
    "--recipe.label_smoothing", "--recipe.tta_flip", "--model.init", "muon-decay", "momentum-ends", "other-order",
)  # fmt: skip
"""Fields and levers that leave a step its time: a lever of these alone makes the baseline's steps."""
NULL = "nothing"
NO_CHANGE: Words = ("--lever", "other-order=1")
"""A change without effect: its differences from the baseline are those that luck makes."""
AIMS = {"val_accuracy": 0.003, "val_log_loss": 0.01}
"""Differences that a screening should see: 0.3 points, 0.01 nats."""
SIGNS = {"val_accuracy": 1, "val_log_loss": -1}
"""Which way is better."""
LARGER_SPLIT: Words = ("--data.val_fraction", 0.3)
"""Of a screening, where a minute has no use for all training pictures: with a tenth, 6,000 of Fashion-MNIST, the luck
of the validation pictures alone would be 0.3 points for two models that differ on one in twenty."""
DECIDED_AFTER = 4
"""Seeds after which levers that are worse get no more."""
SEEDS = {"": (0, 1, 2), "-screened": tuple(range(8)), "-confirmed": (8, 9, 10)}
MINUTES = {"": (3.0,), "-screened": (1.0,), "-confirmed": (3.0, 13.0)}
"""Of comparisons by their kind, unless others are named."""
T80 = (1.376, 1.061, 0.978, 0.941, 0.920, 0.906, 0.896, 0.889, 0.883, 0.879)
"""Student's t that 80 % lie below, for 1, 2, ... degrees of freedom."""
CORE_MINUTES = 2.3
"""Of one core, for a training of a minute on two with its start and end, before one was measured."""
DRY_RUN_MINUTES = 8 / 60
"""Of a dry run that takes a pace, on a quiet machine."""
BASELINE = "baseline"


def main() -> None:
    """Screen, confirm, or compare some levers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="fashion-mnist", choices=("fashion-mnist", "digits", "elpv"))
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--screen", action="store_true", help="eight seeds, one minute, worse levers dropped after four")
    kinds.add_argument("--confirm", action="store_true", help="what passed the screening: 3 and 13 minutes, new seeds")
    parser.add_argument("--levers", nargs="+", choices=LEVERS)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--minutes", type=float, nargs="+")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="begin no run after so many minutes")
    parser.add_argument("--dry-run", action="store_true", help="say what it would take, and begin nothing")
    parser.add_argument("--elpv", type=Path, help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    case = cases(options.elpv, options.folder).get(options.source)
    if case is None:
        raise SystemExit("The solar cells need --elpv DATA, the folder with labels.csv and images/.")
    kind = "-screened" if options.screen else "-confirmed" if options.confirm else ""
    levers = (*[NULL][: options.screen], *(options.levers or default_levers(kind, options.source)))
    one_size = () if kind else case.one_size
    more = LARGER_SPLIT if options.screen and LARGER_SPLIT[0] not in case.words else ()
    plans = {lever: (*plan_words(case, lever, one_size), *more) for lever in (BASELINE, *levers)}
    seeds, folder = options.seeds or SEEDS[kind], options.folder
    lengths = {
        minutes: f"ablation-{options.source}-{minutes:g}min{kind}" for minutes in options.minutes or MINUTES[kind]
    }
    trials = [Trial(name, plans, minutes, seeds, folder, one_size) for minutes, name in lengths.items()]
    print("\n".join(trial.estimate() for trial in trials), flush=True)
    until = time.perf_counter() + options.stop_after * 60
    for trial in () if options.dry_run else trials:
        if options.screen:
            trial.screen(until)
        else:
            trial.run(trial.plans, trial.seeds, until)
        trial.write()


def default_levers(kind: str, source: str) -> list[str]:
    """The levers of a comparison where none are named."""
    if kind != "-confirmed":
        return list(SCREENED if kind else LEVERS)
    screened = Results(f"ablation-{source}-{MINUTES['-screened'][0]:g}min-screened")
    if levers := passed(screened.rows):
        return levers
    raise SystemExit(f"No lever passed in {screened.path.name}. Give --screen first, or name --levers.")


def plan_words(case: Case, lever: str, one_size: Words) -> Words:
    """A training with a lever, but for its steps and its seed."""
    return (*case.words, "--model", f"vit_pico_patch{case.patch}_{case.size}", *override_lever(lever, one_size))


class Trial:
    """Trainings of one source and length, with their results.

    Args:
        plans: the words of each lever's training, of the baseline first.
        one_size: what is left out of the baseline.
    """

    def __init__(
        self, name: str, plans: dict[str, Words], minutes: float, seeds: Sequence[int], folder: Path, one_size: Words
    ):
        self.name, self.plans, self.minutes, self.seeds = name, plans, minutes, seeds
        self.folder, self.one_size, self.results = folder, one_size, Results(name)
        self.measured = {lever: plan for lever, plan in plans.items() if not keeps_pace(override_lever(lever, ()))}
        """The plans whose pace is not the baseline's, and the baseline."""

    def estimate(self) -> str:
        """What is missing, and what it takes at most."""
        found = [number(row, "wall_seconds") / 60 for row in self.results.rows]
        each = mean(found) if found else CORE_MINUTES * self.minutes
        keys = ({"lever": lever, "seed": seed} for lever in self.plans for seed in self.seeds)
        missing = sum(self.results.find(key) is None for key in keys)
        unknown = self.measured.keys() - {row["plan"] for row in Results(f"{self.name}-paces").rows}
        dry_runs = ROUNDS * len({BASELINE, *unknown}) if unknown else 0
        return (
            f"{self.name}: at most {missing * each:,.0f} minutes of a core ({missing:,} x {each:.1f}), two at a time "
            f"{missing * each / 2:,.0f} minutes; before them {dry_runs * DRY_RUN_MINUTES:,.0f} minutes of dry runs "
            f"({dry_runs:,}) that take the paces, with nothing else running."
        )

    def run(self, levers: Iterable[str], seeds: Iterable[int], until: float) -> None:
        """Make the rows that are missing, seed by seed, and begin none after `until`."""
        steps = steps_of(f"{self.name}-paces", self.measured, self.minutes)
        jobs: list[Job] = []
        for seed in seeds:
            for lever in levers:
                folder = self.folder / f"{self.name}-{lever.replace(',', '').replace(' ', '-')}-seed{seed}"
                words = (*self.plans[lever], *steps.get(lever, steps[BASELINE]), "--seed", seed, "--compute.threads", 1)
                jobs.append(({"lever": lever, "seed": seed}, partial(train_and_validate, folder, *words)))
        for row in self.results.side_by_side(jobs, (until - time.perf_counter()) / 60):
            shown = " ".join(f"{name.removeprefix('val_')} {row[name]:.4f}," for name in AIMS if name in row)
            print(f"seed {row['seed']}, {row['lever']}: {shown} {row['steps']:,} steps", flush=True)

    def screen(self, until: float) -> None:
        """The baseline beside a change without effect first, then levers, of which worse ones end after some seeds."""
        self.run((BASELINE, NULL), self.seeds, until)
        print(sight(self.results.rows), flush=True)
        levers = [lever for lever in self.plans if lever not in (BASELINE, NULL)]
        self.run(levers, self.seeds[:DECIDED_AFTER], until)
        found = differences(self.results.rows)
        dropped = [lever for lever in levers if is_dropped(found.get(lever, {}))]
        print(f"Worse after {DECIDED_AFTER} seeds, and dropped: {', '.join(dropped) or 'none'}.", flush=True)
        self.run([lever for lever in levers if lever not in dropped], self.seeds[DECIDED_AFTER:], until)

    def write(self) -> None:
        """Keep and print the comparison."""
        compared = comparison(self.results.rows, self.one_size)
        smallest = sight(self.results.rows) if NULL in self.plans else ""
        self.results.write({**({"smallest_difference": smallest} if smallest else {}), "comparison": compared})
        text = f"{smallest}\n\n{table(compared)}" if smallest else table(compared)
        (RESULTS / f"{self.results.path.stem}.md").write_text(text, encoding="utf-8")
        print(text)


def keeps_pace(words: Words) -> bool:
    """Whether a lever changes something, and leaves a step its time."""
    fields = dict(zip(words[::2], map(str, words[1::2]), strict=False))  # a flag at the end has no value
    levers = [lever.partition("=")[0] for lever in fields.pop("--lever", "").split(",") if lever]
    return bool(words) and len(words) % 2 == 0 and all(name in SAME_PACE for name in (*fields, *levers))


def override_lever(lever: str, one_size: Words) -> Words:
    """What a lever changes of the plan's own choice, without smaller pictures unless it is about them."""
    words = NO_CHANGE if lever == NULL else LEVERS.get(lever, ())
    return words if "--recipe.progressive_until" in words else (*one_size, *words)


Differences = dict[str, dict[str, Row]]
"""Of each lever, and each of its figures: `paired_difference` from the baseline."""


def differences(rows: list[Row]) -> Differences:
    """What each lever changes, over the seeds that it and the baseline have."""
    base = {row["seed"]: row for row in rows if row["lever"] == BASELINE}
    found: Differences = {}
    for lever in (NULL, *LEVERS):
        pairs = [(row, base[row["seed"]]) for row in rows if row["lever"] == lever and row["seed"] in base]
        for name in AIMS:
            both = [
                (number(ours, name), number(theirs, name)) for ours, theirs in pairs if name in ours and name in theirs
            ]
            if both:
                found.setdefault(lever, {})[name] = paired_difference(*zip(*both, strict=True))
    return found


def verdict(found: dict[str, Row]) -> str:
    """better, worse or open: whether the intervals of a lever's figures lie on the good or the bad side of nothing."""
    sides = set()
    for name, difference in found.items():
        if difference["interval"] is not None:
            low, high = sorted(SIGNS[name] * end for end in difference["interval"])
            sides |= {"better"} if low > 0 else {"worse"} if high < 0 else set()
    return sides.pop() if len(sides) == 1 else "open"


def is_dropped(found: dict[str, Row]) -> bool:
    """Whether a lever is worse after the seeds that decide."""
    return any(each["n"] >= DECIDED_AFTER for each in found.values()) and verdict(found) == "worse"


def passed(rows: list[Row]) -> list[str]:
    """The levers that a screening found better."""
    return [lever for lever, found in differences(rows).items() if lever != NULL and verdict(found) == "better"]


def sight(rows: list[Row]) -> str:
    """The smallest difference that as many seeds as the change without effect has see four times of five."""
    found = differences(rows).get(NULL, {})
    if len(found) < len(AIMS) or found["val_accuracy"]["n"] < 2:
        return "Too few seeds of a change without effect: what the comparison can see is not known yet."
    seen: dict[str, float] = {}
    for name, difference in found.items():
        degrees = min(difference["n"] - 1, len(T80))
        half = difference["interval"][1] - difference["mean"]
        seen[name] = half * (1 + T80[degrees - 1] / T95[degrees - 1])
    count = found["val_accuracy"]["n"]
    needed = max(math.ceil(count * (seen[name] / aim) ** 2) for name, aim in AIMS.items())
    short = "" if needed <= count else f" The aim needs about {needed} seeds."
    return (
        f"The smallest difference that is seen four times of five (n = {count}): "
        f"{100 * seen['val_accuracy']:.2f} points of accuracy, {seen['val_log_loss']:.4f} nats; "
        f"the aim is {100 * AIMS['val_accuracy']:.1f} points, {AIMS['val_log_loss']:.2f} nats.{short}"
    )


def comparison(rows: list[Row], one_size: Words) -> list[Row]:
    """For each lever: accuracy, and what it is worth against the baseline of the same seeds."""
    seeds = {row["seed"] for row in rows if row["lever"] == BASELINE}
    worth, found = differences(rows), []
    for lever in (BASELINE, NULL, *LEVERS):
        ours = [row for row in rows if row["lever"] == lever and row["seed"] in seeds]
        if not ours:
            continue
        changed = override_lever(lever, one_size) if lever in (BASELINE, NULL) else LEVERS[lever]
        found.append(
            {
                "lever": lever,
                "changed": " ".join(map(str, changed)),
                "accuracy": spread(number(row, "val_accuracy") for row in ours),
                "steps": mean(number(row, "steps") for row in ours),
                "worth": None if lever == BASELINE else worth[lever]["val_accuracy"],
                "log_loss": None if lever == BASELINE else worth[lever].get("val_log_loss"),
                "verdict": "" if lever == BASELINE else verdict(worth[lever]),
            }
        )
    return found


def table(compared: list[Row]) -> str:
    """The comparison in Markdown, the most harmful change first; points are hundredths of accuracy."""
    has_loss = any(row.get("log_loss") for row in compared)
    rows = ["| change | fields | steps | validation accuracy | difference, points (95 %) |", "|---|---|---:|---:|---:|"]
    if has_loss:
        rows = [rows[0] + " log loss (95 %) | verdict |", rows[1] + "---:|---|"]
    base = [row for row in compared if row["worth"] is None]  # its fields are what it has not from the plan
    rest = sorted((row for row in compared if row["worth"]), key=lambda row: row["worth"]["mean"])
    for row in (*base, *rest):
        fields = f"`{row['changed']}`" if row["changed"] else "the plan's own choice, for pico"
        accuracy = f"{100 * row['accuracy']['mean']:.2f} % (n = {row['accuracy']['n']})"
        worth = show_difference(row["worth"], 100, 2)
        shown = f"| {row['lever']} | {fields} | {row['steps']:,.0f} | {accuracy} | {worth} |"
        if has_loss:
            shown += f" {show_difference(row['log_loss'], 1, 4)} | {row['verdict']} |"
        rows.append(shown)
    return "\n".join(rows) + "\n"


def show_difference(difference: Row | None, factor: float, digits: int) -> str:
    """A difference with its interval."""
    if difference is None:
        return ""
    values = (difference["mean"], *(difference["interval"] or ()))
    first, *ends = (f"{factor * value:+.{digits}f}" for value in values)
    return f"{first} ({' to '.join(ends)})" if ends else first


if __name__ == "__main__":
    main()
