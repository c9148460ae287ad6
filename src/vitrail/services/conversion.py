"""`vitrail convert`: a model as another library's files, read back and compared before they are kept."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float64
from torch import Tensor

from .. import config
from ..checkpoints import bundle, bundle_weights
from ..checkpoints import save as writing
from ..checkpoints.families import torchvision
from ..checkpoints.load import ORIGIN_KEY, LoadOptions
from ..checkpoints.validate import Audit
from ..data.source import parse_task
from ..errors import DamagedFileError, UsageError
from ..evaluate.calibration import SCALING_KEY, TargetScaling, read_scaling
from ..evaluate.decisions import DECISIONS_KEY, read_decisions
from ..evaluate.tta import TtaViews
from ..files import hub
from ..files.atomic import check_new_path, commit_draft, make_draft
from ..model.vit import ViT
from .open_model import NO_OPTIONS, ModelInfo, find_model, parse_choice

ConversionTarget = Literal["bundle", "timm", "transformers", "torchvision", "google-npz"]
CONVERSION_TARGETS: tuple[ConversionTarget, ...] = get_args(ConversionTarget)
TARGET_EXTENSIONS: dict[ConversionTarget, tuple[str, ...]] = {
    "torchvision": torchvision.TORCHVISION_SUFFIXES,
    "google-npz": (".npz",),
}
"""File extensions of the targets that are one file, the default first; the others are folders."""
NUM_TEST_IMAGES = 3
"""Random images on which the two models are compared."""
TOLERANCE = 1e-5
"""Largest difference of two outputs, as a fraction of the largest output (at least 1)."""
NUMERICS_FIELDS = ("activation", "norm", "norm_eps", "pool", "heads", "final_norm", "head")
"""Architecture fields that must be read back unchanged: a difference in them can hide below the tolerance."""
WITHOUT_CLASS = ("mean", "class+mean")
"""Pooling of a model, and of its copy as DINOv2 of transformers, whose head reads the class token with weights of 0."""


@dataclass(frozen=True, kw_only=True)
class ConversionResult:
    """The written model and its verification."""

    path: Path
    """The file or folder."""
    to: ConversionTarget
    difference: float
    """Largest difference between the outputs of the model and of what was read back."""
    num_images: int
    """Random images that were compared."""
    audit: Audit
    """Every tensor of the written files, as read back."""
    model: ViT
    """The model as read back."""
    notes: tuple[str, ...]
    """What the target cannot express, and what was folded into the weights for it."""


def convert_model(model_info: ModelInfo, to: ConversionTarget, out: Path) -> ConversionResult:
    """Write a model for another library, read it back, compare the outputs, and keep it if they agree.

    Args:
        model_info: a trained model; a name of a size has no weights to write.
        out: the folder to write, or for torchvision and google-npz the file.

    Raises:
        UsageError: `out` exists, has the wrong extension, or the target cannot express a part of the model (named).
        DamagedFileError: the outputs of the model read back differ; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if model_info.trained_model is None:
        raise UsageError("A name of a size has no weights to convert. Give a weights file, a bundle or a run folder.")
    check_conversion_path(out, to)
    if model_info.config.is_dense and to != "bundle":
        raise UsageError(
            f"A segmentation model has its head on every patch, which {to} cannot express. Use vitrail export "
            "MODEL --to onnx."
        )
    info, folded = _bundle_info(model_info), ""
    if to != "bundle":  # other libraries do not know what a bundle notes
        model_info, info, folded = _fold_into_head(model_info, info)
    with make_draft(out) as draft:
        statistics = bundle_weights.load_feature_stats(model_info.bundle) if model_info.bundle is not None else None
        names = model_info.classes
        if not names and to == "bundle":  # it requires names
            names = tuple(map(str, range(model_info.config.outputs)))
        writing.save_model(draft, model_info.model, model_info.spec, names, to, model_info.task, info, statistics)
        options = NO_OPTIONS  # a folder has a config.json
        if to in TARGET_EXTENSIONS:
            shape = model_info.config
            options = LoadOptions(layout=to, heads=shape.heads, image_size=shape.image_size)
        read_back = find_model(str(draft), options, quiet=True)
        difference = _verify_read_back(model_info, read_back, to)
        commit_draft(draft, out)
    assert read_back.audit is not None
    return ConversionResult(
        path=out,
        to=to,
        difference=difference,
        num_images=NUM_TEST_IMAGES,
        audit=read_back.audit,
        model=read_back.model,
        notes=(*([folded] if folded else []), *_list_losses(model_info, read_back, info, to)),
    )


FILE_FORMATS = {
    ".onnx": "onnx", ".xml": "openvino", ".pt2": "pt2", ".html": "web", ".npz": "google-npz", ".pth": "torchvision",
}  # fmt: skip
"""Format of a file by its ending."""


class NamedFormat(NamedTuple):
    """The format that --to names, and the file or folder of --out."""

    to: str
    out: Path | None
    note: str = ""
    """What was taken for what, if --to was given a file."""


