"""A folder in MLflow's model format: `mlflow.pyfunc.load_model` opens it, and it answers as `vitrail predict` does.

MLflow calls `_load_pyfunc` of the module that its file MLmodel names; that file is YAML, of which JSON is a part. It is
written without MLflow, which would report the use of its functions to a server.
"""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.source import ImageInput
from ..errors import DamagedFileError, UsageError
from ..evaluate.precision import get_scores
from ..evaluate.predictions import TaskPredictions
from ..export.verify import VerificationResult, find_changed_decisions, max_score_difference
from ..files.atomic import check_new_path, commit_draft, make_draft
from ..predict.predictor import Predictor
from ..version import __version__
from . import conversion
from .open_model import find_model
from .prediction import open_predictor

if TYPE_CHECKING:
    import pandas

INPUT_COLUMN = "image"
"""The column of the images: paths, bytes of image files, or arrays [H, W, C]."""
DATA_FOLDER, MODEL_FILE = "data", "MLmodel"
COLUMN_TYPES: dict[object, str] = {"text": "string", "number": "float", "double": "double"}
"""MLflow's type of a column by ours; any for cells that hold several values."""


class PyfuncModel:
    """The model of a folder that `export_mlflow` has written, as MLflow calls it."""

    def __init__(self, predictor: Predictor):
        self._predictor = predictor

    def predict(self, model_input: pandas.DataFrame) -> pandas.DataFrame:
        """The rows of `vitrail predict` for the images in the column `image`.

        Raises:
            UsageError: no such column.
            DataError: an image that cannot be read.
        """
        if INPUT_COLUMN not in model_input:
            raise UsageError(f"The images belong into a column named {INPUT_COLUMN}. Got {', '.join(model_input)}.")
        return self._predictor.predict([_read_cell(cell) for cell in model_input[INPUT_COLUMN]]).to_pandas()


def _load_pyfunc(data_path: str) -> PyfuncModel:
    """What MLflow calls, with the folder of the bundle."""
    return PyfuncModel(open_predictor(data_path))


def export_mlflow(model_name: str, out: Path, decoded: Sequence[np.ndarray]) -> VerificationResult:
    """Write a model in MLflow's format around its bundle, and keep it if it answers as the model does.

    Args:
        decoded: images on which both are compared; at least one.

    Raises:
        UsageError: `out` exists, or the model is an ensemble.
        DamagedFileError: answers differ; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_new_path(out)
    predictor = open_predictor(model_name, "cpu")
    task = predictor.single_member().task
    with make_draft(out) as draft:
        draft.mkdir()
        conversion.convert_model(find_model(model_name, quiet=True), "bundle", draft / DATA_FOLDER)
        expected = predictor.predict(list(decoded))
        actual = open_predictor(draft / DATA_FOLDER, "cpu").predict(list(decoded))
        difference = max_score_difference(get_scores(actual), get_scores(expected), task)
        changed = int(find_changed_decisions(actual, expected).sum())
        if difference or changed:
            raise DamagedFileError(
                f"The exported model answers otherwise than the run: scores differ by up to {difference:.3g}, and "
                f"{changed:,} of {len(decoded):,} decisions. Nothing is kept; please report this model."
            )
        _write_description(draft, expected)
        commit_draft(draft, out)
    return VerificationResult(len(decoded), difference, changed)


def _write_description(folder: Path, predictions: TaskPredictions) -> None:
    """MLmodel and the requirements beside it, with the columns of these predictions as the output."""
    outputs = [
        {"type": COLUMN_TYPES.get(column.kind, "any"), "name": name, "required": True}
        for name, column in predictions.all_typed_columns().items()
    ]
    requirements = [f"vitrail=={__version__}", "pandas"]
    environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    description: dict[str, Any] = {
        "flavors": {
            "python_function": {
                "loader_module": __name__,
                "data": DATA_FOLDER,
                "python_version": platform.python_version(),
                "env": {"virtualenv": "python_env.yaml"},
            }
        },
        "signature": {
            "inputs": json.dumps([{"type": "any", "name": INPUT_COLUMN, "required": True}]),
            "outputs": json.dumps(outputs),
        },
        "model_uuid": uuid.uuid4().hex,
        "utc_time_created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    for name, values in ((MODEL_FILE, description), ("python_env.yaml", environment)):
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _read_cell(cell: object) -> ImageInput | bytes:
    """An image as the predictor takes it."""
    if isinstance(cell, str):
        return Path(cell)
    if isinstance(cell, (Path, bytes, np.ndarray)):
        return cell
    raise UsageError(
        f"An image is a path, the bytes of a file, or an array [H, W, C]. Got {type(cell).__name__} in the column "
        f"{INPUT_COLUMN}."
    )
