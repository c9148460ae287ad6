"""Vitrail: the best plain Vision Transformer for your pictures, with one command or one line of Python.

The names below are imported when they are first used, so that `import vitrail` costs nothing and imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .openmp import set_short_spin as _wait_briefly

if TYPE_CHECKING:
    from .api import (  # `vitrail.open` is meant to read like the built-in
        Run,
        TuneResult,
        create,
        fit,
        load,
        open,  # noqa: A004
        train,
        tune,
    )
    from .estimators import ViTClassifier, ViTMultiLabel, ViTRegressor
    from .train.events import (
        FinishEvent,
        Note,
        PlanEvent,
        RunFolderEvent,
        StepProgress,
        StopEvent,
        TaskProgress,
        TrainingEvent,
        ValidationEvent,
    )

__version__ = "0.1.0"
__all__ = [
    "FinishEvent",
    "Note",
    "PlanEvent",
    "Run",
    "RunFolderEvent",
    "StepProgress",
    "StopEvent",
    "TaskProgress",
    "TrainingEvent",
    "TuneResult",
    "ValidationEvent",
    "ViTClassifier",
    "ViTMultiLabel",
    "ViTRegressor",
    "__version__",
    "create",
    "fit",
    "load",
    "open",
    "train",
    "tune",
]

_wait_briefly()  # before torch is imported, which may be anywhere below
import_module(".train", __name__)  # its first import sets `vitrail.train`, which is the function of that name instead
del globals()["train"]


def __getattr__(name: str) -> object:
    """The public name itself, from api.py, or from the estimators, which import scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"vitrail has no {name!r}. It has {', '.join(__all__)}.")
    if name.startswith("ViT"):
        from . import estimators

        return {
            "ViTClassifier": estimators.ViTClassifier,
            "ViTMultiLabel": estimators.ViTMultiLabel,
            "ViTRegressor": estimators.ViTRegressor,
        }[name]
    from . import api
    from .train import events

    return {
        "FinishEvent": events.FinishEvent,
        "Note": events.Note,
        "PlanEvent": events.PlanEvent,
        "Run": api.Run,
        "RunFolderEvent": events.RunFolderEvent,
        "StepProgress": events.StepProgress,
        "StopEvent": events.StopEvent,
        "TaskProgress": events.TaskProgress,
        "TrainingEvent": events.TrainingEvent,
        "TuneResult": api.TuneResult,
        "ValidationEvent": events.ValidationEvent,
        "create": api.create,
        "fit": api.fit,
        "load": api.load,
        "open": api.open,
        "train": api.train,
        "tune": api.tune,
    }[name]


def __dir__() -> list[str]:
    return list(__all__)
