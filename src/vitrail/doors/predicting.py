"""The one predictor of a MODEL, on the device that was asked for."""

from __future__ import annotations

from pathlib import Path

from .. import runtime
from ..data.source import as_task
from ..errors import UsageError
from ..predict.predictor import Predictor
from .models import bundle_in, find, located


def open_predictor(given: str | Path, device: str = "auto") -> Predictor:
    """A predictor with class names: from a run folder, a bundle, or a published classifier that names its classes.

    Raises:
        UsageError: nothing at the path, nobody has named its outputs, or a device that is not here.
        DamagedFileError: the files cannot be trusted.
    """
    place = located(str(given))
    if place is None:
        raise UsageError(
            "Answers need a trained model that knows its classes: a run folder, a bundle, or a published classifier. "
            f"{given} does not exist."
        )
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    runtime.apply(machine)
    folder = bundle_in(place.path)
    if folder is not None:
        return Predictor.open(folder, machine.device)
    found = find(str(place.path))
    if not found.classes:
        raise UsageError(
            f"Answers need the names of the classes, and {given} has none beside its {found.config.outputs} outputs. "
            "Give a run folder, a bundle, or a folder whose config.json names them (id2label)."
        )
    return Predictor(found.model, found.spec, found.classes, machine.device, task=as_task(found.task))
