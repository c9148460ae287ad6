"""Whether a file answers as the run does: asked about the same images, one at a time and five at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from ..data.preprocess import fit_array_to_tensor, to_batch_tensor
from ..errors import DamagedFileError
from ..evaluate.decisions import predictions_from_outputs
from ..evaluate.predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)
from ..predict import exported, onnx_predictor
from ..predict.exported import ExportMetadata
from ..predict.predictor import PredictorMember
from ..spec import ImageSpec

OutputFunction = Callable[[UInt8[np.ndarray, "B H W C"]], Mapping[str, np.ndarray]]
"""Images to the named outputs of a file."""
BATCH_SIZES = (1, 5)
NUM_SINGLE_IMAGES = 10
"""Images that are asked about one at a time; all are asked about five at once."""
TOLERANCE = 1e-4
"""Largest difference of two probabilities, or of two numbers as a fraction of the largest (at least of 1)."""
RESIZE_TOLERANCE = 0.01
"""The same where the file resizes the images by itself."""


@dataclass(frozen=True)
class VerificationResult:
    """What was compared, and how far the answers lie apart."""

    num_images: int
    difference: float
    """Largest difference of two scores."""
    num_changed: int
    """Images that are decided otherwise: they lie on a threshold, closer than that difference."""

    def __str__(self) -> str:
        if self.num_changed:
            decided = f"{self.num_changed} on a threshold fall to its other side"
        else:
            decided = "every decision is the same"
        return f"compared on {self.num_images:,} pictures: scores differ by at most {self.difference:.2g}, {decided}"


def verify_file(
    run_file: OutputFunction, metadata: ExportMetadata, member: PredictorMember, images: UInt8[np.ndarray, "n H W C"]
) -> VerificationResult:
    """Ask a file and the run about the same prepared images.

    Args:
        member: whom the file is to equal, computing in float32.

    Raises:
        DamagedFileError: scores that differ by more than `TOLERANCE`, or decisions that do not follow from them.
    """
    expected, tolerance = predict_expected(metadata, member, images)
    proofs = []
    for batch in BATCH_SIZES:
        asked = images[:NUM_SINGLE_IMAGES] if batch == 1 else images
        parts = [run_file(asked[start : start + batch]) for start in range(0, len(asked), batch)]
        proofs.append(_compare_outputs(parts, metadata, member, expected, tolerance))
    return VerificationResult(
        len(images), max(proof.difference for proof in proofs), max(proof.num_changed for proof in proofs)
    )


def verify_resizing(
    run_file: OutputFunction, metadata: ExportMetadata, member: PredictorMember, decoded: Sequence[np.ndarray]
) -> VerificationResult:
    """Ask a file that resizes by itself about images as they are, and the run about the same, prepared as always.

    Raises:
        DamagedFileError: scores that differ by more than `RESIZED`, or decisions that do not follow from them.
    """
    expected = predict_with_member(member, preprocess_decoded(decoded, member.spec))
    return _compare_outputs(
        [run_file(picture[None]) for picture in decoded], metadata, member, expected, RESIZE_TOLERANCE
    )


def preprocess_decoded(decoded: Sequence[np.ndarray], spec: ImageSpec) -> UInt8[np.ndarray, "n h w C"]:
    """Decoded images as the model reads them."""
    return np.stack([fit_array_to_tensor(picture, spec).permute(1, 2, 0).numpy() for picture in decoded])


def predict_expected(
    metadata: ExportMetadata, member: PredictorMember, images: UInt8[np.ndarray, "n H W C"]
) -> tuple[TaskPredictions, float]:
    """What a model says of images of its size that a file is asked about, and how far the file may be from it.

    A file that resizes by itself cuts the middle out of these, too, where the model was trained to see only that.
    """
    if metadata.size == "any" and member.spec.crop_fraction != 1:
        return predict_with_member(member, preprocess_decoded(list(images), member.spec)), RESIZE_TOLERANCE
    return predict_with_member(member, images), TOLERANCE


def predict_with_member(member: PredictorMember, images: UInt8[np.ndarray, "n H W C"]) -> TaskPredictions:
    """What a model says of prepared images, in the precision of the member."""
    parts = [member.compute_outputs(part) for part in to_batch_tensor(images).split(max(BATCH_SIZES))]
    measured = [distances for _, distances in parts if distances is not None]
    return predictions_from_outputs(
        member.task, np.concatenate([outputs for outputs, _ in parts]), member.classes, member.scaling,
        [("", str(row)) for row in range(len(images))], decisions=member.decisions,
        distances=np.concatenate(measured) if measured else None,
    )  # fmt: skip


def _compare_outputs(
    parts: Sequence[Mapping[str, np.ndarray]],
    metadata: ExportMetadata,
    member: PredictorMember,
    expected: TaskPredictions,
    tolerance: float,
) -> VerificationResult:
    """What a file gave in batches, against what the run says of those images and perhaps of more."""
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in metadata.outputs}
    n = len(outputs[exported.ABSTAINED])
    found = onnx_predictor.predictions_from_outputs(metadata, outputs, ("",) * n, tuple(map(str, range(n))))
    difference = max_score_difference(get_scores(found), get_scores(expected)[:n], metadata.task)
    if not difference <= tolerance:
        raise DamagedFileError(
            f"The exported file answers otherwise than the run: scores differ by up to {difference:.3g} on {n} "
            f"pictures, and {tolerance:g} is allowed. Nothing is kept; please report this model."
        )
    check_decisions(outputs, metadata, member)
    return VerificationResult(n, difference, int(find_changed_decisions(found, expected).sum()))


def check_decisions(outputs: Mapping[str, np.ndarray], metadata: ExportMetadata, member: PredictorMember) -> None:
    """Decisions of a file must be those that the run would draw from the file's own scores.

    Raises:
        DamagedFileError: they are not.
    """
    n, decided = len(outputs[exported.ABSTAINED]), member.decisions
    probabilities = outputs.get(exported.PROBABILITIES)
    of_classes = probabilities if metadata.task == "classes" else None
    told = decided.abstain_reasons(of_classes, outputs.get(exported.DISTANCES), n) or ("",) * n
    right = told == tuple(exported.ABSTENTION_REASONS[number] for number in outputs[exported.ABSTAINED].tolist())
    if probabilities is not None:
        classes = metadata.task == "classes"
        drawn = (
            decided.predict_classes(probabilities, metadata.classes)
            if classes
            else decided.predict_labels(probabilities)
        )
        right = right and bool((drawn == outputs[exported.DECISIONS]).all())
    if not right:
        raise DamagedFileError(
            "The exported file decides otherwise than the run would from the same scores. Nothing is kept; please "
            "report this model."
        )


def get_scores(predictions: TaskPredictions) -> np.ndarray:
    """Probabilities, or values of numbers, [n, K]."""
    return predictions.values if isinstance(predictions, RegressionPredictions) else predictions.probabilities


def max_score_difference(actual: np.ndarray, expected: np.ndarray, task: str) -> float:
    """The largest difference of two scores; of numbers as a fraction of the largest (at least of 1)."""
    if not np.isfinite(actual).all():
        return float("inf")
    largest = max(1.0, float(np.abs(expected).max())) if task == "number" else 1.0
    return float(np.abs(actual.astype(np.float64) - expected).max()) / largest


def find_changed_decisions(actual: TaskPredictions, expected: TaskPredictions) -> np.ndarray:
    """bool [n] of the images in `actual`, the first ones of `expected`."""
    n = len(actual)
    other = np.array(
        [a != b for a, b in zip(actual.abstain_column(), expected.abstain_column()[:n], strict=True)], bool
    )
    if isinstance(actual, ClassificationPredictions) and isinstance(expected, ClassificationPredictions):
        return other | (actual.labels != expected.labels[:n])
    if isinstance(actual, MultilabelPredictions) and isinstance(expected, MultilabelPredictions):
        return other | (actual.labels != expected.labels[:n]).any(1)
    return other


# Whether a file that computes in fewer bits still decides as float32 does, on how many images, and how fast.

MIN_AGREEMENT = 0.99
"""Fraction of decisions that must be those of float32."""
NUMBER_TOLERANCE = 0.05
"""Two numbers count as the same answer if so many deviations of the training's numbers lie between them."""
TASK_UNITS = {
    "classes": "classes",
    "labels": "yes and no of labels",
    "number": f"numbers (within {NUMBER_TOLERANCE:g} deviations)",
}


