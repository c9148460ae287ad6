"""Whether a file that computes in fewer bits still decides as float32 does, on how many pictures, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from ..errors import DamagedFileError
from ..evaluate.answers import Answers
from ..evaluate.label_predictions import LabelPredictions
from ..evaluate.number_predictions import NumberPredictions
from ..evaluate.predictions import Predictions
from ..predict import onnx_predictor
from ..predict.exported import ExportMetadata
from ..predict.predictor import PredictorMember
from . import proving
from .proving import BATCHES, Answerer

LEAST = 0.99
"""Share of decisions that must be those of float32."""
NEAR = 0.05
"""Two numbers count as the same answer if so many deviations of the training's numbers lie between them."""
WHAT = {"classes": "classes", "labels": "yes and no of labels", "number": f"numbers (within {NEAR:g} deviations)"}


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What was compared, and how far the answers lie apart."""

    precision: str
    task: str
    pictures: int
    same: float
    """Share of the classes, labels or numbers that are answered as in float32."""
    difference: float
    """Largest difference of two scores."""
    rates: Mapping[str, float]
    """Pictures per second of the file and of whom it is compared with, by name."""

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:,.3g}" for name, rate in self.rates.items())
        return (
            f"{self.precision} agrees with float32 in {self.same:.2%} of the {WHAT[self.task]} of {self.pictures:,} "
            f"pictures; scores differ by at most {self.difference:.2g}; pictures per second: {rates}"
        )


def compare(
    answerer: Answerer, facts: ExportMetadata, member: PredictorMember, pictures: UInt8[np.ndarray, "n H W C"]
) -> tuple[float, float]:
    """The share of equal answers and the largest difference of two scores; one picture at a time and five at once.

    Args:
        member: whom the file is to equal, computing in float32.

    Raises:
        DamagedFileError: a score that is no number, or decisions that do not follow from the file's own scores.
    """
    expected, _ = proving.said_by_run(facts, member, pictures)
    same, difference = 1.0, 0.0
    for batch in BATCHES:
        asked = pictures[: proving.ALONE] if batch == 1 else pictures
        parts = [answerer(asked[start : start + batch]) for start in range(0, len(asked), batch)]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in facts.outputs}
        found = onnx_predictor.predictions_from_outputs(
            facts, outputs, ("",) * len(asked), tuple(map(str, range(len(asked))))
        )
        apart = proving.apart(proving.scores(found), proving.scores(expected)[: len(asked)], facts.task)
        if apart == float("inf"):
            raise DamagedFileError(
                f"In {facts.number_format} the exported file gives scores that are no numbers. Nothing is kept; "
                "export in float32."
            )
        proving.check_follows(outputs, facts, member)
        difference = max(difference, apart)
        if len(asked) == len(pictures):
            same = min(same, agreement(found, expected, member))
    return same, difference


def agreement(found: Answers, expected: Answers, member: PredictorMember) -> float:
    """The share of equal answers: of classes, of labels one by one, or of numbers that are near enough."""
    if isinstance(found, Predictions) and isinstance(expected, Predictions):
        return float((found.labels == expected.labels).mean())
    if isinstance(found, LabelPredictions) and isinstance(expected, LabelPredictions):
        return float((found.labels == expected.labels).mean())
    assert isinstance(found, NumberPredictions) and isinstance(expected, NumberPredictions)
    deviation = np.array(member.scaling.deviation if member.scaling is not None else expected.values.std(0))
    return float((np.abs(found.values.astype(np.float64) - expected.values) <= NEAR * deviation).mean())


def check_agrees(agreed: Agreement) -> None:
    """Refuse a file that decides otherwise too often.

    Raises:
        DamagedFileError: fewer equal answers than `LEAST`.
    """
    if agreed.same < LEAST:
        raise DamagedFileError(
            f"In {agreed.precision} only {agreed.same:.2%} of the {WHAT[agreed.task]} of {agreed.pictures:,} pictures "
            f"are answered as in float32, and {LEAST:.0%} is asked for. Nothing is kept. Keep float32, calibrate int8 "
            "on more pictures (--calibrate FOLDER), or keep the file as it is with --force."
        )
