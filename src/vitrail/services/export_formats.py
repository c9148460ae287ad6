"""Formats that a model can be written in, why not in the others, and the settings of a run that can be."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError, VitrailError
from ..export.browser_page import explain_no_page
from ..export.build import EXPORT_FORMATS
from ..model.config import ViTConfig
from ..model.registry import config_from_name
from ..model.vit import create_model
from ..spec import ImageSpec
from . import conversion
from .open_model import ModelInfo

DEFAULT_MODEL = "vit_pico_patch4_28"
"""A model that plans choose by themselves."""
SIZES = {"image_size", "patch", "width", "depth", "heads", "head_width", "mlp_width", "outputs", "init", "resample"}
"""Fields of the architecture that no format asks for; channels are none of them: torchvision takes colour alone."""
MAX_TRIES = 60
"""Sets of changes that are tried."""
ADVICE = " Save the model as a bundle instead."


@dataclass(frozen=True, kw_only=True)
class FormatSupport:
    """Whether a model can be written in a format."""

    to: str
    """Name of the format."""
    refusal: str = ""
    """Why the model cannot be written; empty where it can."""
    changes: tuple[str, ...] = ()
    """Settings of a plan whose runs can be, as flags; empty where none is known."""

    def describe(self) -> str:
        """A line for the terminal."""
        if not self.refusal:
            return f"{self.to:<13}yes"
        return f"{self.to:<13}no: {self.refusal}{self.advise()}"

    def advise(self) -> str:
        """The sentence with the settings, after a blank; empty where there are none."""
        return f" A run with {' '.join(self.changes)} can be written so." if self.changes else ""


def list_formats(model_info: ModelInfo | None = None) -> list[FormatSupport]:
    """All formats of `vitrail export`, with the reason where the model cannot be written.

    Args:
        model_info: None is a model as plans choose it for small pictures.
    """
    if model_info is None:
        model_info = ModelInfo(kind="name", config=config_from_name(DEFAULT_MODEL), spec=ImageSpec(height=28, width=28))
    graphs = [FormatSupport(to=name) for name in EXPORT_FORMATS]
    graphs += [FormatSupport(to="web", refusal=explain_no_page(model_info.task))]
    graphs += [FormatSupport(to="triton"), FormatSupport(to="mlflow")]
    return graphs + [find_support(model_info, to) for to in conversion.CONVERSION_TARGETS]


def find_support(model_info: ModelInfo, to: conversion.ConversionTarget) -> FormatSupport:
    """Whether a model can be written as another library's files, found by writing a few blocks of its architecture."""
    refusal = _try_conversion(model_info, model_info.config, to)
    if not refusal:
        return FormatSupport(to=to)
    plain = {**vars(ViTConfig()), "channels": 3}
    names = [field.name for field in fields(ViTConfig) if field.name not in SIZES]
    changes = {name: plain[name] for name in names if vars(model_info.config)[name] != plain[name]}
    subsets = itertools.chain.from_iterable(itertools.combinations(changes, n) for n in range(1, len(changes) + 1))
    for chosen in (*itertools.islice(subsets, MAX_TRIES), tuple(changes)):  # the fewest first
        fewer = {name: changes[name] for name in chosen}
        if not _try_changes(model_info, fewer, to):
            return FormatSupport(to=to, refusal=refusal, changes=tuple(itertools.starmap(_to_flag, fewer.items())))
    return FormatSupport(to=to, refusal=refusal)


def _try_changes(model_info: ModelInfo, changes: dict[str, Any], to: conversion.ConversionTarget) -> str:
    """Why the architecture cannot be written even with these changes; empty where it can."""
    try:
        config = replace(model_info.config, **changes)
    except UsageError as error:
        return str(error)
    spec = replace(model_info.spec, channels=config.channels, mean=(0.5,), std=(0.5,))
    return _try_conversion(replace(model_info, spec=spec), config, to)


def _try_conversion(model_info: ModelInfo, config: ViTConfig, to: conversion.ConversionTarget) -> str:
    """Why a fresh model of few blocks cannot be written; empty where it can."""
    blocks = min(config.depth, max(1, config.pool_blocks * config.pool_every))
    try:
        model = create_model(replace(config, depth=blocks))
        tried = ModelInfo(
            kind="name", config=model.config, spec=model_info.spec, task=model_info.task, classes=model_info.classes,
            trained_model=model.eval(),
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            conversion.convert_model(tried, to, Path(folder) / conversion.add_extension("model", to))
    except VitrailError as error:
        return str(error).removesuffix(ADVICE)
    return ""


def _to_flag(name: str, value: object) -> str:
    """A setting of the architecture as a flag of `vitrail train`."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"--channels {text}" if name == "channels" else f"--model.{name} {text}"
