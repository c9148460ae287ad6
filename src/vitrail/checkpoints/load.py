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
from . import bundle, image_spec, weight_files
from .adapt import (
    ChannelPolicy,
    ModelDraft,
    adapt_channels,
    adapt_image_size,
    adapt_outputs,
    adapt_pool,
    build_model,
    build_on_meta,
    reorder_spec_channels,
)
from .identify import find_layout, identify_layout
from .layouts import PUBLISHED_SIZES, Layout, LayoutHints, Match, map_unprefixed_names
from .numerics import NumericsCard, find_card_for_file, load_card
from .rules import load_with_layout
from .validate import Audit, check_model_size, reconcile
from .weight_files import WeightsContent, open_weights_file

__all__ = ["LoadedModel", "identify_layout", "load_checkpoint", "load_from_tensors"]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that came out of a file."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    config: ViTConfig
    """Its architecture."""
    audit: Audit
    """What became of every tensor of the file."""
    spec: ImageSpec
    """How its authors bring an image to it: from the folder beside the weights, or from the family's card."""
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
class LoadOptions:
    """The arguments of `load`."""

    layout: str | None = None
    heads: int | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None
    outputs: int | None = None
    pool: Pool | None = None
    match: Match | None = None
    network: str | None = None
    policy: ChannelPolicy | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    allow_nonfinite: bool = False


def load_checkpoint(
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
) -> LoadedModel:
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
        channels_policy: "sum", "mean", "tile", or the file's channel for each new one; see checkpoints/adapt.py.
        settings: fields of ViTConfig that the file cannot say, such as activation or norm_eps.
        allow_nonfinite: note weights that are NaN or infinite, to look at what a diverged training left, instead of
            refusing them.

    Raises:
        DamagedFileError: the file is damaged or of no known layout; a tensor is missing, renamed, extra, of another
            shape, not finite, or a fixed table of another convention.
        UsageError: an argument is missing, contradicts the file, or names no layout.
    """
    path = Path(path)
    wanted = LoadOptions(
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
    if path.is_dir() and weight_files.is_foreign_folder(path) and layout != "bundle":
        return _load_content(
            weight_files.open_folder_weights(path, match, network),
            str(path),
            wanted,
            weight_files.read_foreign_folder(path),
        )
    if path.is_dir() or layout == "bundle":
        return _load_bundle(path, wanted)
    return _load_content(
        open_weights_file(path, match, network), str(path), wanted, weight_files.read_folder_of_file(path)
    )


def load_from_tensors(
    tensors: dict[str, Tensor], where: str, layout: str | None = None, hints: LayoutHints | None = None
) -> LoadedModel:
    """A model from tensors in memory, under the rules for a file that holds them; `tensors` is emptied."""
    said = hints or LayoutHints()
    wanted = LoadOptions(
        layout=layout,
        heads=said.heads,
        size=said.image_size,
        channels=said.channels,
        pool=said.pool,
        match=said.match,
        settings=said.settings,
    )
    folder = weight_files.ForeignFolder(path=Path(where), config=dict(said.foreign_config), preprocessor={})
    return _load_content(WeightsContent(tensors=tensors), where, wanted, folder)


def _load_content(
    content: WeightsContent, where: str, options: LoadOptions, folder: weight_files.ForeignFolder
) -> LoadedModel:
    """Recognise, describe, take every tensor, and adapt."""
    try:
        family = find_layout(content.tensors, options.layout, folder.config)
        told = _make_hints(options, family, folder)
        if family.clean is not None:
            content.tensors = family.clean(content.tensors)
        if family.clean_with_hints is not None:
            content.tensors = family.clean_with_hints(content.tensors, told)
        config = _describe_config(content.tensors, family, told)
        known = find_card_for_file(_choose_card(family, config, told), Path(where).name)
        reconcile(options.heads, config.heads, "heads", "its tensors and what stands beside them")
    except (DamagedFileError, UsageError) as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedFileError(
            f"{where}: its tensors and what stands beside them describe no model ({type(error).__name__}: "
            f"{str(error)[:80]}). Use another copy."
        ) from error
    check_model_size(config, where)
    notes = (*folder.notes, *_shape_warnings(config, options), *_guess_warnings(config, family, told), *content.notes)
    state = build_on_meta(config).state_dict()
    values, audit = load_with_layout(content.tensors, state, config, family, where, options.allow_nonfinite)
    notes = (*notes, *audit.warnings)
    if told.match in ("timm", "transformers") and values.pop("rotary.periods", None) is not None:
        notes = (*notes, f"the periods of the rotation were computed in float32, as {told.match} does, not read")
    draft = _adapt_draft(ModelDraft(config=config, values=values, audit=audit, notes=notes), options)
    spec, more = image_spec.make_image_spec(replace(draft.config, channels=config.channels), known, told, folder)
    spec = image_spec.resize_spec(reorder_spec_channels(spec, options.policy), draft.config)
    task, classes = image_spec.read_task_and_classes(draft.config, folder.config)
    return _make_loaded_model(
        draft, spec, task, classes, *_find_origin(known, folder), (*more, *_card_notes(known, folder))
    )


def _make_hints(options: LoadOptions, family: Layout, folder: weight_files.ForeignFolder) -> LayoutHints:
    return LayoutHints(
        heads=options.heads,
        image_size=options.size,
        channels=None if options.policy is not None else options.channels,
        pool=options.pool,
        match=options.match or family.match,
        settings=options.settings,
        foreign_config=folder.config,
    )


def _describe_config(tensors: Mapping[str, Tensor], family: Layout, hints: LayoutHints) -> ViTConfig:
    bare = {name: tensors[full] for name, full in map_unprefixed_names(family, tensors).items()}
    return replace(family.describe(bare, hints), **hints.settings)


def _choose_card(family: Layout, config: ViTConfig, hints: LayoutHints) -> NumericsCard | None:
    name = family.card if isinstance(family.card, str) else family.card(config, hints)
    return load_card(name) if name else None


def _shape_warnings(config: ViTConfig, options: LoadOptions) -> tuple[str, ...]:
    """A table whose rows fill a square as well as the size that was asked for might be either."""
    (rows, columns), side = config.grid, round(config.grid.patches**0.5)
    asked = config.positions in ("learned", "indexed") and options.size == config.image_size
    if not asked or rows == columns or side**2 != rows * columns:
        return ()
    lie = f"the positions were taken to lie in {rows}x{columns}, as image_size says"
    return (f"{lie}; if they lie in {side}x{side}, say the file's own image_size in settings",)


def _guess_warnings(config: ViTConfig, family: Layout, hints: LayoutHints) -> tuple[str, ...]:
    """What neither the file nor anybody said, and was taken to be as in published models."""
    notes = family.warnings(hints) if family.warnings is not None else ()
    # torchvision's files are as silent as those of the original repositories
    known = PUBLISHED_SIZES if family.name == "torchvision" else family.published
    said = hints.foreign_config or hints.heads is not None or "heads" in hints.settings
    if known is None or said or (config.width, config.depth) in known:
        return notes
    theirs = f"heads={config.heads} is that of the published model of this width"
    return (*notes, f"{theirs}; the file does not say it: heads= changes it")


def _find_origin(card: NumericsCard | None, folder: weight_files.ForeignFolder) -> tuple[str, str]:
    """Licence and repository: as Vitrail wrote them down, else those of the family's published weights."""
    if weight_files.is_written_by_vitrail(folder.config):
        return str(folder.config.get("licence", "")), str(folder.config.get("repository", ""))
    return (card.licence, card.repository) if card is not None else ("", "")


