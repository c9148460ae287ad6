"""Plain Vision Transformers: created or loaded, trained on your images, measured, explained and exported.

    import vitrail

    model = vitrail.create("vit_small_patch16_224", outputs=10)  # a ViT: float32 [B, 3, 224, 224] -> logits [B, 10]
    model = vitrail.load("dinov2_small/")                        # or published weights; in evaluation mode
    images = model.preprocess(["a.jpg", "b.jpg"])                # or Pillow images, arrays, tensors: [B, 3, H, W]
    features = model.features(images, ["pooled"])["pooled"]      # float32 [B, D]; model(images) gives logits
    vitrail.save(model, "mine", classes=["cat", "dog"])          # after your own loop: vitrail.open("mine").predict

    run = vitrail.fit("flowers/", minutes=10)                    # a folder per class: plan, training, test, report
    run.predict("new_pictures/").write("new.csv")                # or .labels, .probabilities, .to_pandas()
    run.export("onnx")                                           # also evaluate, explain, embed, publish, resume

`vitrail.open("runs/first")` opens a run of an earlier day, or a saved model. `train` yields the events of a training,
`tune` searches; ViTClassifier, ViTMultiLabel and ViTRegressor are for scikit-learn. A wrong argument, image or file
raises an exception of `vitrail.errors`, whose message says what was expected, what came and what to do. Each name is
imported when it is first used: `import vitrail` imports no torch. `help(vitrail.fit)` and so on describe each one.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from . import errors as errors
from .openmp import set_short_spin as _wait_briefly
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .api import ImageSpec, Model, Run, TuneResult, ViT, ViTConfig, create, fit, load, save, train, tune
    from .api import open as open  # noqa: A004 - `vitrail.open` is meant to read like the built-in
    from .estimators import ViTAnomaly, ViTClassifier, ViTMultiLabel, ViTRegressor, ViTSegmenter
    from .evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
    from .train.events import (
        FinishEvent,
        Note,
        PlanEvent,
        RunFolderEvent,
        StageEvent,
        StepProgress,
        StopEvent,
        TaskProgress,
        TrainingEvent,
        ValidationEvent,
    )

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
    "StageEvent",
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
    "ViTSegmenter",
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
        near = get_close_matches(name, __all__, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise AttributeError(f"vitrail has no {name!r}. It has {', '.join(__all__)}.{hint}")
    if name in ("ViTAnomaly", "ViTClassifier", "ViTMultiLabel", "ViTRegressor", "ViTSegmenter"):
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