@dataclass(frozen=True, kw_only=True)
class PrecisionAgreement:
    """What was compared, and how far the answers lie apart."""

    precision: str
    task: str
    num_images: int
    same_fraction: float
    """Fraction of the classes, labels or numbers that are answered as in float32."""
    difference: float
    """Largest difference of two scores."""
    rates: Mapping[str, float]
    """Images per second of the file and of whom it is compared with, by name."""

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:,.3g}" for name, rate in self.rates.items())
        return (
            f"{self.precision} agrees with float32 in {self.same_fraction:.2%} of the {TASK_UNITS[self.task]} of "
            f"{self.num_images:,} "
            f"pictures; scores differ by at most {self.difference:.2g}; pictures per second: {rates}"
        )


def compare_with_float32(
    run_file: OutputFunction, metadata: ExportMetadata, member: PredictorMember, images: UInt8[np.ndarray, "n H W C"]
) -> tuple[float, float]:
    """The fraction of equal answers and the largest difference of two scores; one image at a time and five at once.

    Args:
        member: whom the file is to equal, computing in float32.

    Raises:
        DamagedFileError: a score that is no number, or decisions that do not follow from the file's own scores.
    """
    expected, _ = predict_expected(metadata, member, images)
    same, difference = 1.0, 0.0
    for batch in BATCH_SIZES:
        asked = images[:NUM_SINGLE_IMAGES] if batch == 1 else images
        parts = [run_file(asked[start : start + batch]) for start in range(0, len(asked), batch)]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in metadata.outputs}
        found = onnx_predictor.predictions_from_outputs(
            metadata, outputs, ("",) * len(asked), tuple(map(str, range(len(asked))))
        )
        apart = max_score_difference(get_scores(found), get_scores(expected)[: len(asked)], metadata.task)
        if apart == float("inf"):
            raise DamagedFileError(
                f"In {metadata.number_format} the exported file gives scores that are no numbers. Nothing is kept; "
                "export in float32."
            )
        check_decisions(outputs, metadata, member)
        difference = max(difference, apart)
        if len(asked) == len(images):
            same = min(same, measure_agreement(found, expected, member))
    return same, difference


