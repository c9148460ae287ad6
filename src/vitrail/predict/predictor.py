"""`Predictor`: images in, predictions out, the same for every interface."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor, nn

from ..caller_state import isolate
from ..checkpoints import bundle, bundle_weights
from ..checkpoints.adapt import build_model
from ..checkpoints.bundle import find_ensemble, list_members, read_pixel_size
from ..checkpoints.decision_versions import TRAINED
from ..checkpoints.model_card import UNLABELED_KEY
from ..data.decoding.decode import decode_image
from ..data.parallel import ImageName, prepare_batches
from ..data.preprocess import fit_array_to_tensor
from ..data.source import ImageInput, Task, parse_task
from ..errors import UsageError
from ..evaluate.calibration import TargetScaling, read_scaling
from ..evaluate.cases import CasePool, predict_cases, read_case_pool
from ..evaluate.decisions import (
    Decisions,
    add_prediction_sets,
    average_decisions,
    average_predictions,
    predictions_from_outputs,
    read_decisions,
)
from ..evaluate.inference import DEFAULT_SETTINGS, InferenceSettings, cast_weights, forward_batch, limit_batch_size
from ..evaluate.mask_overlap import MAP_BATCH
from ..evaluate.ood import FeatureStats
from ..evaluate.precision import PRECISION_KEY, PrecisionComparison, largest_comparison, read_comparison
from ..evaluate.predictions import TableT, TaskPredictions, add_extents, class_areas, concat_predictions
from ..evaluate.tables import image_path
from ..evaluate.tta import TtaViews
from ..explain.faithfulness.map_choice import MapChoice, read_map_choice
from ..formatting import format_count
from ..model.class_maps import spread_logits, to_confidences
from ..model.vit import ViT
from ..runtime import parse_precision
from ..spec import ImageSpec
from .exported import DECISION_NOTE
from .kept_decisions import KeptDecisions


class Predictor:
    """A model, or an ensemble whose predictions are averaged, with its preprocessing and the names of its outputs.

    In float32 an image gets the same prediction alone and in a batch, to 1e-5 in probability. The models are moved to
    the device of their settings.

    Args:
        members: of the same classes and task, with the same preprocessing.

    Raises:
        UsageError: no member, or members of different classes, tasks or preprocessing.
    """

    def __init__(self, members: Sequence[PredictorMember]):
        if not members:
            raise UsageError("A predictor needs at least one model. Got none.")
        first = members[0]
        if first.task == "segmentation" and len(members) > 1:
            raise UsageError(
                f"Masks of several models are not averaged. Give one of these {format_count(len(members), 'model')}."
            )
        for member in members:
            # members share images and tables; each normalises by its own mean and deviation
            ours, theirs = (replace(one.spec, mean=(0.5,), std=(0.5,)) for one in (first, member))
            if (first.classes, first.task, ours) != (member.classes, member.task, theirs):
                raise UsageError(
                    "Models that answer together must have the same classes and read the same pictures. "
                    f"Got {first.classes} at {first.spec.size} and {member.classes} at {member.spec.size}."
                )
            member.model.to(member.settings.device)
        self.members = tuple(members)
        self.settings = first.settings
        self.device = torch.device(first.settings.device)
        self.spec = first.spec
        """How images are prepared."""
        self.classes = first.classes
        self.task = first.task
        self.scaling = first.scaling
        self.pixel_size = first.pixel_size
        self.decisions = average_decisions([member.decisions for member in members])
        """What turns outputs into predictions, of all models together."""

    @classmethod
    @isolate
    def open(cls, path: Path, device: str | torch.device = "cpu", precision: str = "float32") -> Predictor:
        """The predictor of a bundle, an ensemble, or a run folder, in whose `model/` either lies.

        Args:
            precision: of the matrix products, as `runtime.parse_precision` takes it.

        Raises:
            UsageError: no bundle and no run folder at `path`, or an unknown precision.
            DamagedFileError: the files are not those of their manifest, or hold invalid values.
        """
        ensemble = find_ensemble(path)
        if ensemble is not None:
            return cls([PredictorMember.from_bundle(folder, device, precision) for folder in list_members(ensemble)])
        folder = next((f for f in (Path(path), Path(path) / "model") if (f / "config.json").is_file()), None)
        if folder is None:
            raise UsageError(
                f"A model must be a bundle (a folder with config.json) or a run folder with one in model/. Got {path}."
            )
        return cls([PredictorMember.from_bundle(folder, device, precision)])

    @isolate
    def predict(self, images: Sequence[ImageInput | bytes], skip_bad: bool = False) -> TaskPredictions:
        """One row per image, in order.

        Args:
            skip_bad: leave unreadable images out and name them in `skipped`, instead of raising at the first.

        Raises:
            DataError: an image that cannot be read, by name.
        """
        tables = list(self.predict_batches(images, skip_bad))
        if not tables:
            return self._predict_batch(([], [], []))
        return tables[0] if len(tables) == 1 else concat_predictions(tables)

    @isolate
    def predict_batches(
        self, images: Sequence[ImageInput | bytes], skip_bad: bool = False
    ) -> Iterator[TaskPredictions]:
        """The same rows batch by batch, as they are computed: for progress bars and for more images than memory."""
        batch_size = limit_batch_size(self.settings.batch_size, self.spec)
        for batch in prepare_batches(images, batch_size, self._prepare, skip_bad):
            yield self._predict_batch(batch)

    def _prepare(self, image: ImageInput | bytes) -> tuple[Tensor, float]:
        """An image as the models read it, and how many of its own pixels a class map covers."""
        values = decode_image(image, self.spec)
        return fit_array_to_tensor(values, self.spec), self.spec.map_area(*values.shape[:2])

    def _predict_batch(
        self, batch: tuple[list[ImageName], list[tuple[Tensor, float]], list[tuple[str, str]]]
    ) -> TaskPredictions:
        names, prepared, skipped = batch
        images = torch.stack([one for one, _ in prepared]) if prepared else torch.empty(0, 1, 1, 1, dtype=torch.uint8)
        table = self.predict_prepared(names, images, skipped)[0]
        return add_extents(table, self.pixel_size, np.array([area for _, area in prepared], np.float64))

    def predict_prepared(
        self, names: Sequence[ImageName], images: Integer[Tensor, "B C H W"], skipped: Sequence[tuple[str, str]] = ()
    ) -> tuple[TaskPredictions, list[np.ndarray]]:
        """Predictions of preprocessed images, and the outputs [B, K] of each model."""
        computed = self.compute_outputs(images)
        return self.decide(names, computed, skipped), [one.outputs for one in computed]

    def compute_outputs(self, images: Integer[Tensor, "B C H W"]) -> list[MemberOutputs]:
        """What each model computes of preprocessed images, before anything is decided."""
        return [member.compute_outputs(images) for member in self.members]

    def decide(
        self, names: Sequence[ImageName], computed: Sequence[MemberOutputs], skipped: Sequence[tuple[str, str]] = ()
    ) -> TaskPredictions:
        """Predictions from what the models have computed."""
        if self.task == "segmentation":
            (one,) = computed
            areas = class_areas(one.outputs, len(self.classes))
            return predictions_from_outputs(
                self.task, areas, self.classes, None, names, skipped=skipped, decisions=self.decisions,
                masks=one.outputs, confidences=one.confidences,
            )  # fmt: skip
        tables: list[TaskPredictions] = [
            predictions_from_outputs(
                self.task, one.outputs, self.classes, member.scaling, names, skipped=skipped,
                decisions=member.decisions, distances=one.distances,
            )
            for member, one in zip(self.members, computed, strict=True)
        ]  # fmt: skip
        predictions = average_predictions(tables, self.decisions)
        if self.case_pool is None or computed[0].scores is None:
            return predictions
        inputs = np.column_stack([computed[0].outputs, computed[0].scores]).astype(np.float32)
        return replace(predictions, pool_inputs=inputs)

    @property
    def case_pool(self) -> CasePool | None:
        """How the images of a case are answered together; None for a model of images alone, and for several models."""
        return self.members[0].case_pool if len(self.members) == 1 else None

    def require_cases(self) -> CasePool:
        """The pool of cases.

        Raises:
            UsageError: the model answers images alone.
        """
        if self.case_pool is None:
            raise UsageError(
                "This model answers each picture by itself. One that is trained with --group COLUMN --case auto "
                "answers the pictures of a case together."
            )
        return self.case_pool

    def add_cases(self, predictions: TableT, groups: Sequence[object] | np.ndarray) -> TableT:
        """The table with the answers of its cases.

        Args:
            groups: the case of each image of the table.

        Raises:
            UsageError: a model without a pool, or not one group for each image.
            DataError: images of one case have different targets.
        """
        return predict_cases(self.require_cases(), self.task, self.scaling, predictions, groups)

    def add_sets(self, predictions: TaskPredictions) -> TaskPredictions:
        """The table with conformal sets or ranges, and of its cases those that were fitted to cases.

        Raises:
            UsageError: as `require_sets_support`.
        """
        cases: Any = predictions.cases  # of the type of the predictions
        if cases is not None:
            cases = add_prediction_sets(cases, self.require_cases().decisions, self.task)
        return replace(add_prediction_sets(predictions, self.decisions, self.task), cases=cases)

    def with_decisions(self, decisions: Decisions) -> Predictor:
        """The same model with other decisions.

        Raises:
            UsageError: as `single_member`.
        """
        member = self.single_member()
        if decisions == member.decisions:
            return self
        decided = replace(member, decisions=decisions)
        if "inference_model" in member.__dict__:  # cast once for all of them
            decided.__dict__["inference_model"] = member.inference_model
        other = Predictor([decided])
        other.spec = self.spec
        return other

    def with_version(self, kept: KeptDecisions, decisions: Decisions) -> Predictor:
        """The same model with another of its kept decisions, and with the bank of that where it has one.

        Raises:
            UsageError: as `single_member`.
            DamagedFileError: the bank's file is damaged.
        """
        other = self.with_decisions(decisions)
        member = other.members[0]
        if self.task != "anomaly" or kept.folder is None or other is self or not isinstance(member.model, ViT):
            return other
        rows = kept.load_bank(decisions.version or TRAINED).to(self.device)
        shape = replace(member.model.config, bank_size=len(rows))
        model = build_model(shape, {**member.model.state_dict(), bundle.BANK_ROWS: rows})
        banked = Predictor([replace(member, model=model)])
        banked.spec = self.spec
        return banked

    def with_precision(self, precision: str) -> Predictor:
        """The same models and preprocessing with the matrix products in another precision.

        Raises:
            UsageError: an unknown precision.
        """
        chosen = parse_precision(precision)
        if all(member.settings.precision == chosen for member in self.members):
            return self
        other = Predictor([replace(one, settings=replace(one.settings, precision=chosen)) for one in self.members])
        other.spec = self.spec
        return other

    @property
    def notes(self) -> tuple[str, ...]:
        """`precision_notes`, and the decision that answers if it is not the training's own."""
        name = self.decisions.version
        return (*self.precision_notes, *([DECISION_NOTE.format(name)] if name else []))

    @property
    def precision_notes(self) -> tuple[str, ...]:
        """What a user must know of the number format: the price of a fast one, and stored metrics in another one."""
        notes, chosen = [], self.settings.precision
        if chosen != "float32":
            measured = largest_comparison([one.comparison for one in self.members])
            if measured is None or measured.precision != chosen:
                text = f"{chosen} was not compared with float32 when this model was trained: scores may differ by some"
                notes.append(f"{text} hundredths, and with them decisions near a threshold.")
            else:
                several = f"Of {format_count(len(self.members), 'model')} the one that differs most"
                which = several if len(self.members) > 1 else "Measured when the model was trained"
                notes.append(f"Computed in {chosen}. {which}: {measured}.")
        if former := {one.evaluated_precision for one in self.members} - {"float32", chosen}:
            notes.append(
                f"The stored metrics and thresholds of this model were computed in {former.pop()}, as older versions "
                f"did; its predictions are computed in {chosen} now, so scores may differ by some hundredths."
            )
        return tuple(notes)

    @isolate
    def logits(self, images: Integer[Tensor, "B C H W"]) -> np.ndarray:
        """Outputs float32 [B, K] for preprocessed images: logits, or standardized numbers.

        Raises:
            UsageError: as `single_member`.
        """
        return self.single_member().compute_outputs(images)[0]

    def single_member(self) -> PredictorMember:
        """The only model.

        Raises:
            UsageError: there are several.
        """
        if len(self.members) > 1:
            raise UsageError(
                f"This is an ensemble of {format_count(len(self.members), 'model')}, and only one can be looked into. "
                "Name one of them, such as MODEL/member-0."
            )
        return self.members[0]


