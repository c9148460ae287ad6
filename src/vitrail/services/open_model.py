"""MODEL by any of its names: a run folder, a bundle, foreign weights, the name of a size, or a name on the Hub."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args

from .. import config
from ..checkpoints import bundle
from ..checkpoints.adapt import CHANNEL_POLICIES, ChannelPolicy
from ..checkpoints.bundle import ResolvedModel, find_bundle, find_ensemble
from ..checkpoints.layouts import Match
from ..checkpoints.load import LoadedModel, LoadOptions, load_checkpoint
from ..checkpoints.validate import Audit
from ..config.keywords import explain_keywords
from ..errors import UsageError
from ..files.hub import is_hub_name
from ..model.config import Pool, ViTConfig
from ..model.registry import config_from_name, example_names
from ..model.vit import ViT, create_model
from ..model.vit import create_model as create_from_config
from ..spec import ImageSpec
from . import train_arguments
from .train_arguments import parse_image_size

ModelKind = Literal["run", "bundle", "weights file", "weights folder", "name"]


NO_OPTIONS = LoadOptions()
LICENCE_NOT_STATED = "not stated"
"""How `files.hub` begins where a page on the Hub states no licence."""


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What a MODEL turned out to be."""

    kind: ModelKind
    config: ViTConfig
    spec: ImageSpec
    task: str = "classes"
    """classes, labels or number."""
    classes: tuple[str, ...] = ()
    """Empty where nobody has named the outputs."""
    audit: Audit | None = None
    """Every tensor of the file; None for a name."""
    bundle: Path | None = None
    """The folder of its bundle, if it has one."""
    trained_model: ViT | None = None
    """The model in evaluation mode; None for a name, whose weights are made when they are asked for."""
    licence: str = ""
    """Of the weights that `repository` published, where the Hub, the bundle or the layout's card knows it."""
    repository: str = ""
    """Where the weights come from, or those of their family: on the Hub, or as the card says."""
    notes: tuple[str, ...] = ()
    """What a person should know about how the file was read."""

    @property
    def model(self) -> ViT:
        """The model; for a name, with fresh initial values of seed 0."""
        return create_model(self.config, 0).eval() if self.trained_model is None else self.trained_model


def find_model(model_name: str, options: LoadOptions = NO_OPTIONS) -> ModelInfo:
    """The model behind a path or a name; a path that exists is taken before a name.

    Raises:
        UsageError: no such path and no such name, or an argument that contradicts the file.
        DamagedFileError: the file or folder cannot be trusted.
        ResourceError: a name on the Hub whose files are neither here nor reachable.
    """
    here = locate_model(model_name)
    if here is None:
        return _model_from_name(model_name, options)
    if (together := find_ensemble(here.path)) is not None:
        raise UsageError(
            f"{model_name} is an ensemble, whose answers `vitrail predict` and `vitrail evaluate` average. Name one "
            f"of its "
            f"models for this, such as {together / 'member-0'}."
        )
    folder = find_bundle(here.path)
    found = _open_weights(here.path, options) if folder is None else _open_bundle(here.path, folder, options)
    found = replace(found, notes=(*here.notes, *found.notes))
    if not here.licence or (found.licence and here.licence.startswith(LICENCE_NOT_STATED)):
        return found
    return replace(found, licence=here.licence, repository=here.repository)


def locate_model(model_name: str) -> ResolvedModel | None:
    """As `checkpoints.place.located`; the licence of a name on the Hub is told on standard error.

    Raises:
        UsageError, ResourceError, DamagedFileError: see `files.hub.fetch`.
    """
    found = bundle.resolve_model(model_name)
    if found is not None and found.repository:
        sys.stderr.write(f"{model_name}: licence {found.licence}, revision {found.revision}\n")
    return found


def resize_config(
    shape: ViTConfig, image_size: tuple[int, int] | None, channels: int | None, outputs: int | None
) -> ViTConfig:
    """A shape with another image size, channel count or number of outputs, each where it is given."""
    return replace(
        shape,
        image_size=shape.image_size if image_size is None else image_size,
        channels=shape.channels if channels is None else channels,
        outputs=shape.outputs if outputs is None else outputs,
    )


