"""`vitrail explain`: explanations of a MODEL's predictions as maps, figures and files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, UInt8

from ..argument_types import check_calls
from ..checkpoints import bundle
from ..checkpoints.bundle import find_bundle
from ..data.decoding.decode import decode_image, to_8_bits
from ..data.preprocess import crop_for_display, fit_array_to_tensor, normalize
from ..data.source import ImageInput, Task
from ..errors import DataError, UsageError
from ..evaluate.predictions import ClassificationPredictions, RegressionPredictions, TaskPredictions
from ..evaluate.tables import image_path
from ..explain import methods
from ..explain.attribution import AttributionMap, EmptyMapError
from ..explain.faithfulness.map_choice import MapChoice
from ..explain.figures import save_png
from ..explain.map_scale import full_scale_value
from ..explain.methods import AVERAGED_NOTE, MethodOptions
from ..explain.overlay import (
    MIN_SIDE_PIXELS,
    OVERLAY_OPACITY,
    OverlayCaption,
    SheetPanel,
    plot_overlay,
    plot_sheet,
)
from ..explain.paper_figures import all_figures
from ..explain.paper_figures.plots import FigureOptions, empty_figure_inputs, prepare_figure_inputs, resize_spec
from ..explain.patch_features import ATTENTION_METHODS, find_artifact_patches
from ..files import atomic, strict_json
from ..files.suggest import suggest_path
from ..model.vit import ViT
from ..predict.exported import DECISION_NOTE
from ..predict.predictor import Predictor
from ..spec import ImageSpec
from .open_model import ModelInfo, find_model, locate_model
from .prediction import choose_inference, open_predictor, parse_one_or_more, predictor_from_model_info

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FillMode = Literal["mean", "black", "white", "drop"]


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """Options of an explanation; None takes the method's default."""

    method: str | None = None
    """A name in `explain.methods.METHODS`."""
    target: str | None = None
    """The class, label or column to explain, or the index of an unnamed output; None takes the predicted one."""
    layer: int | None = None
    heads: tuple[int, ...] | None = None
    patch: int | None = None
    window: int | None = None
    steps: int | None = None
    fill: FillMode | None = None
    """The baseline image, or the filling of an occluded patch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explainer:
    """A model with all that is needed to explain its predictions."""

    model_name: str
    """The MODEL argument."""
    model: ViT
    spec: ImageSpec
    classes: tuple[str, ...]
    """Names of the outputs; empty if unknown."""
    task: Task
    device: torch.device
    predictor: Predictor | None
    """The predictor; None if the outputs have no names."""
    views: int = 1
    """Test-time augmentation views of each image."""
    map_choice: MapChoice | None = None
    """The default method, if the training has chosen one by a check."""

    @property
    def default_method(self) -> str:
        """The method that the training chose, or without a choice that of the model's kind."""
        chosen = "" if self.map_choice is None else self.map_choice.method
        return chosen or methods.default_method(self.model.config)

    def output_index(self, name: str) -> int:
        """The index of an output by its name, or by its index as text if outputs have no names.

        Raises:
            UsageError: there is no such output.
        """
        if name in self.classes:
            return self.classes.index(name)
        if not self.classes and name.isdecimal() and int(name) < self.model.config.outputs:
            return int(name)
        if not self.model.config.outputs:
            raise UsageError(f"The model has no output {name!r}: it gives features, of which none has a name.")
        known = ", ".join(self.classes[:20]) + (", ..." if len(self.classes) > 20 else "")
        known = known or f"0 to {self.model.config.outputs - 1}"
        raise UsageError(f"The model has no output {name!r}. Its outputs are {known}.")


def open_explainer(model_name: str | Path, device: str = "auto", precision: str = "float32") -> Explainer:
    """Open a run folder, a bundle or a weights file, with a predictor if its outputs have names.

    Args:
        precision: of the predictions; maps are always computed in float32.

    Raises:
        UsageError: nothing at the path, an ensemble, or a missing device.
        DamagedFileError: the files are damaged or malicious.
    """
    place = locate_model(str(model_name))
    if place is None:
        raise UsageError(
            f"A model is needed to explain: a run folder, a bundle or weights. {model_name} does not exist."
            f"{suggest_path(str(model_name))}"
        )
    folder = find_bundle(place.path)
    if folder is not None and strict_json.read_json(folder / bundle.CONFIG_FILE).get("classes"):
        return explainer_from_predictor(open_predictor(place.path, device, precision), str(model_name))
    model_info = find_model(str(place.path))
    settings = choose_inference(device, precision)
    if model_info.classes:
        return explainer_from_predictor(predictor_from_model_info(model_info, settings), str(model_name))
    return Explainer(
        model_name=str(model_name), model=model_info.model.to(settings.device), spec=model_info.spec, classes=(),
        task="classification", device=torch.device(settings.device), predictor=None,
    )  # fmt: skip


