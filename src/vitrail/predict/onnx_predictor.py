"""Predictors for exported files: an engine computes, such as ONNX Runtime, and torch is not imported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from ..data.decoding.decode import decode_image
from ..data.parallel import ImageName, prepare_batches
from ..data.preprocess_numpy import fit_array
from ..data.source import ImageInput
from ..errors import DamagedFileError, UsageError
from ..evaluate.predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    add_extents,
    anomaly_fields,
    class_areas,
    concat_predictions,
)
from ..files import onnx_guard
from ..spec import ImageSpec
from . import exported
from .exported import ExportMetadata


class FilePredictor(ABC):
    """A file that `vitrail export` wrote, as its engine has opened it."""

    metadata: ExportMetadata
    spec: ImageSpec
    """How images are prepared."""

    @abstractmethod
    def run(self, images: UInt[np.ndarray, "B H W C"]) -> dict[str, np.ndarray]:
        """All outputs by name, for images of a size that the file accepts."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The decision that answers, if it is not that of the training."""
        return (exported.DECISION_NOTE.format(self.metadata.decision),) if self.metadata.decision else ()

    def predict_batches(
        self, images: Sequence[ImageInput | bytes], batch_size: int = 64, skip_bad: bool = False
    ) -> Iterator[TaskPredictions]:
        """One row per image, batch by batch, as `Predictor.predict_batches`.

        Raises:
            DataError: an image that cannot be read, unless `skip_bad`.
        """
        for names, prepared, skipped in prepare_batches(images, batch_size, self._preprocess, skip_bad):
            table = self._make_predictions(names, [one for one, _ in prepared], skipped)
            areas = np.array([area for _, area in prepared], np.float64)
            yield add_extents(table, self.metadata.pixel_size, areas)

    def predict(
        self, images: Sequence[ImageInput | bytes], batch_size: int = 64, skip_bad: bool = False
    ) -> TaskPredictions:
        """All rows at once.

        Raises:
            as `predict_batches`.
        """
        return concat_predictions(
            list(self.predict_batches(images, batch_size, skip_bad)) or [self._make_predictions([], [], [])]
        )

    def _preprocess(self, image: ImageInput | bytes) -> tuple[np.ndarray, float]:
        """At the model's size, or as decoded where the graph resizes and crops by itself; and `ImageSpec.map_area`."""
        values = decode_image(image, self.spec)
        resized_again = self.metadata.size == "any" and self.spec.crop_fraction != 1
        area = self.spec.map_area(*values.shape[:2])
        return values if resized_again else fit_array(values, self.spec), area

    def _make_predictions(
        self, names: list[ImageName], images: list[np.ndarray], skipped: list[tuple[str, str]]
    ) -> TaskPredictions:
        paths, ids = tuple(name.path for name in names), tuple(name.id for name in names)
        return predictions_from_outputs(self.metadata, self._run_images(images), paths, ids, tuple(skipped))

    def _run_images(self, images: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Run images of one shape in one batch, others one by one."""
        if not images:
            shapes: dict[str, tuple[int, ...]] = {
                exported.ABSTAINED: (0,), exported.CASE_SCORES: (0,), exported.MASKS: (0, *self.spec.size),
            }  # fmt: skip
            usual = (0, len(self.metadata.classes))
            return {name: np.zeros(shapes.get(name, usual)) for name in self.metadata.outputs}
        if len({image.shape for image in images}) == 1:
            return self.run(np.stack(images))
        rows = [self.run(image[None]) for image in images]
        return {name: np.concatenate([row[name] for row in rows]) for name in self.metadata.outputs}


class OnnxPredictor(FilePredictor):
    """An ONNX file, which ONNX Runtime answers.

    Args:
        threads: of ONNX Runtime; None takes all cores.

    Raises:
        UsageError: ONNX Runtime is not installed, or there is no such file.
        DamagedFileError: the file cannot be trusted or read, or Vitrail has not written it.
    """

    def __init__(self, path: Path, threads: int | None = None):
        if not path.is_file():
            raise UsageError(f"An ONNX file is needed at {path}. `vitrail export RUN --to onnx` makes one.")
        onnx_guard.check_onnx_file(path)
        self._session = open_session(path, threads)
        self.metadata = exported.parse_metadata(self._session.get_modelmeta().custom_metadata_map, str(path))
        self.spec = self.metadata.image
        names = tuple(output.name for output in self._session.get_outputs())
        if names != self.metadata.outputs:
            raise DamagedFileError(f"{path} must give {', '.join(self.metadata.outputs)}. It gives {', '.join(names)}.")

    def run(self, images: UInt[np.ndarray, "B H W C"]) -> dict[str, np.ndarray]:
        """All outputs by name, for images of a size that the file accepts."""
        outputs = self._session.run(list(self.metadata.outputs), {exported.INPUT_NAME: np.ascontiguousarray(images)})
        return dict(zip(self.metadata.outputs, outputs, strict=True))


def open_session(path: Path, threads: int | None = None) -> Any:
    """A CPU session of ONNX Runtime for a file that `onnx_guard` has checked.

    Raises:
        UsageError: ONNX Runtime is not installed.
        DamagedFileError: it refuses the file.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            "An ONNX file is answered by ONNX Runtime, which is not installed: pip install 'vitrail[export]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: its warnings about a good graph do not help users
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no family but this
        raise DamagedFileError(f"ONNX Runtime cannot open {path}: {error}. Use another copy.") from error


def predictions_from_outputs(
    metadata: ExportMetadata,
    outputs: Mapping[str, np.ndarray],
    paths: tuple[str, ...],
    ids: tuple[str, ...],
    skipped: tuple[tuple[str, str], ...] = (),
) -> TaskPredictions:
    """Build the table of predictions from the outputs of a file."""
    reasons = tuple(exported.ABSTENTION_REASONS[number] for number in outputs[exported.ABSTAINED].astype(int).tolist())
    abstained = reasons if any(reasons) else ()
    shared: dict[str, Any] = {
        "paths": paths, "ids": ids, "split": "", "targets": None, "skipped": skipped, "abstain_reasons": abstained,
        "decision": metadata.decision,
        "is_unlike_known": metadata.task in ("anomaly", "segmentation") or exported.DISTANCES in outputs,
    }  # fmt: skip
    if metadata.task == "regression":
        return RegressionPredictions(columns=metadata.classes, values=outputs[exported.VALUES], **shared)
    if metadata.task == "segmentation":
        masks = outputs[exported.MASKS].astype(np.uint8, copy=False)
        areas = class_areas(masks, len(metadata.classes))
        return RegressionPredictions(columns=metadata.classes, values=areas, masks=masks, **shared)
    predicted = outputs[exported.DECISIONS]
    if metadata.task == "anomaly":
        scores = outputs[exported.LOGITS].reshape(len(paths))
        p_values = outputs[exported.PROBABILITIES].reshape(len(paths), 2)[:, 0].astype(np.float64)
        fields = anomaly_fields(scores, p_values, predicted.reshape(len(paths)) == 1)
        return ClassificationPredictions(**fields, **shared)
    shared |= {"classes": metadata.classes, "probabilities": outputs[exported.PROBABILITIES]}
    if metadata.task == "multilabel":
        return MultilabelPredictions(predicted=predicted.astype(bool), **shared)
    return ClassificationPredictions(predicted=predicted.astype(np.int64).reshape(len(paths)), **shared)
