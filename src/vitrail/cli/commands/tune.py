"""`vitrail tune`: variants of a plan by successive halving, and the best of them as a finished run."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...formatting import format_count, format_duration
from ...train.signals import ignore_save_signals
from ..arguments import Command, format_table, print_json, to_flag

if TYPE_CHECKING:
    from ...services.train_progress import TrainOutcome
    from ...train.events import Event


@dataclass(frozen=True, kw_only=True)
class Tune(Command):
    """Train variants of the plan a little, stop the worse half, extend the better half, and finish the best as a run.

    The first trial is the plan that train would make; the others vary learning rates, weight decay, augmentation and
    model size (layer decay from a checkpoint) around it. They are compared by the loss on the validation pictures; the
    test pictures are looked at once, at the end. Settings that you give are not varied. Ctrl-C saves.

      vitrail tune digits --trials 6 --minutes 10
      vitrail tune flowers/ --trials 8 --minutes 60 --weights dinov2-small
      vitrail tune --resume runs/20261121-140500-digits-tune
    """

    POSITIONAL = ("source",)
    DOTTED = "changes"

    source: str = ""
    """As vitrail train takes it; may be left out with --resume."""
    trials: int = 6
    """The plan and its variants, together."""
    val: str | None = None
    """A SOURCE of its own for the validation pictures; by default a tenth of the training pictures."""
    test: str | None = None
    """A SOURCE of its own for the test pictures; by default a fifth of all pictures."""
    model: str | None = None
    """A named size, which is then not varied."""
    weights: str | None = None
    """A checkpoint to begin from: a file, folder, run, hf:OWNER/NAME, dinov2-small; auto (the default) takes a
    recommended one that is on this machine, none begins from random values."""
    minutes: float | None = None
    """Time to train for, of all trials together and with opening the data for each; the last report comes on top."""
    steps: int | None = None
    """Optimiser steps of all trials together, instead of minutes."""
    image_size: str | None = None
    """Pixels that the model reads: 64, or HEIGHTxWIDTH such as 60x100."""
    channels: int | None = None
    """1 for grey, 3 for colour; by default as the pictures are."""
    seed: int | None = None
    """Start of every random choice, of the variants too; 0 by default."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1 or mps."""
    data_root: Path | None = None
    """Folder that holds the files of mnist, fashion-mnist, cifar10 or cifar100."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, instead of stopping."""
    task: str | None = None
    """classification (one of K), multilabel (any of K) or regression; by default as the labels look."""
    group: str | None = None
    """Column whose equal values (one patient, one module) never cross from one split to another."""
    exclude: Path | None = None
    """A CSV of pictures to leave out, such as vitrail check --out DIR writes."""
    resume: Path | None = None
    """Go on with the trials in this folder."""
    out: Path | None = None
    """The folder of all trials; by default runs/<date>-<time>-<source>-tune."""
    json: bool = False
    """Print the outcome as JSON; progress goes to standard error."""
    changes: tuple[tuple[str, str], ...] = ()
    """Any field of the plan by its name, such as --recipe.batch_size 64; it is then not varied."""

    def run(self) -> int:
        """Tune, and print the table of trials."""
        if self.resume is not None:
            allowed = {"resume", "json", "debug"}
            changed = [one.name for one in fields(self) if vars(self)[one.name] != one.default]
            if given := [name for name in changed if name not in allowed]:
                flags = " and ".join("SOURCE" if name == "source" else to_flag(name) for name in given)
                raise UsageError(f"--resume goes on as the trials were begun, so {flags} cannot be given with it.")
        with ignore_save_signals():
            from ...services.train_progress import follow_training

            return self._print_result(follow_training(self._start_tuning()))

    def _start_tuning(self) -> Generator[Event]:
        """The events of all trials, which run as they are consumed."""
        from ...services import train_arguments
        from ...train import tuning

        if self.resume is not None:
            return tuning.resume_tuning(self.resume)
        shared = {one.name for one in fields(train_arguments.TrainArguments)} & vars(self).keys()
        image_size = None if self.image_size is None else train_arguments.parse_image_size(self.image_size)
        own = {"image_size": image_size, "changes": dict(self.changes)}
        arguments = train_arguments.TrainArguments(**{name: vars(self)[name] for name in shared} | own)
        request, settings = train_arguments.build_train_request(arguments)
        return tuning.tune(request, settings, self.trials, self.out)

    def _print_result(self, outcome: TrainOutcome) -> int:
        """Print the trials, the main metric of the best, and the next command."""
        from ...train import tuning

        tuned, finished = tuning.read_tuning(outcome.run), outcome.finished
        best = tuning.best_folder(outcome.run, tuned)
        rows = tuning.list_results(tuned)
        if self.json:
            print_json(
                {
                    "folder": str(outcome.run),
                    "run": str(best),
                    "trials": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]],
                    "metrics": finished.metrics.to_json() if finished else None,
                }
            )
            return 0
        print(format_table(rows))
        if finished is not None:
            seconds = format_duration(sum(one.seconds for one in tuned.results))
            print(f"{finished.metrics.headline()}, after {seconds} of {format_count(len(tuned.trials), 'trial')}.")
        print(f"Run     {best}\nReport  {best / 'report.html'}\nNext    vitrail predict {best} PICTURE...")
        return 0
