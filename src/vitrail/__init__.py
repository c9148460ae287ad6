"""Plain Vision Transformers: created or loaded, trained on your images, measured, explained and exported.

    import vitrail

    model = vitrail.create("vit_small_patch16_224", outputs=10)  # a ViT: float32 [B, 3, 224, 224] -> logits [B, 10]
    vitrail.load("dinov2_small/").features(images, ["pooled"])   # published weights: {"pooled": float32 [B, D]}
    run = vitrail.fit("flowers/", minutes=10)                    # a folder per class: plan, training, test, report
    run.predict("new_pictures/").write("new.csv")                # or .labels, .probabilities, .to_pandas()
    run.export("onnx")                                           # also evaluate, explain, embed, publish, resume

`vitrail.open("runs/first")` opens a run of an earlier day. ViTClassifier, ViTMultiLabel and ViTRegressor do the same
for scikit-learn. A wrong argument, image or file raises an exception of `vitrail.errors`, whose message says what was
expected, what came and what to do. Each name is imported when it is first used: `import vitrail` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .openmp import set_short_spin as _wait_briefly

if TYPE_CHECKING:
    from .api import ImageSpec, Model, Run, TuneResult, ViT, ViTConfig, create, fit, load, save, train, tune
    from .api import open as open  # noqa: A004 - `vitrail.open` is meant to read like the built-in
    from .estimators import ViTAnomaly, ViTClassifier, ViTMultiLabel, ViTRegressor
    from .evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
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
    "ClassificationPredictions",
    "FinishEvent",
    "ImageSpec",
    "Model",
    "MultilabelPredictions",
    "Note",
    "PlanEvent",
    "RegressionPredictions",
    "Run",
    "RunFolderEvent",
    "StepProgress",
    "StopEvent",
    "TaskProgress",
    "TrainingEvent",
    "TuneResult",
    "ValidationEvent",
    "ViT",
    "ViTAnomaly",
    "ViTClassifier",
    "ViTConfig",
    "ViTMultiLabel",
    "ViTRegressor",
    "__version__",
    "create",
    "fit",
    "load",
    "open",
    "save",
    "train",
    "tune",
]

_wait_briefly()  # before torch is imported, which may be anywhere below
import_module(".train", __name__)  # its first import sets `vitrail.train`, which is the function of that name instead
del globals()["train"]


def __getattr__(name: str) -> object:
    """The public name itself, from the module that defines it; scikit-learn is imported for the estimators only."""
    if name not in __all__:
        raise AttributeError(f"vitrail has no {name!r}. It has {', '.join(__all__)}.")
    if name in ("ViTAnomaly", "ViTClassifier", "ViTMultiLabel", "ViTRegressor"):
        module = ".estimators"
    elif name.endswith("Predictions"):
        module = ".evaluate.predictions"
    elif name == "Note" or name.endswith(("Event", "Progress")):
        module = ".train.events"
    else:
        module = ".api"
    return getattr(import_module(module, __name__), name)


def __dir__() -> list[str]:
    return list(__all__)
