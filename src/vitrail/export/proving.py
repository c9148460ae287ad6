"""Whether a file answers as the run does: asked about the same pictures, one at a time and five at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from ..data.preprocess import fit_array_to_tensor, to_batch_tensor
from ..errors import DamagedFileError
from ..evaluate.answers import Answers, answers_of
from ..evaluate.label_predictions import LabelPredictions
from ..evaluate.number_predictions import NumberPredictions
from ..evaluate.predictions import Predictions
from ..predict import exported, onnx_predictor
from ..predict.exported import ExportMetadata
from ..predict.predictor import PredictorMember
from ..spec import ImageSpec

Answerer = Callable[[UInt8[np.ndarray, "B H W C"]], Mapping[str, np.ndarray]]
"""Pictures to the named outputs of a file."""
BATCHES = (1, 5)
ALONE = 10
"""Pictures that are asked about one at a time; all are asked about five at once."""
TOLERANCE = 1e-4
"""Largest difference of two probabilities, or of two numbers as a share of the largest (at least of 1)."""
RESIZED = 0.01
"""The same where the file resizes the pictures by itself."""


@dataclass(frozen=True)
class Proof:
    """What was compared, and how far the answers lie apart."""

    pictures: int
    difference: float
    """Largest difference of two scores."""
    changed: int
    """Pictures that are decided otherwise: they lie on a threshold, closer than that difference."""

    def __str__(self) -> str:
        if self.changed:
            decided = f"{self.changed} on a threshold fall to its other side"
        else:
            decided = "every decision is the same"
        return f"compared on {self.pictures:,} pictures: scores differ by at most {self.difference:.2g}, {decided}"


def prove(
    answerer: Answerer, facts: ExportMetadata, member: PredictorMember, pictures: UInt8[np.ndarray, "n H W C"]
) -> Proof:
    """Ask a file and the run about the same prepared pictures.

    Args:
        member: whom the file is to equal, computing in float32.

    Raises:
        DamagedFileError: scores that differ by more than `TOLERANCE`, or decisions that do not follow from them.
    """
    expected, tolerance = said_by_run(facts, member, pictures)
    proofs = []
    for batch in BATCHES:
        asked = pictures[:ALONE] if batch == 1 else pictures
        parts = [answerer(asked[start : start + batch]) for start in range(0, len(asked), batch)]
        proofs.append(_compared(parts, facts, member, expected, tolerance))
    return Proof(len(pictures), max(proof.difference for proof in proofs), max(proof.changed for proof in proofs))


def prove_resizing(
    answerer: Answerer, facts: ExportMetadata, member: PredictorMember, decoded: Sequence[np.ndarray]
) -> Proof:
    """Ask a file that resizes by itself about pictures as they are, and the run about the same, prepared as always.

    Raises:
        DamagedFileError: scores that differ by more than `RESIZED`, or decisions that do not follow from them.
    """
    expected = of_run(member, prepared(decoded, member.spec))
    return _compared([answerer(picture[None]) for picture in decoded], facts, member, expected, RESIZED)


def prepared(decoded: Sequence[np.ndarray], spec: ImageSpec) -> UInt8[np.ndarray, "n h w C"]:
    """Decoded pictures as the model reads them."""
    return np.stack([fit_array_to_tensor(picture, spec).permute(1, 2, 0).numpy() for picture in decoded])


def said_by_run(
    facts: ExportMetadata, member: PredictorMember, pictures: UInt8[np.ndarray, "n H W C"]
) -> tuple[Answers, float]:
    """What a model says of pictures of its size that a file is asked about, and how far the file may be from it.

    A file that resizes by itself cuts the middle out of these, too, where the model was trained to see only that.
    """
    if facts.size == "any" and member.spec.crop_fraction != 1:
        return of_run(member, prepared(list(pictures), member.spec)), RESIZED
    return of_run(member, pictures), TOLERANCE


def of_run(member: PredictorMember, pictures: UInt8[np.ndarray, "n H W C"]) -> Answers:
    """What a model says of prepared pictures, in the number format of the member."""
    device = next(member.model.parameters()).device
    parts = [member.outputs(part, device) for part in to_batch_tensor(pictures).split(max(BATCHES))]
    measured = [distances for _, distances in parts if distances is not None]
    return answers_of(
        member.task, np.concatenate([outputs for outputs, _ in parts]), member.classes, member.scaling,
        [("", str(row)) for row in range(len(pictures))], decisions=member.decided,
        distances=np.concatenate(measured) if measured else None,
    )  # fmt: skip


def _compared(
    parts: Sequence[Mapping[str, np.ndarray]],
    facts: ExportMetadata,
    member: PredictorMember,
    expected: Answers,
    tolerance: float,
) -> Proof:
    """What a file gave in batches, against what the run says of those pictures and perhaps of more."""
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in facts.outputs}
    n = len(outputs[exported.ABSTAINED])
    found = onnx_predictor.predictions_from_outputs(facts, outputs, ("",) * n, tuple(map(str, range(n))))
    difference = apart(scores(found), scores(expected)[:n], facts.task)
    if not difference <= tolerance:
        raise DamagedFileError(
            f"The exported file answers otherwise than the run: scores differ by up to {difference:.3g} on {n} "
            f"pictures, and {tolerance:g} is allowed. Nothing is kept; please report this model."
        )
    check_follows(outputs, facts, member)
    return Proof(n, difference, int(decided_otherwise(found, expected).sum()))


def check_follows(outputs: Mapping[str, np.ndarray], facts: ExportMetadata, member: PredictorMember) -> None:
    """Decisions of a file must be those that the run would draw from the file's own scores.

    Raises:
        DamagedFileError: they are not.
    """
    n, decided = len(outputs[exported.ABSTAINED]), member.decided
    probabilities = outputs.get(exported.PROBABILITIES)
    of_classes = probabilities if facts.task == "classes" else None
    told = decided.abstained(of_classes, outputs.get(exported.DISTANCES), n) or ("",) * n
    right = told == tuple(exported.ABSTENTION_REASONS[number] for number in outputs[exported.ABSTAINED].tolist())
    if probabilities is not None:
        classes = facts.task == "classes"
        drawn = decided.classes(probabilities, facts.classes) if classes else decided.labels(probabilities)
        right = right and bool((drawn == outputs[exported.DECISIONS]).all())
    if not right:
        raise DamagedFileError(
            "The exported file decides otherwise than the run would from the same scores. Nothing is kept; please "
            "report this model."
        )


def scores(answers: Answers) -> np.ndarray:
    """Probabilities, or values of numbers, [n, K]."""
    return answers.values if isinstance(answers, NumberPredictions) else answers.probabilities


def apart(found: np.ndarray, expected: np.ndarray, task: str) -> float:
    """The largest difference of two scores; of numbers as a share of the largest (at least of 1)."""
    if not np.isfinite(found).all():
        return float("inf")
    largest = max(1.0, float(np.abs(expected).max())) if task == "number" else 1.0
    return float(np.abs(found.astype(np.float64) - expected).max()) / largest


def decided_otherwise(found: Answers, expected: Answers) -> np.ndarray:
    """bool [n] of the pictures in `found`, the first ones of `expected`."""
    n = len(found)
    other = np.array([a != b for a, b in zip(found.told(), expected.told()[:n], strict=True)], bool)
    if isinstance(found, Predictions) and isinstance(expected, Predictions):
        return other | (found.labels != expected.labels[:n])
    if isinstance(found, LabelPredictions) and isinstance(expected, LabelPredictions):
        return other | (found.labels != expected.labels[:n]).any(1)
    return other
