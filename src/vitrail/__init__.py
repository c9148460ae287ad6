"""Vitrail: the best plain Vision Transformer for your pictures, with one command or one line of Python.

The names below are imported when they are first used, so that `import vitrail` costs nothing and imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .openmp import set_short_spin as _wait_briefly

if TYPE_CHECKING:
    from .api import ImageSpec, Model, Run, ViT, ViTConfig, create, fit, load, open, save  # noqa: A004 - `vitrail.open` is meant to read like the built-in
    from .estimators import ViTClassifier, ViTMultiLabel, ViTRegressor

__version__ = "0.1.0"
__all__ = [
    "ImageSpec",
    "Model",
    "Run",
    "ViT",
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
]

_wait_briefly()  # before torch is imported, which may be anywhere below


def __getattr__(name: str) -> object:
    """The public name itself, from api.py, or from the estimators, which import scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"vitrail has no {name!r}. It has {', '.join(__all__)}.")
    if name in ("ViTClassifier", "ViTMultiLabel", "ViTRegressor"):
        from . import estimators

        return {
            "ViTClassifier": estimators.ViTClassifier,
            "ViTMultiLabel": estimators.ViTMultiLabel,
            "ViTRegressor": estimators.ViTRegressor,
        }[name]
    from . import api

    models = {
        "ImageSpec": api.ImageSpec,
        "Model": api.Model,
        "ViT": api.ViT,
        "ViTConfig": api.ViTConfig,
        "save": api.save,
    }
    if name in models:
        return models[name]
    return {"Run": api.Run, "create": api.create, "fit": api.fit, "load": api.load, "open": api.open}[name]


def __dir__() -> list[str]:
    return list(__all__)
