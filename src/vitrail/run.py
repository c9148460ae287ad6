"""`Run`: a training that has been done, and everything that can be asked of it, under the names of the verbs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from .errors import UsageError
from .evaluate.compare import Comparison
from .evaluate.decisions import add_prediction_sets
from .evaluate.label_errors import LabelErrorReport
from .evaluate.ood import OodComparison
from .evaluate.predictions import TaskPredictions
from .evaluate.robustness import RobustnessReport
from .evaluate.shortcut_reliance import ShortcutReport
from .evaluate.subgroups import SubgroupReport
from .evaluate.task_metrics import TaskMetrics
from .export.quantize import ExportPrecision
from .predict.embedder import Embedder, Embeddings
from .predict.predictor import Predictor
from .services import diagnostics, embedding, evaluation, explanation, exporting, notebook, publishing, train_progress
from .services.explanation import Explanation
from .services.prediction import open_predictor, parse_images
from .services.publishing import PublishedModel
from .train import cross_validation
from .train import fit as training
from .train.custom_functions import NO_CUSTOM_FUNCTIONS, CustomAugment, CustomFunctions, CustomLoss
from .train.dataset import MEMORY
from .train.plan import Plan
from .train.resume import Extension
from .train.run_folder import RunFolder


class Run:
    """A training that has been done: its folder, its plan, and its model to ask.

    Of a training of several folds the model is the ensemble, and every image's answer that of the one model which
    has not seen it.

    Raises:
        UsageError: the folder is not one that a training has made.
    """

    def __init__(
        self,
        path: str | Path,
        trained_on: object | None = None,
        device: str = "auto",
        custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
    ):
        self.path = Path(path)
        """The run folder."""
        self.plan: Plan = RunFolder.open_existing(cross_validation.first_run_folder(self.path)).read_plan()
        """Every setting of the run; of several folds, of the first one."""
        self._trained_on = trained_on  # an object that only this program has
        self._device = device
        self._custom_functions = custom_functions  # and functions that only it has

    @property
    def report(self) -> Path:
        """The self-contained HTML page."""
        return self.path / "report.html"

    @property
    def folds(self) -> tuple[Run, ...]:
        """The runs of the single folds; none where the images were parted once."""
        return tuple(
            Run(path, self._trained_on, self._device, self._custom_functions)
            for path in cross_validation.fold_folders(self.path)
        )

    @cached_property
    def predictor(self) -> Predictor:
        """The trained model with its class names, on the fit's device or the best one here; opened when first asked."""
        return open_predictor(self.path, self._device)

    def predict(self, images: Sequence[object], skip_bad: bool = False, sets: bool = False) -> TaskPredictions:
        """One row per image, in order; an image is what `fit` takes as one.

        Args:
            images: paths, encoded bytes, arrays [H, W] or [H, W, C], tensors [C, H, W], or Pillow images.
            sets: also the classes, or the range of each number, that hold the truth as often as
                `decisions.conformal_alpha` says.

        Raises:
            DataError: an image that cannot be read, unless `skip_bad` leaves those out and names them in `skipped`.
            UsageError: sets of a model that has none.
        """
        asked = parse_images(images)
        answers = self.predictor.predict(asked, skip_bad=skip_bad)
        return add_prediction_sets(answers, self.predictor.decisions) if sets else answers

    def evaluate(self, source: object | None = None, split: str | None = None, skip_bad: bool = False) -> TaskMetrics:
        """Figures with intervals on the held-out images, or on another source of the same classes (labels, numbers).

        Warns (UserWarning) of what the command notes, such as images of a source that the run has learnt from.

        Args:
            source: as `fit` takes it; None is what the run was trained on.
            split: train, val, test or all; None takes test, or what there is of held-out images.

        Raises:
            DataError: the source cannot be read, or has classes, labels or columns that the model does not know.
        """
        return self._evaluate_predictions(source, split, skip_bad)[1].metrics

    def slices(
        self,
        by: str = evaluation.ALL_COLUMNS,
        source: object | None = None,
        split: str | None = None,
        skip_bad: bool = False,
    ) -> SubgroupReport:
        """The headline figure for every value of further columns; what `vitrail evaluate --by` does.

        Args:
            by: the name of a column, several with commas between them, or "all". The others are as in `evaluate`.

        Raises:
            UsageError: a column that the source does not have.
        """
        labelled, measured = self._evaluate_predictions(source, split, skip_bad)
        return evaluation.evaluate_subgroups(labelled, measured.predictions, by)

    def shortcuts(
        self, source: object | None = None, split: str | None = None, skip_bad: bool = False
    ) -> ShortcutReport:
        """Whether the border alone tells the answer; what `vitrail evaluate --shortcuts` does.

        Args:
            source, split, skip_bad: as `evaluate`.
        """
        labelled = self._select_images_and_warn(source, split)
        whole = evaluation.predict_labelled(self.predictor, labelled, skip_bad)
        return evaluation.measure_shortcuts(self.predictor, labelled, whole, skip_bad)

    def corruptions(
        self,
        suite: str = "films",
        source: object | None = None,
        split: str | None = None,
        most: int = diagnostics.DEFAULT_NUM_IMAGES,
        skip_bad: bool = False,
    ) -> RobustnessReport:
        """One figure on disturbed images; what `vitrail evaluate --corruptions` does.

        Args:
            suite: "imagenet-c" or "films".
            most: how many images are disturbed. The others are as in `evaluate`.
        """
        return diagnostics.evaluate_corruptions(
            self.predictor, self._select_images_and_warn(source, split), suite, most, skip_bad
        ).robustness

    def suspects(
        self, source: object | None = None, split: str = evaluation.ALL_IMAGES, skip_bad: bool = False
    ) -> LabelErrorReport:
        """Labels that are likely to be wrong; what `vitrail evaluate --suspects` does, `write_csv` keeps the list.

        Args:
            source, split, skip_bad: as `evaluate`, but for all images by default.
        """
        labelled = diagnostics.keep_split_images(self.path, self._select_images(source, split))
        return diagnostics.find_label_errors(self.predictor, labelled, skip_bad)

    def unlike(self, other: object, split: str | None = None, skip_bad: bool = False) -> OodComparison:
        """How well the model tells another source from its held-out images; what `vitrail evaluate --unlike` does.

        Args:
            other: as `fit` takes a source; its labels do not matter.
            split: of the run's own images, as `evaluate`.
        """
        own = evaluation.warn_of_notes(evaluation.load_held_out(self.path, split, self._trained_on))
        return diagnostics.evaluate_ood(self.predictor, own, diagnostics.load_ood_source(other), skip_bad)

    def _evaluate_predictions(
        self, source: object | None, split: str | None, skip_bad: bool
    ) -> tuple[evaluation.LabelledImages, evaluation.EvaluationResult]:
        if source is None and cross_validation.is_folds_folder(self.path):
            labelled, measured = evaluation.evaluate_out_of_fold(self.path, split, self._trained_on)
            return evaluation.warn_of_notes(labelled), measured
        labelled = self._select_images_and_warn(source, split)
        return labelled, evaluation.evaluate_model(self.predictor, labelled, skip_bad)

    def _select_images(self, source: object | None, split: str | None) -> evaluation.LabelledImages:
        return evaluation.select_evaluation_images(
            self.path, self._trained_on, lambda: self.predictor.task, source, split
        )

    def _select_images_and_warn(self, source: object | None, split: str | None) -> evaluation.LabelledImages:
        labelled = self._select_images(source, split)
        return evaluation.warn_of_notes(
            labelled if source is None else evaluation.note_seen_images(self.path, labelled)
        )

    def compare(self, other: Run | str | Path, source: object | None = None, split: str | None = None) -> Comparison:
        """Both models on the same images, with a p-value for each figure; what `vitrail evaluate --against` does.

        Images that either run has learnt from are left out, where its data is the same; `notes` say so.

        Args:
            other: a run, or any model that knows its classes.
            source, split: as `evaluate`.

        Raises:
            DataError: the models answer different tasks or names, or the other has learnt from all the images.
        """
        path = other.path if isinstance(other, Run) else Path(other)
        labelled = self._select_images(source, split)
        for model in (path,) if source is None else (self.path, path):
            labelled = evaluation.drop_seen_images(model, labelled)
        return evaluation.compare_models(self.predictor, open_predictor(path), labelled).comparison

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
        """Which patches the answers come from, one for each image; what `vitrail explain` does without files.

        `.found.values` holds a map [1, rows, columns], `.figure()` draws it, `.save(folder, name)` keeps both.

        Args:
            images: one or a list, as `predict` takes them.
            method: a name of `explain.methods.METHODS`; None takes the default for the model.
            target: the class, label or column to explain; None takes the one that is answered (--class of the verb).
            layer, heads, patch, window, steps, fill: as the flags of these names.

        Raises:
            DataError: an image that cannot be read.
            UsageError: what was asked for cannot be, or a map says nothing.
        """
        chosen = None if heads is None else tuple(heads)
        asked = explanation.ExplainRequest(
            method=method, target=target, layer=layer, heads=chosen, patch=patch, window=window, steps=steps, fill=fill
        )
        return explanation.explain_with_predictor(self.predictor, str(self.path), images, asked)

    def resume(
        self,
        source: object | None = None,
        quiet: bool = False,
        loss: CustomLoss | None = None,
        augment: CustomAugment | None = None,
    ) -> Run:
        """Go on where the run was stopped, exactly as its plan says; what `vitrail train --resume` does.

        Args:
            source: the object that it was begun with, if it was one and this program has no hold of it any more.
            loss, augment: the functions that it was begun with, in the same case.

        Raises:
            UsageError: such an object is missing, or something is given to a run that knows where its images are.
            as `fit`.
        """
        if source is not None and self.plan.data.source != MEMORY:
            raise UsageError(f"The run {self.path} reads {self.plan.data.source} again; no source can be given to it.")
        given = self._trained_on if source is None else source
        brought = CustomFunctions(loss, augment) or self._custom_functions
        go_on = cross_validation.resume_folds if cross_validation.is_folds_folder(self.path) else training.resume_run
        train_progress.follow_training(
            go_on(self.path, given, custom_functions=brought), train_progress.choose_stream(quiet)
        )
        return Run(self.path, given, self._device, brought)

    def extend(
        self,
        minutes: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        source: object | None = None,
        quiet: bool = False,
        loss: CustomLoss | None = None,
        augment: CustomAugment | None = None,
    ) -> Run:
        """Train for so much longer, also after the end; what `vitrail train --resume RUN --extend` does.

        Args:
            minutes, epochs, steps: one of them.
            source, loss, augment: as `resume`.

        Raises:
            as `resume`.
        """
        if cross_validation.is_folds_folder(self.path):
            raise UsageError(
                f"{self.path} holds several folds, which go on as they were begun. Extend one of them, such as "
                f"{cross_validation.first_run_folder(self.path)}."
            )
        longer = Extension(minutes=minutes, epochs=epochs, steps=steps)
        given = self._trained_on if source is None else source
        brought = CustomFunctions(loss, augment) or self._custom_functions
        events = training.resume_run(self.path, given, longer, custom_functions=brought)
        train_progress.follow_training(events, train_progress.choose_stream(quiet))
        return Run(self.path, given, self._device, brought)

    def export(
        self,
        to: str,
        out: str | Path | None = None,
        resize: bool = False,
        precision: ExportPrecision = "float32",
        calibrate: str | Path | None = None,
        force: bool = False,
        layout: str | None = None,
        private: bool = False,
        dry_run: bool = False,
    ) -> Path | PublishedModel:
        """The model as a file or folder for other programs, compared with the run before it is kept; or on the Hub.

        Args:
            to: onnx or pt2, files that answer as the run does; timm, transformers, torchvision, google-npz, bundle; or
                "hub:OWNER/NAME", whose files, card and page the answer then names.
            out: the file or folder to make; None makes one in the run's `exports/`.
            resize, precision, calibrate, force: of onnx and pt2 files, as the flags of `vitrail export`.
            layout, private, dry_run: of the Hub alone, likewise.

        Raises:
            UsageError: no such target, `out` exists, or the target cannot express a part of the model (named).
            DamagedFileError: what was written answers otherwise; nothing is kept.
            ResourceError: the Hub cannot be reached.
        """
        place = None if out is None else Path(out)
        if publishing.is_hub_target(to):
            return publishing.publish_model(str(self.path), to, layout, private, dry_run, place)
        publishing.reject_hub_options(to, layout, private, dry_run)
        wish = exporting.ExportOptions(resize=resize, precision=precision, calibrate=calibrate, force=force)
        return exporting.export_model(str(self.path), to, place, wish, self._trained_on).path

    def embed(self, images: Sequence[object], features: str = "pooled", skip_bad: bool = False) -> Embeddings:
        """What the model makes of images before it answers; `nearest` finds the most similar of them.

        Args:
            images: as `predict`.
            features: "pooled", what the head reads; "class", the class token; "mean", the mean of the patches; or
                "patches", one vector for each patch, laid out as they lie.

        Raises:
            UsageError: another word, or a class token that the model does not have.
            DataError: as `predict`, or no image is left.
        """
        return Embedder.from_predictor(self.predictor).embed(
            parse_images(images, "embed"), embedding.parse_feature_kind(features), skip_bad
        )

    def _repr_html_(self) -> str:
        return notebook.render_run_card(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"
