"""The one predictor of a MODEL, on the device that was asked for."""

from __future__ import annotations

from pathlib import Path

from .. import runtime
from ..errors import UsageError
from ..evaluate.predictions import UNKNOWN, Predictions
from ..predict.predictor import Predictor
from .models import bundle_of


def open_predictor(given: str | Path, device: str = "auto") -> Predictor:
    """A predictor with class names: from a run folder or a bundle.

    Raises:
        UsageError: neither, or a device that is not here.
        DamagedFileError: the bundle cannot be trusted.
    """
    path = Path(given)
    if not path.is_dir():
        what = "is a file without class names" if path.exists() else "does not exist"
        raise UsageError(f"Answers need a run folder or a bundle, which know their classes. {given} {what}.")
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    runtime.apply(machine)
    return Predictor.open(bundle_of(path), machine.device)


def records(predictions: Predictions) -> list[dict[str, object]]:
    """The rows of the table as dictionaries, with the columns of the CSV file; None where a cell is empty."""
    classes = predictions.classes
    targets = [None] * len(predictions) if predictions.targets is None else predictions.targets.tolist()
    return [
        {
            "path": path,
            "id": id,
            "split": predictions.split,
            "target": None if target is None or target == UNKNOWN else classes[target],
            "label": classes[label],
            "probability": max(row),
            **{f"prob_{name}": chance for name, chance in zip(classes, row, strict=True)},
            "abstain": 0,
        }
        for path, id, target, label, row in zip(
            predictions.paths,
            predictions.ids,
            targets,
            predictions.labels.tolist(),
            predictions.probabilities.tolist(),
            strict=True,
        )
    ]
