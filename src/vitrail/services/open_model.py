"""Opening of a MODEL: a run folder, a bundle, foreign weights, a named size, or a name on the Hub."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from .. import config
from ..checkpoints import bundle
from ..checkpoints.adapt import CHANNEL_POLICIES, ChannelPolicy
from ..checkpoints.bundle import ResolvedModel, find_bundle, find_ensemble
from ..checkpoints.layouts import Match
from ..checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from ..checkpoints.validate import Audit
from ..config.library_names import suggest_name
from ..errors import UsageError
from ..model.config import Pool, ViTConfig, describe_oversize
from ..model.registry import config_from_name, example_names
from ..model.vit import ViT
from ..spec import ImageSpec
from .progress import print_notes
from .train_arguments import parse_image_size

ModelKind = Literal["run", "bundle", "weights file", "weights folder", "name"]
NO_OPTIONS = LoadOptions()
_ANNOUNCED: set[str] = set()
"""Assumptions that were printed."""
LICENCE_NOT_STATED = "not stated"
"""First words of `files.hub` for a page on the Hub without a licence."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A resolved MODEL: kind, architecture, image specification, classes, weights and origin."""

    kind: ModelKind
    config: ViTConfig
    spec: ImageSpec
    task: str = "classification"
    """classification, multilabel or regression."""
    classes: tuple[str, ...] = ()
    """Names of the outputs; empty if unknown."""
    audit: Audit | None = None
    """Every tensor of the file; None for a name."""
    bundle: Path | None = None
    """The folder of its bundle, if it has one."""
    trained_model: ViT | None = None
    """The model in evaluation mode; None for a name, whose weights are initialised by `model`."""
    licence: str = ""
    """Licence of the weights of `repository`, if the Hub, the bundle or the layout's card states it."""
    repository: str = ""
    """Origin of the weights, or of their family."""
    origin_is_stated: bool = True
    """Whether these weights are known to come from there; else only their family does."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the training, of a bundle."""
    notes: tuple[str, ...] = ()
    """Notes for the user about how the file was read."""

    @property
    def model(self) -> ViT:
        """The model; for a name, with fresh initial values of seed 0."""
        return ViT(self.config).eval() if self.trained_model is None else self.trained_model


def find_model(model_name: str, options: LoadOptions = NO_OPTIONS, quiet: bool = False) -> ModelInfo:
    """Open the model of a path or a name; an existing path takes precedence.

    Prints what was assumed about foreign weights to standard error, once in a process.

    Args:
        quiet: for callers that print the notes themselves.

    Raises:
        UsageError: no such path and no such name, or an option that contradicts the file.
        DamagedFileError: the file or folder is damaged or malicious.
        ResourceError: a name on the Hub whose files are neither cached nor reachable.
    """
    here = locate_model(model_name)
    if here is None:
        return _model_from_name(model_name, options)
    if (ensemble := find_ensemble(here.path)) is not None:
        raise UsageError(
            f"{model_name} is an ensemble, whose answers `vitrail predict` and `vitrail evaluate` average. Name one of "
            f"its models for this, such as {ensemble / 'member-0'}."
        )
    folder = find_bundle(here.path)
    loaded = load_checkpoint(folder or here.path, options)
    announced = [] if quiet else [f"{model_name}: {note}" for note in loaded.assumed]
    print_notes(note for note in announced if note not in _ANNOUNCED)
    _ANNOUNCED.update(announced)
    kind: ModelKind = "weights folder" if here.path.is_dir() else "weights file"
    if folder is not None:
        kind = "bundle" if folder == here.path else "run"
    origin: ResolvedModel | LoadedModel = here
    if not here.licence or (loaded.licence and here.licence.startswith(LICENCE_NOT_STATED)):
        origin = loaded
    return ModelInfo(
        kind=kind,
        config=loaded.config,
        spec=loaded.spec,
        task=loaded.task,
        classes=loaded.classes,
        audit=loaded.audit,
        bundle=folder,
        trained_model=loaded.model,
        licence=origin.licence,
        repository=origin.repository,
        origin_is_stated=origin is here or loaded.origin_is_stated,
        info=loaded.info,
        notes=(*here.notes, *loaded.notes),
    )


def locate_model(model_name: str) -> ResolvedModel | None:
    """As `checkpoints.bundle.resolve_model`; prints the licence of a name on the Hub to standard error.

    Raises:
        UsageError, ResourceError, DamagedFileError: see `files.hub`.
    """
    resolved = bundle.resolve_model(model_name)
    if resolved is not None and resolved.repository:
        sys.stderr.write(f"{model_name}: licence {resolved.licence}, revision {resolved.revision}\n")
    return resolved


def resize_config(
    shape: ViTConfig, image_size: tuple[int, int] | None, channels: int | None, outputs: int | None
) -> ViTConfig:
    """A config with another image size, channel count or number of outputs, each if given.

    Raises:
        UsageError: the model would be implausibly large.
    """
    resized = replace(
        shape,
        image_size=shape.image_size if image_size is None else image_size,
        channels=shape.channels if channels is None else channels,
        outputs=shape.outputs if outputs is None else outputs,
    )
    return _check_size(resized)