def name_format(to: str, out: Path | None, known: Sequence[str]) -> NamedFormat:
    """Take a file that stands in the place of a format, such as --to flowers.onnx, for the output and its format.

    Raises:
        UsageError: a path whose ending is that of no known format, or beside another output.
    """
    if to in known or not ("/" in to or "." in to or Path(to).exists()) or ":" in to:
        return NamedFormat(to, out)
    meant = FILE_FORMATS.get(Path(to).suffix.lower(), "")
    if meant not in known or out is not None:
        raise UsageError(f"--to names the format ({', '.join(known)}), and --out the file or folder. Got --to {to}.")
    return NamedFormat(meant, Path(to), f"--to names the format: taken for --to {meant} --out {to}")


def parse_conversion_target(word: str) -> ConversionTarget:
    """Parse the name of a target.

    Raises:
        UsageError: an unknown name.
    """
    return parse_choice(word, CONVERSION_TARGETS, "A model can be written as")


def default_conversion_path(model_name: str, to: ConversionTarget) -> Path:
    """Default output path: beside the model, named after it and the target.

    A name on the Hub, hf:OWNER/NAME, becomes NAME-TARGET in the current folder.
    """
    if model_name.startswith(hub.HUB_PREFIX):
        return Path(add_extension(f"{Path(model_name.removeprefix(hub.HUB_PREFIX).partition('@')[0]).name}-{to}", to))
    path = bundle.folder_of_weights(Path(model_name) if Path(model_name).name else Path(model_name).resolve())
    stem = path.name if path.is_dir() else path.name.partition(".")[0] or path.name
    return path.with_name(add_extension(f"{stem}-{to}", to))


def add_extension(name: str, to: ConversionTarget) -> str:
    """A name with the target's file extension, if it is one file."""
    return f"{name}{TARGET_EXTENSIONS[to][0]}" if to in TARGET_EXTENSIONS else name


def check_conversion_path(out: Path, to: ConversionTarget) -> None:
    """Check the output path before anything is read.

    Raises:
        UsageError: the path exists, or has the wrong extension.
    """
    if to in TARGET_EXTENSIONS and out.suffix not in TARGET_EXTENSIONS[to]:
        raise UsageError(f"{to} is one file, whose name must end in {' or '.join(TARGET_EXTENSIONS[to])}. Got {out}.")
    check_new_path(out)


def max_output_difference(first: ViT, second: ViT) -> tuple[float, float]:
    """Largest difference of two models' outputs on random images, and the largest output.

    Pooled features are compared instead if all outputs are zero, as of a new head.
    """
    shape = (NUM_TEST_IMAGES, first.config.channels, *first.config.image_size)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        both = [model.eval().features(images, keep=("outputs", "pooled")) for model in (first, second)]
    key = "outputs" if both[0]["outputs"].any() or both[1]["outputs"].any() else "pooled"
    ours, theirs = both[0][key], both[1][key]
    if key == "pooled" and (first.config.pool, second.config.pool) == WITHOUT_CLASS:
        theirs = theirs[:, first.config.width :]
    if ours.shape != theirs.shape:
        raise DamagedFileError(
            f"What was read back gives outputs {list(theirs.shape)}, the model gives {list(ours.shape)}. "
            "Nothing is kept; please report this file."
        )
    return (ours - theirs).abs().max().item(), ours.abs().max().item()


def _verify_read_back(model_info: ModelInfo, read_back: ModelInfo, to: ConversionTarget) -> float:
    """Largest output difference between a model and the one read back; refuses other numerics or outputs."""
    for name in NUMERICS_FIELDS:
        ours, theirs = getattr(model_info.config, name), getattr(read_back.config, name)
        if ours != theirs and (ours, theirs) != WITHOUT_CLASS:
            raise UsageError(
                f"A {to} reader would take {name}={theirs!r} where the model has {name}={ours!r}. Nothing is kept; "
                "convert it to a bundle instead."
            )
    difference, largest = max_output_difference(model_info.model, read_back.model)
    if not difference <= TOLERANCE * max(1.0, largest):
        raise DamagedFileError(
            f"What was written as {to} and read back answers otherwise: the outputs differ by up to {difference:.3g} "
            f"on {NUM_TEST_IMAGES} random pictures (largest output {largest:.3g}). Nothing is kept; please report this "
            "file."
        )
    return difference


def _bundle_info(model_info: ModelInfo) -> dict[str, object]:
    """Metadata of the new bundle: that of the old one, and the origin, licence and layout of foreign weights."""
    noted = model_info.info
    origin = {"licence": model_info.licence, "repository": model_info.repository}
    layout = {"layout": model_info.audit.layout} if model_info.bundle is None and model_info.audit is not None else {}
    notes = list(dict.fromkeys((*noted.get("notes", ()), *model_info.notes)))
    more = {**layout, **origin, "notes": notes, ORIGIN_KEY: "" if model_info.origin_is_stated else "family"}
    return {**noted, **{name: value for name, value in more.items() if value}}