def measure_agreement(predictions: TaskPredictions, expected: TaskPredictions, member: PredictorMember) -> float:
    """The fraction of equal answers: of classes, of labels one by one, or of numbers that are near enough."""
    if isinstance(predictions, ClassificationPredictions) and isinstance(expected, ClassificationPredictions):
        return float((predictions.labels == expected.labels).mean())
    if isinstance(predictions, MultilabelPredictions) and isinstance(expected, MultilabelPredictions):
        return float((predictions.labels == expected.labels).mean())
    assert isinstance(predictions, RegressionPredictions) and isinstance(expected, RegressionPredictions)
    deviation = np.array(member.scaling.deviation if member.scaling is not None else expected.values.std(0))
    return float(
        (np.abs(predictions.values.astype(np.float64) - expected.values) <= NUMBER_TOLERANCE * deviation).mean()
    )


def check_agreement(agreement: PrecisionAgreement) -> None:
    """Refuse a file that decides otherwise too often.

    Raises:
        DamagedFileError: fewer equal answers than `LEAST`.
    """
    if agreement.same_fraction < MIN_AGREEMENT:
        raise DamagedFileError(
            f"In {agreement.precision} only {agreement.same_fraction:.2%} of the {TASK_UNITS[agreement.task]} of "
            f"{agreement.num_images:,} "
            f"pictures "
            f"are answered as in float32, and {MIN_AGREEMENT:.0%} is asked for. Nothing is kept. Keep float32, "
            f"calibrate int8 "
            "on more pictures (--calibrate FOLDER), or keep the file as it is with --force."
        )


# How many images a second several answerers take, measured in turns, so that a busy machine slows all of them.

NUM_ROUNDS = 5
RATE_BATCH_SIZE = 16
"""Images that are asked about at once."""


def measure_rates(
    functions: Mapping[str, Callable[[np.ndarray], object]],
    images: UInt8[np.ndarray, "n H W C"],
    num_rounds: int = NUM_ROUNDS,
    batch_size: int = RATE_BATCH_SIZE,
) -> dict[str, float]:
    """Images per second of each: the median of some rounds in which all take their turn, after one that warms up.

    Args:
        images: at least one; repeated to a batch.
    """
    asked = np.resize(images, (batch_size, *images.shape[1:]))
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(num_rounds + 1):
        for name, answer in functions.items():
            began = time.perf_counter()
            answer(asked)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: batch_size / statistics.median(taken) for name, taken in seconds.items()}
