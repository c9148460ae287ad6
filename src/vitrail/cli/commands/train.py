"""`vitrail train`: from a source of pictures to a run folder with a model and its report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ... import config, runtime
from ...errors import UsageError, escape_unprintable
from ...files.atomic import check_new_path, write_text
from ...formatting import MIN_TEST_IMAGES, format_count, format_duration
from ...train.signals import ignore_save_signals
from ..arguments import Command, format_fields, print_json, to_flag

if TYPE_CHECKING:
    from ...services.train_progress import TrainOutcome
    from ...train.events import Event, FinishEvent

PLAN_FILE = "plan.toml"
MINUTES_MORE = 10
"""As many as a training has by default."""
RESUME_FIELDS = (
    "compute.", "recipe.grad_accum_steps", "track.", "data.source", "data.val_source", "data.test_source",
    "data.data_root",
)  # fmt: skip
"""Plan fields that change how a run is computed and where its pictures and metrics are, but not the result."""


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Check the data, make a plan, train, evaluate, and write the run folder with its report.

    Without a budget it trains for ten minutes. Ctrl-C saves and says how to go on.

      vitrail train digits --minutes 1
      vitrail train flowers/ --model vit_tiny_patch16_224 --epochs 20
      vitrail train cells/ --weights dinov2-small --minutes 10
      vitrail train films.csv --group patient --exclude exclude.csv
      vitrail train films.csv --group patient --case auto
      vitrail train parts/ --task anomaly --weights dinov2-small
      vitrail train fields/ --task segmentation --weights dinov2-small
      vitrail train site_a.csv --val site_b.csv --test site_c.csv
      vitrail train digits --recipe.batch_size 64 --dry-run
      vitrail train --resume runs/20261121-140500-digits-vit_femto_patch2_8
      vitrail train --resume runs/20261121-140500-digits-vit_femto_patch2_8 --extend --minutes 10
      vitrail train --resume runs/20261121-140500-flowers-vit_pico_patch8_64 --data.source MOVED/flowers
    """

    POSITIONAL = ("source",)
    DOTTED = "changes"

    source: str = ""
    """A folder of class folders, a manifest (.csv, .tsv, .jsonl, .parquet), arrays (.npz, .npy), tar shards, hf:NAME,
    or one of digits, planted, mnist, fashion-mnist, cifar10, cifar100; may be left out with --resume or --plan."""
    val: str | None = None
    """A SOURCE of its own for the validation pictures; by default a tenth of the training pictures."""
    test: str | None = None
    """A SOURCE of its own for the test pictures; by default a fifth of all pictures."""
    model: str | None = None
    """A named size such as vit_tiny_patch16_224; by default a small one that suits the pictures."""
    weights: str | None = None
    """A checkpoint to begin from: a file, folder, run, hf:OWNER/NAME, dinov2-small; auto (the default) takes a
    recommended one that is on this machine, none begins from random values."""
    minutes: float | None = None
    """Time to train for; checks, evaluation and report come on top."""
    epochs: float | None = None
    """Passes over the training pictures, instead of minutes."""
    steps: int | None = None
    """Optimiser steps, instead of minutes."""
    image_size: str | None = None
    """Pixels that the model reads: 64, or HEIGHTxWIDTH such as 60x100."""
    channels: int | None = None
    """1 for grey, 3 for colour; by default as the pictures are."""
    seed: int | None = None
    """Start of every random choice; 0 by default."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1 or mps."""
    data_root: Path | None = None
    """Folder that holds the files of mnist, fashion-mnist, cifar10 or cifar100."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, instead of stopping."""
    task: str | None = None
    """classification (one of K), multilabel (any of K), regression, by default as the labels look, with the reason; or
    anomaly: what differs from good pictures, of which alone it learns; or segmentation: the class of every pixel."""
    group: str | None = None
    """Column whose equal values (one patient, one module) never cross from one split to another."""
    case: str | None = None
    """With --group: one answer for all pictures of a group too, by the mean or max of theirs, by attention, or auto,
    whichever suits the validation groups."""
    exclude: Path | None = None
    """A CSV of pictures to leave out, such as vitrail check --out DIR writes."""
    folds: int | None = None
    """Part into so many folds and train a model for each, the minutes shared among them; --data.fold trains one."""
    alpha: float | None = None
    """With --task anomaly: the share of good pictures that may be called defects, 0.01 by default."""
    pretrain: bool = False
    """Spend a part of the budget on learning from the pictures without their labels first: masked autoencoding, or with
    a checkpoint going on from it, kept if the probe gains."""
    plan: Path | None = None
    """Follow a written plan.toml from its first step."""
    resume: Path | None = None
    """Go on with the run in this folder."""
    extend: bool = False
    """With --resume: go on for so many more --minutes, --epochs or --steps, also after the end."""
    out: Path | None = None
    """The run folder; by default runs/<date>-<time>-<source>-<model>."""
    dry_run: bool = False
    """Make the plan, print what matters of it with the reasons, and stop; --out FILE.toml writes the whole plan."""
    full: bool = False
    """With --dry-run: print every line of the plan, as plan.toml holds it."""
    devices: int | None = None
    """With --dry-run: also what the run would take on so many devices like this one."""
    help_plan: bool = False
    """List every field of the plan with its kind, default and meaning."""
    json: bool = False
    """Print the outcome as JSON; progress goes to standard error."""
    changes: tuple[tuple[str, str], ...] = ()
    """Any field of the plan by its name, such as --recipe.batch_size 64; --help-plan lists them."""

    def run(self) -> int:
        """Train, or print the plan."""
        if self.help_plan:
            return self._print_plan_help()
        self._check_start_flags()
        if self.full and not self.dry_run:
            raise UsageError("--full prints the whole plan of a --dry-run. A training writes it to its plan.toml.")
        if self._plan_file is not None:
            check_new_path(self._plan_file)
        if self.devices is not None and not self.dry_run:
            raise UsageError(
                "--devices foretells what a run would take, with --dry-run. To train on several, start as many "
                f"processes: torchrun --nproc-per-node {self.devices} -m vitrail train ..."
            )
        with ignore_save_signals():
            from ...services.train_progress import follow_training

            events = self._start_training()
            return self._show_plan(events) if self.dry_run else self._print_result(follow_training(events))

    @property
    def _plan_file(self) -> Path | None:
        """The file for the plan of a dry run, if one was named."""
        return self.out if self.dry_run and self.out is not None and self.out.suffix == ".toml" else None

    def _check_start_flags(self) -> None:
        """Refuse flags that contradict --resume."""
        if self.extend and self.resume is None:
            raise UsageError("--extend gives a run more time: name it with --resume RUN.")
        if self.resume is None:
            return
        allowed = {"resume", "extend", "device", "devices", "help_plan", "json", "debug", "changes"}
        allowed |= {"minutes", "epochs", "steps"} if self.extend else set()
        names = [one.name for one in fields(self) if one.name not in allowed and vars(self)[one.name] != one.default]
        flags = ["SOURCE" if name == "source" else to_flag(name) for name in names]
        flags += [f"--{name}" for name, _ in self.changes if not name.startswith(RESUME_FIELDS)]
        if flags:
            raise UsageError(
                f"--resume goes on exactly as the run's own plan says, so {' and '.join(flags)} cannot be given "
                "with it. Start a new run to change something, or give this one more time with --extend."
            )

    def _start_training(self) -> Generator[Event, None, None]:
        """The events of the training, which runs as they are consumed."""
        from ...services import train_arguments
        from ...train import cross_validation, fit
        from ...train.plan import Plan
        from ...train.resume import Extension
        from ...train.run_folder import is_folds_folder

        if self.resume is not None:
            if is_folds_folder(self.resume):
                if self.extend or self.device is not None or self.changes:
                    raise UsageError(
                        f"{self.resume} holds several folds, which go on as they were begun. Give --extend, --device "
                        f"and --compute.* to one of them, such as {self.resume / 'fold-0'}."
                    )
                return cross_validation.resume_folds(self.resume)
            budget = Extension(minutes=self.minutes, epochs=self.epochs, steps=self.steps) if self.extend else None
            return fit.resume_run(self.resume, None, budget, self._compute_changes())
        out = None if self._plan_file is not None else self.out
        flags = {
            one.name: vars(self)[one.name] for one in fields(train_arguments.TrainArguments)
        }  # equal names, equal meanings
        image_size = None if self.image_size is None else train_arguments.parse_image_size(self.image_size)
        arguments = train_arguments.TrainArguments(**flags | {"image_size": image_size, "changes": dict(self.changes)})
        if self.plan is not None:
            plan = train_arguments.override_plan(config.read_toml(self.plan, Plan), arguments)
            return fit.fit_plan(plan, out, dry_run=self.dry_run, changes=dict(self.changes))
        request, settings = train_arguments.build_train_request(arguments)
        if not train_arguments.should_train_all_folds(arguments, request):
            return fit.fit(request, settings, out, self.dry_run)
        if self.dry_run:
            return cross_validation.plan_first_fold(request, settings)
        return cross_validation.fit_folds(request, settings, self.out)

    def _compute_changes(self) -> dict[str, str]:
        """Changes of a resumed run's compute settings."""
        from ...evaluate.device_check import choose_checked_runtime
        from ...services.train_arguments import check_plan_fields

        changes = dict(self.changes)
        check_plan_fields(changes)
        if self.device is not None and "compute.device" in changes:
            raise UsageError("--device and --compute.device are the same setting. Give one of them.")
        if self.device is None:
            return changes
        machine = choose_checked_runtime(runtime.RuntimeSettings(device=self.device))
        return changes | {"compute.device": machine.device}

    def _show_plan(self, events: Iterator[Event]) -> int:
        """Run everything up to the plan and print it."""
        from ...services.cost import estimate_plan_cost, format_plan_cost
        from ...services.train_progress import format_expected_cost, format_plan, open_display
        from ...train.distributed.collectives import group_from_env
        from ...train.events import Note, PlanEvent, StageEvent
        from ...train.plan_reasons import complete_reasons

        all_events = []
        with open_display(sys.stderr) as view:
            for event in events:
                all_events.append(event)
                if isinstance(event, StageEvent):
                    view.show(event)
        (planned,) = (event for event in all_events if isinstance(event, PlanEvent))
        notes = [event.text for event in all_events if isinstance(event, Note)]
        if group_from_env().rank:
            return 0  # rank 0 prints
        if self.json:
            print_json(
                {
                    "plan": config.write(planned.plan),
                    "reasons": planned.reasons,
                    "notes": notes,
                    "predicted": planned.cost.to_json() if planned.cost else None,
                    **estimate_plan_cost(planned, self.devices),
                }
            )
            return 0
        lines = [*format_expected_cost(planned), *format_plan_cost(planned, self.devices), *notes]
        plan = config.to_toml(planned.plan, complete_reasons(planned.plan, planned.reasons))
        whole = "".join(f"# {line}\n" for line in lines) + f"\n{plan}"
        if self._plan_file is not None:
            write_text(self._plan_file, whole)
        if self.full:
            print(whole, end="")
            return 0
        print("\n".join(escape_unprintable(line) for line in (*lines, *format_plan(planned))))
        if self._plan_file is None:
            print(f"All {len(plan.splitlines()):,} lines: --dry-run --full, or --dry-run --out plan.toml for --plan.")
        else:
            print(f"All of it is in {self._plan_file}: vitrail train --plan {self._plan_file}")
        return 0

    def _print_result(self, outcome: TrainOutcome) -> int:
        """Print the main metric, the paths and the next command."""
        from ...evaluate.anomaly_metrics import AnomalyMetrics
        from ...evaluate.segmentation_metrics import SegmentationMetrics
        from ...train import events
        from ...train.distributed.collectives import group_from_env

        if group_from_env().rank:
            return 0  # rank 0 prints
        out, finished = outcome.run, outcome.finished
        if self.json:
            print_json(
                {
                    "run": str(out),
                    "report": str(out / "report.html") if (out / "report.html").is_file() else None,
                    "metrics": finished.metrics.to_json() if finished else None,
                    "seconds": finished.seconds if finished else None,
                    "cost": events.read_cost(out),
                }
            )
        elif finished is not None:
            print(
                f"{finished.metrics.headline()}, after {format_duration(finished.seconds)} of training.\n"
                f"Run     {finished.run}\n"
                f"Report  {finished.report}\n"
                f"Next    {_suggest_next(finished)}"
            )
            held_out = finished.metrics.split != "train"  # as of good pictures alone, each left out of the bank in turn
            if held_out and finished.metrics.n < MIN_TEST_IMAGES and not self.folds and self.resume is None:
                few = f"{format_count(finished.metrics.n, 'held-out picture tells', 'held-out pictures tell')} little"
                no_folds = isinstance(finished.metrics, AnomalyMetrics | SegmentationMetrics)
                advice = "" if no_folds else "; --folds 5 holds out every picture once"
                print(f"Few     {few}{advice}.")
        return 0

    def _print_plan_help(self) -> int:
        """Print the plan's fields, one a line."""
        from ...train.plan import Plan

        listed = [field for field in config.describe(Plan) if "." in field.name]
        if self.json:
            print_json([{"name": f.name, "type": f.type, "default": f.default, "doc": f.doc} for f in listed])
        else:
            print(format_fields(listed))
        return 0


def _suggest_next(finished: FinishEvent) -> str:
    """The command to go on with: more training for a short one that is not shown to beat guessing, else predictions."""
    from ...evaluate.metrics import ClassificationMetrics

    run = shlex.quote(str(finished.run))
    is_single, is_short = (finished.run / PLAN_FILE).is_file(), finished.seconds < 60 * MINUTES_MORE
    if (
        isinstance(finished.metrics, ClassificationMetrics)
        and finished.metrics.describe_doubt()
        and is_single
        and is_short
    ):
        return f"vitrail train --resume {run} --extend --minutes {MINUTES_MORE}"
    return f"vitrail predict {run} PICTURE..."