# -- One model of a predictor


class MemberOutputs(NamedTuple):
    """What one model computes of B images, before anything is decided."""

    outputs: np.ndarray
    """float32 [B, K]; of segmentation uint8 [B, H, W], the class of every pixel."""
    distances: np.ndarray | None
    """Out-of-distribution distances, float64 [B]; None without feature statistics."""
    scores: np.ndarray | None = None
    """Attention scores of images in their cases, float32 [B]; None of a model without cases."""
    confidences: np.ndarray | None = None
    """uint8 [B, H, W]: of segmentation, see `RegressionPredictions.confidences`."""

    def select(self, rows: Sequence[int]) -> MemberOutputs:
        """Those of some images."""
        return MemberOutputs(self.outputs[rows], *(each if each is None else each[rows] for each in self[1:]))


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictorMember:
    """A model with its preprocessing, inference settings and decisions.

    Raises:
        UsageError: no class names, a scaling for another task, or an out-of-distribution threshold without statistics.
    """

    model: nn.Module
    spec: ImageSpec
    classes: tuple[str, ...]
    """Names of the outputs."""
    task: Task = "classification"
    settings: InferenceSettings = DEFAULT_SETTINGS
    scaling: TargetScaling | None = None
    """Target scaling of regression."""
    decisions: Decisions = field(default_factory=Decisions)
    feature_stats: FeatureStats | None = None
    """Statistics of the training features for out-of-distribution distances, if the bundle has them."""
    evaluated_precision: str = "float32"
    """The number format in which the bundle's metrics and decisions were computed."""
    comparison: PrecisionComparison | None = None
    """What a fast number format changes on the validation images, if the training has measured it."""
    map_choice: MapChoice | None = None
    """The default explanation method, if the training has chosen one."""
    case_pool: CasePool | None = None
    """How the images of a case are answered together, if the training has fitted it."""
    pixel_size: float = 0.0
    """How wide a pixel of the images is, in the unit of the areas of a segmentation model; 0 where it was not given."""

    def __post_init__(self) -> None:
        if not self.classes:
            raise UsageError("A predictor needs the names of its classes. Got none.")
        if self.scaling is not None and self.task != "regression":
            raise UsageError(f"Only a regression model has a target scale. Got {self.scaling} for {self.task}.")
        if self.decisions.unlike is not None and self.feature_stats is None:
            raise UsageError(
                "A predictor that leaves pictures unlike its training unanswered needs what those look like. Got a cut "
                f"of {self.decisions.unlike:g} and nothing to compare with."
            )

    @classmethod
    def from_bundle(
        cls, folder: Path, device: str | torch.device = "cpu", precision: str = "float32"
    ) -> PredictorMember:
        """The model of a bundle.

        Raises:
            DamagedFileError: the bundle's files are not those of its manifest, or hold invalid values.
            UsageError: the model was pretrained on images without labels, or an unknown precision.
        """
        loaded, where = bundle_weights.load_bundle(folder), str(folder / bundle.CONFIG_FILE)
        if UNLABELED_KEY in loaded.info:
            raise UsageError(
                f"The model in {folder} has seen pictures and no label, so what it would answer means nothing. Search "
                f"by its features (vitrail embed {folder} PICTURES --to features.npy), or teach it: vitrail train "
                f"SOURCE --weights {folder}"
            )
        task = parse_task(loaded.task)
        return cls(
            model=loaded.model,
            spec=loaded.spec,
            classes=loaded.classes,
            task=task,
            settings=InferenceSettings(
                device=device,
                precision=parse_precision(precision),
                views=TtaViews.from_notes(loaded.info, where),
            ),
            scaling=read_scaling(loaded.info, len(loaded.classes), str(folder)) if task == "regression" else None,
            decisions=read_decisions(loaded.info, task, loaded.classes, where),
            feature_stats=FeatureStats.from_tensors(
                loaded.feature_stats, loaded.model.config.width, str(folder / bundle.FEATURE_STATS_FILE)
            ),
            map_choice=read_map_choice(loaded.info, where),
            case_pool=read_case_pool(loaded.info, task, loaded.classes, loaded.model.config.width, where),
            evaluated_precision=str(loaded.info.get(PRECISION_KEY, "float32")),
            comparison=read_comparison(loaded.info, where),
            pixel_size=read_pixel_size(loaded.info, where),
        )

    @cached_property
    def inference_model(self) -> nn.Module:
        """The model in evaluation mode, its matrices cast to the precision once instead of in every batch."""
        return cast_weights(self.model.eval(), self.settings.precision)

    def compute_outputs(self, images: Integer[Tensor, "B C H W"]) -> MemberOutputs:
        """Outputs float32 [B, K], and out-of-distribution distances [B] where there are feature statistics; of
        segmentation class maps uint8 [B, H, W].
        """
        if self.task == "segmentation":
            return self._compute_class_maps(images)
        if not len(images):
            scores = None if self.case_pool is None else np.zeros(0, np.float32)
            return MemberOutputs(np.zeros((0, len(self.classes)), np.float32), None, scores)
        has_query = self.case_pool is not None and bool(self.case_pool.query)
        with torch.inference_mode():
            outputs, features = forward_batch(
                self.inference_model, images, self.spec, self.settings, self.task,
                with_features=self.feature_stats is not None or has_query,
            )  # fmt: skip
        known = np.zeros((len(images), 0), np.float32) if features is None else features.cpu().numpy()
        return MemberOutputs(
            outputs.cpu().numpy(),
            None if self.feature_stats is None else self.feature_stats.mahalanobis_distances(known),
            None if self.case_pool is None else self.case_pool.score_images(known),
        )

    def _compute_class_maps(self, images: Integer[Tensor, "B C H W"]) -> MemberOutputs:
        assert isinstance(self.model, ViT)
        maps, confidences = [np.zeros((0, *self.spec.size), np.uint8)], [np.zeros((0, *self.spec.size), np.uint8)]
        with torch.inference_mode():
            for some in images.split(MAP_BATCH) if len(images) else ():
                logits = forward_batch(self.inference_model, some, self.spec, self.settings, self.task)[0]
                outputs = spread_logits(logits, self.model.config)
                maps.append(outputs.argmax(1).to(torch.uint8).cpu().numpy())
                confidences.append(to_confidences(outputs).cpu().numpy())
        return MemberOutputs(np.concatenate(maps), None, confidences=np.concatenate(confidences))


