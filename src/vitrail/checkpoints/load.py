"""From a weights file, a foreign folder or a bundle to a model: recognised, complete, reported tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import read_some
from ..errors import DamagedFileError, UsageError
from ..model.config import Pool, ViTConfig
from ..model.vit import ViT
from ..spec import ImageSpec
from . import bundle, folders, pictures
from .adapt import Draft, to_channels, to_outputs, to_pool, to_size
from .audit import Audit
from .budget import check_budget
from .build import build, on_meta
from .cards import Card, card, of_file
from .channels import Policy, recoloured
from .containers import Content, open_file
from .expand import without_prefix
from .identify import identify, recognise
from .layouts import PUBLISHED_SIZES, Layout
from .rules import take
from .shapes import agree
from .told import Match, Told

__all__ = ["Loaded", "identify", "load", "read_content"]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that came out of a file."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    config: ViTConfig
    """Its architecture."""
    audit: Audit
    """What became of every tensor of the file."""
    spec: ImageSpec
    """How its authors bring a picture to it: from the folder beside the weights, or from the family's card."""
    task: str = "classes"
    """classes, labels or number."""
    classes: tuple[str, ...] = ()
    """Names of its outputs, where somebody named them."""
    licence: str = ""
    """Of the weights that `repository` published: the folder or the bundle says it, or the card of the family."""
    repository: str = ""
    """Where they, or those of the family, come from."""
    notes: tuple[str, ...] = ()
    """What was chosen, resampled, adapted or replaced, in sentences without a full stop."""


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The arguments of `load`."""

    layout: str | None = None
    heads: int | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None
    outputs: int | None = None
    pool: Pool | None = None
    match: Match | None = None
    network: str | None = None
    policy: Policy | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    allow_nonfinite: bool = False


def load(
    path: str | Path,
    layout: str | None = None,
    heads: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    outputs: int | None = None,
    pool: Pool | None = None,
    match: Match | None = None,
    network: str | None = None,
    channels_policy: str | Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    allow_nonfinite: bool = False,
) -> Loaded:
    """Read a bundle, a folder of transformers, timm or OpenCLIP, or a weights file, completely or not at all.

    Args:
        layout: its name; recognised from the tensors unless given. `name:variant` means one of several of a name.
        heads: attention heads, where the file cannot say.
        image_size: what the file cannot say; where it can and says another size, positions are resampled once.
        channels: what the file cannot say; another count than the file's needs `channels_policy`.
        outputs: unless it is the file's own count the head is replaced: 0 for none (pooled features come out), any
            other number for a new one whose weights are zero, ready for training.
        pool: another pooling than the file's, where there is no head or `outputs` asks for another.
        match: whose numerics where they differ: the authors' ("original"), "timm"'s or "transformers"'.
        network: which of several networks that a training saved, such as "encoder" of I-JEPA.
        channels_policy: "sum", "mean", "tile", or the file's channel for each new one; see checkpoints/channels.py.
        settings: fields of ViTConfig that the file cannot say, such as activation or norm_eps.
        allow_nonfinite: note weights that are NaN or infinite, to look at what a diverged training left, instead of
            refusing them.

    Raises:
        DamagedFileError: the file is damaged or of no known layout; a tensor is missing, renamed, extra, of another
            shape, not finite, or a fixed table of another convention.
        UsageError: an argument is missing, contradicts the file, or names no layout.
    """
    path = Path(path)
    wanted = _Wanted(
        layout=layout,
        heads=heads,
        size=(image_size, image_size) if isinstance(image_size, int) else image_size,
        channels=channels,
        outputs=outputs,
        pool=pool,
        match=match,
        network=network,
        policy=channels_policy if isinstance(channels_policy, str | None) else tuple(channels_policy),
        settings=read_some(ViTConfig, settings, "settings") if settings else {},
        allow_nonfinite=allow_nonfinite,
    )
    if pool is not None:
        read_some(ViTConfig, {"pool": pool}, "load")
    if path.is_dir() and folders.is_foreign(path) and layout != "bundle":
        return _read(folders.open_weights(path, match, network), str(path), wanted, folders.describe(path))
    if path.is_dir() or layout == "bundle":
        return _load_bundle(path, wanted)
    return _read(open_file(path, match, network), str(path), wanted, folders.beside(path))


def read_content(tensors: dict[str, Tensor], where: str, layout: str | None = None, told: Told | None = None) -> Loaded:
    """A model from tensors in memory, under the rules for a file that holds them; `tensors` is emptied."""
    said = told or Told()
    wanted = _Wanted(
        layout=layout,
        heads=said.heads,
        size=said.image_size,
        channels=said.channels,
        pool=said.pool,
        match=said.match,
        settings=said.settings,
    )
    folder = folders.Folder(path=Path(where), config=dict(said.foreign), preprocessor={})
    return _read(Content(tensors=tensors), where, wanted, folder)


def _read(content: Content, where: str, wanted: _Wanted, folder: folders.Folder) -> Loaded:
    """Recognise, describe, take every tensor, and adapt."""
    try:
        family = recognise(content.tensors, wanted.layout, folder.config)
        told = _told(wanted, family, folder)
        if family.clean is not None:
            content.tensors = family.clean(content.tensors)
        if family.settle is not None:
            content.tensors = family.settle(content.tensors, told)
        config = _described(content.tensors, family, told)
        known = of_file(_card(family, config, told), Path(where).name)
        agree(wanted.heads, config.heads, "heads", "its tensors and what stands beside them")
    except (DamagedFileError, UsageError) as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedFileError(
            f"{where}: its tensors and what stands beside them describe no model ({type(error).__name__}: "
            f"{str(error)[:80]}). Use another copy."
        ) from error
    check_budget(config, where)
    notes = (*folder.notes, *_doubts(config, wanted), *_guesses(config, family, told), *content.notes)
    state = on_meta(config).state_dict()
    values, audit = take(content.tensors, state, config, family, where, wanted.allow_nonfinite)
    notes = (*notes, *audit.doubts)
    if told.match in ("timm", "transformers") and values.pop("rotary.periods", None) is not None:
        notes = (*notes, f"the periods of the rotation were computed in float32, as {told.match} does, not read")
    draft = _adapted(Draft(config=config, values=values, audit=audit, notes=notes), wanted)
    spec, more = pictures.spec(replace(draft.config, channels=config.channels), known, told, folder)
    spec = pictures.resized(recoloured(spec, wanted.policy), draft.config)
    task, classes = pictures.answers(draft.config, folder.config)
    return _built(draft, spec, task, classes, *_origin(known, folder), (*more, *_about(known, folder)))


def _told(wanted: _Wanted, family: Layout, folder: folders.Folder) -> Told:
    return Told(
        heads=wanted.heads,
        image_size=wanted.size,
        channels=None if wanted.policy is not None else wanted.channels,
        pool=wanted.pool,
        match=wanted.match or family.match,
        settings=wanted.settings,
        foreign=folder.config,
    )


def _described(tensors: Mapping[str, Tensor], family: Layout, told: Told) -> ViTConfig:
    bare = {name: tensors[full] for name, full in without_prefix(family, tensors).items()}
    return replace(family.describe(bare, told), **told.settings)


def _card(family: Layout, config: ViTConfig, told: Told) -> Card | None:
    name = family.card if isinstance(family.card, str) else family.card(config, told)
    return card(name) if name else None


def _doubts(config: ViTConfig, wanted: _Wanted) -> tuple[str, ...]:
    """A table whose rows fill a square as well as the size that was asked for might be either."""
    (rows, columns), side = config.grid, round(config.grid.patches**0.5)
    asked = config.positions in ("learned", "indexed") and wanted.size == config.image_size
    if not asked or rows == columns or side**2 != rows * columns:
        return ()
    lie = f"the positions were taken to lie in {rows}x{columns}, as image_size says"
    return (f"{lie}; if they lie in {side}x{side}, say the file's own image_size in settings",)


def _guesses(config: ViTConfig, family: Layout, told: Told) -> tuple[str, ...]:
    """What neither the file nor anybody said, and was taken to be as in published models."""
    notes = family.doubts(told) if family.doubts is not None else ()
    # torchvision's files are as silent as those of the original repositories
    known = PUBLISHED_SIZES if family.name == "torchvision" else family.published
    said = told.foreign or told.heads is not None or "heads" in told.settings
    if known is None or said or (config.width, config.depth) in known:
        return notes
    theirs = f"heads={config.heads} is that of the published model of this width"
    return (*notes, f"{theirs}; the file does not say it: heads= changes it")


def _origin(known: Card | None, folder: folders.Folder) -> tuple[str, str]:
    """Licence and repository: as Vitrail wrote them down, else those of the family's published weights."""
    if folders.is_ours(folder.config):
        return str(folder.config.get("licence", "")), str(folder.config.get("repository", ""))
    return (known.licence, known.repository) if known is not None else ("", "")


