"""Models in Python: `vitrail.create`, `load` and `save`, and the class `Model` that the first two return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..argument_types import check_calls, convert_argument
from ..caller_state import isolate
from ..checkpoints import bundle, bundle_weights
from ..checkpoints.identify import find_layout
from ..checkpoints.load import LoadOptions, describe_own_weights
from ..checkpoints.validate import Audit, count_outputs
from ..checkpoints.weight_files import PICKLE_SUFFIXES, unwrap_state_dict
from ..checkpoints.wrapped_model import take_known_network
from ..config import write
from ..config.keywords import explain_keywords
from ..data.parallel import prepare_batches
from ..data.preprocess import normalize, preprocess_image
from ..data.source import Task, parse_task
from ..errors import DamagedFileError, UsageError
from ..evaluate.calibration import SCALING_KEY, TargetScaling, read_scaling
from ..evaluate.decisions import DECISIONS_KEY, Decisions
from ..evaluate.thresholds import DEFAULT_THRESHOLD
from ..files.hub import is_hub_name
from ..model.config import ViTConfig
from ..model.config_keywords import ViTKeywords
from ..model.registry import config_from_name
from ..model.vit import Head, ViT
from ..spec import ImageSpec
from .model_summary import format_model_summary, summarize_model
from .open_model import ModelInfo, change_config, default_image_spec, find_model, parse_model_options
from .prediction import parse_one_or_more
from .train_arguments import parse_image_size

ImageSizeArgument = int | tuple[int, int]
LOAD_HINT = 'Trained weights are loaded by vitrail.load, from a path or "hf:OWNER/NAME".'
PREPROCESS_BATCH = 32
"""Images that are decoded ahead of each other."""


class Model(ViT):
    """A `ViT` that knows how its images are prepared and what its outputs mean; `create` and `load` return one.

    It computes, trains, compiles and is saved as the `ViT` that it is: its `state_dict` has the same names. All values
    below can be set.

    Args:
        config: the architecture.
        seed: of the initial values.
        spec: how images are prepared; by default the size of the config, mean and deviation 0.5.
        classes: names of the outputs; empty if unknown.
        task: "classification", "multilabel" or "regression".
        audit: what became of every tensor of the file that the weights are from; None for a new model.
        scaling: of regression, what turns outputs into numbers in their units; None if outputs have them.
        licence, repository: of the published weights, if known.
        notes: what was chosen, adapted or assumed while the file was read.
    """

    @check_calls
    def __init__(
        self,
        config: ViTConfig,
        seed: int = 0,
        spec: ImageSpec | None = None,
        classes: tuple[str, ...] = (),
        task: Task = "classification",
        audit: Audit | None = None,
        scaling: TargetScaling | None = None,
        licence: str = "",
        repository: str = "",
        notes: tuple[str, ...] = (),
    ):
        super().__init__(config, seed)
        self.spec = default_image_spec(config) if spec is None else spec
        self.classes = classes
        self.task = task
        self.audit = audit
        self.scaling = scaling
        self.licence = licence
        self.repository = repository
        self.notes = notes

    @isolate
    def preprocess(self, images: object) -> Float[Tensor, "B C H W"]:
        """Images as the model reads them, by `spec`: float32, normalised, on the device of the model.

        Args:
            images: one or a list of paths, encoded bytes, arrays [H, W] or [H, W, C], tensors [C, H, W] or Pillow
                images; or an array [n, H, W, C].

        Raises:
            DataError: an image that cannot be read, by name.
        """
        prepare = partial(preprocess_image, spec=self.spec)
        batches = prepare_batches(parse_one_or_more(images, "preprocess"), PREPROCESS_BATCH, prepare, skip_bad=False)
        levels = torch.stack([image for _, batch, _ in batches for image in batch])
        return normalize(levels.to(next(self.parameters()).device), self.spec)

    def summary(self) -> str:
        """Sizes, tokens, preprocessing and outputs, then the shape and the parameters of each part, as a table."""
        info = ModelInfo(kind="name", config=self.config, spec=self.spec, task=self.task, classes=self.classes)
        return format_model_summary(info, summarize_model(info), type(self).__name__)


@explain_keywords(fields=ViTConfig, hints=dict.fromkeys(("pretrained", "checkpoint_path"), LOAD_HINT))
@isolate
def create(name: str, seed: int = 0, **fields: Unpack[ViTKeywords]) -> Model:
    """Create an untrained model by the name of its size: normalised images [B, C, H, W] to logits [B, outputs].

    Args:
        name: such as "vit_small_patch16_224"; `vitrail.load` reads trained weights.
        seed: of the initial values; the same for the same seed.
        fields: any field of `ViTConfig` that is to differ from the named size, such as outputs=14, channels=1,
            image_size=(224, 320), depth=6, registers=4, drop_path=0.1. With another width, mlp_width keeps its ratio
            to it unless it is given.

    Raises:
        UsageError: no such name, an image size that the patch does not divide, or a number that is too large.
    """
    changes: dict[str, object] = {**fields}
    if "image_size" in fields:
        changes["image_size"] = parse_image_size(
            convert_argument("image_size", ImageSizeArgument, fields["image_size"])
        )
    if isinstance(side := fields.get("patch"), int):
        changes["patch"] = (side, side)
    named = config_from_name(name)
    if isinstance(width := fields.get("width"), int):
        changes.setdefault("mlp_width", round(named.mlp_width * width / named.width))
    return Model(change_config(named, changes, "vitrail.create"), seed)


@explain_keywords(settings=ViTConfig)
@isolate
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
    config: ViTConfig | str | None = None,
    settings: Mapping[str, object] | None = None,
    allow_nonfinite: bool = False,
) -> Model:
    """Load a trained model in evaluation mode on the CPU; every tensor must match.

    Args:
        path: a run folder, a bundle, a weights file or folder of any known layout, or "hf:OWNER/NAME".
        layout: name of a layout, such as "timm"; recognised from the tensors if it is not given.
        heads: attention heads, where a file cannot say; a value that contradicts the file is an error.
        image_size: pixels, where a file cannot say; another size than its own stretches its positions once, by the
            rule of its family.
        channels: of the images, where a file cannot say; another count than its own needs `channels_policy`.
        pool: "class", "mean", "attention", "class+mean" or "mean-all", where the file cannot say or another is wanted.
        match: whose numerics, "original", "timm" or "transformers", where libraries run the same file differently.
        outputs: another number than the file's puts a fresh head of zeros on the model; 0 gives pooled features.
        channels_policy: how the patch projection is adapted: "sum", "mean", "tile", or for each new channel the file's.
        network: which of several networks that a training saved, such as "encoder" of I-JEPA; or the published name of
            a bare file of timm, such as "vit_small_patch16_rope_224".
        config: of a `state_dict` that a program has saved of a Vitrail model: its `ViTConfig`, or the name that
            `create` was given; the number of outputs is then that of the file, other changes go into `settings`.
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
    options = parse_model_options(
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
    options = replace(options, config=config, settings=settings or {}, allow_nonfinite=allow_nonfinite)
    info = find_model(str(path), options)
    task = parse_task(info.task)
    with torch.device("meta"):
        model = Model(
            info.config,
            spec=info.spec,
            classes=info.classes,
            task=task,
            audit=info.audit,
            scaling=read_scaling(info.info, info.config.outputs, str(path)) if info.classes else None,
            licence=info.licence,
            repository=info.repository,
            notes=info.notes,
        )
    model.load_state_dict(info.model.state_dict(), assign=True)
    return model.eval()


# -- `vitrail.save`


@explain_keywords()
@isolate
def save(
    model: nn.Module | Mapping[str, object],
    path: str | Path,
    classes: Sequence[str] | None = None,
    spec: ImageSpec | None = None,
    task: str | None = None,
    thresholds: Mapping[str, float] | None = None,
    scaling: tuple[Sequence[float], Sequence[float]] | None = None,
    config: ViTConfig | str | None = None,
) -> Path:
    """Write a model as a bundle, the folder that `load` and every command take: predict, evaluate, serve, export.

    What is not given is that of a `Model`. Calibration, thresholds and views of a run belong to its weights and are not
    taken along; `vitrail convert RUN --to bundle` copies them.

    Args:
        model: a ViT, also inside DistributedDataParallel, torch.compile or a training module that has no other weights;
            or its `state_dict` with `config`.
        path: the folder, which must not exist.
        classes: names of the outputs; if neither is given, they are called "0", "1", ...
        spec: how images are prepared; must be given unless the model is a `Model`, because weights do not tell it.
        task: "classification" (the default), "multilabel" or "regression".
        thresholds: the probability from which a label is answered, by its name, 0.5 for others; of two classes, that
            from which the named one is.
        scaling: of regression, means and deviations by which the targets of each output were standardised; without it
            outputs are numbers in their units.
        config: of a `state_dict`: as in `load`.

    Returns:
        The folder.

    Raises:
        UsageError: the path exists, an argument is missing or does not fit the model, or a weight is not finite.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    folder = Path(path)
    if folder.suffix in (".safetensors", *PICKLE_SUFFIXES):
        raise UsageError(f"save writes a folder with weights and all that predictions need. Leave {folder.suffix} out.")
    if folder.exists():
        raise UsageError(f"{folder} exists already and is not overwritten. Choose another name or move it away.")
    known, shape, weights = _take_weights(model, config)
    spec = spec if spec is not None or known is None else known.spec
    if spec is None:
        raise UsageError(
            "save needs spec=, how images were prepared for the model: vitrail.ImageSpec(height=..., width=..., "
            "mean=(...), std=(...)). Models of vitrail.create and load have one."
        )
    chosen_task = parse_task(task or (known.task if known is not None else "classification"))
    content = bundle.BundleInfo(architecture=shape, spec=spec, task=chosen_task, classes=(), info={})
    try:
        checked = bundle_weights.build_bundle(content, weights, "The model")
    except DamagedFileError as error:
        raise UsageError(str(error)) from error
    own_names = () if known is None else known.classes
    names = _name_outputs(own_names if classes is None else classes, shape.outputs)
    info: dict[str, object] = {}
    if known is not None:
        noted = {"licence": known.licence, "repository": known.repository, "notes": list(known.notes)}
        info = {name: value for name, value in noted.items() if value}
    if thresholds:
        info[DECISIONS_KEY] = write(_make_decisions(thresholds, chosen_task, names))
    if scaling is not None:
        info[SCALING_KEY] = _parse_scaling(scaling, chosen_task, len(names)).to_json()
    elif known is not None and known.scaling is not None and chosen_task == "regression":
        info[SCALING_KEY] = known.scaling.to_json()
    bundle_weights.save_bundle(folder, checked.model, spec, chosen_task, names, info)
    return folder


def _take_weights(
    model: nn.Module | Mapping[str, object], config: ViTConfig | str | None
) -> tuple[Model | None, ViTConfig, dict[str, Tensor]]:
    """The `Model` if it is one, its architecture with as many outputs as its head has, and its tensors on the CPU."""
    if isinstance(model, nn.Module):
        if config is not None:
            raise UsageError("config= describes a state_dict, and a model has its own. Leave it out.")
        vit = _find_vit(model)
        head = dict(vit.named_children())["head"]
        if not isinstance(head, Head):
            raise UsageError(
                f"The head was replaced by a {type(head).__name__}, which a bundle cannot hold. Replace its matrix "
                "alone: model.head.linear = torch.nn.Linear(width, outputs)."
            )
        weights = {name: tensor.detach().cpu() for name, tensor in vit.state_dict().items()}
        shape = replace(vit.config, outputs=count_outputs(weights, "head.linear.weight"))
        return vit if isinstance(vit, Model) else None, shape, weights
    try:
        tensors = unwrap_state_dict(model, "The state_dict", (), [])
        tensors = take_known_network(tensors, "bundle", {}, [])
        find_layout(tensors, "bundle")
    except DamagedFileError as error:
        raise UsageError(f"save takes a Vitrail model or its state_dict. {error}") from error
    shape = describe_own_weights(tensors, LoadOptions(config=config))
    return None, shape, {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def _find_vit(module: nn.Module) -> ViT:
    """The one ViT in a module, which must have no other weights: they would be lost."""
    if isinstance(module, ViT):
        return module
    found = [one for one in module.modules() if isinstance(one, ViT)]
    if len(found) != 1:
        raise UsageError(
            f"save takes a Vitrail model, such as vitrail.create makes, or its state_dict with config=. Got a "
            f"{type(module).__name__} with {len(found) or 'none'} inside."
        )
    own = {id(parameter) for parameter in found[0].parameters()}
    if beside := [name for name, parameter in module.named_parameters() if id(parameter) not in own]:
        raise UsageError(
            f"The {type(module).__name__} has weights beside its Vitrail model, such as {beside[0]}, which a bundle "
            "cannot hold. Pass the Vitrail model alone if they are not needed for predictions."
        )
    return found[0]


def _name_outputs(classes: Sequence[str], outputs: int) -> tuple[str, ...]:
    """Names of the outputs; numbers if there are none."""
    names = tuple(map(str, classes)) or tuple(map(str, range(outputs)))  # NumPy's texts become Python's
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"classes must be texts, each once. Got {list(names)[:10]}.")
    if len(names) != outputs:
        raise UsageError(f"classes must name each of the model's {outputs} outputs. Got {len(names)}.")
    return names


def _make_decisions(thresholds: Mapping[str, float], task: Task, names: tuple[str, ...]) -> Decisions:
    """Decisions by given thresholds."""
    if unknown := [name for name in thresholds if name not in names]:
        raise UsageError(f"There is no output {unknown[0]!r} for a threshold. Known: {', '.join(names[:10])}.")
    if wrong := [f"{name} {value}" for name, value in thresholds.items() if not 0 <= value <= 1]:
        raise UsageError(f"A threshold is a probability from 0 to 1. Got {', '.join(wrong)}.")
    if task == "multilabel":
        values = tuple(float(thresholds.get(name, DEFAULT_THRESHOLD)) for name in names)
        return Decisions(rule="given", thresholds=values, chosen=tuple(name in thresholds for name in names))
    if task != "classification" or len(names) != 2 or len(thresholds) != 1:
        raise UsageError(
            f"Thresholds are of labels, or of one of two classes. Got {len(thresholds)} for {task} with {len(names)} "
            "outputs; without thresholds the likeliest class is answered."
        )
    ((positive, value),) = thresholds.items()
    return Decisions(rule="given", positive=positive, thresholds=(float(value),), chosen=(True,))


def _parse_scaling(scaling: tuple[Sequence[float], Sequence[float]], task: Task, outputs: int) -> TargetScaling:
    if task != "regression":
        raise UsageError(f'scaling is of task="regression". Got task="{task}".')
    mean, deviation = (tuple(map(float, values)) for values in scaling)
    if not (
        len(mean) == len(deviation) == outputs and all(map(math.isfinite, mean + deviation)) and min(deviation) > 0
    ):
        raise UsageError(
            f"scaling must be the means and the positive deviations of {outputs} outputs, ([...], [...]). "
            f"Got {scaling}."
        )
    return TargetScaling(mean, deviation)
