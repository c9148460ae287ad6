"""`vitrail evaluate`: how good a trained model is, with intervals, on pictures whose answers are known."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...errors import ResourceError, UsageError, escape_unprintable
from ...files.disk import check_writable
from ...formatting import format_count
from ...runtime import PrecisionName
from ...services import progress
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...evaluate.learning_curve import LearningCurve
    from ...evaluate.robustness import RobustnessReport
    from ...evaluate.shortcut_reliance import ShortcutReport
    from ...evaluate.subgroups import SubgroupReport
    from ...predict.predictor import Predictor
    from ...services.evaluation import EvaluationResult, LabelledImages


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Measure a model on its held-out pictures, or on another source with the same classes, labels or numbers.

    Every headline figure has a 95 % interval, and the wrong answers are named, the surest first. Of another source the
    predictions and a page with those pictures are kept in RUN/evaluations, or in --out.

      vitrail evaluate runs/20261121-140500-digits-vit_femto_patch2_8
      vitrail evaluate RUN holdout/ --json
      vitrail evaluate RUN holdout.csv --data.targets finding
      vitrail evaluate RUN --against OTHER_RUN
      vitrail evaluate RUN --by view,age --shortcuts --keep
      vitrail evaluate RUN --suspects suspects.csv
      vitrail evaluate RUN --corruptions films
      vitrail evaluate RUN OTHER --unlike
      vitrail evaluate RUN --plan-test "sensitivity=0.95±0.03" --positive defective
      vitrail evaluate RUN --plan-test doubling --keep
    """

    POSITIONAL = ("model", "source")
    DOTTED = "changes"
    SECTIONS = ("data", "image")

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
    """How many pictures are disturbed; 500 by default."""
    keep: bool = False
    """Also keep what --by, --shortcuts, --corruptions and --plan-test doubling find in the run folder, where vitrail
    report shows it."""
    unlike: bool = False
    """Does the model tell the pictures of SOURCE, whatever they show, from those that its run has held out?"""
    plan_test: str = ""
    """How many pictures settle a question: accuracy=0.9±0.02, sensitivity=, specificity= or auroc= with a 95 % interval
    of that width, or difference=0.02 in accuracy, seen with a power of 80 %; from the stored answers, of two runs with
    --against. Or doubling: what twice the training pictures would bring a run on frozen features."""
    positive: str = ""
    """With --plan-test: the class or label that the figure is of."""
    out: Path | None = None
    """Folder for predictions, results.csv and report.html of this evaluation; with a SOURCE RUN/evaluations/NAME by
    default."""
    split: str | None = None
    """train, val, test or all; by default test, or val where there is no test; all of a SOURCE without official
    splits, and with --suspects."""
    data_root: Path | None = None
    """Folder that holds the files of mnist, fashion-mnist, cifar10 or cifar100."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, instead of stopping."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: PrecisionName = "float32"
    """Number format of the answers: float32 is the same on every machine, bf16 and fp16 are faster on some."""
    json: bool = False
    """Print the figures as JSON."""
    changes: tuple[tuple[str, str], ...] = ()
    """How SOURCE is read, such as --data.targets COLUMN; vitrail train --help-plan lists the names."""

    def run(self) -> int:
        """Predict every image, compute metrics and print them."""
        from ...services import evaluation
        from ...services.prediction import apply_image_options, open_predictor
        from ...train.run_folder import is_folds_folder

        self._check_flags()
        if self.plan_test:
            return self._plan_test()
        if self.suspects:
            check_writable(Path(self.suspects).expanduser())
        if self.unlike:
            return self._evaluate_ood()
        if not self.source and is_folds_folder(Path(self.model)):
            return self._evaluate_folds()
        split = self.split or ("all" if self.suspects else None)
        folder = self._choose_folder()
        if self.source:
            predictor = open_predictor(self.model, self.device, self.precision)
            predictor = apply_image_options(predictor, self._select_changes(of_files=True))
            settings = evaluation.build_source_settings(
                self.model, self.source, self._select_changes(), self.data_root, predictor.task
            )
            own_group = evaluation.find_group_column(self.model)
            labelled = evaluation.load_other_source(self.source, split, settings, own_group)
        elif self.changes:
            raise UsageError(
                f"--{self.changes[0][0]} says how another source is read. Without a SOURCE the run's own plan says it."
            )
        else:
            labelled = evaluation.load_held_out(self._require_run_folder(), split)
            predictor = open_predictor(self.model, self.device, self.precision)
        progress.print_notes(predictor.notes)
        if self.against:
            return self._compare_models(predictor, labelled)
        if self.suspects:
            return self._find_label_errors(predictor, labelled)
        if self.source:
            labelled = evaluation.note_seen_images(Path(self.model), labelled)
        progress.print_notes(labelled.all_notes if self.json else labelled.notes)  # the warning stands beside the table
        if self.corruptions:
            return self._evaluate_corruptions(predictor, labelled)
        return self._evaluate_model(predictor, labelled, folder)

    def _choose_folder(self) -> Path | None:
        """Where this evaluation is kept; raises before the model runs."""
        if not (self.source or self.out) or self.against or self.suspects or self.corruptions:
            return None
        from ...services.evaluation_report import choose_evaluation_folder

        return choose_evaluation_folder(self.model, self.source, self.out)

    def _evaluate_model(self, predictor: Predictor, labelled: LabelledImages, folder: Path | None) -> int:
        from ...evaluate.decisions import describe_limits
        from ...services import evaluation, evaluation_report

        if self.by:
            evaluation.select_columns(labelled.source, self.by)  # raises before the model runs
        result = evaluation.evaluate_model(predictor, labelled, self.skip_bad, progress.track_batches)
        limits = describe_limits(predictor.task, [member.decisions for member in predictor.members])
        progress.print_notes(limits)
        findings: dict[str, SubgroupReport | ShortcutReport] = {}
        if self.by:
            findings["slices"] = evaluation.evaluate_subgroups(labelled, result.predictions, self.by)
        if self.shortcuts:
            findings["shortcuts"] = evaluation.measure_shortcuts(
                predictor, labelled, result.predictions, self.skip_bad, progress.track_batches
            )
        page = None
        if folder is not None:
            try:
                page = evaluation_report.write_evaluation(folder, self.model, self.source, predictor, labelled, result)
            except ResourceError as error:
                if self.out is not None:
                    raise
                progress.print_notes([f"{error} So predictions and page are not kept; --out DIR keeps them elsewhere."])
        return self._print_evaluation(result, findings, page, (*labelled.notes, *limits))

    def _print_evaluation(
        self,
        result: EvaluationResult,
        findings: Mapping[str, SubgroupReport | ShortcutReport],
        page: Path | None = None,
        notes: Sequence[str] = (),
    ) -> int:
        from ...report.cards import format_case_table
        from ...services.evaluation_report import list_wrong

        metrics, wrong = result.metrics, list_wrong(result.predictions)
        self._save_findings(findings)
        if self.json:
            extra: dict[str, object] = {name: one.to_json() for name, one in findings.items()}
            extra |= {"wrong": wrong.to_json(), "report": None if page is None else str(page)}
            if result.seen is not None:
                extra["copies"] = result.seen.to_json()
            name = result.predictions.decision
            decided = {"decision": name} if name else {}
            warning = {"warning": result.warning} if result.warning else {}
            extra |= {} if result.cases is None else {"cases": result.cases.to_json()}
            facts = {"model": self.model, "source": result.source, **warning, "metrics": metrics.to_json()}
            print_json({**facts, "notes": list(notes), **decided, **extra})
            return 0
        warned = f"WARNING  {result.warning}\n" if result.warning else ""
        head = f"{self.model} on {result.source}, split {metrics.split}\n{warned}{metrics.table()}"
        if result.cases is not None:
            head += f"\n\n{format_case_table(metrics, result.cases)}"
        parts = [head, *(one.table() for one in findings.values()), wrong.table()]
        print(escape_unprintable("\n\n".join(part for part in parts if part)))
        if page is not None:
            print(escape_unprintable(f"\nReport  {page}\nRows    {page.parent / 'predictions'}"))
        progress.print_skipped_images(result.predictions)
        return 0

    def _save_findings(
        self, findings: Mapping[str, SubgroupReport | ShortcutReport | RobustnessReport | LearningCurve]
    ) -> None:
        if not self.keep:
            return
        from ...report.extra_findings import save_extra_findings

        for path in save_extra_findings(Path(self.model), findings):
            print(escape_unprintable(f"Kept in {path}. vitrail report {self.model} shows it."), file=sys.stderr)

    def _plan_test(self) -> int:
        from ...services.prediction import open_predictor
        from ...services.refitting import DOUBLING, measure_learning_curve
        from ...services.study_planning import StudyPlan, plan_test

        run = Path(self.model)
        plan: StudyPlan | LearningCurve
        if self.plan_test == DOUBLING:
            if self.positive or self.against:
                raise UsageError(
                    "--plan-test doubling is of one run and all of its classes. Leave out the other flags."
                )
            self._require_run_folder()
            predictor = open_predictor(self.model, self.device, self.precision)
            progress.print_notes(
                ["Computing features, then fitting thirteen probes to parts of the training pictures."]
            )
            plan = measure_learning_curve(run, predictor, progress=progress.track_batches)
            self._save_findings({"learning_curve": plan})
        elif self.keep:
            raise UsageError(f"--keep is for --plan-test {DOUBLING}, not for a number of pictures. Leave it out.")
        else:
            plan = plan_test(run, self.plan_test, self.positive, Path(self.against) if self.against else None)
        if self.json:
            print_json({"model": self.model, **plan.to_json()})
        else:
            print(escape_unprintable(plan.table()))
        return 0

    def _check_flags(self) -> None:
        others = (
            self.source,
            self.suspects,
            self.by,
            self.shortcuts,
            self.corruptions,
            self.unlike,
            self.out,
            self.split,
        )
        if self.plan_test and any(others):
            raise UsageError(
                "--plan-test asks the answers that RUN has stored. Leave out SOURCE and what else is asked of RUN."
            )
        if self.positive and not self.plan_test:
            raise UsageError("--positive is for --plan-test. A threshold is changed by: vitrail decide RUN --positive")
        if self.keep and not (self.by or self.shortcuts or self.corruptions or self.plan_test):
            raise UsageError(
                "--keep is for what --by, --shortcuts, --corruptions or --plan-test doubling finds. Ask for one of "
                "them too."
            )
        if self.keep and self.source:
            raise UsageError(
                "--keep is for the pictures that the run has held out, as its report is. Leave out SOURCE, or leave "
                "out --keep."
            )
        if self.keep and self.split in ("train", "all"):
            raise UsageError(
                f"--keep is for the pictures that the run has held out, as its report is, and it has learnt from those "
                f"of --split {self.split}. Leave out one of them."
            )
        if self.suspects and (self.against or self.by or self.shortcuts):
            raise UsageError("--suspects judges labels, not the model. Leave out --against, --by and --shortcuts.")
        if self.against and (self.by or self.shortcuts):
            raise UsageError("--against compares two models. Ask for --by and --shortcuts without it.")
        if self.corruptions and (self.against or self.suspects or self.by or self.shortcuts):
            raise UsageError("--corruptions disturbs the pictures of one model. Leave out what else is asked of it.")
        if self.out is not None and (self.against or self.suspects or self.corruptions or self.unlike):
            raise UsageError("--out keeps one evaluation of one model. Leave it out, or what else is asked.")
        if self.unlike and (self.against or self.suspects or self.by or self.shortcuts or self.corruptions):
            raise UsageError("--unlike looks at pictures, not at answers. Leave out what else is asked of the model.")
        if self.unlike and not self.source:
            raise UsageError(
                "--unlike needs pictures of another kind beside those that the run has held out: vitrail evaluate "
                f"{self.model} OTHER --unlike"
            )
        if self.most is not None and not self.corruptions:
            raise UsageError("--most says how many pictures are disturbed. Give --corruptions imagenet-c or films too.")

    def _evaluate_folds(self) -> int:
        """Evaluate the stored out-of-fold predictions."""
        from ...services import evaluation

        if self.against or self.suspects or self.shortcuts or self.corruptions:
            raise UsageError(
                f"{self.model} holds several folds, whose answers are kept; only --by can be asked of those. Ask one "
                f"of the folds, such as {Path(self.model) / 'fold-0'}, or give a SOURCE that they have not seen."
            )
        if self.out is not None:
            raise UsageError(f"{self.model} has a report of all folds already: {Path(self.model) / 'report.html'}")
        if self.precision != "float32":
            raise UsageError(
                f"{self.model} holds several folds, whose answers are kept, in float32. Leave out --precision "
                f"{self.precision}, or ask one of the folds, such as {Path(self.model) / 'fold-0'}."
            )
        labelled, result = evaluation.evaluate_out_of_fold(Path(self.model), self.split)
        _print_notes(labelled)
        if not self.by:
            return self._print_evaluation(result, {})
        return self._print_evaluation(
            result, {"slices": evaluation.evaluate_subgroups(labelled, result.predictions, self.by)}
        )

    def _evaluate_ood(self) -> int:
        from ...services import diagnostics, evaluation
        from ...services.prediction import apply_image_options, open_predictor

        own = evaluation.load_held_out(self._require_run_folder(), self.split)
        settings = evaluation.build_source_settings(
            self.model, self.source, self._select_changes(), self.data_root, "auto"
        )
        predictor = open_predictor(self.model, self.device, self.precision)
        predictor = apply_image_options(predictor, self._select_changes(of_files=True))
        progress.print_notes((*predictor.notes, *own.all_notes))
        other = diagnostics.load_ood_source(self.source, settings)
        comparison = diagnostics.evaluate_ood(predictor, own, other, self.skip_bad, progress.track_batches)
        if self.json:
            print_json({"model": self.model, **comparison.to_json()})
        else:
            print(escape_unprintable(comparison.table()))
        return 0

    def _evaluate_corruptions(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import diagnostics

        most = diagnostics.DEFAULT_NUM_IMAGES if self.most is None else self.most
        suite = self.corruptions or ""
        result = diagnostics.evaluate_corruptions(
            predictor, labelled, suite, most, self.skip_bad, progress=progress.track_groups
        )
        self._save_findings({"robustness": result.robustness})
        if self.json:
            warning = {"warning": labelled.warning} if labelled.warning else {}
            robustness = result.robustness.to_json()
            print_json({"model": self.model, "source": result.source, **warning, "robustness": robustness})
            return 0
        warned = f"WARNING  {labelled.warning}\n" if labelled.warning else ""
        print(f"{self.model} on {result.source}, split {labelled.split}, {suite}\n{warned}{result.robustness.table()}")
        progress.print_skipped(result.skipped)
        return 0

    def _find_label_errors(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import diagnostics

        labelled = diagnostics.keep_split_images(Path(self.model), labelled)
        _print_notes(labelled)
        path = Path(self.suspects).expanduser()
        report = diagnostics.find_label_errors(predictor, labelled, self.skip_bad, progress.track_batches)
        if not report.inconclusive:
            report.write_csv(path)
        if self.json:
            written = {} if report.inconclusive else {"file": str(path)}
            print_json({"model": self.model, **written, **report.to_json()})
        else:
            print(escape_unprintable(report.table(path)))
        return 0

    def _compare_models(self, predictor: Predictor, labelled: LabelledImages) -> int:
        from ...services import evaluation
        from ...services.prediction import open_predictor

        other = open_predictor(self.against, self.device, self.precision)
        progress.print_notes(other.notes)
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
        print(
            f"on {compared.first.source}, split {compared.comparison.split}, "
            f"{format_count(compared.comparison.n, 'picture')}"
        )
        print(f"{compared.comparison.table()}\n{verdict}")
        progress.print_skipped_images(compared.first.predictions)
        return 0

    def _select_changes(self, of_files: bool = False) -> dict[str, str]:
        """The changes about how files are opened, or those about the source."""
        return {name: text for name, text in self.changes if name.startswith("image.") == of_files}

    def _require_run_folder(self) -> Path:
        from ...train.run_folder import find_run, is_folds_folder

        run = find_run(Path(self.model))
        if not (run / "plan.toml").is_file() and not is_folds_folder(run):
            raise UsageError(
                f"Only a run folder knows which pictures it has held out, and {self.model} is none. "
                f"Give a source: vitrail evaluate {self.model} SOURCE"
            )
        return run


def _print_notes(labelled: LabelledImages) -> None:
    progress.print_notes(labelled.all_notes)