def explainer_from_predictor(predictor: Predictor, model_name: str) -> Explainer:
    """An explainer from a predictor of one model."""
    member = predictor.single_member()
    assert isinstance(member.model, ViT)
    return Explainer(
        model_name=model_name, model=member.model, spec=predictor.spec, classes=predictor.classes, task=predictor.task,
        device=predictor.device, predictor=predictor, views=member.settings.views.num_views,
        map_choice=member.map_choice,
    )  # fmt: skip


def explain_images(
    explainer: Explainer, images: Sequence[ImageInput | bytes], request: ExplainRequest, skip_bad: bool = False
) -> Iterator[Explanation | tuple[str, str]]:
    """Explain images one after another.

    Args:
        skip_bad: yield (name, reason) of an image that cannot be read or has an empty map, instead of raising.

    Raises:
        DataError: an image that cannot be read, by name.
        EmptyMapError: an image with an empty map, by name.
        UsageError: an invalid combination of options.
    """
    target_index = None if request.target is None else explainer.output_index(request.target)
    options = _method_options(request, explainer)
    for position, image in enumerate(images):
        name = str(position) if isinstance(image, np.ndarray | bytes) else image_path(image)
        try:
            yield _explain_image(explainer, image, name, request, options, target_index)
        except (DataError, EmptyMapError) as problem:
            if skip_bad:
                yield name, str(problem)
            elif isinstance(problem, EmptyMapError):
                raise EmptyMapError(f"{name}: {problem}") from problem
            else:
                raise


def explain_with_predictor(
    predictor: Predictor, model_name: str, images: object, request: ExplainRequest
) -> list[Explanation]:
    """Explain one image or a list of images, as `parse_one_or_more` takes them.

    Raises:
        DataError, UsageError: as `explain_images` and `parse_one_or_more`.
    """
    explainer = explainer_from_predictor(predictor, model_name)
    explanations = explain_images(explainer, parse_one_or_more(images, "explain"), request)
    return [one for one in explanations if not isinstance(one, tuple)]


def hash_weights(model: ViT) -> str:
    """SHA-256 of all weights as float32, in the order of their names."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _explain_image(
    explainer: Explainer,
    image_input: ImageInput | bytes,
    name: str,
    request: ExplainRequest,
    options: MethodOptions,
    target_index: int | None,
) -> Explanation:
    decoded = decode_image(image_input, explainer.spec)
    image = fit_array_to_tensor(decoded, explainer.spec)  # [C, H, W]
    predictions = None if explainer.predictor is None else explainer.predictor.predict([image_input])
    method = request.method or explainer.default_method
    known = methods.list_methods_of(explainer.model.config)
    if method in known and known[method].class_specific and target_index is None:
        target_index = _default_target(predictions)
    images = normalize(image[None].to(explainer.device), explainer.spec)
    heatmap = methods.explain_images(explainer.model, images, method, target_index, options)
    index = None if heatmap.targets is None else heatmap.targets[0]
    artefacts = np.zeros(heatmap.values.shape[1:], bool)
    if method in ATTENTION_METHODS:
        artefacts = find_artifact_patches(explainer.model, images)[0]
    value: float | None = None
    target = predicted_class = ""
    if index is not None:
        target = explainer.classes[index] if explainer.classes else f"output {index}"
        if isinstance(predictions, RegressionPredictions):
            value = float(predictions.values[0, index])
        elif predictions is not None:
            value = float(predictions.probabilities[0, index])
    if isinstance(predictions, ClassificationPredictions):
        predicted_class = predictions.labels[0]
    remarks = _map_remarks(explainer, method, index is not None)
    if predicted_class and predictions is not None and predictions.decision:
        remarks.append(DECISION_NOTE.format(predictions.decision))
    return Explanation(
        name=name,
        image=to_8_bits(np.ascontiguousarray(image.permute(1, 2, 0).numpy())),
        display_image=crop_for_display(to_8_bits(decoded), explainer.spec, MIN_SIDE_PIXELS),
        patch=explainer.model.config.patch,
        heatmap=heatmap,
        options={word: value for word, value in request.__dict__.items() if value is not None} | {"method": method},
        target=target,
        value=value,
        predicted_class=predicted_class,
        task=explainer.task,
        artefacts=artefacts,
        remarks=tuple(remarks),
    )


def _map_remarks(explainer: Explainer, method: str, of_output: bool) -> list[str]:
    """Remarks about the model: views, and what the check of the training says of this method."""
    averaged = [AVERAGED_NOTE.format(explainer.views)] if explainer.views > 1 and of_output else []
    choice = explainer.map_choice
    checked = [choice.describe(method)] if choice is not None and choice.pictures and of_output else []
    return [*averaged, *checked]


def _method_options(request: ExplainRequest, explainer: Explainer) -> MethodOptions:
    """`MethodOptions` of a request; the baseline image has the model's black, white or mean."""
    method = request.method or explainer.default_method
    known = methods.list_methods_of(explainer.model.config)
    names = known[method].option_names if method in known else ("cover", "drop")
    if request.fill is not None and "cover" not in names:
        raise UsageError(f"{method} has no use for fill. Only integrated and occlusion need something for nothing.")
    if request.fill == "drop" and "drop" not in names:
        raise UsageError(f"{method} needs an empty picture: fill must be mean, black or white. Got drop.")
    plain = MethodOptions(
        layer=request.layer, heads=request.heads, patch=request.patch, window=request.window, steps=request.steps,
        drop=True if request.fill == "drop" else None,
    )  # fmt: skip
    if request.fill in (None, "drop"):
        return plain
    spec = explainer.spec
    level = torch.full((1, spec.channels, *spec.size), spec.white if request.fill == "white" else 0)
    empty = normalize(level, spec).to(explainer.device)
    return replace(plain, cover=torch.zeros_like(empty) if request.fill == "mean" else empty)