AnsweringModel = PredictorMember | Predictor
"""One model, or several that answer together."""


def as_predictor(model: AnsweringModel) -> Predictor:
    """The predictor of a model; one unchanged."""
    return model if isinstance(model, Predictor) else Predictor([model])


def drop_skipped_groups(
    images: Sequence[ImageInput | bytes], groups: Sequence[object], skipped: Sequence[tuple[str, str]]
) -> list[object]:
    """The case of each image that could be read, from those of all.

    Raises:
        UsageError: not one for each image.
    """
    if len(groups) != len(images):
        raise UsageError(
            f"Each of {format_count(len(images), 'picture')} needs the name of its case. Got {len(groups):,}."
        )
    bad = {name for name, _ in skipped}
    names = ["" if isinstance(image, bytes) else image_path(image) for image in images]
    return [group for i, (name, group) in enumerate(zip(names, groups, strict=True)) if (name or str(i)) not in bad]


# -- Identity of a predictor


def hash_predictor(predictor: Predictor) -> str:
    """SHA-256 of everything that predictions depend on: weights, preprocessing, precision, views and decisions."""
    digest = hashlib.sha256()
    digest.update(_encode_values((predictor.spec, predictor.classes, predictor.task, predictor.decisions)))
    for member in predictor.members:
        settings = member.settings
        digest.update(
            _encode_values((member.spec, settings.precision, settings.views, member.scaling, member.decisions))
        )
        digest.update(b"" if member.case_pool is None else _encode_values((member.case_pool,)))
        statistics = {} if member.feature_stats is None else member.feature_stats.to_tensors()
        for name, tensor in sorted({**member.model.state_dict(), **statistics}.items()):
            digest.update(_encode_values((name, str(tensor.dtype), tuple(tensor.shape))))
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _encode_values(values: tuple[object, ...]) -> bytes:
    return repr(values).encode("utf-8", "surrogatepass") + b"\0"
