"""`vitrail decide`: another threshold, cost, prevalence or share of rejection, without another training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...formatting import format_count
from ...services import progress
from ..arguments import Command, format_table, print_json

if TYPE_CHECKING:
    from ...evaluate.decision_figures import BinaryFigures
    from ...services.deciding import DecisionComparison, SplitComparison
    from ...stats.predictive import Rate

MAX_LABELS = 30
"""Labels or classes in a table of the terminal; --json has all."""


@dataclass(frozen=True, kw_only=True)
class Decide(Command):
    """Show what the decisions of a run cost, and fit others to its stored validation predictions; no model is opened.

    A new decision is shown beside the one in use, on validation pictures and on test pictures, which it never sees.
    With --keep it is written into the model, with --use a kept one answers from then on.

      vitrail decide RUN
      vitrail decide RUN --rule "cost 20" --positive defective
      vitrail decide RUN --rule "sensitivity 0.95" --keep clinic --by "A. Meier" --use clinic
      vitrail decide RUN --at defective=0.30
      vitrail decide RUN --rule "ppv 0.8" --prevalence defective=0.01
      vitrail decide RUN --abstain 0.1 --alpha 0.01
      vitrail decide RUN --band power=280..320
      vitrail decide RUN --estimate line2.csv
      vitrail decide RUN --use training
      vitrail decide RUN --into RUN/exports/model.onnx
    """

    POSITIONAL = ("run_folder",)

    run_folder: Path
    """The run folder."""
    rule: str | None = None
    """From which probability on a label is answered: half, f1, youden, sensitivity SHARE, specificity SHARE, ppv SHARE
    or cost NUMBER (a miss costs as much as so many false alarms)."""
    positive: str = ""
    """Of two classes the one that the rule is for; by default that of the training."""
    at: str = ""
    """Thresholds of your own, such as defective=0.30 or nodule=0.2,effusion=0.4."""
    abstain: float | None = None
    """Share of the pictures, the least sure, that are not answered; for classes."""
    alpha: float | None = None
    """Share of the pictures whose class may be missing from their set, or number from its range."""
    prevalence: str = ""
    """The share that has it where the model is used, such as defective=0.01: probabilities are moved there."""
    band: str = ""
    """Limits of a number, such as power=280..320 or ..4, or of grades in an order, mild..severe: which pictures lie
    inside, outside, or neither for sure."""
    estimate: Path | None = None
    """A CSV of vitrail predict from another place: its prevalence is estimated; nothing is changed by it."""
    keep: str = ""
    """A name for the new decision, which is written into the model beside the others."""
    by: str = ""
    """Who decided, for the record."""
    use: str = ""
    """The kept decision that answers from now on; training goes back to the training's own."""
    into: Path | None = None
    """An exported file of this run, .onnx or .pt2: only its decision is replaced by the one in use, and proved."""
    json: bool = False
    """Print the figures as JSON."""

    def run(self) -> int:
        """Fit, compare, keep and put to use as the flags say, and print the figures."""
        from ...services import deciding

        request = deciding.DecisionRequest(
            rule=self.rule,
            positive=self.positive,
            at=deciding.parse_shares(self.at, "--at"),
            abstain=self.abstain,
            alpha=self.alpha,
            prevalence=deciding.parse_shares(self.prevalence, "--prevalence"),
            band=self.band,
        )
        result = deciding.decide(self.run_folder, request, self.keep, self.by, self.use, self.estimate, self.into)
        if self.json:
            print_json({"run": str(self.run_folder), **result.to_json()})
            return 0
        progress.print_notes(result.notes)
        print("\n".join(describe_comparison(result, self.run_folder)))
        return 0