def default_image_spec(shape: ViTConfig) -> ImageSpec:
    """The images that a model reads when nobody has said more: its size, 0..255, mean and deviation one half."""
    height, width = shape.image_size
    return ImageSpec(height=height, width=width, channels=shape.channels)


def _open_bundle(path: Path, folder: Path, options: LoadOptions) -> ModelInfo:
    """A model of ours."""
    return replace(
        _make_model_info("bundle" if folder == path else "run", load_checkpoint(folder, options)), bundle=folder
    )


def _open_weights(path: Path, options: LoadOptions) -> ModelInfo:
    """A model that others have written."""
    return _make_model_info("weights folder" if path.is_dir() else "weights file", load_checkpoint(path, options))


def _make_model_info(kind: ModelKind, loaded: LoadedModel) -> ModelInfo:
    return ModelInfo(
        kind=kind,
        config=loaded.config,
        spec=loaded.spec,
        task=loaded.task,
        classes=loaded.classes,
        audit=loaded.audit,
        trained_model=loaded.model,
        licence=loaded.licence,
        repository=loaded.repository,
        notes=loaded.notes,
    )


def _model_from_name(model_name: str, options: LoadOptions) -> ModelInfo:
    """A named size, which has no file to describe."""
    beside = {
        "--layout": options.layout,
        "--heads": options.heads,
        "--pool": options.pool,
        "--match": options.match,
        "--network": options.network,
        "--channels-policy": options.channels_policy,
    }
    if flags := [flag for flag, value in beside.items() if value is not None]:
        raise UsageError(f"{' and '.join(flags)} can only describe a weights file. There is no file {model_name}.")
    shape = resize_config(_config_from_size_name(model_name), options.size, options.channels, options.outputs)
    shape = config.read(ViTConfig, {**config.write(shape), **options.settings}, "settings")
    return ModelInfo(kind="name", config=shape, spec=default_image_spec(shape))


def _config_from_size_name(name: str) -> ViTConfig:
    if name.startswith("vit_") or name in example_names() or difflib.get_close_matches(name, example_names(), n=1):
        return config_from_name(name)
    raise UsageError(
        f"There is no run folder, bundle, weights file or named size {name}. "
        "Check the path; names read as vit_tiny_patch16_224, and names on the Hub as hf:OWNER/NAME."
    )


# `create` and `load`: an untrained model by the name of its size, and a trained one by its files.

ImageSizeArgument = int | tuple[int, int]


@explain_keywords()
def create(
    name: str,
    outputs: int | None = None,
    channels: int | None = None,
    image_size: ImageSizeArgument | None = None,
    seed: int = 0,
) -> ViT:
    """An untrained model by the name of its size: images [B, C, H, W], normalised, to logits [B, outputs].

    Raises:
        UsageError: no such name, or an image size that the patch does not divide.
    """
    size = None if image_size is None else train_arguments.parse_image_size(image_size)
    return create_from_config(resize_config(config_from_name(name), size, channels, outputs), seed)


