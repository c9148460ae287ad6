"""The model that is served, with all that it can be asked: answers, embeddings, explanations, and what it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from ..checkpoints import bundle
from ..checkpoints.bundle import find_bundle
from ..data.parallel import ImageName
from ..errors import DamagedFileError, UsageError
from ..evaluate.predictions import RegressionPredictions
from ..files import strict_json
from ..predict import exported
from ..predict.embedder import Embedder, compute_features
from ..predict.predictor import Predictor
from ..runtime import set_thread_count
from ..services.explanation import Explainer, explainer_from_predictor
from ..services.prediction import apply_image_options, open_predictor
from .batcher import PredictionBatch
from .http_errors import HttpError
from .limits import ServerLimits
from .protocols import list_methods, make_palette

TYPICAL_PIXELS = 200_000
BATCH_TOLERANCE = 1e-4
"""How far an image's scores may lie apart, alone and among others."""


class ServedModel:
    """A predictor that is asked for prepared images only. Everything but `about` runs in the model's threads.

    Args:
        predictor: answers.
        name: what the server calls the model.
        licence: of its weights, if it is known.
        broken: called when the model gives numbers that are not finite.
    """

    def __init__(
        self, predictor: Predictor, name: str, licence: str = "", on_broken: Callable[[], None] = lambda: None
    ):
        self.predictor, self.name, self.licence, self._on_broken = predictor, name, licence, on_broken
        self.spec = predictor.spec
        self.threads = 1
        """Of the CPU that answers are computed with; 1 where another device does."""
        self.embedder = _make_embedder(predictor)
        self.explainer = _make_explainer(predictor, name)
        self._methods = [] if self.explainer is None else list_methods(self.explainer.model.config)
        self._palette = make_palette()

    def predict_batch(self, names: Sequence[ImageName], images: UInt8[Tensor, "n C h w"]) -> PredictionBatch:
        """Rows and outputs of prepared images.

        Raises:
            HttpError: 503, the model gave numbers that are not finite.
        """
        answers, outputs = self.predictor.predict_prepared(names, images)
        scores = answers.values if isinstance(answers, RegressionPredictions) else answers.probabilities
        if not np.isfinite(scores).all() or not all(np.isfinite(one).all() for one in outputs):
            self._on_broken()
            raise HttpError(503, "The model produced NaN or infinity, so it is not to be trusted any more.")
        number = isinstance(answers, RegressionPredictions)
        found = {exported.VALUES if number else exported.PROBABILITIES: scores}
        if len(outputs) == 1:
            found[exported.LOGITS] = outputs[0]
        if not isinstance(answers, RegressionPredictions):
            found[exported.DECISIONS] = answers.labels.astype(np.int64)
        why = answers.abstain_reasons or ("",) * len(names)
        found[exported.ABSTAINED] = np.array([exported.ABSTENTION_REASONS.index(one) for one in why], np.int64)
        return PredictionBatch(answers.records(), found)

    def embed_image(self, image: UInt8[Tensor, "C h w"]) -> dict[str, Any]:
        """What the head reads of an image."""
        if self.embedder is None:
            raise HttpError(422, "Features are taken from Vision Transformers, and this model is none.")
        seen = [compute_features(eye, image[None], "pooled")[0] for eye in self.embedder.backbones]
        vector = np.concatenate(seen)
        if not np.isfinite(vector).all():
            self._on_broken()
            raise HttpError(503, "The model produced NaN or infinity, so it is not to be trusted any more.")
        return {"features": vector.tolist(), "kind": self.embedder.backbones[0].model.config.pool}

    def warm_up(self) -> None:
        """Answer a drawn image, alone and among others, before anybody else is answered.

        Raises:
            DamagedFileError: its scores are not finite, or depend on who else is in the batch.
        """
        spec = self.spec
        drawn = np.random.default_rng(0).integers(0, 256, (4, spec.channels, *spec.size), dtype=np.uint8)
        images = torch.from_numpy(drawn)
        key = exported.VALUES if self.predictor.task == "number" else exported.PROBABILITIES
        try:
            together = self.predict_batch([ImageName("", "")] * len(images), images).outputs[key]
            alone = self.predict_batch([ImageName("", "")], images[:1]).outputs[key]
        except HttpError as problem:
            raise DamagedFileError(f"{problem.message} Serve another copy.") from problem
        scale = max(1.0, float(np.abs(together).max()))
        if (apart := float(np.abs(together[0] - alone[0]).max())) > BATCH_TOLERANCE * scale:
            raise DamagedFileError(
                f"The model gives one picture other scores alone than among others, {apart:.2g} apart where "
                f"{BATCH_TOLERANCE:g} "
                "are allowed. Serve another copy, or with --device cpu."
            )

    def make_typical_batch(self) -> tuple[Callable[[], object], int]:
        """What answers some drawn images, and how many: four of 224 x 224 pixels, more of smaller ones, up to 64."""
        count = max(4, min(64, TYPICAL_PIXELS // (self.spec.height * self.spec.width)))
        images = torch.zeros((count, self.spec.channels, *self.spec.size), dtype=torch.uint8)
        return partial(self.predictor.predict_prepared, [ImageName("", "")] * count, images), count

    def describe(self, limits: ServerLimits, needs_token: bool) -> dict[str, Any]:
        """What clients may know of the model, as `/about` says it."""
        predictor, decided, spec = self.predictor, self.predictor.decisions, self.spec
        number = predictor.task == "number"
        labels = (decided.positive,) if decided.positive else predictor.classes
        return {
            "name": self.name,
            "task": predictor.task,
            "classes": [] if number else list(predictor.classes),
            "columns": list(predictor.classes) if number else [],
            "image": {"height": spec.height, "width": spec.width, "channels": spec.channels},
            "thresholds": dict(zip(labels, decided.thresholds, strict=False)),
            "calibrated": all(member.decisions.temperature != () for member in predictor.members),
            "abstains_below": decided.sure or None,
            "unlike": any(member.decisions.unlike is not None for member in predictor.members),
            "methods": self._methods,
            "palette": self._palette,
            "limits": {"bytes": limits.max_body_bytes, "pictures": limits.max_images, "pixels": spec.max_pixels},
            "token": needs_token,
            "version": version("vitrail"),
            "licence": self.licence,
        }


def load_served_model(
    model_name: str, name: str, device: str, threads: int, changes: Mapping[str, str], on_broken: Callable[[], None]
) -> ServedModel:
    """Read a model in the thread that will run it, and try it.

    Args:
        threads: of torch in this thread; 0 measures whether one or all of the machine's serve more.

    Raises:
        UsageError, DamagedFileError: as `doors.predicting.open_predictor`, and `Opened.warm_up`.
    """
    predictor = apply_image_options(open_predictor(model_name, device), changes)
    opened = ServedModel(predictor, name, _read_licence(Path(model_name)), on_broken)
    if threads:
        set_thread_count(threads)
    if predictor.device.type == "cpu":
        opened.threads = threads or choose_threads(*opened.make_typical_batch(), torch.get_num_threads())
    opened.warm_up()
    return opened


def skip_preprocessing(predictor: Predictor) -> Predictor:
    """The same predictor for images that have been prepared already, which come as uint8 [h, w, C]."""
    same = Predictor(predictor.members)
    same.spec = replace(predictor.spec, low=0.0, high=255.0, fit="squash", crop_fraction=1.0)
    return same


def _make_embedder(predictor: Predictor) -> Embedder | None:
    try:
        return Embedder.from_predictor(predictor)
    except UsageError:
        return None


def _make_explainer(predictor: Predictor, name: str) -> Explainer | None:
    """None for several models together, which cannot be looked into."""
    if len(predictor.members) > 1 or _make_embedder(predictor) is None:
        return None
    return explainer_from_predictor(skip_preprocessing(predictor), name)


def _read_licence(path: Path) -> str:
    """As a bundle has noted it; empty where nobody has."""
    folder = find_bundle(path)
    if folder is None or not (folder / bundle.CONFIG_FILE).is_file():
        return ""
    info = strict_json.read_json(folder / bundle.CONFIG_FILE).get("info", {})
    return str(info.get("licence", "")) if isinstance(info, dict) else ""


# How many threads the model computes with: measured when it is read, for what one more core brings differs a lot.

MIN_SPEEDUP = 1.3
"""So many times faster all threads must be than one; below, the other cores serve clients better than the model."""
OVERHEAD_SECONDS_PER_IMAGE = 2e-3
"""Seconds of one core that an image costs before and after the model: HTTP, decoding, its row."""
NUM_REPEATS = 5
"""That each is timed, in turns."""


def choose_threads(work: Callable[[], object], num_images: int, max_threads: int) -> int:
    """1 or `max_threads`, whichever serves more; torch is left with it in the calling thread.

    A small model is hardly faster with two threads, or is not what clients wait for; and its second thread, which spins
    between one operation and the next, takes the core that decodes and speaks HTTP.

    Args:
        work: answers so many `num_images`.
    """
    seconds = dict.fromkeys((1, max_threads), math.inf)
    for turn in range(1 + NUM_REPEATS):
        for threads in seconds:
            torch.set_num_threads(threads)
            took = _time_call(work)
            if turn:  # not what is slow only once
                seconds[threads] = min(seconds[threads], took)
    awaited = seconds[1] > OVERHEAD_SECONDS_PER_IMAGE * num_images
    chosen = max_threads if awaited and seconds[1] > MIN_SPEEDUP * seconds[max_threads] else 1
    torch.set_num_threads(chosen)
    return chosen


def _time_call(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
