"""MODEL by any of its names: a run folder, a bundle, foreign weights, the name of a size, or a name on the Hub."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .. import config
from ..checkpoints import bundle
from ..checkpoints.adapt import ChannelPolicy
from ..checkpoints.bundle import ResolvedModel, find_bundle, find_ensemble
from ..checkpoints.layouts import Match
from ..checkpoints.load import LoadedModel, load_checkpoint
from ..checkpoints.validate import Audit
from ..errors import UsageError
from ..model.config import Pool, ViTConfig
from ..model.registry import config_from_name, example_names
from ..model.vit import ViT, create_model
from ..spec import ImageSpec

Kind = Literal["run", "bundle", "weights file", "weights folder", "name"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a person says beside a MODEL; None and empty leave it to the file or to the name."""

    layout: str | None = None
    """Name of a layout; recognised from the tensors unless given."""
    heads: int | None = None
    """Attention heads, where a weights file cannot say."""
    image_size: tuple[int, int] | None = None
    """Pixels; another size than the file's own stretches its positions."""
    channels: int | None = None
    """Channels of the pictures; another count than the file's own needs `channels_policy`."""
    pool: Pool | None = None
    """class, mean, attention or class+mean, where the file cannot say or another is wanted."""
    match: Match | None = None
    """Whose numerics: the authors' (original), or those that timm or transformers run."""
    outputs: int | None = None
    """Another number than the file's puts a fresh head on the model, 0 none at all."""
    channels_policy: ChannelPolicy | None = None
    """How the patch projection becomes one for another count of channels: sum, mean, tile, or channels of the file."""
    network: str | None = None
    """Which of several networks that a training saved, such as encoder of I-JEPA."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Fields of the architecture that neither the file nor the layout can say, by their names in `ViTConfig`."""
    allow_nonfinite: bool = False
    """Look at weights that are NaN or infinite, which are refused otherwise."""


NOTHING = Said()
NOT_STATED = "not stated"
"""How `files.hub` begins where a page on the Hub states no licence."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a MODEL turned out to be."""

    kind: Kind
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
    trained: ViT | None = None
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
        return create_model(self.config, 0).eval() if self.trained is None else self.trained


def find(given: str, said: Said = NOTHING) -> Found:
    """The model behind a path or a name; a path that exists is taken before a name.

    Raises:
        UsageError: no such path and no such name, or an argument that contradicts the file.
        DamagedFileError: the file or folder cannot be trusted.
        ResourceError: a name on the Hub whose files are neither here nor reachable.
    """
    here = located(given)
    if here is None:
        return _by_name(given, said)
    if (together := find_ensemble(here.path)) is not None:
        raise UsageError(
            f"{given} is an ensemble, whose answers `vitrail predict` and `vitrail evaluate` average. Name one of its "
            f"models for this, such as {together / 'member-0'}."
        )
    folder = find_bundle(here.path)
    found = _in_file(here.path, said) if folder is None else _in_bundle(here.path, folder, said)
    found = replace(found, notes=(*here.notes, *found.notes))
    if not here.licence or (found.licence and here.licence.startswith(NOT_STATED)):
        return found
    return replace(found, licence=here.licence, repository=here.repository)


def located(given: str) -> ResolvedModel | None:
    """As `checkpoints.place.located`; the licence of a name on the Hub is told on standard error.

    Raises:
        UsageError, ResourceError, DamagedFileError: see `files.hub.fetch`.
    """
    found = bundle.resolve_model(given)
    if found is not None and found.repository:
        sys.stderr.write(f"{given}: licence {found.licence}, revision {found.revision}\n")
    return found


def resized(
    shape: ViTConfig, image_size: tuple[int, int] | None, channels: int | None, outputs: int | None
) -> ViTConfig:
    """A shape with another picture size, channel count or number of outputs, each where it is given."""
    return replace(
        shape,
        image_size=shape.image_size if image_size is None else image_size,
        channels=shape.channels if channels is None else channels,
        outputs=shape.outputs if outputs is None else outputs,
    )


def plain_spec(shape: ViTConfig) -> ImageSpec:
    """The pictures that a model reads when nobody has said more: its size, 0..255, mean and deviation one half."""
    height, width = shape.image_size
    return ImageSpec(height=height, width=width, channels=shape.channels)


def _in_bundle(path: Path, folder: Path, said: Said) -> Found:
    """A model of ours."""
    return replace(_found("bundle" if folder == path else "run", _loaded(folder, said)), bundle=folder)


def _in_file(path: Path, said: Said) -> Found:
    """A model that others have written."""
    return _found("weights folder" if path.is_dir() else "weights file", _loaded(path, said))


def _found(kind: Kind, loaded: LoadedModel) -> Found:
    return Found(
        kind=kind,
        config=loaded.config,
        spec=loaded.spec,
        task=loaded.task,
        classes=loaded.classes,
        audit=loaded.audit,
        trained=loaded.model,
        licence=loaded.licence,
        repository=loaded.repository,
        notes=loaded.notes,
    )


def _loaded(path: Path, said: Said) -> LoadedModel:
    return load_checkpoint(
        path,
        layout=said.layout,
        heads=said.heads,
        image_size=said.image_size,
        channels=said.channels,
        pool=said.pool,
        match=said.match,
        outputs=said.outputs,
        network=said.network,
        channels_policy=said.channels_policy,
        settings=said.settings,
        allow_nonfinite=said.allow_nonfinite,
    )


def _by_name(given: str, said: Said) -> Found:
    """A named size, which has no file to describe."""
    beside = {
        "--layout": said.layout,
        "--heads": said.heads,
        "--pool": said.pool,
        "--match": said.match,
        "--network": said.network,
        "--channels-policy": said.channels_policy,
    }
    if flags := [flag for flag, value in beside.items() if value is not None]:
        raise UsageError(f"{' and '.join(flags)} can only describe a weights file. There is no file {given}.")
    shape = resized(_named(given), said.image_size, said.channels, said.outputs)
    shape = config.read(ViTConfig, {**config.write(shape), **said.settings}, "settings")
    return Found(kind="name", config=shape, spec=plain_spec(shape))


def _named(name: str) -> ViTConfig:
    if name.startswith("vit_") or name in example_names() or difflib.get_close_matches(name, example_names(), n=1):
        return config_from_name(name)
    raise UsageError(
        f"There is no run folder, bundle, weights file or named size {name}. "
        "Check the path; names read as vit_tiny_patch16_224, and names on the Hub as hf:OWNER/NAME."
    )
