"""The served model: predictions by any of its decisions, embeddings, explanations, and its description for `/about`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from ..checkpoints import bundle
from ..checkpoints.bundle import find_bundle, find_ensemble, folder_of_weights
from ..data.parallel import ImageName
from ..data.preprocess import TORCH_DTYPES
from ..errors import DamagedFileError, UsageError, VitrailError
from ..evaluate.decisions import Decisions, add_prediction_sets
from ..evaluate.inference import DTYPES
from ..evaluate.predictions import RegressionPredictions, TaskPredictions, add_extents, decision_array
from ..evaluate.score_log import format_score_lines
from ..files import strict_json
from ..files.atomic import append_line
from ..predict import exported
from ..predict.embedder import Embedder, compute_features
from ..predict.kept_decisions import DecisionFollower, KeptDecisions
from ..predict.predictor import MemberOutputs, Predictor
from ..runtime import set_thread_count
from ..services.explanation import Explainer, explainer_from_predictor
from ..services.prediction import apply_image_options, open_predictor
from ..version import __version__
from .batcher import PredictionBatch, concat_batches
from .consequences import describe_decisions, load_validation_scores
from .http_errors import HttpError
from .limits import ServerLimits
from .protocols import list_methods, make_palette, mask_colors

TYPICAL_PIXELS = 200_000
NO_RUN = "What a decision costs is counted on the predictions of a run folder, and this model was served without one."
LOGGER = logging.getLogger("uvicorn.error")
BATCH_TOLERANCE = 1e-4
"""Largest difference of an image's scores in float32, alone and in a batch, as a fraction of the largest score (at
least of 1)."""
ROUNDING_TOLERANCE = 64.0
"""Largest difference of the outputs in a fast number format from those in float32, as a fraction of the largest output
(at least of 1) and in units of the spacing of its numbers at 1. It is 0.4 to 3 in models as they are trained, and 37 in
one whose random weights are eight times too large."""


class ServedModel:
    """A predictor for preprocessed images. All methods but `describe` run in the model's threads.

    Args:
        name: the model's name in URL paths.
        licence: of its weights, if known.
        on_broken: called when the model gives NaN or infinity.
        folder: the bundle, whose decisions are followed; None where there are no others.

    """

    def __init__(
        self,
        predictor: Predictor,
        name: str,
        licence: str = "",
        on_broken: Callable[[], None] = lambda: None,
        folder: Path | None = None,
    ):
        self.predictor, self.name, self.licence, self._on_broken = predictor, name, licence, on_broken
        self.folder = folder
        self.kept = KeptDecisions.only(predictor.decisions)
        """The decisions that a request may ask for; replaced as a whole when they change."""
        self.decisions_problem = ""
        """Why the newest ones cannot be read, and those before are still in use."""
        self._follower = None if folder is None else DecisionFollower(folder)
        self._scores: dict[str, Any] | None = None
        self._predictors: dict[Decisions, Predictor] = {predictor.decisions: predictor}
        self.score_log: Path | None = None
        """A file that gets a line with the scores of each answered image; see `evaluate.score_log`."""
        self._log_lock = threading.Lock()
        self.spec = predictor.spec
        self.threads = 1
        """CPU threads of the forward pass; 1 on another device."""
        self.embedder: Embedder | None = None
        self.explainer: Explainer | None = None
        with suppress(UsageError):  # not a ViT
            self.embedder = Embedder.from_predictor(predictor)
        is_explained = predictor.task != "segmentation"  # a mask is its own explanation
        if self.embedder is not None and len(predictor.members) == 1 and is_explained:
            self.explainer = explainer_from_predictor(skip_preprocessing(predictor), name)
        self._methods = (
            [] if self.explainer is None else list_methods(self.explainer.model.config, self.explainer.default_method)
        )
        self._palette = make_palette()

    def reload_decisions(self) -> None:
        """Read the decisions again if they have changed; if they cannot be read, those before stay."""
        try:
            kept = None if self._follower is None else self._follower.poll()
        except VitrailError as error:
            if str(error) != self.decisions_problem:
                LOGGER.error("The decisions could not be read anew, and those before stay: %s", error)
            self.decisions_problem = str(error)
            return
        self.decisions_problem = ""
        if kept is not None:
            self.kept = kept

    def choose_decision(self, name: str | None) -> Decisions:
        """The decision of a request: the named one, or the one in use now.

        Raises:
            HttpError: 422, there is none of this name.
        """
        kept = self.kept
        if not name:
            return kept.current
        if name not in kept.by_name:
            why = f" {self.decisions_problem}" if self.decisions_problem else ""
            raise HttpError(422, f"No decision {name!r} is kept. There are: {', '.join(kept.by_name)}.{why}")
        return kept.by_name[name]

    def predictor_for(self, decisions: Decisions) -> Predictor:
        """The predictor that decides so."""
        if decisions not in self._predictors:
            self._predictors[decisions] = self.predictor.with_version(self.kept, decisions)
        return self._predictors[decisions]

    def explainer_for(self, decisions: Decisions) -> Explainer | None:
        """The explainer whose answers are decided so; None where several models answer together."""
        if self.explainer is None or decisions == self.predictor.decisions:
            return self.explainer
        return explainer_from_predictor(skip_preprocessing(self.predictor_for(decisions)), self.name)

    def predict_batch(
        self, names: Sequence[ImageName], images: Integer[Tensor, "n C h w"], decisions: Sequence[Decisions | None] = ()
    ) -> PredictionBatch:
        """Rows and outputs of preprocessed images.

        Args:
            decisions: of each image; None and () are those that the model was opened with.

        Raises:
            HttpError: 503, the model gave NaN or infinity.
        """
        rows_by_decision: dict[Decisions, list[int]] = {}
        for row, one in enumerate(decisions or [None] * len(names)):
            rows_by_decision.setdefault(self.predictor.decisions if one is None else one, []).append(row)
        if len(rows_by_decision) < 2:
            only = self.predictor_for(next(iter(rows_by_decision), self.predictor.decisions))
            return self._make_batch(*only.predict_prepared(names, images))
        shared = None if self.predictor.task == "anomaly" else self.predictor.compute_outputs(images)
        parts = []
        for one, rows in rows_by_decision.items():
            if shared is None:  # each has a bank of its own
                chosen = self.predictor_for(one).compute_outputs(images[rows])
            else:
                chosen = [member.select(rows) for member in shared]
            table = self.predictor_for(one).decide([names[row] for row in rows], chosen)
            parts.append(self._make_batch(table, [member.outputs for member in chosen]))
        order = np.argsort([row for rows in rows_by_decision.values() for row in rows])
        return concat_batches(parts).take(order.tolist())

    def _make_batch(self, predictions: TaskPredictions, outputs: Sequence[np.ndarray]) -> PredictionBatch:
        is_regression = isinstance(predictions, RegressionPredictions)
        if self.score_log is not None:
            self._append_scores(self.score_log, predictions)
        if isinstance(predictions, RegressionPredictions) and predictions.masks is not None:
            abstained = np.zeros(len(predictions), np.int64)
            named = {exported.MASKS: predictions.masks, exported.ABSTAINED: abstained}
            return PredictionBatch(replace(predictions, masks=None, confidences=None).records(), named)
        scores = predictions.values if isinstance(predictions, RegressionPredictions) else predictions.probabilities
        self._check_finite(scores, *outputs)
        named = {exported.VALUES if is_regression else exported.PROBABILITIES: scores.astype(np.float32, copy=False)}
        if len(outputs) == 1:
            named[exported.LOGITS] = outputs[0]
        if not isinstance(predictions, RegressionPredictions):
            named[exported.DECISIONS] = decision_array(predictions).astype(np.int64)
        reasons = predictions.abstain_reasons or ("",) * len(predictions)
        named[exported.ABSTAINED] = np.array([exported.ABSTENTION_REASONS.index(one) for one in reasons], np.int64)
        return PredictionBatch(predictions.records(), named, predictions.pool_inputs)

    def require_cases(self) -> None:
        """Raise HttpError (422) if the model answers images alone."""
        try:
            self.predictor.require_cases()
        except UsageError as error:
            raise HttpError(422, str(error)) from error

    def answer_case(
        self, name: str, batch: PredictionBatch, decisions: Decisions
    ) -> tuple[dict[str, object], list[float]]:
        """The row of a case whose images are those of a batch, and the share of each image in its answer."""
        predictor = self.predictor_for(decisions)
        assert batch.pool_inputs is not None
        names = [ImageName(str(row["path"]), str(row["id"])) for row in batch.rows]
        computed = MemberOutputs(batch.pool_inputs[:, :-1], None, batch.pool_inputs[:, -1])
        reasons = tuple(exported.ABSTENTION_REASONS[code] for code in batch.outputs[exported.ABSTAINED].tolist())
        images = replace(
            predictor.decide(names, [computed]),
            abstain_reasons=reasons if any(reasons) else (),
            is_unlike_known=predictor.members[0].decisions.unlike is not None,
        )
        answered = predictor.add_cases(images, [name] * len(names))
        assert answered.cases is not None and answered.shares is not None
        return answered.cases.records()[0], answered.shares.tolist()

    def _append_scores(self, path: Path, predictions: TaskPredictions) -> None:
        """Append the scores to the log; a log that cannot be written is an error of the log, and no answer is lost."""
        time_of_day = datetime.now().isoformat(timespec="milliseconds")
        lines = format_score_lines(predictions, predictions.ids, time_of_day)
        try:
            with self._log_lock:
                append_line(path, "\n".join(lines))
        except (OSError, VitrailError) as error:
            LOGGER.error("%s answers are missing in the score log: %s", len(predictions), error)

    def embed_image(self, image: Integer[Tensor, "C h w"]) -> dict[str, Any]:
        """The features that the head reads, of one image."""
        if self.embedder is None:
            raise HttpError(422, "Features are taken from Vision Transformers, and this model is none.")
        backbones = self.embedder.backbones
        vector = np.concatenate([compute_features(one, image[None], "pooled")[0] for one in backbones])
        self._check_finite(vector)
        return {"features": vector.tolist(), "kind": backbones[0].model.config.pool}

    def _check_finite(self, *arrays: np.ndarray) -> None:
        if not all(np.isfinite(array).all() for array in arrays):
            self._on_broken()
            raise HttpError(503, "The model produced NaN or infinity, so it is not to be trusted any more.")

    def warm_up(self) -> None:
        """Predict a random image, alone and in a batch, before the first request.

        Whether the rest of a batch changes an image's scores is decided in float32, where rounding is far below
        `BATCH_TOLERANCE`. In a fast number format the same comparison would measure rounding; there each output, alone
        and in the batch, must be that of float32 up to the rounding of the format.

        Raises:
            DamagedFileError: its scores are not finite, depend on the rest of the batch, or are not those of float32.
        """
        spec = self.spec
        pixels = np.random.default_rng(0).integers(0, spec.white + 1, (4, spec.channels, *spec.size), dtype=spec.dtype)
        images = torch.from_numpy(pixels)
        keys = {"regression": exported.VALUES, "segmentation": exported.MASKS}
        key = keys.get(self.predictor.task, exported.PROBABILITIES)
        exact = self
        if self.predictor.settings.precision != "float32":
            exact = ServedModel(self.predictor.with_precision("float32"), self.name, on_broken=self._on_broken)
        try:
            self.predict_batch([ImageName("", "")] * len(images), images)
            together = exact.predict_batch([ImageName("", "")] * len(images), images).outputs[key]
            alone = exact.predict_batch([ImageName("", "")], images[:1]).outputs[key]
        except HttpError as problem:
            raise DamagedFileError(f"{problem.message} Serve another copy.") from problem
        scale = max(1.0, float(np.abs(together).max()))
        differences = np.abs(together[0] - alone[0])
        if self.predictor.task == "segmentation":  # the share of the pixels that are of another class
            scale, differences = 1.0, np.mean(together[0] != alone[0])
        if (apart := float(differences.max())) > BATCH_TOLERANCE * scale:
            raise DamagedFileError(
                f"The model gives one picture other scores alone than among others, {apart:.2g} apart where "
                f"{BATCH_TOLERANCE:g} are allowed. Serve another copy, or with --device cpu."
            )
        if exact is not self and self.predictor.task != "segmentation":  # whose outputs are classes
            for batch in (images, images[:1]):
                self._check_rounding(exact.predictor, batch)

    def _check_rounding(self, exact: Predictor, images: Integer[Tensor, "n C h w"]) -> None:
        """Compare the outputs of each model with those in float32; raises DamagedFileError."""
        precision = self.predictor.settings.precision
        allowed = ROUNDING_TOLERANCE * torch.finfo(DTYPES[precision]).eps
        names = [ImageName("", "")] * len(images)
        pairs = zip(*(one.predict_prepared(names, images)[1] for one in (self.predictor, exact)), strict=True)
        for ours, expected in pairs:
            apart = float(np.abs(ours - expected).max()) / max(1.0, float(np.abs(expected).max()))
            if not apart <= allowed:
                raise DamagedFileError(
                    f"In {precision} the model gives other outputs than in float32, {apart:.2g} apart where the "
                    f"rounding of {precision} allows {allowed:.2g}. Serve it without --precision."
                )

    def make_typical_batch(self) -> tuple[Callable[[], object], int]:
        """A function that predicts a typical batch, and its size: 4 images of 224 x 224, up to 64 smaller ones."""
        count = max(4, min(64, TYPICAL_PIXELS // (self.spec.height * self.spec.width)))
        images = torch.zeros((count, self.spec.channels, *self.spec.size), dtype=TORCH_DTYPES[self.spec.dtype])
        return partial(self.predictor.predict_prepared, [ImageName("", "")] * count, images), count

    def describe_decisions(self) -> dict[str, Any]:
        """The decisions and the validation scores for `GET /decisions`; the scores are read once."""
        if self._scores is None:
            run = None if self.folder is None else self.folder.parent
            is_run = run is not None and (run / "plan.toml").is_file()
            self._scores = load_validation_scores(run) if run is not None and is_run else {"why": NO_RUN}
        kept = self.kept
        return {"in_use": kept.in_use, "versions": describe_decisions(kept), "validation": self._scores}

    def measure_areas(self, row: Mapping[str, Any], size: tuple[int, int], decisions: Decisions) -> dict[str, float]:
        """The columns of areas that a row of a segmentation model has with `data.pixel_size`, and their ranges where
        there are any; none without.

        Args:
            size: height and width of the picture.
        """
        names = self.predictor.classes
        values = np.array([[row[f"value_{name}"] for name in names]], np.float32)
        plain = RegressionPredictions(paths=("",), ids=("",), split="", targets=None, values=values, columns=names)
        table = add_prediction_sets(plain, decisions, "segmentation") if decisions.reach else plain
        table = add_extents(table, self.predictor.pixel_size, np.array([self.spec.map_area(*size)]))
        assert isinstance(table, RegressionPredictions)
        return {name: float(column[0]) for name, column in table.areas.items()}

    def describe(self, limits: ServerLimits, needs_token: bool) -> dict[str, Any]:
        """The description of the model for `GET /about`."""
        predictor, kept, spec = self.predictor, self.kept, self.spec
        decisions = kept.current
        problem = {"decisions_problem": self.decisions_problem} if self.decisions_problem else {}
        number = predictor.task == "regression"
        labels = (decisions.positive,) if decisions.positive else predictor.classes
        return {
            "name": self.name,
            "task": predictor.task,
            "classes": [] if number else list(predictor.classes),
            "columns": list(predictor.classes) if number or predictor.task == "segmentation" else [],
            "image": {"height": spec.height, "width": spec.width, "channels": spec.channels},
            "decision": kept.in_use,
            "decisions": list(kept.by_name),
            **problem,
            "thresholds": dict(zip(labels, decisions.thresholds, strict=False)),
            "cases": None if predictor.case_pool is None else predictor.case_pool.method,
            "calibrated": all(member.decisions.temperature != () for member in predictor.members),
            "abstains_below": decisions.sure or None,
            "unlike": any(member.decisions.unlike is not None for member in predictor.members),
            "methods": self._methods,
            "palette": self._palette,
            "colors": mask_colors(len(predictor.classes)) if predictor.task == "segmentation" else [],
            "limits": {"bytes": limits.max_body_bytes, "pictures": limits.max_images, "pixels": spec.max_pixels},
            "precision": predictor.settings.precision,
            "token": needs_token,
            "version": __version__,
            "licence": self.licence,
        }


def load_served_model(
    model_name: str,
    name: str,
    device: str,
    precision: str,
    threads: int,
    changes: Mapping[str, str],
    on_broken: Callable[[], None],
    score_log: Path | None = None,
) -> ServedModel:
    """Load a model in the thread that will run it, and try it.

    Args:
        precision: of the matrix products, as `runtime.parse_precision` takes it.
        score_log: as in `ServedModel`.
        threads: of torch in this thread; 0 measures whether one or all of the machine's give more throughput.

    Raises:
        UsageError, DamagedFileError: as `services.prediction.open_predictor` and `ServedModel.warm_up`.
    """
    predictor = apply_image_options(open_predictor(model_name, device, precision), changes)
    path = folder_of_weights(Path(model_name))
    folder = find_bundle(path) if find_ensemble(path) is None else None
    model = ServedModel(predictor, name, _read_licence(Path(model_name)), on_broken, folder)
    model.reload_decisions()
    if threads:
        set_thread_count(threads)
    if predictor.device.type == "cpu":
        model.threads = threads or choose_threads(*model.make_typical_batch(), torch.get_num_threads())
    model.warm_up()
    model.score_log = score_log  # from now on: what was tried is no answer
    return model


def skip_preprocessing(predictor: Predictor) -> Predictor:
    """The same predictor for images that are already preprocessed, [h, w, C]."""
    same = Predictor(predictor.members)
    same.spec = replace(predictor.spec, low=0.0, high=float(predictor.spec.white), fit="squash", crop_fraction=1.0)
    return same


def _read_licence(path: Path) -> str:
    """The licence noted in a bundle; empty if there is none."""
    folder = find_bundle(path)
    if folder is None or not (folder / bundle.CONFIG_FILE).is_file():
        return ""
    info = strict_json.read_json(folder / bundle.CONFIG_FILE).get("info", {})
    return str(info.get("licence", "")) if isinstance(info, dict) else ""


# -- The number of CPU threads, measured when the model is loaded.

MIN_SPEEDUP = 1.3
"""Least speedup of all threads over one; below it the other cores are worth more to decoding and HTTP."""
OVERHEAD_SECONDS_PER_IMAGE = 2e-3
"""Seconds of one core that an image costs outside the model: HTTP, decoding, its row."""
NUM_REPEATS = 5
"""Timings of each thread count, interleaved."""


def choose_threads(work: Callable[[], object], num_images: int, max_threads: int) -> int:
    """1 or `max_threads`, whichever gives more throughput; sets it in the calling thread.

    A small model is hardly faster with two threads, or is not the bottleneck; and its second thread, which spins
    between operations, takes a core from decoding and HTTP.

    Args:
        work: predicts `num_images` images.
    """
    seconds = dict.fromkeys((1, max_threads), math.inf)
    for turn in range(1 + NUM_REPEATS):
        for threads in seconds:
            torch.set_num_threads(threads)
            began = time.perf_counter()
            work()
            if turn:  # the first round warms up
                seconds[threads] = min(seconds[threads], time.perf_counter() - began)
    is_bottleneck = seconds[1] > OVERHEAD_SECONDS_PER_IMAGE * num_images
    chosen = max_threads if is_bottleneck and seconds[1] > MIN_SPEEDUP * seconds[max_threads] else 1
    torch.set_num_threads(chosen)
    return chosen
