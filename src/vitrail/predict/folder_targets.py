"""Targets of predicted images that lie in class folders: the folder's name, where it is a class of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..data.sources.class_folders import to_class_name
from ..evaluate.predictions import UNKNOWN_CLASS, ClassificationPredictions, TaskPredictions
from ..formatting import format_count


def list_named_folders(arguments: Sequence[str | Path]) -> tuple[Path, ...]:
    """The folders among the arguments of a prediction, below which folders may be called as classes."""
    return tuple(Path(each) for each in arguments if str(each) != "-" and Path(each).is_dir())


def add_folder_targets(predictions: TaskPredictions, folders: Sequence[Path]) -> TaskPredictions:
    """The table with the target of each image that lies in a folder of the same name as one of the classes.

    It is the first such folder below the one that was named, or else the named one itself. Predictions of other tasks
    and tables with targets are returned as they are.

    Args:
        folders: as they were named; the paths of their images begin with them.
    """
    if not isinstance(predictions, ClassificationPredictions) or predictions.targets is not None or not folders:
        return predictions
    numbers = {name: number for number, name in enumerate(predictions.classes)}
    own_names = {folder: to_class_name(folder.resolve().name) for folder in folders}
    targets = np.full(len(predictions), UNKNOWN_CLASS, np.int64)
    for row, text in enumerate(predictions.paths):
        path = Path(text)
        folder = next((each for each in folders if path.is_relative_to(each)), None)
        if folder is not None:
            names = [*map(to_class_name, path.relative_to(folder).parts[:-1]), own_names[folder]]
            targets[row] = next((numbers[name] for name in names if name in numbers), UNKNOWN_CLASS)
    return replace(predictions, targets=targets) if (targets != UNKNOWN_CLASS).any() else predictions


def describe_folder_targets(predictions: TaskPredictions, model: str) -> tuple[str, ...]:
    """A note on targets that are known from folders, and how to measure with them; none where none is known."""
    if not isinstance(predictions, ClassificationPredictions) or predictions.targets is None:
        return ()
    known = predictions.targets != UNKNOWN_CLASS
    right = int((predictions.indices == predictions.targets)[known].sum())
    pictures = f"{int(known.sum()):,} of {format_count(len(predictions), 'picture')}"
    where = f"The target of {pictures} is known from folders with the name of a class; {right:,} are right."
    return (f"{where} With intervals, and with the wrong ones shown: vitrail evaluate {model} SOURCE",)