@explain_keywords(settings=ViTConfig)
def load(
    path: str | Path,
    layout: str | None = None,
    heads: int | None = None,
    image_size: ImageSizeArgument | None = None,
    channels: int | None = None,
    pool: str | None = None,
    match: str | None = None,
    outputs: int | None = None,
    channels_policy: str | Sequence[int] | None = None,
    network: str | None = None,
    settings: Mapping[str, object] | None = None,
    allow_nonfinite: bool = False,
) -> ViT:
    """A trained model, complete or not at all, in evaluation mode on the CPU.

    Args:
        path: a run folder, a bundle, a weights file or folder of any known layout, or "hf:OWNER/NAME".
        layout: name of a layout, such as "timm"; recognised from the tensors if it is not given.
        heads: attention heads, where a file cannot say; a value that contradicts the file is an error.
        image_size: pixels, where a file cannot say; another size than its own stretches its positions once, by the
            rule of its family.
        channels: of the images, where a file cannot say; another count than its own needs `channels_policy`.
        pool: "class", "mean", "attention" or "class+mean", where the file cannot say or another is wanted.
        match: whose numerics, "original", "timm" or "transformers", where libraries run the same file differently.
        outputs: another number than the file's puts a fresh head of zeros on the model; 0 gives pooled features.
        channels_policy: how the patch projection is adapted: "sum", "mean", "tile", or for each new channel the file's.
        network: which of several networks that a training saved, such as "encoder" of I-JEPA.
        settings: fields of the architecture that neither file nor layout says, such as {"activation": "QuickGELU"}.
        allow_nonfinite: load weights that are NaN or infinite, to look at what a diverged training left.

    Raises:
        UsageError: nothing at the path, or an argument is missing or contradicts the file.
        DamagedFileError: the file is damaged, or its tensors are not those of its layout.
        ResourceError: a name on the Hub whose files are neither here nor reachable.
    """
    if not (Path(path).exists() or is_hub_name(str(path))):
        raise UsageError(
            f"There is nothing at {path}. Give a run folder, a bundle, a weights file or folder, or hf:OWNER/NAME."
        )
    words = parse_model_options(
        layout=layout,
        heads=heads,
        image_size=image_size,
        channels=channels,
        pool=pool,
        match=match,
        outputs=outputs,
        channels_policy=channels_policy,
        network=network,
    )
    return find_model(str(path), replace(words, settings=settings or {}, allow_nonfinite=allow_nonfinite)).model


# What a person types beside a MODEL, as `models.Said`: words checked against the fixed lists, text against kinds.

ChoiceT = TypeVar("ChoiceT", bound=str)
MODEL_PREFIX = "model."
"""Stands before the names of architecture fields on the command line, as in a plan."""


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
    """Everything that was typed, checked.

    Args:
        image_size: 64 or "60x100".
        channels_policy: sum, mean, tile, or the file's channel for each new one, such as "0,0,2".
        settings: pairs such as ("model.activation", "QuickGELU").

    Raises:
        UsageError: an unknown word, or a setting that is none of the architecture's fields.
    """
    return LoadOptions(
        layout=layout,
        heads=heads,
        image_size=None if image_size is None else parse_image_size(image_size),
        channels=channels,
        pool=None if pool is None else _parse_choice(pool, "pool", get_args(Pool)),
        match=None if match is None else _parse_choice(match, "match", get_args(Match)),
        outputs=outputs,
        channels_policy=None if channels_policy is None else parse_channels_policy(channels_policy),
        network=network,
        settings=_parse_architecture_fields(dict(settings)),
        allow_nonfinite=allow_nonfinite,
    )


def parse_channels_policy(text: str | Sequence[int]) -> ChannelPolicy:
    """How a patch projection is adapted: one of three words, or the file's channel for each new one.

    Raises:
        UsageError: neither.
    """
    if not isinstance(text, str):
        return tuple(text)
    if all(part.strip().isdecimal() for part in text.split(",")):
        return tuple(int(part) for part in text.split(","))
    return _parse_choice(text, "channels_policy", CHANNEL_POLICIES)


def _parse_choice(word: str, name: str, known: Sequence[ChoiceT]) -> ChoiceT:
    for choice in known:
        if word == choice:
            return choice
    raise UsageError(f"{name} must be {', '.join(known[:-1])} or {known[-1]}. Got {word!r}.")


def _parse_architecture_fields(typed: dict[str, str]) -> dict[str, object]:
    """Fields of the architecture, without the prefix that a plan puts before them."""
    if strange := [name for name in typed if not name.startswith(MODEL_PREFIX)]:
        raise UsageError(
            f"Beside a model only fields of its architecture can be set, such as --model.activation. "
            f"Got --{strange[0]}."
        )
    return config.parse_some(ViTConfig, {name.removeprefix(MODEL_PREFIX): text for name, text in typed.items()})
