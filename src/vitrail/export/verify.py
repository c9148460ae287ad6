"""Verification of exported files: predictions compared with the model's, agreement of reduced precision, throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt

from ..data.parallel import ImageName
from ..data.preprocess import fit_array_to_tensor, to_batch_tensor
from ..errors import DamagedFileError
from ..evaluate.precision import find_changed_abstentions, find_changed_labels, get_scores
from ..evaluate.predictions import RegressionPredictions, TaskPredictions, concat_predictions, decision_array
from ..formatting import format_count
from ..predict import exported, onnx_predictor
from ..predict.exported import ExportMetadata
from ..predict.predictor import AnsweringModel, as_predictor
from ..spec import ImageSpec
from .ensemble import decisions_in_file

OutputFunction = Callable[[UInt[np.ndarray, "B H W C"]], Mapping[str, np.ndarray]]
"""From images to the named outputs of a file."""
BATCH_SIZES = (1, 5)
NUM_SINGLE_IMAGES = 10
"""Images compared with batch size 1; all are compared with the larger batch size."""
TOLERANCE = 1e-4
"""Largest difference of two probabilities, or of two numbers as a fraction of the largest (at least of 1)."""
RESIZE_TOLERANCE = 0.01
"""The same if the file resizes the images."""
REDUCED_TOLERANCE = 1.0
"""The same of a file of reduced precision, whose scores were compared when it was exported: they must be numbers."""


@dataclass(frozen=True)
class VerificationResult:
    """Result of a comparison of an exported file with its model."""

    num_images: int
    difference: float
    """Largest difference of two scores."""
    num_changed: int
    """Images with another decision: their scores are closer to a threshold than that difference."""

    def __str__(self) -> str:
        if self.num_changed:
            decided = f"{self.num_changed} closer than that to a threshold are decided otherwise"
        else:
            decided = "every decision is the same"
        return (
            f"compared on {format_count(self.num_images, 'picture')}: scores differ by at most "
            f"{self.difference:.2g}, {decided}"
        )


def verify_file(
    run_file: OutputFunction, metadata: ExportMetadata, model: AnsweringModel, images: UInt[np.ndarray, "n H W C"]
) -> VerificationResult:
    """Compare a file with its model on preprocessed images, with batch sizes 1 and 5.

    Args:
        model: as its interfaces open it.

    Raises:
        DamagedFileError: scores that differ by more than `TOLERANCE`, or decisions that do not follow from them.
    """
    expected, tolerance = predict_expected(metadata, model, images)
    tolerance = tolerance if metadata.number_format == "float32" else REDUCED_TOLERANCE
    results = [
        _compare_outputs(parts, metadata, model, expected, tolerance) for parts in _iter_outputs(run_file, images)
    ]
    return VerificationResult(
        len(images), max(result.difference for result in results), max(result.num_changed for result in results)
    )


def verify_resizing(
    run_file: OutputFunction, metadata: ExportMetadata, model: AnsweringModel, decoded: Sequence[np.ndarray]
) -> VerificationResult:
    """Compare a file that resizes by itself on decoded images with its model on the same, preprocessed images.

    Raises:
        DamagedFileError: scores that differ by more than `RESIZE_TOLERANCE`, or decisions that do not follow from them.
    """
    expected = predict_with_model(model, preprocess_decoded(decoded, model.spec))
    return _compare_outputs([run_file(image[None]) for image in decoded], metadata, model, expected, RESIZE_TOLERANCE)


def preprocess_decoded(decoded: Sequence[np.ndarray], spec: ImageSpec) -> UInt[np.ndarray, "n h w C"]:
    """Preprocess decoded images."""
    return np.stack([fit_array_to_tensor(image, spec).permute(1, 2, 0).numpy() for image in decoded])


def predict_expected(
    metadata: ExportMetadata, model: AnsweringModel, images: UInt[np.ndarray, "n H W C"]
) -> tuple[TaskPredictions, float]:
    """The model's predictions for images of its size, and the tolerance for the file's.

    If the model crops the centre, a file that resizes by itself crops these images too.
    """
    if metadata.size == "any" and model.spec.crop_fraction != 1:
        return predict_with_model(model, preprocess_decoded(list(images), model.spec)), RESIZE_TOLERANCE
    return predict_with_model(model, images), TOLERANCE


def predict_with_model(model: AnsweringModel, images: UInt[np.ndarray, "n H W C"]) -> TaskPredictions:
    """The predictions that every interface gives for preprocessed images, in the precision of the model."""
    predictor, names = as_predictor(model), [ImageName("", str(row)) for row in range(len(images))]
    starts, batch_size = range(0, len(images), max(BATCH_SIZES)), max(BATCH_SIZES)
    batches = to_batch_tensor(images).split(batch_size)
    parts = zip(starts, batches, strict=True)
    return concat_predictions(
        [predictor.predict_prepared(names[start : start + batch_size], batch)[0] for start, batch in parts]
    )


def _compare_outputs(
    parts: Sequence[Mapping[str, np.ndarray]],
    metadata: ExportMetadata,
    model: AnsweringModel,
    expected: TaskPredictions,
    tolerance: float,
) -> VerificationResult:
    """Compare a file's outputs with the expected predictions, of which the first n belong to these images."""
    outputs, actual = _join_outputs(parts, metadata)
    n = len(actual)
    difference = _measure_difference(actual, expected, metadata.task)
    if not difference <= tolerance:
        raise DamagedFileError(
            f"The exported file answers otherwise than the run: scores differ by up to {difference:.3g} on {n} "
            f"pictures, and {tolerance:g} is allowed. Nothing is kept; please report this model."
        )
    check_decisions(outputs, metadata, model)
    return VerificationResult(n, difference, int(find_changed_decisions(actual, expected).sum()))