def change_config(shape: ViTConfig, fields: Mapping[str, object], where: str) -> ViTConfig:
    """A config with other values of some fields.

    Args:
        where: begins every message.

    Raises:
        UsageError: no such field, a wrong type or combination, or the model would be implausibly large.
    """
    return _check_size(config.read(ViTConfig, {**config.write(shape), **fields}, where))


def _check_size(shape: ViTConfig) -> ViTConfig:
    if oversize := describe_oversize(shape):
        raise UsageError(oversize[0].upper() + oversize[1:])
    return shape


def default_image_spec(shape: ViTConfig) -> ImageSpec:
    """Default image specification of a model: its size, values 0..255, mean and deviation 0.5."""
    height, width = shape.image_size
    return ImageSpec(height=height, width=width, channels=shape.channels)


def _model_from_name(model_name: str, options: LoadOptions) -> ModelInfo:
    """A named size, without weights."""
    file_options = {
        "--layout": options.layout,
        "--heads": options.heads,
        "--pool": options.pool,
        "--match": options.match,
        "--network": options.network,
        "--channels-policy": options.channels_policy,
    }
    if flags := [flag for flag, value in file_options.items() if value is not None]:
        raise UsageError(f"{' and '.join(flags)} can only describe a weights file. There is no file {model_name}.")
    known = example_names()
    if not (model_name.startswith("vit_") or model_name in known or difflib.get_close_matches(model_name, known, n=1)):
        raise UsageError(
            f"There is no run folder, bundle, weights file or named size {model_name}. "
            "Check the path; names read as vit_tiny_patch16_224, and names on the Hub as hf:OWNER/NAME."
        )
    shape = resize_config(config_from_name(model_name), options.size, options.channels, options.outputs)
    shape = change_config(shape, options.settings, "settings")
    return ModelInfo(kind="name", config=shape, spec=default_image_spec(shape))


# -- Options of a MODEL on the command line, as `LoadOptions`.

ChoiceT = TypeVar("ChoiceT", bound=str)
MODEL_PREFIX = "model."
"""Prefix of architecture fields on the command line, as in a plan."""


def parse_model_options(
    layout: str | None = None,
    heads: int | None = None,
    image_size: str | int | tuple[int, int] | None = None,
    channels: int | None = None,
    pool: str | None = None,
    match: str | None = None,
    outputs: int | None = None,
    channels_policy: str | Sequence[int] | None = None,
    network: str | None = None,
    settings: Iterable[tuple[str, str]] = (),
    allow_nonfinite: bool = False,
) -> LoadOptions:
    """Parse and check the options of a MODEL.

    Args:
        image_size: 64 or "60x100".
        channels_policy: sum, mean, tile, or the file's channel for each new one, such as "0,0,2".
        settings: pairs such as ("model.activation", "QuickGELU").

    Raises:
        UsageError: an unknown value, or a setting that is no field of the architecture.
    """
    fields = dict(settings)
    if unknown := [name for name in fields if not name.startswith(MODEL_PREFIX)]:
        raise UsageError(
            "Beside a model only fields of its architecture can be set, such as --model.activation. "
            f"Got --{unknown[0]}."
        )
    return LoadOptions(
        layout=layout,
        heads=heads,
        image_size=None if image_size is None else parse_image_size(image_size),
        channels=channels,
        pool=None if pool is None else parse_choice(pool, get_args(Pool), "pool must be"),
        match=None if match is None else parse_choice(match, get_args(Match), "match must be"),
        outputs=outputs,
        channels_policy=None if channels_policy is None else parse_channels_policy(channels_policy),
        network=network,
        settings=config.parse_some(ViTConfig, {k.removeprefix(MODEL_PREFIX): text for k, text in fields.items()}),
        allow_nonfinite=allow_nonfinite,
    )


def parse_channels_policy(text: str | Sequence[int]) -> ChannelPolicy:
    """Parse how a patch projection is adapted: sum, mean, tile, or the file's channel for each new one.

    Raises:
        UsageError: neither.
    """
    if not isinstance(text, str):
        return tuple(text)
    if all(part.strip().isdecimal() for part in text.split(",")):
        return tuple(int(part) for part in text.split(","))
    return parse_choice(text, CHANNEL_POLICIES, "channels_policy must be")


def parse_choice(word: str, known: Sequence[ChoiceT], message: str) -> ChoiceT:
    """A word as one of a literal type.

    Args:
        message: the beginning of the error's sentence, before the list of known words.

    Raises:
        UsageError: another word.
    """
    for choice in known:
        if word == choice:
            return choice
    hint = suggest_name(word, known)
    raise UsageError(f"{message} {', '.join(known[:-1])} or {known[-1]}. Got {word!r}.{hint}")
