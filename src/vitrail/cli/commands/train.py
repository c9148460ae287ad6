"""`vitrail train`: from a source of pictures to a run folder with a model and its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...errors import UsageError
from ..arguments import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...services.train_arguments import TrainArguments
    from ...services.train_progress import TrainOutcome
    from ...train.events import Event
    from ...train.resume import Extension


RESUME_FIELDS = ("compute.", "recipe.grad_accum_steps", "track.")
"""Plan fields that change how a run is computed, and where its numbers go, and not what it learns."""


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Check the data, make a plan, train, evaluate, and write the run folder with its report.

    Without a budget it trains for ten minutes. Ctrl-C saves and says how to go on.

      vitrail train digits --minutes 1
      vitrail train flowers/ --model vit_tiny_patch16_224 --epochs 20
      vitrail train cells/ --weights dinov2-small --minutes 10
      vitrail train films.csv --group patient --exclude exclude.csv
      vitrail train digits --recipe.batch_size 64 --dry-run
      vitrail train --resume runs/20261121-140500-digits-vit_femto_patch2_8
      vitrail train --resume runs/20261121-140500-digits-vit_femto_patch2_8 --extend --minutes 10
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("source",)
    DOTTED: ClassVar[str | None] = "changes"

    source: str = ""
    """A folder of class folders, a manifest (.csv, .tsv, .jsonl, .parquet), arrays (.npz, .npy), tar shards, hf:NAME,
    or one of digits, planted, mnist, fashion-mnist, cifar10, cifar100; may be left out with --resume or --plan."""
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
    """classes (one of K), labels (any of K) or number; by default as the labels look, with the reason."""
    group: str | None = None
    """Column whose equal values (one patient, one module) never cross from one split to another."""
    exclude: Path | None = None
    """A CSV of pictures to leave out, such as vitrail check --out DIR writes."""
    folds: int | None = None
    """Part into so many folds and train a model for each, the minutes shared among them; --data.fold trains one."""
    pretrain: bool = False
    """Spend a part of the budget on learning from the pictures without their labels first: masked autoencoding."""
    plan: Path | None = None
    """Follow a written plan.toml from its first step."""
    resume: Path | None = None
    """Go on with the run in this folder."""
    extend: bool = False
    """With --resume: go on for so many more --minutes, --epochs or --steps, also after the end."""
    out: Path | None = None
    """The run folder; by default runs/<date>-<time>-<source>-<model>."""
    dry_run: bool = False
    """Make the plan, print it with its reasons, and stop."""
    devices: int | None = None
    """With --dry-run: also what the run would take on so many devices like this one."""
    help_plan: bool = False
    """List every field of the plan with its kind, default and meaning."""
    json: bool = False
    """Print the outcome as JSON; progress goes to standard error."""
    debug: bool = False
    """Show tracebacks."""
    changes: tuple[tuple[str, str], ...] = ()
    """Any field of the plan by its name, such as --recipe.batch_size 64; --help-plan lists them."""

    def run(self) -> int:
        """Train, or say what would be done."""
        if self.help_plan:
            return self._print_plan_help()
        self._check_start_flags()
        if self.devices is not None and not self.dry_run:
            raise UsageError(
                "--devices foretells what a run would take, with --dry-run. To train on several, start as many "
                f"processes: torchrun --nproc-per-node {self.devices} -m vitrail train ..."
            )
        from ...train.signals import ignore_save_signals

        with ignore_save_signals():
            return self._run_training()

    def _run_training(self) -> int:
        from ...services import train_progress

        events = self._start_training()
        if self.dry_run:
            return self._show_plan(events)
        return self._print_result(train_progress.follow_training(events))

    def _check_start_flags(self) -> None:
        """There are three ways to begin, and only one at a time."""
        if self.extend and self.resume is None:
            raise UsageError("--extend gives a run more time: name it with --resume RUN.")
        if self.resume is not None:
            beside = self._flags_against_resume().items()
            given = [flag for flag, value in beside if value not in (None, "") and value is not False]
            if given:
                raise UsageError(
                    f"--resume goes on exactly as the run's own plan says, so {' and '.join(given)} cannot be given "
                    "with it. Start a new run to change something, or give this one more time with --extend."
                )

    def _flags_against_resume(self) -> dict[str, object]:
        return {
            "SOURCE": self.source,
            "--plan": self.plan,
            "--model": self.model,
            "--weights": self.weights,
            **({} if self.extend else {"--minutes": self.minutes, "--epochs": self.epochs, "--steps": self.steps}),
            "--image-size": self.image_size,
            "--channels": self.channels,
            "--pretrain": self.pretrain,
            "--seed": self.seed,
            "--data-root": self.data_root,
            "--skip-bad": self.skip_bad,
            "--task": self.task,
            "--group": self.group,
            "--exclude": self.exclude,
            "--folds": self.folds,
            "--out": self.out,
            "--dry-run": self.dry_run,
            **{f"--{name}": text for name, text in self.changes if not name.startswith(RESUME_FIELDS)},
        }

    def _start_training(self) -> Iterator[Event]:
        """What will happen, as it happens."""
        from ... import config
        from ...services import train_arguments
        from ...train import cross_validation, fit
        from ...train.plan import Plan

        if self.resume is not None:
            if cross_validation.is_folds_folder(self.resume):
                self._check_folds_alone()
                return cross_validation.resume_folds(self.resume)
            longer = self._make_extension() if self.extend else None
            return fit.resume_run(self.resume, None, longer, self._compute_changes())
        asked = self._make_arguments()
        if self.plan is not None:
            plan = train_arguments.override_plan(config.read_toml(self.plan, Plan), asked)
            return fit.fit_plan(plan, self.out, dry_run=self.dry_run, changes=dict(self.changes))
        wanted, settings = train_arguments.build_train_request(asked)
        if train_arguments.should_train_all_folds(asked, wanted):
            return (
                cross_validation.plan_first_fold(wanted, settings)
                if self.dry_run
                else cross_validation.fit_folds(wanted, settings, self.out)
            )
        return fit.fit(wanted, settings, self.out, self.dry_run)

    def _check_folds_alone(self) -> None:
        """Folds go on as they were begun."""
        if self.extend or self.device is not None or self.changes:
            raise UsageError(
                f"{self.resume} holds several folds, which go on as they were begun. Give --extend, --device and "
                f"--compute.* to one of them, such as {Path(str(self.resume)) / 'fold-0'}."
            )

    def _make_extension(self) -> Extension:
        from ...train.resume import Extension

        return Extension(minutes=self.minutes, epochs=self.epochs, steps=self.steps)

    def _compute_changes(self) -> dict[str, str]:
        """What a resumed run shall compute with from now on."""
        from ... import runtime
        from ...services.train_arguments import check_plan_fields

        changes = dict(self.changes)
        check_plan_fields(changes)
        if self.device is not None and "compute.device" in changes:
            raise UsageError("--device and --compute.device are the same setting. Give one of them.")
        if self.device is None:
            return changes
        return changes | {"compute.device": runtime.choose(runtime.RuntimeSettings(device=self.device)).device}

    def _make_arguments(self) -> TrainArguments:
        from ...services.train_arguments import TrainArguments, parse_image_size

        return TrainArguments(
            source=self.source,
            model=self.model,
            weights=self.weights,
            minutes=self.minutes,
            epochs=self.epochs,
            steps=self.steps,
            image_size=None if self.image_size is None else parse_image_size(self.image_size),
            channels=self.channels,
            pretrain=self.pretrain,
            seed=self.seed,
            device=self.device,
            data_root=self.data_root,
            skip_bad=self.skip_bad,
            task=self.task,
            group=self.group,
            exclude=self.exclude,
            folds=self.folds,
            changes=dict(self.changes),
        )

    def _show_plan(self, events: Iterator[Event]) -> int:
        """Everything up to the plan happens, and nothing after it."""
        from ... import config
        from ...services import cost as cost_module
        from ...services import train_progress as words
        from ...train.distributed.collectives import group_from_env
        from ...train.events import Note, PlanEvent
        from ...train.plan_reasons import complete_reasons
        from ..arguments import print_json

        happened = list(events)
        (planned,) = (event for event in happened if isinstance(event, PlanEvent))
        notes = [event.text for event in happened if isinstance(event, Note)]
        if group_from_env().rank:
            return 0  # rank 0 prints
        cost = planned.cost
        if self.json:
            print_json(
                {
                    "plan": config.write(planned.plan),
                    "reasons": planned.reasons,
                    "notes": notes,
                    "predicted": cost.to_json() if cost else None,
                    **cost_module.estimate_plan_cost(planned, self.devices),
                }
            )
        else:
            told = [*words.format_expected_cost(planned), *cost_module.format_plan_cost(planned, self.devices), *notes]
            print("".join(f"# {line}\n" for line in told))
            print(config.to_toml(planned.plan, complete_reasons(planned.plan, planned.reasons)), end="")
        return 0

    def _print_result(self, outcome: TrainOutcome) -> int:
        """What a person wants to know at the end: how good, where, and what to type next."""
        from ...formatting import MIN_TEST_IMAGES, format_duration
        from ...train import events
        from ...train.distributed.collectives import group_from_env
        from ..arguments import print_json

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
                f"Next    vitrail predict {finished.run} PICTURE..."
            )
            if finished.metrics.n < MIN_TEST_IMAGES and not self.folds and self.resume is None:
                few = f"{finished.metrics.n} held-out pictures tell little"
                print(f"Few     {few}; --folds 5 holds out every picture once.")
        return 0

    def _print_plan_help(self) -> int:
        """The plan's fields, one a line."""
        from ... import config
        from ...train.plan import Plan
        from ..arguments import format_fields, print_json

        listed = [field for field in config.describe(Plan) if "." in field.name]
        if self.json:
            print_json([{"name": f.name, "type": f.type, "default": f.default, "doc": f.doc} for f in listed])
        else:
            print(format_fields(listed))
        return 0