def _default_target(predictions: TaskPredictions | None) -> int | None:
    """The output to explain by default: the predicted class, the most likely label, or the only column."""
    if predictions is None:
        return None
    if isinstance(predictions, ClassificationPredictions):
        return int(predictions.indices[0])
    if not isinstance(predictions, RegressionPredictions):
        return int(predictions.probabilities[0].argmax())
    if len(predictions.columns) > 1:
        raise UsageError(
            f"The model gives several numbers: {', '.join(predictions.columns)}. Name the one to explain "
            "(--class NAME)."
        )
    return 0


# -- One explanation: its figure and files.


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """An image, its heatmap, and the prediction."""

    name: str
    """The path, or the position of an array in the list."""
    image: UInt8[np.ndarray, "H W C"]
    """The image as the model sees it, in 8 bits."""
    display_image: UInt8[np.ndarray, "h w C"]
    """The visible part of the original image at its own aspect ratio and resolution, downscaled if large."""
    patch: tuple[int, int]
    heatmap: AttributionMap
    """The map of this one image."""
    options: Mapping[str, Any]
    """Options of the method that were set."""
    target: str
    """The class, label or column that the map explains; empty for a class-agnostic method."""
    value: float | None
    """The target's probability, or its value in the user's units; None if unknown."""
    predicted_class: str
    """The predicted class; empty for another task."""
    task: Task
    artefacts: Bool[np.ndarray, "rows columns"]
    """Artefact patches, whose tokens hold global information instead of the image; their heat is not drawn."""
    remarks: tuple[str, ...] = ()
    """Further notes about the model."""

    def __repr__(self) -> str:
        rows, columns = self.heatmap.values.shape[-2:]
        return f"Explanation({self.name!r}, {self.title!r}, {self.heatmap.method!r}, {rows}x{columns} patches)"

    @property
    def title(self) -> str:
        """The target and its probability or value."""
        if not self.target:
            return f"Answered: {self.predicted_class}" if self.predicted_class else self.heatmap.method.capitalize()
        if self.value is None:
            return self.target
        if self.task == "regression":
            return f"{self.target} = {self.value:.4g}"
        is_other = self.predicted_class and self.predicted_class != self.target
        return f"{self.target}, {self.value:.1%}" + (f"  (answered: {self.predicted_class})" if is_other else "")

    @property
    def caption(self) -> OverlayCaption:
        """Title, method and layer, description, notes."""
        name = "" if self.name.isdecimal() else f"{Path(self.name).name} · "  # a list position is no name
        method = f"{name}{self.heatmap.method} · {self.heatmap.layer}"
        return OverlayCaption(self.title, (method, self.heatmap.description, *self.notes), self.heatmap.unit)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the method, about undrawn artefact patches, and about clipped colours."""
        notes, count = list(self.heatmap.notes), int(self.artefacts.sum())
        if count:
            total = self.artefacts.size
            notes.append(f"{count} of {total} patches, hatched, hold notes of the model instead of picture: not drawn.")
        heat = self.heatmap.values[0][~self.artefacts]
        drawn = heat if self.heatmap.scale == "positive" else np.abs(heat)
        if self.heatmap.scale in ("positive", "signed") and float(drawn.max(initial=0)) > full_scale_value(drawn):
            notes.append("Colours end at the largest 1 % of the patches.")
        return (*notes, *self.remarks)

    @check_calls
    def figure(self, opacity: float = OVERLAY_OPACITY) -> Figure:
        """The model's input, the overlay, the map alone, a colour bar, and the caption.

        Raises:
            UsageError: opacity outside 0..1.
        """
        heat, scale = self.heatmap.values[0], self.heatmap.scale
        return plot_overlay(
            self.image, heat, scale, self.patch, self.caption, self.artefacts, opacity, self.display_image
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        heat = self.heatmap.values[0]
        return {
            "picture": self.name,
            "picture_sha256": hashlib.sha256(self.image.tobytes()).hexdigest(),
            "method": self.heatmap.method,
            "class": self.target or None,
            "value": self.value,
            "answered": self.predicted_class or None,
            "of_class": self.heatmap.targets is not None,
            "layer": self.heatmap.layer,
            "options": {
                name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()
            },
            "scale": self.heatmap.scale,
            "rows": heat.shape[0],
            "columns": heat.shape[1],
            "patch": list(self.patch),
            "lowest": float(heat.min()),
            "highest": float(heat.max()),
            "artefacts": int(self.artefacts.sum()),
            "unit": self.heatmap.unit,
            "line": self.heatmap.description,
            "notes": list(self.notes),
        }

    @check_calls
    def save(
        self, folder: str | Path, stem: str, opacity: float = OVERLAY_OPACITY, extra: Mapping[str, Any] | None = None
    ) -> Path:
        """Write STEM.METHOD.png, .npz (values, artefacts, and pixels where the method knows them) and .json.

        Args:
            extra: further facts for the .json file.

        Returns:
            Where the PNG lies.

        Raises:
            UsageError: opacity outside 0..1.
            ResourceError: the disk is full or read-only.
        """
        path = Path(folder) / f"{stem}.{self.heatmap.method}.png"
        save_png(self.figure(opacity), path, f"{self.title}. {'. '.join(self.caption.below)}")
        arrays = {"values": self.heatmap.values[0], "artefacts": self.artefacts}
        if self.heatmap.pixels is not None:
            arrays["pixels"] = self.heatmap.pixels[0]
        _save_arrays_and_facts(path, arrays, {**self.to_json(), "opacity": opacity, **(extra or {})})
        return path


def _save_arrays_and_facts(png: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write the arrays (.npz) and facts (.json) of a figure beside it."""
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    atomic.write_bytes(png.with_suffix(".npz"), data.getvalue())
    atomic.write_json(png.with_suffix(".json"), facts)