def _about(known: Card | None, folder: folders.Folder) -> tuple[str, ...]:
    """What to know of the family's published weights, unless these are Vitrail's own."""
    ours = folders.is_ours(folder.config)
    return () if known is None or ours or not known.about else (known.about,)


def _load_bundle(path: Path, wanted: _Wanted) -> Loaded:
    if wanted.layout not in (None, "bundle"):
        raise UsageError(
            f"{path} is a folder, which can only be a bundle: no config.json of another library is in it. "
            f"Got layout={wanted.layout!r}; leave it out, or give the weights file inside."
        )
    ignored = {"match": wanted.match, "network": wanted.network}
    if said := [f"{name}={value!r}" for name, value in ignored.items() if value is not None]:
        raise UsageError(
            f"{path} is a bundle, which holds one model with its own numerics. Leave {' and '.join(said)} out."
        )
    opened = bundle.load(path, wanted.allow_nonfinite)
    config, source = opened.model.config, str(path / bundle.CONFIG)
    agree(wanted.heads, config.heads, "heads", source)
    for name, value in wanted.settings.items():
        agree(value, getattr(config, name), name, source)
    draft = _adapted(Draft(config=config, values=opened.model.state_dict(), audit=opened.audit), wanted)
    spec = pictures.resized(recoloured(opened.spec, wanted.policy), draft.config)
    licence, repository = (str(opened.info.get(name, "")) for name in ("licence", "repository"))
    classes = opened.classes if draft.config.outputs == config.outputs else ()
    return _built(draft, spec, opened.task, classes, licence, repository, opened.audit.doubts)


def _adapted(draft: Draft, wanted: _Wanted) -> Draft:
    draft = to_channels(to_size(draft, wanted.size), wanted.channels, wanted.policy)
    return to_outputs(to_pool(draft, wanted.pool, wanted.outputs), wanted.outputs)


def _built(
    draft: Draft,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    licence: str,
    repository: str,
    notes: tuple[str, ...],
) -> Loaded:
    return Loaded(
        model=build(draft.config, draft.values),
        config=draft.config,
        audit=draft.audit,
        spec=spec,
        task=task,
        classes=classes,
        licence=licence,
        repository=repository,
        notes=(*draft.notes, *notes),
    )