def describe_comparison(result: DecisionComparison, run: Path) -> list[str]:
    """The lines of a comparison, for the terminal."""
    others = ", ".join(name for name in ("training", *result.kept) if name != result.in_use)
    lines = [f"In use  {result.in_use}" + (f" (also kept: {others})" if others else "")]
    lines.append(f"{'Rule' if result.new is None else 'Old '}    {result.old.describe()}")
    if result.new is not None:
        lines.append(f"New     {result.new.describe()}")
    predictive = bool(result.prevalences) or (result.new is not None and result.new.rule.startswith("ppv"))
    for name, split in result.splits.items():
        fitted = ", which the new one was fitted to" if name == "val" and split.new is not None else ""
        changed = "" if split.new is None else f"; {split.changed:,} of them decided otherwise"
        lines += ["", f"{name}: {format_count(split.old.n, 'picture')}{fitted}{changed}"]
        lines += [format_table(rows) for rows in _tables(split, predictive) if len(rows) > 1]
    lines += [""]
    if any(one.old.labels for one in result.splits.values()):
        miss = "as much as a false alarm" if result.miss_cost == 1 else f"as much as {result.miss_cost:g} of them"
        lines.append(f"Cost: false alarms in 1,000 pictures, where a miss costs {miss}. In brackets 95 % intervals.")
    if result.prevalences:
        lines.append("Costs and predictive values are at the stated prevalence, the rest is counted in these pictures.")
    if result.optimism is not None:
        one = result.optimism
        lines.append(
            f"A rule looks too cheap on the pictures that it was fitted to: this one by {_gap(one.rule)}, the cheapest "
            f"of {one.rules} rules by {_gap(one.best)} (bootstrap, {one.samples} samples)."
            + (" Judge by test." if "test" in result.splits else "")
        )
    for estimate in result.estimates:
        low, high = estimate.interval
        lines.append(
            f"Prevalence of {estimate.name} there: about {estimate.value:.2%} ({low:.2%} to {high:.2%}); validation "
            f"has {estimate.validation:.2%}. An estimate, which changes nothing; --prevalence states one."
        )
    if result.path is not None:
        lines.append(f"Kept    {result.path}")
        if result.in_use != result.path.stem:
            lines.append(f"Next    vitrail decide {run} --use {result.path.stem}")
    if result.exported is not None:
        lines.append(f"Written {result.exported}")
    return lines


def _gap(value: float) -> str:
    return f"{max(0.0, -value):.1f}"


def _tables(split: SplitComparison, predictive: bool) -> list[list[list[str]]]:
    """The figures of one split as tables, the decision in use beside the new one.

    Args:
        predictive: with predictive values.
    """
    sides = {"now": split.old} if split.new is None else {"old": split.old, "new": split.new}
    rates = [["", "", "threshold", "misses", "false alarms", "sensitivity", "specificity", "cost"]]
    values = [["", "", "prevalence", "PPV", "NPV"]]
    for number, label in enumerate(split.old.labels[:MAX_LABELS]):
        same = split.new is not None and split.new.labels[number] == label
        for side, figures in {"both": split.old}.items() if same else sides.items():
            one = figures.labels[number]
            name = label.name if figures is split.old else ""
            errors = [f"{one.misses:,} of {one.positives:,}", f"{one.false_alarms:,} of {one.negatives:,}"]
            both = [_percent(one.sensitivity), _percent(one.specificity)]
            rates.append([name, side, _threshold(one), *errors, *both, _number(one.cost)])
            share = "" if one.prevalence is None else f"{one.prevalence:.2%}"
            values.append([name, side, share, _percent(one.predictive.positive), _percent(one.predictive.negative)])
    rows = [["", *sides]]

    def add(name: str, cells: Sequence[str]) -> None:
        if any(cells):
            rows.append([name, *cells])

    if len(split.old.labels) > 1:
        add("cost in all", [_number(side.cost) for side in sides.values()])
    add("accuracy", [_percent(side.accuracy) for side in sides.values()])
    add("unanswered", [_percent(side.abstained) for side in sides.values()])
    add("accuracy of the answered", [_percent(side.accuracy_answered) for side in sides.values()])
    add("truth in set or range", [_percent(side.covered) for side in sides.values()])
    add("classes in a set", ["" if side.set_size is None else f"{side.set_size:.2f}" for side in sides.values()])
    for bands in zip(*(side.bands for side in sides.values()), strict=True):
        name = bands[0].name
        add(f"{name}: inside", [f"{one.inside:,}" for one in bands])
        add(f"{name}: outside", [f"{one.outside:,}" for one in bands])
        add(f"{name}: unsure", [f"{one.unsure:,}" for one in bands])
        add(f"{name}: wrongly inside", [_percent(one.wrongly_inside) for one in bands])
        add(f"{name}: wrongly outside", [_percent(one.wrongly_outside) for one in bands])
    return [rates, *([values] if predictive else []), rows]


def _threshold(one: BinaryFigures) -> str:
    if one.threshold is None:
        return "likeliest"
    return f"{one.threshold:.4f}" + ("" if one.is_fitted else " (not fitted)")


def _percent(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{100 * rate.value:.1f} % [{100 * rate.interval.low:.1f}, {100 * rate.interval.high:.1f}]"


def _number(rate: Rate | None) -> str:
    return "" if rate is None else f"{rate.value:.1f} [{rate.interval.low:.1f}, {rate.interval.high:.1f}]"
