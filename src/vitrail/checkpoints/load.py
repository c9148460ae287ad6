"""Load a model from a bundle, a weights file or a folder of another library, completely or not at all.

The steps: open (`weight_files`), identify the layout (`identify`), describe the architecture (`families`), map every
tensor by the layout's rules (`rules`), adapt to the caller's options (`adapt`), read the image spec (`image_spec`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import read, read_some, write
from ..errors import DamagedFileError, UsageError
from ..model.config import BASED_ROTARY, Pool, ViTConfig
from ..model.registry import config_from_name
from ..model.vit import ViT
from ..spec import ImageSpec
from . import bundle, bundle_weights, foreign_folder, image_spec, weight_files
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
from .families.timm_arguments import refuse_unknown_arguments
from .families.timm_config import NAMED, describe_published_model
from .identify import describe_other_blocks, find_layout, list_candidates
from .layouts import PUBLISHED_SIZES, Layout, LayoutHints, Match, map_unprefixed_names
from .numerics import find_card_for_file, load_card
from .rules import load_with_layout
from .validate import Audit, check_model_size, count_outputs, reconcile
from .weight_files import WeightsContent, open_weights_file
from .wrapped_model import describe_other_design, rename_replaced_head, take_known_network

ORIGIN_KEY = "origin_of"
"""Metadata of a bundle whose licence and repository are those of the family, not known to be those of its weights."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that was read from a file."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    config: ViTConfig
    """Its architecture."""
    audit: Audit
    """What was done with every tensor of the file."""
    spec: ImageSpec
    """Preprocessing of images: from the folder beside the weights, or from the family's numerics card."""
    task: str = "classification"
    """classification, multilabel or regression."""
    classes: tuple[str, ...] = ()
    """Names of its outputs; empty if the file does not give them."""
    licence: str = ""
    """Licence of the weights of `repository`: from the folder, the bundle or the family's card."""
    repository: str = ""
    """Origin of the weights, or of those of the family."""
    origin_is_stated: bool = True
    """Whether the folder or the bundle states licence and repository, or the family's card does."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the training, of a bundle; empty for other files."""
    notes: tuple[str, ...] = ()
    """What was assumed, chosen, resampled, adapted or replaced, in sentences without a full stop."""
    assumed: tuple[str, ...] = ()
    """Those of the notes that name what the file does not say."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a caller gives beside the path of a model. None and empty leave it to the file."""

    layout: str | None = None
    """Name of a layout, or `name:variant`; identified from the tensors unless given. "bundle" for a bundle."""
    heads: int | None = None
    """Attention heads, if the file does not give them; another number than the file's is an error."""
    image_size: int | tuple[int, int] | None = None
    """Pixels, if the file does not give them; for another size than the file's, positions are resampled once."""
    channels: int | None = None
    """Channels of the images, if the file does not give them; another count than the file's needs `channels_policy`."""
    outputs: int | None = None
    """Another number than the file's replaces the head: 0 by none (outputs are pooled features), any other number by
    one of zeros, ready for training."""
    pool: Pool | None = None
    """Another pooling than the file's, if there is no head or `outputs` replaces it."""
    match: Match | None = None
    """Whose numerics, if they differ: the authors' ("original"), "timm"'s or "transformers"'."""
    network: str | None = None
    """Which of several networks in a training file, such as "encoder" of I-JEPA; or, for a bare file of timm, the name
    of its architecture, such as "vit_small_patch16_rope_224", for what no tensor shows."""
    channels_policy: str | Sequence[int] | None = None
    """How the patch projection is adapted to `channels`: see `adapt.ChannelPolicy`."""
    config: ViTConfig | str | None = None
    """The architecture of a `state_dict` under our own names that does not say it: all of it, or the name of a size."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ViTConfig that the file does not give, such as activation or norm_eps."""
    allow_nonfinite: bool = False
    """Note weights that are NaN or infinite, to inspect a diverged training, instead of refusing them."""

    @property
    def size(self) -> tuple[int, int] | None:
        """`image_size` as (height, width)."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def policy(self) -> ChannelPolicy | None:
        """`channels_policy` with a list as a tuple."""
        policy = self.channels_policy
        return policy if isinstance(policy, str | None) else tuple(policy)


def load_checkpoint(path: str | Path, options: LoadOptions | None = None) -> LoadedModel:
    """Load a bundle, a folder of transformers, timm or OpenCLIP, or a weights file, completely or not at all.

    Raises:
        DamagedFileError: the file is damaged or of no known layout; a tensor is missing, renamed, extra, of another
            shape, not finite, or a fixed table of another convention.
        UsageError: an option is missing, contradicts the file, or names no layout.
    """
    path, options = Path(path), options or LoadOptions()
    if options.settings:
        options = replace(options, settings=read_some(ViTConfig, options.settings, "settings"))
    if options.pool is not None:
        read_some(ViTConfig, {"pool": options.pool}, "load")
    if path.is_dir() and foreign_folder.is_foreign_folder(path) and options.layout != "bundle":
        content = weight_files.open_folder_weights(path, options.match, options.network)
        return _load_content(content, str(path), options, foreign_folder.read_foreign_folder(path))
    if path.is_dir():
        return _load_bundle(path, options)
    folder = weight_files.read_folder_of_file(path)
    named = {} if folder.config else describe_published_model(options.network)
    if named:
        note = f"read as timm's {options.network}, as network= says; pictures are prepared as for most of its weights"
        folder = replace(folder, config=named, notes=(*folder.notes, note))
    content = open_weights_file(path, options.match, None if named else options.network)
    return _load_content(content, str(path), options, folder)


def _load_content(
    content: WeightsContent, where: str, options: LoadOptions, folder: foreign_folder.ForeignFolder
) -> LoadedModel:
    """Load a file, or say what it is instead if it is none of a plain ViT."""
    names = tuple(content.tensors)
    if isinstance(own := folder.config.get("settings"), Mapping) and foreign_folder.is_written_by_vitrail(
        folder.config
    ):
        options = replace(options, settings={**read_some(ViTConfig, own, f"{where}: settings"), **options.settings})
    try:
        return _load_plain(content, where, options, folder)
    except (DamagedFileError, UsageError) as error:
        if other := describe_other_design(names, folder.config):
            raise UsageError(f"{where}: {other}") from error
        raise


def _load_plain(
    content: WeightsContent, where: str, options: LoadOptions, folder: foreign_folder.ForeignFolder
) -> LoadedModel:
    """Identify the layout, describe the architecture, load every tensor, and adapt."""
    with _naming_file(where):
        if folder.fault:
            list_candidates(options.layout, folder.config)  # another kind of model is named first
            raise DamagedFileError(folder.fault)
        content.tensors = take_known_network(content.tensors, options.layout, folder.config, content.notes)
        family = find_layout(content.tensors, options.layout, folder.config)
    if bundle_weights.is_own_layout(family):
        return _load_own_weights(content, where, options)
    with _naming_file(where):
        refuse_unknown_arguments(folder.config)
        if options.config is not None:
            raise UsageError(
                f"config= describes a state_dict of a Vitrail model. This file is of the layout {family.key}, which "
                "says its architecture; leave config= out, or give single fields in settings=."
            )
        content.tensors = rename_replaced_head(content.tensors, family, options.outputs, content.notes)
        hints = LayoutHints(
            layout=options.layout,
            heads=options.heads,
            image_size=options.size,
            channels=None if options.policy is not None else options.channels,
            pool=options.pool,
            match=options.match or family.match,
            settings=options.settings,
            foreign_config=folder.config,
        )
        if family.clean is not None:
            content.tensors = family.clean(content.tensors)
        if family.clean_with_hints is not None:
            content.tensors = family.clean_with_hints(content.tensors, hints)
        config = _take_pool(replace(_describe(content.tensors, family, hints), **hints.settings), options, hints)
        card_name = family.card if isinstance(family.card, str) else family.card(config, hints)
        card = find_card_for_file(load_card(card_name), Path(where).name) if card_name else None
        reconcile(options.heads, config.heads, "heads", "its tensors and what stands beside them")
    check_model_size(config, where)
    assumed = _note_assumptions(content.tensors, config, family, hints)
    notes = (
        *folder.notes,
        *_shape_warnings(config, options),
        *_guess_warnings(config, family, hints),
        *content.notes,
        *assumed,
    )
    state = build_on_meta(config).state_dict()
    values, audit = load_with_layout(content.tensors, state, config, family, where, options.allow_nonfinite)
    notes = (*notes, *audit.warnings)
    if hints.match in ("timm", "transformers") and values.pop("rotary.periods", None) is not None:
        notes = (*notes, f"the periods of the rotation were computed in float32, as {hints.match} does, not read")
    draft = _adapt_draft(ModelDraft(config=config, values=values, audit=audit, notes=notes), options)
    spec, spec_notes = image_spec.make_image_spec(replace(draft.config, channels=config.channels), card, hints, folder)
    spec = image_spec.resize_spec(reorder_spec_channels(spec, options.policy), draft.config)
    task, classes = image_spec.read_task_and_classes(draft.config, folder.config)
    licence, repository, about = "", "", ""  # as written by Vitrail, else those of the family's published weights
    if own := foreign_folder.is_written_by_vitrail(folder.config):
        licence, repository = (str(folder.config.get(name, "")) for name in ("licence", "repository"))
    elif card is not None:
        licence, repository, about = card.licence, card.repository, card.about
    return LoadedModel(
        model=build_model(draft.config, draft.values),
        config=draft.config,
        audit=draft.audit,
        spec=spec,
        task=task,
        classes=classes,
        licence=licence,
        repository=repository,
        origin_is_stated=own,
        notes=(*draft.notes, *spec_notes, *filter(None, [about])),
        assumed=(*assumed, *spec_notes),
    )


def _take_pool(config: ViTConfig, options: LoadOptions, hints: LayoutHints) -> ViTConfig:
    """The architecture with the pooling that the caller says the head of a file without a config.json was trained on.

    A probe is in the tensors, and pooling of another width does not fit the head: `adapt_pool` refuses such answers.
    """
    if options.pool is None or hints.foreign_config or "attention" in (options.pool, config.pool):
        return config
    if not config.outputs or options.outputs not in (None, config.outputs):
        return config  # there is no head, or it is replaced
    named = replace(config, pool=options.pool)
    return named if named.pooled_width == config.pooled_width else config


def _describe(tensors: Mapping[str, Tensor], family: Layout, hints: LayoutHints) -> ViTConfig:
    """The architecture of tensors of a layout; blocks that all differ from it in the same way are another design."""
    names = map_unprefixed_names(family, tensors)
    try:
        return family.describe({name: tensors[full] for name, full in names.items()}, hints)
    except DamagedFileError as error:
        if other := describe_other_blocks(family, names):
            raise UsageError(other) from error
        raise


@contextmanager
def _naming_file(where: str) -> Iterator[None]:
    """Errors of this block begin with the file; what nothing foresees in a hostile file is a damage of it."""
    try:
        yield
    except (DamagedFileError, UsageError) as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DamagedFileError(
            f"{where}: its tensors and what stands beside them describe no model ({type(error).__name__}: "
            f"{str(error)[:80]}). Use another copy."
        ) from error


def _shape_warnings(config: ViTConfig, options: LoadOptions) -> tuple[str, ...]:
    """Note that a position table fits the requested size and a square equally well."""
    (rows, columns), side = config.grid, round(config.grid.patches**0.5)
    requested = config.positions in ("learned", "indexed") and options.size == config.image_size
    if not requested or rows == columns or side**2 != rows * columns:
        return ()
    chosen = f"the positions were taken to lie in {rows}x{columns}, as image_size says"
    return (f"{chosen}; if they lie in {side}x{side}, say the file's own image_size in settings",)


def _guess_warnings(config: ViTConfig, family: Layout, hints: LayoutHints) -> tuple[str, ...]:
    """Notes on settings that neither the file nor the caller gives, taken from published models."""
    notes = family.warnings(hints) if family.warnings is not None else ()
    # torchvision's files give as little as those of the original repositories
    if family.name == "transformers" and config.outputs and not hints.foreign_config:
        notes = (*notes, f"the classifier was taken for that of transformers' own class: it reads pool={config.pool}")
    known = PUBLISHED_SIZES if family.name == "torchvision" else family.published
    heads_given = hints.foreign_config or hints.heads is not None or "heads" in hints.settings
    if known is None or heads_given or (config.width, config.depth) in known:
        return notes
    guess = f"heads={config.heads} is that of the published model of this width"
    return (*notes, f"{guess}; the file does not say it: heads= changes it")


def _note_assumptions(
    tensors: Mapping[str, Tensor], config: ViTConfig, family: Layout, hints: LayoutHints
) -> tuple[str, ...]:
    """A note on what a file without a config.json does not say, with the values that were taken."""
    if NAMED in hints.foreign_config and _leaves_heads_open(tensors, config, family, hints):
        return (f"the file does not say heads={config.heads}: those of its name are taken, and others can be given",)
    if hints.foreign_config:
        return ()
    fields: dict[str, object] = {"norm_eps": f"{config.norm_eps:g}", "activation": config.activation}
    if _leaves_heads_open(tensors, config, family, hints):
        fields = {"heads": config.heads, **fields}
    if hints.pool is None and config.pool != "attention":
        fields["pool"] = config.pool
    fields |= _list_open_parts(tensors, config, family)
    if config.positions in ("learned", "indexed"):
        fields["resample"] = config.resample
    if hints.image_size is None:
        fields["image_size"] = "x".join(map(str, config.image_size))
    whose = f"{hints.match}'s" if hints.match in ("timm", "transformers") else "its authors'"
    taken = [f"{name}={value}" for name, value in fields.items() if name not in hints.settings]
    return (f"the file does not say {', '.join(taken)}: {whose} are taken, and others can be given",) if taken else ()


def _list_open_parts(tensors: Mapping[str, Tensor], config: ViTConfig, family: Layout) -> dict[str, object]:
    """Parts without tensors of their own, which other models of the same tensors have otherwise."""
    fields: dict[str, object] = {}
    from_timm = family.name in ("timm", "timm-naflex") and not config.relative_bias
    says_angles = any("rope" in name and not name.endswith("rope.freqs") for name in tensors)
    if (config.rotary != "none" or from_timm) and not says_angles:
        fields["rotary"] = config.rotary
    if config.rotary in BASED_ROTARY:
        grid = config.rotary_grid
        fields["rotary_base"] = f"{config.rotary_base or BASED_ROTARY[config.rotary]:g}"
        fields["rotary_grid"] = "none" if grid is None else f"{grid[0]}x{grid[1]}"
    if from_timm and family.name == "timm" and config.layer_scale is None and not config.parallel:
        fields["post_norm"] = str(config.post_norm).lower()
    if from_timm and config.pool == "attention":
        fields["pool_heads"] = config.probe_heads
    return fields


def _leaves_heads_open(tensors: Mapping[str, Tensor], config: ViTConfig, family: Layout, hints: LayoutHints) -> bool:
    """Whether a file would be read with another number of heads as well."""
    if hints.heads is not None or "heads" in hints.settings:
        return False
    names = map_unprefixed_names(family, tensors)
    other = replace(hints, heads=2 if config.heads == 1 else 1)
    try:
        described = family.describe({name: tensors[full] for name, full in names.items()}, other)
    except (DamagedFileError, UsageError, ValueError, ArithmeticError):
        return False
    return described.heads == other.heads


def _load_bundle(path: Path, options: LoadOptions) -> LoadedModel:
    if options.layout not in (None, "bundle"):
        raise UsageError(
            f"{path} is a folder, which can only be a bundle: no config.json of another library is in it. "
            f"Got layout={options.layout!r}; leave it out, or give the weights file inside."
        )
    given = {"match": options.match, "network": options.network, "config": options.config}
    if unused := [f"{name}={value!r}" for name, value in given.items() if value is not None]:
        raise UsageError(
            f"{path} is a bundle, which holds one model with its own numerics. Leave {' and '.join(unused)} out."
        )
    return _adapt_bundle(
        bundle_weights.load_bundle(path, options.allow_nonfinite), str(path / bundle.CONFIG_FILE), options
    )


def _load_own_weights(content: WeightsContent, where: str, options: LoadOptions) -> LoadedModel:
    """A weights file of a bundle without the bundle, or a `state_dict` that a program has saved."""
    path, notes = Path(where), ("read without the calibration, thresholds and units that its bundle may hold",)
    stored = bundle_weights.read_description(path) if path.is_file() else None
    with _naming_file(where):
        if options.match is not None:
            raise UsageError(f"It holds a model of Vitrail's own numerics. Leave match={options.match!r} out.")
        if stored is not None and options.config is not None:
            raise UsageError("The file says its own architecture. Leave config= out.")
        if stored is None:
            config, notes = describe_own_weights(content.tensors, options), (image_spec.UNKNOWN_PREPARATION,)
            spec = ImageSpec(height=config.image_size[0], width=config.image_size[1], channels=config.channels)
            stored = bundle.BundleInfo(architecture=config, spec=spec, task="classification", classes=(), info={})
    check_model_size(stored.architecture, where)
    opened = bundle_weights.build_bundle(stored, content.tensors, where, options.allow_nonfinite)
    loaded = _adapt_bundle(opened, where, options)
    return replace(loaded, notes=(*content.notes, *notes, *loaded.notes))


def describe_own_weights(tensors: Mapping[str, Tensor], options: LoadOptions) -> ViTConfig:
    """The architecture of a `state_dict` under our own names, from `options.config`.

    A name leaves the number of outputs to the tensors, and image size, channels and further fields to the options.

    Raises:
        UsageError: there is no `options.config`.
    """
    if isinstance(options.config, ViTConfig):
        return options.config
    if options.config is None:
        raise UsageError(
            "It holds a state_dict of a Vitrail model, which does not say its architecture. In Python pass config=, "
            "the ViTConfig of the model or the name that vitrail.create was given; files of vitrail.save need none."
        )
    named = {**write(config_from_name(options.config)), "outputs": count_outputs(tensors, "head.linear.weight")}
    asked = {"image_size": options.size, "channels": options.channels if options.policy is None else None}
    given = {name: value for name, value in asked.items() if value is not None}
    return read(ViTConfig, {**named, **given, **options.settings}, "config")


def _adapt_bundle(opened: bundle_weights.Bundle, source: str, options: LoadOptions) -> LoadedModel:
    """The model of a bundle with the caller's options.

    Args:
        source: the file that says its architecture, for messages.
    """
    config = opened.model.config
    reconcile(options.heads, config.heads, "heads", source)
    for name, value in options.settings.items():
        reconcile(value, getattr(config, name), name, source)
    draft = _adapt_draft(ModelDraft(config=config, values=opened.model.state_dict(), audit=opened.audit), options)
    spec = image_spec.resize_spec(reorder_spec_channels(opened.spec, options.policy), draft.config)
    return LoadedModel(
        model=build_model(draft.config, draft.values),
        config=draft.config,
        audit=draft.audit,
        spec=spec,
        task=opened.task,
        classes=opened.classes if draft.config.outputs == config.outputs else (),
        licence=str(opened.info.get("licence", "")),
        repository=str(opened.info.get("repository", "")),
        origin_is_stated=ORIGIN_KEY not in opened.info,
        info=opened.info,
        notes=(*draft.notes, *opened.audit.warnings),
    )


def _adapt_draft(draft: ModelDraft, options: LoadOptions) -> ModelDraft:
    draft = adapt_channels(adapt_image_size(draft, options.size), options.channels, options.policy)
    return adapt_outputs(adapt_pool(draft, options.pool, options.outputs), options.outputs)