def _iter_outputs(
    run_file: OutputFunction, images: UInt[np.ndarray, "n H W C"]
) -> Iterator[list[Mapping[str, np.ndarray]]]:
    """Outputs of a file by batch, for each batch size; only the first images with batch size 1."""
    for batch_size in BATCH_SIZES:
        inputs = images[:NUM_SINGLE_IMAGES] if batch_size == 1 else images
        yield [run_file(inputs[start : start + batch_size]) for start in range(0, len(inputs), batch_size)]


def _join_outputs(
    parts: Sequence[Mapping[str, np.ndarray]], metadata: ExportMetadata
) -> tuple[dict[str, np.ndarray], TaskPredictions]:
    """Outputs of several batches as one, and the predictions in them."""
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in metadata.outputs}
    n = len(outputs[exported.ABSTAINED])
    return outputs, onnx_predictor.predictions_from_outputs(metadata, outputs, ("",) * n, tuple(map(str, range(n))))


def check_decisions(outputs: Mapping[str, np.ndarray], metadata: ExportMetadata, model: AnsweringModel) -> None:
    """Check that a file's decisions are those that the model would draw from the file's own scores.

    Raises:
        DamagedFileError: they are not.
    """
    n, rules = len(outputs[exported.ABSTAINED]), decisions_in_file(model)
    probabilities = outputs.get(exported.PROBABILITIES)
    is_classification = metadata.task == "classification"
    class_probabilities = probabilities if is_classification else None
    reasons = rules.abstain_reasons(class_probabilities, outputs.get(exported.DISTANCES), n) or ("",) * n
    agree = reasons == tuple(exported.ABSTENTION_REASONS[code] for code in outputs[exported.ABSTAINED].tolist())
    if probabilities is not None:
        if metadata.task == "anomaly":
            decisions = rules.find_defects(rules.p_values(outputs[exported.LOGITS].reshape(n)))
        elif is_classification:
            decisions = rules.predict_classes(probabilities, metadata.classes)
        else:
            decisions = rules.predict_labels(probabilities)
        agree = agree and bool((decisions == outputs[exported.DECISIONS]).all())
    if not agree:
        raise DamagedFileError(
            "The exported file decides otherwise than the run would from the same scores. Nothing is kept; please "
            "report this model."
        )


def _measure_difference(actual: TaskPredictions, expected: TaskPredictions, task: str) -> float:
    """`max_score_difference` to the first rows of `expected`; of masks the fraction of pixels of another class."""
    masks = [one.masks for one in (actual, expected) if isinstance(one, RegressionPredictions)]
    if len(masks) == 2 and masks[0] is not None and masks[1] is not None:
        return float((masks[0] != masks[1][: len(actual)]).mean())
    return max_score_difference(get_scores(actual), get_scores(expected)[: len(actual)], task)


def max_score_difference(actual: np.ndarray, expected: np.ndarray, task: str) -> float:
    """Largest difference of two scores; of numbers as a fraction of the largest (at least of 1); inf for NaN."""
    if not np.isfinite(actual).all():
        return float("inf")
    largest = max(1.0, float(np.abs(expected).max())) if task == "regression" else 1.0
    return float(np.abs(actual.astype(np.float64) - expected).max()) / largest


