"""`vitrail evaluate`: how good a trained model is, with intervals, on pictures whose answers are known."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ...errors import UsageError, escape_unprintable
from ..arguments import Command

if TYPE_CHECKING:
    from ...data.source import Task
    from ...evaluate.robustness import RobustnessReport
    from ...evaluate.shortcut_reliance import ShortcutReport
    from ...evaluate.subgroups import SubgroupReport
    from ...predict.predictor import Predictor
    from ...services.evaluation import EvaluationResult, LabelledImages


IMAGE_PREFIX = "image."
"""Stands before the names of fields that say how files are opened."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Measure a model on its held-out pictures, or on another source with the same classes, labels or numbers.

    Every headline figure has a 95 % interval.

      vitrail evaluate runs/20261121-140500-digits-vit_femto_patch2_8
      vitrail evaluate RUN holdout/ --json
      vitrail evaluate RUN holdout.csv --data.targets finding
      vitrail evaluate RUN --against OTHER_RUN
      vitrail evaluate RUN --by view,age --shortcuts --keep
      vitrail evaluate RUN --suspects suspects.csv
      vitrail evaluate RUN --corruptions films
      vitrail evaluate RUN OTHER --unlike
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("model", "source")
    DOTTED: ClassVar[str | None] = "changes"

    model: str
    """A run folder, a bundle, a folder of transformers or timm that names its classes, or hf:OWNER/NAME."""
    source: str = ""
    """Another source of pictures, of any kind that train takes; by default those that the run has held out."""
    against: str = ""
    """Another model, to be compared on the same pictures; those that its run has learnt from are left out."""
    suspects: str = ""
    """A CSV to write: labels of all pictures that are likely to be wrong, for review and for train --exclude."""
    by: str = ""
    """Further columns of the source, such as view,age, or all: the figure for each of their values."""
    shortcuts: bool = False
    """Also ask with the centre covered, and with the border covered: does the model read a tag or a frame?"""
    corruptions: Literal["imagenet-c", "films"] | None = None
    """Also disturb the pictures on purpose, in 15 ways that are usual in papers or 11 that films and cameras know, with
    five severities each, and follow one figure."""
    most: int | None = None
    """How many pictures are disturbed; 500 if nothing is said."""
    keep: bool = False
    """Also keep what --by, --shortcuts and --corruptions find in the run folder, where vitrail report shows it."""
    unlike: bool = False
    """Does the model tell the pictures of SOURCE, whatever they show, from those that its run has held out?"""
    split: str | None = None
    """train, val, test or all; by default test, or val where there is no test; all of a SOURCE without official
    splits, and with --suspects."""
    data_root: Path | None = None
    """Folder that holds the files of mnist, fashion-mnist, cifar10 or cifar100."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, instead of stopping."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    json: bool = False
    """Print the figures as JSON."""
    debug: bool = False
    """Show tracebacks."""
    changes: tuple[tuple[str, str], ...] = ()
    """How SOURCE is read, such as --data.targets COLUMN; vitrail train --help-plan lists the names."""

    def run(self) -> int:
        """Answer every picture, measure, print."""
        from ...services import evaluation
        from ...services.prediction import apply_image_options, open_predictor
        from ...train import cross_validation

        self._check_flags()
        if self.unlike:
            return self._evaluate_ood()
        if not self.source and cross_validation.is_folds_folder(Path(self.model)):
            return self._evaluate_folds()
        if self.source:
            predictor = apply_image_options(
                open_predictor(self.model, self.device), self._select_changes(of_files=True)
            )
            labelled = self._load_other_source(predictor.task)
        else:
            labelled = self._load_held_out()
            predictor = open_predictor(self.model, self.device)
        if self.against:
            return self._compare_models(predictor, labelled)
        if self.suspects:
            return self._find_label_errors(predictor, labelled)
        _print_notes(evaluation.note_seen_images(Path(self.model), labelled) if self.source else labelled)
        return (
            self._evaluate_corruptions(predictor, labelled)
            if self.corruptions
            else self._evaluate_model(predictor, labelled)
        )

    def _evaluate_model(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import evaluation, progress

        if self.by:
            evaluation.select_columns(labelled.source, self.by)  # before anything is answered
        measured = evaluation.evaluate_model(predictor, labelled, self.skip_bad, progress.track_batches)
        beside: dict[str, SubgroupReport | ShortcutReport] = {}
        if self.by:
            beside["slices"] = evaluation.evaluate_subgroups(labelled, measured.predictions, self.by)
        if self.shortcuts:
            whole = measured.predictions
            seen = evaluation.measure_shortcuts(predictor, labelled, whole, self.skip_bad, progress.track_batches)
            beside["shortcuts"] = seen
        return self._print_evaluation(measured, beside)

    def _print_evaluation(
        self, measured: EvaluationResult, findings: Mapping[str, SubgroupReport | ShortcutReport]
    ) -> int:
        from ...services import progress
        from ..arguments import print_json

        figures = measured.metrics
        self._save_findings(findings)
        if self.json:
            told = {name: one.to_json() for name, one in findings.items()}
            print_json({"model": self.model, "source": measured.source, "metrics": figures.to_json(), **told})
            return 0
        head = f"{self.model} on {measured.source}, split {figures.split}\n{figures.table()}"
        print(escape_unprintable("\n\n".join([head, *(one.table() for one in findings.values())])))
        progress.print_skipped_images(measured.predictions)
        return 0

    def _save_findings(self, findings: Mapping[str, SubgroupReport | ShortcutReport | RobustnessReport]) -> None:
        from ...report import extra_findings

        for path in extra_findings.save_extra_findings(Path(self.model), findings) if self.keep else ():
            print(escape_unprintable(f"Kept in {path}. vitrail report {self.model} shows it."), file=sys.stderr)

    def _check_flags(self) -> None:
        if self.keep and not (self.by or self.shortcuts or self.corruptions):
            raise UsageError("--keep is for what --by, --shortcuts or --corruptions finds. Ask for one of them too.")
        if self.keep and self.source:
            raise UsageError(
                "--keep is for the pictures that the run has held out, as its report is. Leave out SOURCE, or leave "
                "out --keep."
            )
        if self.suspects and (self.against or self.by or self.shortcuts):
            raise UsageError("--suspects judges labels, not the model. Leave out --against, --by and --shortcuts.")
        if self.against and (self.by or self.shortcuts):
            raise UsageError("--against compares two models. Ask for --by and --shortcuts without it.")
        if self.corruptions and (self.against or self.suspects or self.by or self.shortcuts):
            raise UsageError("--corruptions disturbs the pictures of one model. Leave out what else is asked of it.")
        if self.unlike and (self.against or self.suspects or self.by or self.shortcuts or self.corruptions):
            raise UsageError("--unlike looks at pictures, not at answers. Leave out what else is asked of the model.")
        if self.unlike and not self.source:
            raise UsageError(
                f"--unlike needs pictures of another kind beside those that the run has held out: vitrail evaluate "
                f"{self.model} OTHER --unlike"
            )
        if self.most is not None and not self.corruptions:
            raise UsageError("--most says how many pictures are disturbed. Give --corruptions imagenet-c or films too.")

    def _evaluate_folds(self) -> int:
        """Every picture by the one model that has not seen it, as the folds have answered."""
        from ...services import evaluation

        if self.against or self.suspects or self.shortcuts or self.corruptions:
            raise UsageError(
                f"{self.model} holds several folds, whose answers are kept; only --by can be asked of those. Ask one "
                f"of the folds, such as {Path(self.model) / 'fold-0'}, or give a SOURCE that they have not seen."
            )
        labelled, measured = evaluation.evaluate_out_of_fold(Path(self.model), self.split)
        _print_notes(labelled)
        parts = evaluation.evaluate_subgroups(labelled, measured.predictions, self.by) if self.by else None
        return self._print_evaluation(measured, {} if parts is None else {"slices": parts})

    def _evaluate_ood(self) -> int:
        from ...services import diagnostics, evaluation, progress
        from ...services.prediction import apply_image_options, open_predictor
        from ..arguments import print_json

        own = evaluation.load_held_out(self._require_run_folder(), self.split)
        settings = evaluation.build_source_settings(
            self.model, self.source, self._select_changes(), self.data_root, "auto"
        )
        predictor = apply_image_options(open_predictor(self.model, self.device), self._select_changes(of_files=True))
        _print_notes(own)
        found = diagnostics.evaluate_ood(
            predictor, own, diagnostics.load_ood_source(self.source, settings), self.skip_bad, progress.track_batches
        )
        if self.json:
            print_json({"model": self.model, **found.to_json()})
        else:
            print(escape_unprintable(found.table()))
        return 0

    def _evaluate_corruptions(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import diagnostics, progress
        from ..arguments import print_json

        most = diagnostics.DEFAULT_NUM_IMAGES if self.most is None else self.most
        suite = self.corruptions or ""
        stood = diagnostics.evaluate_corruptions(
            predictor, labelled, suite, most, self.skip_bad, progress=progress.track_groups
        )
        self._save_findings({"robustness": stood.robustness})
        if self.json:
            print_json({"model": self.model, "source": stood.source, "robustness": stood.robustness.to_json()})
            return 0
        print(f"{self.model} on {stood.source}, split {labelled.split}, {suite}\n{stood.robustness.table()}")
        progress.print_skipped(stood.skipped)
        return 0

    def _find_label_errors(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import diagnostics, progress
        from ..arguments import print_json

        labelled = diagnostics.keep_split_images(Path(self.model), labelled)
        _print_notes(labelled)
        path = Path(self.suspects).expanduser()
        found = diagnostics.find_label_errors(predictor, labelled, self.skip_bad, progress.track_batches)
        found.write_csv(path)
        if self.json:
            print_json({"model": self.model, "file": str(path), **found.to_json()})
        else:
            print(escape_unprintable(found.table(path)))
        return 0

    def _compare_models(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import evaluation, progress
        from ...services.prediction import open_predictor
        from ..arguments import print_json

        other = open_predictor(self.against, self.device)
        for model in (self.model, self.against) if self.source else (self.against,):
            labelled = evaluation.drop_seen_images(Path(model), labelled)
        _print_notes(labelled)
        compared = evaluation.compare_models(predictor, other, labelled, self.skip_bad, progress.track_batches)
        verdict = compared.comparison.verdict(self.model, self.against)
        if self.json:
            print_json(
                {
                    "model": self.model,
                    "against": self.against,
                    "source": compared.first.source,
                    "comparison": compared.comparison.to_json(),
                    "verdict": verdict,
                }
            )
            return 0
        print(f"{self.model} (first) against {self.against} (second)")
        print(f"on {compared.first.source}, split {compared.comparison.split}, {compared.comparison.n:,} pictures")
        print(f"{compared.comparison.table()}\n{verdict}")
        progress.print_skipped_images(compared.first.predictions)
        return 0

    def _load_other_source(self, task: Task) -> LabelledImages:
        from ...services import evaluation

        settings = evaluation.build_source_settings(
            self.model, self.source, self._select_changes(), self.data_root, task
        )
        return evaluation.load_other_source(self.source, self._choose_split(), settings)

    def _select_changes(self, of_files: bool = False) -> dict[str, str]:
        """What was said about how files are opened, or about the source."""
        return {name: text for name, text in self.changes if name.startswith(IMAGE_PREFIX) == of_files}

    def _load_held_out(self) -> LabelledImages:
        from ...services import evaluation

        if self.changes:
            raise UsageError(
                f"--{self.changes[0][0]} says how another source is read. Without a SOURCE the run's own plan says it."
            )
        return evaluation.load_held_out(self._require_run_folder(), self._choose_split())

    def _require_run_folder(self) -> Path:
        from ...train import cross_validation

        if not (Path(self.model) / "plan.toml").is_file() and not cross_validation.is_folds_folder(Path(self.model)):
            raise UsageError(
                f"Only a run folder knows which pictures it has held out, and {self.model} is none. "
                f"Give a source: vitrail evaluate {self.model} SOURCE"
            )
        return Path(self.model)

    def _choose_split(self) -> str | None:
        return self.split or ("all" if self.suspects else None)


def _print_notes(labelled: LabelledImages) -> None:
    for note in labelled.notes:
        print(escape_unprintable(note), file=sys.stderr)
