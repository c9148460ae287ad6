"""`Run`: a trained run, with a method for each command of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date as date_type
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

from . import config
from .caller_state import isolate
from .checkpoints.bundle import find_bundle, is_bundle
from .config.keywords import spell_errors_of_class
from .data.open import gather_objects
from .data.settings import MEMORY
from .data.source import Task, parse_task
from .errors import UsageError
from .evaluate.compare import Comparison
from .evaluate.drift import FALSE_ALARMS, WatchReport
from .evaluate.label_errors import LabelErrorReport
from .evaluate.learning_curve import LearningCurve
from .evaluate.ood import OodComparison
from .evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from .evaluate.robustness import RobustnessReport
from .evaluate.shortcut_reliance import ShortcutReport
from .evaluate.subgroups import SubgroupReport
from .evaluate.tables import PredictionTable
from .evaluate.task_metrics import TaskMetrics
from .export.quantize import ExportPrecision
from .files.hub import PUSH_PREFIX
from .predict.embedder import Embedder, Embeddings
from .predict.folder_targets import add_folder_targets, list_named_folders
from .predict.kept_decisions import DecisionFollower
from .predict.predictor import Predictor, drop_skipped_groups
from .report.decision_section import decide_run
from .report.dossier import Dossier, build_dossier
from .report.page import write_plots
from .report.verification import Verification, verify_run
from .runtime import parse_precision
from .services import (
    bank_versions,
    deciding,
    diagnostics,
    embedding,
    evaluation,
    explanation,
    exporting,
    notebook,
    publishing,
    study_planning,
    train_progress,
    watching,
)
from .services.bank_versions import TeachResult
from .services.deciding import DecisionComparison, DecisionRequest
from .services.evaluation_report import choose_evaluation_folder, write_evaluation
from .services.explanation import Explanation
from .services.prediction import open_predictor, parse_images
from .services.publishing import PublishedModel
from .services.refitting import measure_learning_curve
from .services.study_planning import StudyPlan
from .services.watching import WatchRequest
from .train import cross_validation
from .train import fit as training
from .train.custom_functions import NO_CUSTOM_FUNCTIONS, CustomAugment, CustomFunctions, CustomLoss
from .train.events import spell_notes
from .train.plan import Plan
from .train.resume import Extension
from .train.run_folder import RunFolder, first_run_folder, is_folds_folder

ImagesArgument = str | Path | Iterable[object]
"""A folder, or several images."""


@spell_errors_of_class
class Run:
    """A trained run: its folder, its plan and its model; or a model that `vitrail.save` wrote, which has no plan.

    For a cross-validation the model is the ensemble of all folds, and held-out metrics use out-of-fold predictions.

    Raises:
        UsageError: neither a run folder nor such a model.
    """

    def __init__(
        self,
        path: str | Path,
        trained_on: object | None = None,
        device: str = "auto",
        custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
        precision: str = "float32",
    ):
        self.path = Path(path)
        """The folder."""
        if not is_bundle(self.path):
            try:
                self.plan  # noqa: B018 - read now, so that another folder is refused at once
            except UsageError as error:
                raise UsageError(f"{error} Weights alone are read by vitrail.load.") from error
        self._trained_on = trained_on  # the source, if it was an object in memory
        self._device = device
        self._custom_functions = custom_functions
        self.precision = parse_precision(precision)
        """The number format of predictions: float32 unless a person has chosen a faster one."""

    @cached_property
    def plan(self) -> Plan:
        """Every setting of the run; of a cross-validation those of the first fold.

        Raises:
            UsageError: a model alone, without the run that trained it.
        """
        if is_bundle(self.path):
            raise UsageError(f"{self.path} is a model alone: it has no plan and no images of its own. Name a source.")
        return RunFolder.open_existing(first_run_folder(self.path)).read_plan()

    @property
    def report(self) -> Path:
        """Path of the self-contained HTML report.

        Raises:
            UsageError: a model alone, without the run that trained it.
        """
        if is_bundle(self.path):
            raise UsageError(
                f"{self.path} is a model alone, without a report. evaluate(source, out=FOLDER) writes one."
            )
        return self.path / "report.html"

    @property
    @isolate
    def metrics(self) -> TaskMetrics:
        """The stored metrics of the held-out images, by the decision in use, as the report has them.

        Raises:
            UsageError: a model alone, or a run that is not finished.
        """
        return decide_run(self.report.parent).metrics

    @isolate
    def verify(self) -> Verification:
        """Compute every stored figure again from the stored predictions, and hash the files behind them.

        Raises:
            UsageError: a model alone, a run that is not finished, or one of masks.
            DamagedFileError: a figure does not follow from the predictions; it is named.
        """
        return verify_run(self.report.parent)

    @isolate
    def plots(self) -> list[Path]:
        """Write the report's ROC, precision-recall and cost curves, net benefit, reliability and confusion matrix.

        Returns:
            The files in `figures/` of the run folder, of each figure an SVG and a PNG.

        Raises:
            UsageError: a model alone, or a run whose answers are numbers.
            ResourceError: the disk is full or read-only, or permission is missing.
        """
        return write_plots(self.report.parent)

    @isolate
    def dossier(self) -> Dossier:
        """Write the report as a dossier for reviewers and authorities, as `vitrail report RUN --for dossier` does.

        Raises:
            UsageError: a model alone, or an evaluation instead of a training.
            DamagedFileError: a stored file, or an answer in dossier.toml.
        """
        folder = self.report.parent
        return build_dossier(folder, evaluation.evaluate_stored_subgroups(folder, self._trained_on))

    @property
    def folds(self) -> tuple[Run, ...]:
        """The runs of the folds of a cross-validation; else empty."""
        return tuple(self._open(path) for path in cross_validation.fold_folders(self.path))

    @isolate
    def with_precision(self, precision: str) -> Run:
        """This run with predictions in another number format: "float32", "bf16" or "fp16".

        Raises:
            UsageError: an unknown number format.
        """
        return self if parse_precision(precision) == self.precision else self._open(self.path, precision=precision)

    def _open(
        self,
        path: Path,
        trained_on: object | None = None,
        custom_functions: CustomFunctions | None = None,
        precision: str = "",
    ) -> Run:
        """A run with what this one holds, unless it is given."""
        source_object = self._trained_on if trained_on is None else trained_on
        functions = custom_functions or self._custom_functions
        return Run(path, source_object, self._device, functions, precision or self.precision)

    @property
    @isolate
    def predictor(self) -> Predictor:
        """The trained model with its class names, on the device of `fit` or the best one here; opened at first use.

        It follows the decision in use, also if another program has put it to use.

        Issues a UserWarning where the run's metrics were stored in another number format.

        Raises:
            DamagedFileError: a file of the model or a kept decision is damaged.
        """
        opened = self._opened_predictor
        kept = None if self._follower is None else self._follower.poll()
        if kept is not None:
            self._opened_predictor = opened = opened.with_version(kept, kept.current)
        return opened

    @cached_property
    def _opened_predictor(self) -> Predictor:
        predictor = open_predictor(self.path, self._device, self.precision)
        evaluation.warn_of(predictor.precision_notes if self.precision == "float32" else ())
        return predictor

    @cached_property
    def _follower(self) -> DecisionFollower | None:
        """None for a cross-validation, whose ensemble has no decisions of its own."""
        folder = None if is_folds_folder(self.path) else find_bundle(self.path)
        return None if folder is None else DecisionFollower(folder)

    @overload
    def predict(
        self,
        images: ImagesArgument,
        skip_bad: bool = False,
        sets: bool = False,
        *,
        task: Literal["classification"],
        groups: Sequence[object] | None = None,
    ) -> ClassificationPredictions: ...
    @overload
    def predict(
        self,
        images: ImagesArgument,
        skip_bad: bool = False,
        sets: bool = False,
        *,
        task: Literal["multilabel"],
        groups: Sequence[object] | None = None,
    ) -> MultilabelPredictions: ...
    @overload
    def predict(
        self,
        images: ImagesArgument,
        skip_bad: bool = False,
        sets: bool = False,
        *,
        task: Literal["regression"],
        groups: Sequence[object] | None = None,
    ) -> RegressionPredictions: ...
    @overload
    def predict(
        self,
        images: ImagesArgument,
        skip_bad: bool = False,
        sets: bool = False,
        task: None = None,
        groups: Sequence[object] | None = None,
    ) -> PredictionTable: ...
    @isolate
    def predict(
        self,
        images: ImagesArgument,
        skip_bad: bool = False,
        sets: bool = False,
        task: Task | None = None,
        groups: Sequence[object] | None = None,
    ) -> PredictionTable:
        """One row of predictions per image, in order.

        `.labels` are names, `.indices` their places in `.classes`, `.probabilities` float32 [n, K]; of a regression
        `.values` [n, K] and `.columns`. `.abstained` is bool [n], `.to_pandas()` a DataFrame, iteration gives typed
        rows, and `.write(path)` a CSV, JSON lines or Parquet file.

        Args:
            images: paths, encoded bytes, arrays [H, W] or [H, W, C], tensors [C, H, W], or Pillow images; an array
                [n, H, W, C]; or one folder, which is searched to the bottom, in natural order: folders in it with the
                name of a class give `.targets`.
            skip_bad: leave out images that cannot be read, and name them in `.skipped`.
            sets: add conformal prediction sets, or intervals of numbers, with coverage 1 - `decisions.conformal_alpha`.
            task: the run's task, "classification", "multilabel" or "regression": type checkers then know which of the
                results comes back, and another task of the run is an error.
            groups: the case of each image, such as its patient, for a run with `case`: `.cases` is then the same table
                with a row for each case, and `.shares` the share of each image in the answer of its case.

        Raises:
            DataError: an image that cannot be read, unless `skip_bad` is set.
            UsageError: prediction sets of a model without conformal calibration, groups for one without cases, or a run
                of another task.
        """
        parsed = parse_images(images)  # before the model is opened, which takes a while
        if task is not None and parse_task(task) != self.predictor.task:
            raise UsageError(f"{self.path} predicts task={self.predictor.task!r}. Got task={task!r}.")
        if groups is not None:
            self.predictor.require_cases()
            drop_skipped_groups(parsed, groups, ())  # before the model answers
        predictions = self.predictor.predict(parsed, skip_bad=skip_bad)
        if groups is not None:
            predictions = self.predictor.add_cases(
                predictions, drop_skipped_groups(parsed, groups, predictions.skipped)
            )
        if isinstance(images, str | Path):
            predictions = add_folder_targets(predictions, list_named_folders([images]))
        return self.predictor.add_sets(predictions) if sets else predictions

    @isolate
    def evaluate(
        self,
        source: object | None = None,
        split: str | None = None,
        skip_bad: bool = False,
        settings: Mapping[str, object] | None = None,
        out: str | Path | None = None,
    ) -> TaskMetrics:
        """Metrics with confidence intervals on the held-out images, or on another source of the same classes.

        Issues a UserWarning for each note of the command, such as images of a source that the run was trained on.

        Args:
            source: as `fit`; None is the training source.
            split: train, val, test or all; None takes test, or val without a test split.
            skip_bad: leave out images that cannot be read.
            settings: how `source` is read, such as {"data.targets": "finding"}; fields of [data] in a plan.
            out: a folder for predictions, results.csv and report.html with the wrong images, as the command keeps them.

        Raises:
            DataError: the source cannot be read, or has classes, labels or columns that the model does not know.
            UsageError: `out` holds something else.
        """
        named = str(source) if isinstance(source, str | Path) else ""
        folder = None if out is None else choose_evaluation_folder(str(self.path), named, Path(out))
        labelled, measured = self._evaluate_predictions(source, split, skip_bad, settings)
        if folder is not None:
            write_evaluation(folder, str(self.path), named or measured.source, self.predictor, labelled, measured)
        return measured.metrics

    @isolate
    def decide(
        self,
        rule: str | None = None,
        positive: str = "",
        at: Mapping[str, float] | None = None,
        abstain: float | None = None,
        alpha: float | None = None,
        prevalence: Mapping[str, float] | None = None,
        band: str = "",
        estimate: str | Path | None = None,
        keep: str = "",
        by: str = "",
        use: str = "",
        into: str | Path | None = None,
    ) -> DecisionComparison:
        """Fit other decisions to the stored validation predictions, as `vitrail decide`; without arguments today's.

        Args:
            at, prevalence: shares by label or class.
            use: a kept decision, which `predict` then follows; "training" goes back. The others are as the flags.
            into: an exported file of this run, .onnx or .pt2, whose decision is replaced by the one in use.

        Raises:
            UsageError: a label that is not there, an option of another task, or a name that is taken.
            DataError: no stored validation predictions, or too few for the rule.
            DamagedFileError: a file of the model or a kept decision is damaged.
        """
        request = DecisionRequest(
            rule=rule, positive=positive, at=dict(at or {}), abstain=abstain, alpha=alpha,
            prevalence=dict(prevalence or {}), band=band,
        )  # fmt: skip
        file, exported = (None if path is None else Path(path) for path in (estimate, into))
        return deciding.decide(self.path, request, keep, by, use, file, exported, self._trained_on)

    @isolate
    def plan_test(self, question: str, positive: str = "", against: str | Path | Run | None = None) -> StudyPlan:
        """How many images settle a question, from the stored predictions, as `vitrail evaluate --plan-test`.

        Args:
            question: accuracy, sensitivity, specificity or auroc with the half width of its 95 % interval, such as
                "sensitivity=0.95±0.03", or "difference=0.02" in accuracy, seen with a power of 80 %.
            positive: the class or label that the figure is of.
            against: another run with predictions of the same images, for a difference.

        Raises:
            UsageError: not a question, a class that is not there, or an option of another figure.
            DataError: the stored predictions do not say what is needed.
        """
        other = against.path if isinstance(against, Run) else against
        return study_planning.plan_test(self.path, question, positive, None if other is None else Path(other))

    @isolate
    def learning_curve(self) -> LearningCurve:
        """What twice the training images are expected to bring, as `vitrail evaluate --plan-test doubling`.

        Raises:
            UsageError: the run has tuned its features, or answers with neither classes nor labels.
            DataError: the data has changed, or there are too few images.
        """
        return measure_learning_curve(self.path, self.predictor, self._trained_on)

    @isolate
    def teach(
        self,
        images: ImagesArgument = (),
        forget: str | Path | Sequence[str] = (),
        group: str = "",
        alpha: float | None = None,
        keep: str = "",
        by: str = "",
        use: str = "",
    ) -> TeachResult:
        """Add good images to the bank of an anomaly run, or remove some, as `vitrail teach`; `predict` then follows.

        Args:
            images: good ones, as `predict` takes them.
            forget: ids of images to remove, or a CSV with a column id.
            group: of a run with groups, the one that all these images belong to.
            alpha: the share of good images that may be called defects from now on.
            keep, by: the name of the new version, and who made it. use: an earlier version to put to use again.

        Raises:
            UsageError: a run of another task, a name that is taken or not there, or nothing to do.
            DataError: an image that cannot be read or is in the bank already, an id that is not there, or too few left.
        """
        parsed = [] if isinstance(images, tuple | list) and not images else parse_images(images, "teach")
        if isinstance(images, str | Path):
            bank_versions.require_good_folders(Path(images), [one for one in parsed if isinstance(one, Path)])
        ids = bank_versions.read_forget_list(Path(forget)) if isinstance(forget, str | Path) else list(forget)
        return bank_versions.teach(self.path, parsed, ids, group, alpha, keep, by, use, self._device)

    @isolate
    def slices(
        self,
        by: str = evaluation.ALL_COLUMNS,
        source: object | None = None,
        split: str | None = None,
        skip_bad: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> SubgroupReport:
        """The main metric for every value of metadata columns, as `vitrail evaluate --by`.

        Args:
            by: the name of a column, several with commas between them, or "all". The others are as in `evaluate`.

        Raises:
            UsageError: a column that the source does not have.
        """
        labelled, measured = self._evaluate_predictions(source, split, skip_bad, settings)
        return evaluation.evaluate_subgroups(labelled, measured.predictions, by)

    @isolate
    def shortcuts(
        self,
        source: object | None = None,
        split: str | None = None,
        skip_bad: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> ShortcutReport:
        """Shortcut test: accuracy from the border alone and from the centre alone, as `vitrail evaluate --shortcuts`.

        Args:
            source, split, skip_bad, settings: as `evaluate`.
        """
        labelled = self._select_images_and_warn(source, split, settings)
        predictions = evaluation.predict_labelled(self.predictor, labelled, skip_bad)
        return evaluation.measure_shortcuts(self.predictor, labelled, predictions, skip_bad)

    @isolate
    def corruptions(
        self,
        suite: str = "films",
        source: object | None = None,
        split: str | None = None,
        most: int = diagnostics.DEFAULT_NUM_IMAGES,
        skip_bad: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> RobustnessReport:
        """The main metric on corrupted images, as `vitrail evaluate --corruptions`.

        Args:
            suite: "imagenet-c" or "films".
            most: most images to corrupt. The others are as in `evaluate`.
        """
        return diagnostics.evaluate_corruptions(
            self.predictor, self._select_images_and_warn(source, split, settings), suite, most, skip_bad
        ).robustness

    @isolate
    def suspects(
        self,
        source: object | None = None,
        split: str = evaluation.ALL_IMAGES,
        skip_bad: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> LabelErrorReport:
        """Likely label errors, as `vitrail evaluate --suspects`; `write_csv` saves the list.

        Args:
            source, split, skip_bad, settings: as `evaluate`, but for all images by default.
        """
        labelled = diagnostics.keep_split_images(self.path, self._select_images(source, split, settings))
        return diagnostics.find_label_errors(self.predictor, labelled, skip_bad)

    @isolate
    def unlike(self, other: object, split: str | None = None, skip_bad: bool = False) -> OodComparison:
        """Out-of-distribution detection of another source against the held-out images, as `vitrail evaluate --unlike`.

        Args:
            other: a source as `fit` takes it; its labels are ignored.
            split: of the run's own images, as `evaluate`.
        """
        own = evaluation.warn_of_notes(evaluation.load_held_out(self.path, split, self._trained_on))
        return diagnostics.evaluate_ood(self.predictor, own, diagnostics.load_ood_source(other), skip_bad)

    @isolate
    def watch(
        self,
        images: str | Path | Sequence[str | Path],
        since: str | date_type,
        date: str = "",
        group: str = "",
        alarms: float = FALSE_ALARMS,
        labels: object | None = None,
        normal_until: str | date_type = "",
        out: str | Path | None = None,
        skip_bad: bool = False,
    ) -> WatchReport:
        """Compare every day of a stream of images with the held-out ones, as `vitrail watch`, and write the page.

        Args:
            images: folders, files, manifests with a column of days, or score logs of the server.
            since: the first day.
            date, group: columns of a manifest.
            alarms: the promise: at most so many false alarms in 30 days on average.
            labels: a source with the labels of some of these images, as `evaluate` takes it.
            normal_until: the days up to this one are normal, and later ones are compared with them.
            out: file of the page; `watch/watch.html` in the run folder if None.

        Raises:
            UsageError: a model alone or an ensemble, dates or a rate that are none.
            DataError: no images since that day, or one whose day is not known or that cannot be read.
        """
        paths = [images] if isinstance(images, str | Path) else images
        request = WatchRequest(
            since=str(since), date_column=date, group_column=group, false_alarms=alarms, labels=labels,
            normal_until=str(normal_until), skip_bad=skip_bad, out=None if out is None else Path(out),
        )  # fmt: skip
        report = watching.watch(self.path, [str(one) for one in paths], request, self._device, self._trained_on)
        evaluation.warn_of(report.notes)
        return report

    def _evaluate_predictions(
        self, source: object | None, split: str | None, skip_bad: bool, settings: Mapping[str, object] | None
    ) -> tuple[evaluation.LabelledImages, evaluation.EvaluationResult]:
        if source is None and settings is None and is_folds_folder(self.path):
            labelled, measured = evaluation.evaluate_out_of_fold(self.path, split, self._trained_on)
            return evaluation.warn_of_notes(labelled), measured
        labelled = self._select_images_and_warn(source, split, settings)
        return labelled, evaluation.evaluate_model(self.predictor, labelled, skip_bad)

    def _select_images(
        self, source: object | None, split: str | None, settings: Mapping[str, object] | None = None
    ) -> evaluation.LabelledImages:
        if source is None:
            if is_bundle(self.path):
                self.plan  # noqa: B018 - says what is missing
            if settings:
                raise UsageError("settings say how another source is read. Give one as source, or leave them out.")
            return evaluation.load_held_out(self.path, split, self._trained_on)
        texts = config.to_texts(settings)
        chosen = evaluation.build_source_settings(self.path, source, texts, task=self.predictor.task)
        return evaluation.load_other_source(source, split, chosen, evaluation.find_group_column(self.path))

    def _select_images_and_warn(
        self, source: object | None, split: str | None, settings: Mapping[str, object] | None
    ) -> evaluation.LabelledImages:
        labelled = self._select_images(source, split, settings)
        return evaluation.warn_of_notes(
            labelled if source is None else evaluation.note_seen_images(self.path, labelled)
        )

    @isolate
    def compare(
        self,
        other: Run | str | Path,
        source: object | None = None,
        split: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Comparison:
        """Compare both models on the same images, with a p-value for each metric, as `vitrail evaluate --against`.

        Training images of either run are left out if its data is the same; `notes` say so.

        Args:
            other: a run, or any model with class names.
            source, split, settings: as `evaluate`.

        Raises:
            DataError: the models have different tasks or class names, or the other was trained on all the images.
        """
        path = other.path if isinstance(other, Run) else Path(other)
        labelled = self._select_images(source, split, settings)
        for model in (path,) if source is None else (self.path, path):
            labelled = evaluation.drop_seen_images(model, labelled)
        against = open_predictor(path, precision=self.precision)
        return evaluation.compare_models(self.predictor, against, labelled).comparison

    @isolate
    def explain(
        self,
        images: object,
        method: str | None = None,
        target: str | None = None,
        layer: int | None = None,
        heads: Sequence[int] | None = None,
        patch: int | None = None,
        window: int | None = None,
        steps: int | None = None,
        fill: explanation.FillMode | None = None,
    ) -> list[Explanation]:
        """Explanations, one for each image, as `vitrail explain` without files.

        `.heatmap.values` holds a map [1, rows, columns], `.figure()` draws it, `.save(folder, name)` saves both.

        Args:
            images: one or a list, as `predict` takes them.
            method: a name of `explain.methods.METHODS`; None takes the model's default.
            target: the class, label or column to explain (--class of the command); None takes the predicted one.
            layer, heads, patch, window, steps, fill: as the flags of these names.

        Raises:
            DataError: an image that cannot be read.
            UsageError: an invalid combination of options, or an empty map.
        """
        request = explanation.ExplainRequest(
            method=method, target=target, layer=layer, heads=None if heads is None else tuple(heads), patch=patch,
            window=window, steps=steps, fill=fill,
        )  # fmt: skip
        return explanation.explain_with_predictor(self.predictor, str(self.path), images, request)

    @isolate
    def resume(
        self,
        source: object | None = None,
        quiet: bool = False,
        loss: CustomLoss | None = None,
        augment: CustomAugment | None = None,
        *,
        val: object | None = None,
        test: object | None = None,
    ) -> Run:
        """Resume a stopped run exactly as its plan says, as `vitrail train --resume`.

        Args:
            source, val, test: the objects that it was started with, if there were any and this `Run` does not hold
                them.
            loss, augment: the functions that it was started with, in the same case.

        Raises:
            UsageError: such an object is missing, or a source is given to a run that reads its source from a path.
            as `fit`.
        """
        source_object = self._choose_source(source, val, test)
        functions = CustomFunctions(loss, augment) or self._custom_functions
        resume = cross_validation.resume_folds if is_folds_folder(self.path) else training.resume_run
        events = resume(self.path, source_object, custom_functions=functions)
        train_progress.follow_training(spell_notes(events), train_progress.choose_stream(quiet))
        return self._open(self.path, source_object, functions)

    @isolate
    def extend(
        self,
        minutes: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        source: object | None = None,
        quiet: bool = False,
        loss: CustomLoss | None = None,
        augment: CustomAugment | None = None,
        *,
        val: object | None = None,
        test: object | None = None,
    ) -> Run:
        """Train longer, also after the end, as `vitrail train --resume RUN --extend`.

        Args:
            minutes, epochs, steps: the additional budget, one of them.
            source, val, test, loss, augment: as `resume`.

        Raises:
            as `resume`.
        """
        if is_folds_folder(self.path):
            raise UsageError(
                f"{self.path} holds several folds, which go on as they were begun. Extend one of them, such as "
                f"{first_run_folder(self.path)}."
            )
        extension = Extension(minutes=minutes, epochs=epochs, steps=steps)
        source_object = self._choose_source(source, val, test)
        functions = CustomFunctions(loss, augment) or self._custom_functions
        events = training.resume_run(self.path, source_object, extension, custom_functions=functions)
        train_progress.follow_training(spell_notes(events), train_progress.choose_stream(quiet))
        return self._open(self.path, source_object, functions)

    def _choose_source(self, source: object | None, val: object | None, test: object | None) -> object | None:
        """The objects to train on, as they are given or else held; None where the run reads files.

        Raises:
            UsageError: a source is given to a run that reads its source from a path, or val or test without the rest.
        """
        given = [each for each in (source, val, test) if each is not None]
        data = self.plan.data
        if given and data.source != MEMORY:
            raise UsageError(
                f"The run {self.path} reads {data.source} again; no source can be given to it. If its pictures were "
                f"moved: vitrail train --resume {self.path} --data.source NEW"
            )
        begun = {"source": True, "val": data.val_source == MEMORY, "test": data.test_source == MEMORY}
        names = {"source": source, "val": val, "test": test}
        if given and (wrong := [name for name in names if (names[name] is not None) != begun[name]]):
            listed = " and ".join(name for name in begun if begun[name])
            raise UsageError(f"The run {self.path} was begun with {listed}; give the same again. Check {wrong[0]}=.")
        return gather_objects(source, val, test) if given else self._trained_on

    @isolate
    def export(
        self,
        to: str,
        out: str | Path | None = None,
        resize: bool = False,
        precision: ExportPrecision = "float32",
        calibrate: str | Path | None = None,
        force: bool = False,
        runtime: str | Path | None = None,
        fetch: bool = False,
        prove: bool = False,
    ) -> Path:
        """Export the model for other programs, verified against the run before it is kept; returns the written path.

        An onnx, openvino or pt2 file reads images uint8 [B, H, W, C] and gives probabilities, logits, decisions and
        abstained; of regression values, logits and abstained. Of a cross-validation it holds all models and averages.

        Args:
            to: onnx, openvino, pt2, web or mlflow; timm, transformers, torchvision, google-npz, bundle.
            out: the file or folder to write; by default in the run's `exports/`.
            resize, precision, calibrate, force: for onnx, openvino and pt2 files, as the flags of `vitrail export`.
            runtime, fetch, prove: for web pages, as the flags.

        Raises:
            UsageError: no such target, `out` exists, or the target cannot express a part of the model (named).
            DamagedFileError: the written model's predictions differ; nothing is kept.
        """
        if publishing.is_hub_target(to):
            name = to.removeprefix(PUSH_PREFIX)
            raise UsageError(f"export writes a file or a folder. To send one to the Hub, call publish({name!r}).")
        options = exporting.ExportOptions(
            resize=resize,
            precision=precision,
            calibrate=calibrate,
            force=force,
            runtime=None if runtime is None else Path(runtime),
            fetch=fetch,
            prove=prove,
        )
        path = None if out is None else Path(out)
        return exporting.export_model(str(self.path), to, path, options, self._trained_on).path

    @isolate
    def publish(
        self,
        name: str,
        layout: str | None = None,
        private: bool = False,
        dry_run: bool = False,
        out: str | Path | None = None,
    ) -> PublishedModel:
        """Push the model to the Hugging Face Hub with a card, as `vitrail export --to hub:OWNER/NAME`.

        Args:
            name: OWNER/NAME.
            layout: "native" (a bundle, the default), "timm" or "transformers".
            private: create a private repository.
            dry_run: send nothing; `.files` and `.card` of the result show what would be sent.
            out: a folder to keep a copy of the files.

        Raises:
            UsageError: no such name or layout, `out` exists, or the layout cannot express a part of the model (named).
            DamagedFileError: the written model's predictions differ; nothing is sent.
            ResourceError: the Hub cannot be reached.
        """
        to, path = PUSH_PREFIX + name.removeprefix(PUSH_PREFIX), None if out is None else Path(out)
        return publishing.publish_model(str(self.path), to, layout, private, dry_run, path)

    @isolate
    def embed(self, images: ImagesArgument, features: str = "pooled", skip_bad: bool = False) -> Embeddings:
        """Feature vectors of images; `nearest` finds the most similar ones.

        Args:
            images: as `predict`.
            features: "pooled", the input of the head; "class", the class token; "mean", the mean of the patch tokens;
                or "patches", one vector for each patch, [n, rows, columns, D].

        Raises:
            UsageError: another word, or a class token that the model does not have.
            DataError: as `predict`, or no readable image.
        """
        return Embedder.from_predictor(self.predictor).embed(
            parse_images(images, "embed"), embedding.parse_feature_kind(features), skip_bad
        )

    def _repr_html_(self) -> str:
        return notebook.render_run_card(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"