def make_unique_stems(names: list[str]) -> list[str]:
    """Unique file stems for images: their names without extension, numbered for duplicates."""
    stems, seen = [], set[str]()
    for name in names:
        stem = Path(name).stem or "picture"
        unique, count = stem, 1
        while unique in seen:
            count += 1
            unique = f"{stem}-{count}"
        seen.add(unique)
        stems.append(unique)
    return stems


# -- All methods on one image: a page and its files.

ALL_METHODS = "all"


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodComparison:
    """Explanations of one image by all methods."""

    default_explanation: Explanation
    """By the model's default method."""
    by_method: Mapping[str, Explanation | str]
    """By every method that applies to the model; for an empty map the reason."""

    @property
    def title(self) -> str:
        """The title of the default explanation."""
        return self.default_explanation.title

    def figure(self, opacity: float = OVERLAY_OPACITY) -> Figure:
        """The image and all maps, each with its name, range and description.

        Raises:
            UsageError: opacity outside 0..1.
        """
        panels = [
            SheetPanel(method, one, None) if isinstance(one, str)
            else SheetPanel(method, one.heatmap.description, one.heatmap.values[0], one.heatmap.scale, one.heatmap.unit)
            for method, one in self.by_method.items()
        ]  # fmt: skip
        first = self.default_explanation
        return plot_sheet(first.image, first.patch, panels, self.title, first.artefacts, opacity, first.display_image)

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        records = {
            method: {"nothing": one} if isinstance(one, str) else one.to_json()
            for method, one in self.by_method.items()
        }
        return {"picture": self.default_explanation.name, "methods": records}

    def save(
        self, folder: Path, stem: str, opacity: float = OVERLAY_OPACITY, extra: Mapping[str, Any] | None = None
    ) -> Path:
        """Write STEM.all.png, .npz (the values, by method) and .json; arguments and errors as `Explanation.save`."""
        path = Path(folder) / f"{stem}.{ALL_METHODS}.png"
        descriptions = [
            f"{method}: {one if isinstance(one, str) else one.heatmap.description}"
            for method, one in self.by_method.items()
        ]
        description = f"{self.title}. The picture, and its maps by {'; '.join(descriptions)}"
        save_png(self.figure(opacity), path, description)
        arrays = {method: one.heatmap.values[0] for method, one in self.by_method.items() if not isinstance(one, str)}
        facts = {**self.to_json(), "opacity": opacity, **(extra or {})}
        _save_arrays_and_facts(path, {"artefacts": self.default_explanation.artefacts, **arrays}, facts)
        return path


