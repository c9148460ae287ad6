"""From the outputs of an exported file to the rows that every door gives; torch is not needed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..evaluate import label_predictions, number_predictions, predictions
from ..evaluate.label_predictions import LabelPredictions
from ..evaluate.number_predictions import NumberPredictions
from ..evaluate.predictions import Predictions
from . import exported
from .exported import Facts

Table = Predictions | LabelPredictions | NumberPredictions


def table(
    facts: Facts,
    outputs: Mapping[str, np.ndarray],
    paths: tuple[str, ...],
    ids: tuple[str, ...],
    skipped: tuple[tuple[str, str], ...] = (),
) -> Table:
    """The rows that the outputs of a file say, as every door gives them."""
    why = tuple(exported.REASONS[number] for number in outputs[exported.ABSTAINED].astype(int).tolist())
    abstained = why if any(why) else ()
    if facts.task == "number":
        values = outputs[exported.VALUES]
        return NumberPredictions(
            paths=paths, ids=ids, split="", targets=None, skipped=skipped, columns=facts.classes, values=values,
            abstained=abstained,
        )  # fmt: skip
    probabilities, decided = outputs[exported.PROBABILITIES], outputs[exported.DECISIONS]
    if facts.task == "labels":
        return LabelPredictions(
            paths=paths, ids=ids, split="", targets=None, skipped=skipped, classes=facts.classes,
            probabilities=probabilities, answered=decided.astype(bool), abstained=abstained,
        )  # fmt: skip
    return Predictions(
        paths=paths, ids=ids, split="", targets=None, skipped=skipped, classes=facts.classes,
        probabilities=probabilities, answered=decided.astype(np.int64).reshape(len(paths)), abstained=abstained,
    )  # fmt: skip


def join(parts: Sequence[Table]) -> Table:
    """One table from those of one file, in the order given."""
    first = parts[0]
    if isinstance(first, Predictions):
        return predictions.join([part for part in parts if isinstance(part, Predictions)])
    if isinstance(first, LabelPredictions):
        return label_predictions.join([part for part in parts if isinstance(part, LabelPredictions)])
    return number_predictions.join([part for part in parts if isinstance(part, NumberPredictions)])