def _card_notes(card: NumericsCard | None, folder: weight_files.ForeignFolder) -> tuple[str, ...]:
    """What to know of the family's published weights, unless these are Vitrail's own."""
    ours = weight_files.is_written_by_vitrail(folder.config)
    return () if card is None or ours or not card.about else (card.about,)


def _load_bundle(path: Path, options: LoadOptions) -> LoadedModel:
    if options.layout not in (None, "bundle"):
        raise UsageError(
            f"{path} is a folder, which can only be a bundle: no config.json of another library is in it. "
            f"Got layout={options.layout!r}; leave it out, or give the weights file inside."
        )
    ignored = {"match": options.match, "network": options.network}
    if said := [f"{name}={value!r}" for name, value in ignored.items() if value is not None]:
        raise UsageError(
            f"{path} is a bundle, which holds one model with its own numerics. Leave {' and '.join(said)} out."
        )
    opened = bundle.load_bundle(path, options.allow_nonfinite)
    config, source = opened.model.config, str(path / bundle.CONFIG_FILE)
    reconcile(options.heads, config.heads, "heads", source)
    for name, value in options.settings.items():
        reconcile(value, getattr(config, name), name, source)
    draft = _adapt_draft(ModelDraft(config=config, values=opened.model.state_dict(), audit=opened.audit), options)
    spec = image_spec.resize_spec(reorder_spec_channels(opened.spec, options.policy), draft.config)
    licence, repository = (str(opened.info.get(name, "")) for name in ("licence", "repository"))
    classes = opened.classes if draft.config.outputs == config.outputs else ()
    return _make_loaded_model(draft, spec, opened.task, classes, licence, repository, opened.audit.warnings)


def _adapt_draft(draft: ModelDraft, options: LoadOptions) -> ModelDraft:
    draft = adapt_channels(adapt_image_size(draft, options.size), options.channels, options.policy)
    return adapt_outputs(adapt_pool(draft, options.pool, options.outputs), options.outputs)


def _make_loaded_model(
    draft: ModelDraft,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    licence: str,
    repository: str,
    notes: tuple[str, ...],
) -> LoadedModel:
    return LoadedModel(
        model=build_model(draft.config, draft.values),
        config=draft.config,
        audit=draft.audit,
        spec=spec,
        task=task,
        classes=classes,
        licence=licence,
        repository=repository,
        notes=(*draft.notes, *notes),
    )