def _list_losses(
    model_info: ModelInfo, read_back: ModelInfo, info: Mapping[str, object], to: ConversionTarget
) -> tuple[str, ...]:
    """What the target cannot express, in sentences without a full stop."""
    ours, theirs = model_info.config, read_back.config
    if to == "bundle":
        unnamed = not model_info.classes and ours.outputs
        return (f"the outputs have no names; the bundle calls them 0 to {ours.outputs - 1}",) if unnamed else ()
    notes = []
    views = TtaViews.from_notes(info, "the bundle")
    if views.num_views > 1:
        sides = "left, right, up and down" if views.vertical else "to either side"
        moved = ["its mirror image"] * views.flip + [f"itself moved by {views.shift} {sides}"] * bool(views.shift)
        notes.append(f"vitrail predict averages over every picture and {' and '.join(moved)} here, and {to} does not")
    decisions = read_decisions(info, parse_task(model_info.task), model_info.classes, "the bundle")
    fitted = ["a temperature"] * bool(decisions.temperature) + ["thresholds"] * bool(decisions.thresholds)
    fitted += ["a stated prevalence"] * bool(decisions.prior_ratio)
    fitted += ["reasons to abstain"] * (decisions.unlike is not None or bool(decisions.sure))
    if fitted:
        listed = ", ".join(fitted)
        notes.append(f"vitrail predict applies what was fitted on validation pictures ({listed}), and {to} does not")
    if to == "google-npz":
        exact = ours.activation == "GELU"
        who = (
            "timm and transformers run it, unlike the authors' code"
            if exact
            else "the authors' code runs it, unlike timm"
        )
        notes.append(f"only vitrail reads out of the file that this model has {ours.activation}, as {who}")
    if to == "torchvision":
        notes.append("the file does not say how pictures are prepared, nor the names of the classes")
    if to == "timm" and model_info.spec.fit == "pad":
        notes.append("timm fills the border of a picture with the mean colour, this model with black")
    if ours.positions in ("learned", "indexed") and ours.resample != theirs.resample:
        rules = f"{to} stretches the position table by the rule {theirs.resample}, this model by {ours.resample}"
        notes.append(f"on pictures of other sizes the answers differ: {rules}")
    return tuple(notes)


def _fold_into_head(model_info: ModelInfo, info: dict[str, object]) -> tuple[ModelInfo, dict[str, object], str]:
    """The model with scaling, or with temperatures where it has one view, in its head; info without them; a note.

    The mean of several views is one of probabilities, and a temperature divides its logarithm: that is no linear map.
    """
    task, views = parse_task(model_info.task), TtaViews.from_notes(info, "the bundle")
    if task in ("anomaly", "segmentation"):  # a bank has no weights to fold into, and masks no temperature
        return model_info, info, ""
    if task == "regression":
        scaling = read_scaling(info, len(model_info.classes), "the bundle")
        if scaling is None:
            return model_info, info, ""
        folded = fold_scaling_into_head(model_info.model, scaling)
        return replace(model_info, trained_model=folded), {k: v for k, v in info.items() if k != SCALING_KEY}, ""
    decisions = read_decisions(info, task, model_info.classes, "the bundle")
    if not decisions.temperature or views.num_views > 1:
        return model_info, info, ""
    temperature = torch.tensor(decisions.temperature, dtype=torch.float64)
    folded = scale_head(model_info.model, 1 / temperature.expand(model_info.config.outputs))
    what, function = ("temperature is", "softmax") if task == "classification" else ("temperatures are", "sigmoid")
    note = f"the {what} folded into the weights of the head: the {function} of its outputs is calibrated"
    plain = config.write(replace(decisions, temperature=()))
    return replace(model_info, trained_model=folded), {**info, DECISIONS_KEY: plain}, note


def fold_scaling_into_head(model: ViT, scaling: TargetScaling) -> ViT:
    """A copy of a model whose head gives deviation x output + mean, in the units of the targets.

    Raises:
        UsageError: the head has no bias, which would have to hold the mean.
    """
    if model.head.linear is not None and model.head.linear.bias is None:
        raise UsageError(
            "Other libraries need the mean of the training targets in the head's bias, and this model's head has none. "
            "Convert it to a bundle, which keeps the mean beside the weights."
        )
    deviation, mean = (torch.tensor(each, dtype=torch.float64) for each in (scaling.deviation, scaling.mean))
    return scale_head(model, deviation, mean)


def scale_head(model: ViT, factor: Float64[Tensor, " K"], shift: Float64[Tensor, " K"] | None = None) -> ViT:
    """A copy of a model whose head gives factor x output + shift; a shift needs a bias."""
    scaled = copy.deepcopy(model)
    matrices = [matrix for matrix in (scaled.head.linear, scaled.head.distillation) if matrix is not None]
    with torch.no_grad():
        for matrix in matrices:
            matrix.weight.copy_(matrix.weight.double() * factor[:, None])
            if matrix.bias is not None:
                matrix.bias.copy_(matrix.bias.double() * factor + (0.0 if shift is None else shift))
    return scaled