def find_changed_decisions(actual: TaskPredictions, expected: TaskPredictions) -> np.ndarray:
    """Bool [n]: images of `actual` with another decision than in the first n rows of `expected`."""
    return find_changed_labels(actual, expected) | find_changed_abstentions(actual, expected)


# -- Agreement of reduced precision with float32.

MIN_AGREEMENT = 0.99
"""Least fraction of decisions equal to those of float32."""
NUMBER_TOLERANCE = 0.05
"""Two numbers agree within this many standard deviations of the training targets."""
TASK_UNITS = {
    "classification": "classes",
    "anomaly": "decisions between good and defect",
    "multilabel": "yes and no of labels",
    "segmentation": "pixels",
    "regression": f"numbers (within {NUMBER_TOLERANCE:g} deviations)",
}


@dataclass(frozen=True, kw_only=True)
class PrecisionAgreement:
    """Agreement of a reduced-precision file with float32, and throughputs."""

    precision: str
    task: str
    num_images: int
    same_fraction: float
    """Fraction of classes, labels or numbers equal to those of float32."""
    difference: float
    """Largest difference of two scores."""
    rates: Mapping[str, float]
    """Images per second of the file and of float32, by name."""
    kept: tuple[str, ...] = ()
    """Linear layers that compute in float32 all the same, because fewer bits harm them."""

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:,.3g}" for name, rate in self.rates.items())
        return (
            f"{self.precision} agrees with float32 in {self.same_fraction:.2%} of the {TASK_UNITS[self.task]} of "
            f"{format_count(self.num_images, 'picture')}; scores differ by at most {self.difference:.2g}; pictures per "
            f"second: {rates}"
            + (f"; kept in float32, because {self.precision} harms them: {', '.join(self.kept)}" if self.kept else "")
        )


def compare_with_float32(
    run_file: OutputFunction, metadata: ExportMetadata, model: AnsweringModel, images: UInt[np.ndarray, "n H W C"]
) -> tuple[float, float]:
    """Fraction of equal decisions and largest difference of two scores, with batch sizes 1 and 5.

    Args:
        model: in float32.

    Raises:
        DamagedFileError: NaN scores, or decisions that do not follow from the file's own scores.
    """
    expected, _ = predict_expected(metadata, model, images)
    same, difference = 1.0, 0.0
    for parts in _iter_outputs(run_file, images):
        outputs, actual = _join_outputs(parts, metadata)
        n = len(actual)
        batch_difference = _measure_difference(actual, expected, metadata.task)
        if batch_difference == float("inf"):
            raise DamagedFileError(
                f"In {metadata.number_format} the exported file gives scores that are no numbers. Nothing is kept; "
                "export in float32."
            )
        check_decisions(outputs, metadata, model)
        difference = max(difference, batch_difference)
        if n == len(images):
            same = min(same, measure_agreement(actual, expected, model))
    return same, difference


def measure_agreement(predictions: TaskPredictions, expected: TaskPredictions, model: AnsweringModel) -> float:
    """Fraction of equal classes, of equal labels one by one, or of numbers within `NUMBER_TOLERANCE`."""
    if not isinstance(predictions, RegressionPredictions):
        assert not isinstance(expected, RegressionPredictions)
        return float((decision_array(predictions) == decision_array(expected)).mean())
    assert isinstance(expected, RegressionPredictions)
    if predictions.masks is not None and expected.masks is not None:
        return float((predictions.masks == expected.masks).mean())
    deviation = np.array(model.scaling.deviation if model.scaling is not None else expected.values.std(0))
    differences = np.abs(predictions.values.astype(np.float64) - expected.values)
    return float((differences <= NUMBER_TOLERANCE * deviation).mean())


def check_agreement(agreement: PrecisionAgreement) -> None:
    """Refuse a file whose decisions differ too often.

    Raises:
        DamagedFileError: agreement below `MIN_AGREEMENT`.
    """
    if agreement.same_fraction < MIN_AGREEMENT:
        raise DamagedFileError(
            f"In {agreement.precision} only {agreement.same_fraction:.2%} of the {TASK_UNITS[agreement.task]} of "
            f"{format_count(agreement.num_images, 'picture')} are answered as in float32, and {MIN_AGREEMENT:.0%} is "
            "asked for. Nothing is kept. Keep float32, calibrate int8 on more pictures (--calibrate FOLDER), or keep "
            "the file as it is with --force."
        )