def explain_by_all_methods(
    explainer: Explainer, images: Sequence[ImageInput | bytes], request: ExplainRequest, skip_bad: bool = False
) -> Iterator[MethodComparison | tuple[str, str]]:
    """Explain images by all methods, one after another; only `target` and `patch` can be set.

    Without a patch, similarity is to the one with the largest value of the default method.

    Raises:
        UsageError: an option that only some methods have.
        as `explain_images`.
    """
    known = replace(request, method=None, target=None, patch=None)
    if others := [name for name, value in known.__dict__.items() if value is not None]:
        raise UsageError(f"With all methods only a class and a patch can be named. Got {', '.join(others)}.")
    for image in images:
        (first,) = explain_images(explainer, [image], ExplainRequest(target=request.target), skip_bad)
        if isinstance(first, tuple):
            yield first
            continue
        by_method = _explain_other_methods(explainer, image, request, first)
        yield MethodComparison(default_explanation=first, by_method=by_method)


def _explain_other_methods(
    explainer: Explainer, image: ImageInput | bytes, request: ExplainRequest, first: Explanation
) -> dict[str, Explanation | str]:
    patch = int(first.heatmap.values[0].argmax()) + 1 if request.patch is None else request.patch
    by_method: dict[str, Explanation | str] = {explainer.default_method: first}
    for method, known in methods.list_methods_of(explainer.model.config).items():
        if method in by_method or (known.class_specific and not explainer.model.config.outputs):
            continue
        method_request = ExplainRequest(
            method=method,
            target=request.target if known.class_specific else None,
            patch=patch if method == "similarity" else None,
        )
        try:
            (one,) = explain_images(explainer, [image], method_request)
        except EmptyMapError as problem:
            by_method[method] = str(problem)
        else:
            assert isinstance(one, Explanation)
            if method == "similarity" and request.patch is None:
                line = f"{one.heatmap.description} It is the one that {first.heatmap.method} marks most."
                one = replace(one, heatmap=replace(one.heatmap, description=line))
            by_method[method] = one
    return by_method


# -- Figures of papers.


def draw_paper_figure(
    model_info: ModelInfo,
    figure_name: str,
    image_paths: Sequence[Path],
    output_path: Path,
    image_size: tuple[int, int] | None = None,
    choices: FigureOptions | None = None,
) -> list[Path]:
    """Write a figure of `explain.paper_figures` to a PNG, and beside it its arrays (.npz) and facts (.json).

    Args:
        image_size: (height, width) of the images, other than the model's own.

    Raises:
        UsageError: no such figure or option, a wrong number of images, or a size that is no multiple of the patch.
        DataError: an image cannot be read.
        ResourceError: the files cannot be written.
    """
    model = model_info.model
    spec = model_info.spec if image_size is None else resize_spec(model_info.spec, image_size)
    names = [path.name for path in image_paths]
    inputs = prepare_figure_inputs(model, spec, list(image_paths), names) if image_paths else empty_figure_inputs(model)
    return all_figures.save_figure(all_figures.draw_figure(figure_name, model, inputs, choices), output_path)
