"""From a MODEL and images to explained images: the map, what was answered, and the words around both."""

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
from torch import Tensor

from .. import runtime
from ..checkpoints import bundle
from ..checkpoints.bundle import find_bundle
from ..data.decoding.decode import decode_image
from ..data.preprocess import crop_for_display, fit_array_to_tensor, normalize
from ..data.source import ImageInput, Task, parse_task
from ..errors import DataError, UsageError
from ..evaluate.inference import InferenceSettings
from ..evaluate.predictions import ClassificationPredictions, RegressionPredictions, TaskPredictions
from ..evaluate.tables import image_path
from ..explain import methods
from ..explain.attribution import AttributionMap, EmptyMapError
from ..explain.methods import AVERAGED_NOTE, METHODS, MethodOptions
from ..explain.overlay import (
    MIN_SIDE_PIXELS,
    OVERLAY_OPACITY,
    OverlayCaption,
    SheetPanel,
    full_scale_value,
    plot_overlay,
    plot_sheet,
    save_described_png,
)
from ..explain.paper_figures import all_figures
from ..explain.paper_figures.plots import FigureOptions, empty_figure_inputs, prepare_figure_inputs, resize_spec
from ..explain.patch_features import ATTENTION_METHODS, find_artifact_patches
from ..files import atomic, strict_json
from ..files.suggest import suggest_path
from ..model.vit import ViT
from ..predict.predictor import Predictor, PredictorMember
from ..spec import ImageSpec
from .open_model import ModelInfo, find_model, locate_model
from .prediction import open_predictor, parse_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FillMode = Literal["mean", "black", "white", "drop"]


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """What a person asks for; None leaves it to the method."""

    method: str | None = None
    """A name in `explain.methods.METHODS`."""
    target: str | None = None
    """The class, label or column to explain, or the number of an output that has no name; None takes the answer."""
    layer: int | None = None
    heads: tuple[int, ...] | None = None
    patch: int | None = None
    window: int | None = None
    steps: int | None = None
    fill: FillMode | None = None
    """What stands for an empty image or a covered patch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explainer:
    """A model with all that it takes to explain its answers."""

    model_name: str
    """As it was asked for."""
    model: ViT
    spec: ImageSpec
    classes: tuple[str, ...]
    """Names of the outputs; none where nobody has named them."""
    task: Task
    device: torch.device
    predictor: Predictor | None
    """What answers; None where outputs have no names."""
    views: int = 1
    """Views of an image that its answer is the mean over."""

    def output_index(self, name: str) -> int:
        """The number of an output by its name, or by its number where it has none.

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


def open_explainer(model_name: str | Path, device: str = "auto") -> Explainer:
    """The model of a run folder, a bundle or a weights file, with its answers if its outputs have names.

    Raises:
        UsageError: nothing there, an ensemble, or a device that is not here.
        DamagedFileError: the files cannot be trusted.
    """
    place = locate_model(str(model_name))
    if place is None:
        raise UsageError(
            f"A model is needed to explain: a run folder, a bundle or weights. {model_name} does not exist."
            f"{suggest_path(str(model_name))}"
        )
    folder = find_bundle(place.path)
    if folder is not None and strict_json.read_json(folder / bundle.CONFIG_FILE).get("classes"):
        return explainer_from_predictor(open_predictor(place.path, device), str(model_name))
    found = find_model(str(place.path))
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    runtime.apply(machine)
    if found.classes:
        member = PredictorMember(
            model=found.model, spec=found.spec, classes=found.classes, task=parse_task(found.task),
            settings=InferenceSettings(device=machine.device),
        )  # fmt: skip
        return explainer_from_predictor(Predictor([member]), str(model_name))
    here = torch.device(machine.device)
    return Explainer(
        model_name=str(model_name),
        model=found.model.to(here),
        spec=found.spec,
        classes=(),
        task="classes",
        device=here,
        predictor=None,
    )


def explainer_from_predictor(predictor: Predictor, model_name: str) -> Explainer:
    """The same from a predictor of one model."""
    member = predictor.single_member()
    assert isinstance(member.model, ViT)
    return Explainer(
        model_name=model_name, model=member.model, spec=predictor.spec, classes=predictor.classes, task=predictor.task,
        device=predictor.device, predictor=predictor, views=member.settings.views.num_views,
    )  # fmt: skip


def explain_images(
    explainer: Explainer, images: Sequence[ImageInput | bytes], request: ExplainRequest, skip_bad: bool = False
) -> Iterator[Explanation | tuple[str, str]]:
    """Every image explained, one after another.

    Args:
        skip_bad: give (name, reason) of an image that cannot be read or has no map, instead of raising.

    Raises:
        DataError: an image that cannot be read, by name.
        EmptyMapError: an image whose map says nothing, by name.
        UsageError: what was asked for cannot be.
    """
    _check_fill_mode(request, explainer.model)
    of = None if request.target is None else explainer.output_index(request.target)
    options = _method_options(request, explainer)
    for place, picture in enumerate(images):
        name = str(place) if isinstance(picture, np.ndarray | bytes) else image_path(picture)
        try:
            yield _explain_image(explainer, picture, name, request, options, of)
        except DataError as problem:
            if not skip_bad:
                raise
            yield name, str(problem)
        except EmptyMapError as problem:
            if not skip_bad:
                raise EmptyMapError(f"{name}: {problem}") from problem
            yield name, str(problem)


def explain_with_predictor(
    predictor: Predictor, model_name: str, images: object, request: ExplainRequest
) -> list[Explanation]:
    """One image or a list of them, as `predicting.several` takes them, explained.

    Raises:
        DataError, UsageError: as `explained`, and as `several`.
    """
    listed = isinstance(images, list | tuple) or getattr(images, "ndim", 0) > 3
    found = explain_images(
        explainer_from_predictor(predictor, model_name), parse_images(images if listed else [images]), request
    )
    return [one for one in found if not isinstance(one, tuple)]


def hash_weights(model: ViT) -> str:
    """SHA-256 of all weights, by name: which model a map was made with."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _explain_image(
    explainer: Explainer,
    image_input: ImageInput | bytes,
    name: str,
    request: ExplainRequest,
    options: MethodOptions,
    target_index: int | None,
) -> Explanation:
    decoded = decode_image(image_input, explainer.spec)
    image = fit_array_to_tensor(decoded, explainer.spec)  # uint8 [C, H, W]
    answers = None if explainer.predictor is None else explainer.predictor.predict([image_input])
    method = request.method or methods.default_method(explainer.model.config)
    if method in METHODS and METHODS[method].class_specific and target_index is None:
        target_index = _default_target(answers)
    images = normalize(image[None].to(explainer.device), explainer.spec)
    found = methods.explain_images(explainer.model, images, method, target_index, options)
    number = None if found.targets is None else found.targets[0]
    artefacts = np.zeros(found.values.shape[1:], bool)
    if method in ATTENTION_METHODS:
        artefacts = find_artifact_patches(explainer.model, images)[0]
    return Explanation(
        name=name,
        image=_to_channels_last(image),
        display_image=crop_for_display(decoded, explainer.spec, MIN_SIDE_PIXELS),
        patch=explainer.model.config.patch,
        heatmap=found,
        options={word: value for word, value in request.__dict__.items() if value is not None} | {"method": method},
        target="" if number is None else _target_name(explainer, number),
        value=None if number is None or answers is None else _target_value(answers, number),
        predicted_class="" if answers is None else _predicted_class(answers),
        task=explainer.task,
        artefacts=artefacts,
        remarks=(AVERAGED_NOTE.format(explainer.views),) if explainer.views > 1 and number is not None else (),
    )


def _method_options(request: ExplainRequest, explainer: Explainer) -> MethodOptions:
    """As the methods know them; the empty image is made from the model's own white and black."""
    plain = MethodOptions(
        layer=request.layer, heads=request.heads, patch=request.patch, window=request.window, steps=request.steps,
        drop=True if request.fill == "drop" else None,
    )  # fmt: skip
    if request.fill in (None, "drop"):
        return plain
    spec = explainer.spec
    level = torch.full((1, spec.channels, *spec.size), 255 if request.fill == "white" else 0, dtype=torch.uint8)
    empty = normalize(level, spec).to(explainer.device)
    return replace(plain, cover=torch.zeros_like(empty) if request.fill == "mean" else empty)


def _check_fill_mode(request: ExplainRequest, model: ViT) -> None:
    method = request.method or methods.default_method(model.config)
    if request.fill is None or method not in METHODS:
        return
    if "cover" not in METHODS[method].option_names:
        raise UsageError(f"{method} has no use for fill. Only integrated and occlusion need something for nothing.")
    if request.fill == "drop" and "drop" not in METHODS[method].option_names:
        raise UsageError(f"{method} needs an empty picture: fill must be mean, black or white. Got drop.")


def _default_target(predictions: TaskPredictions | None) -> int | None:
    """The output that is explained if none is named: the answer, the most likely label, the only column.

    Raises:
        UsageError: there are several columns.
    """
    if predictions is None:
        return None
    if isinstance(predictions, ClassificationPredictions):
        return int(predictions.labels[0])
    if not isinstance(predictions, RegressionPredictions):
        return int(predictions.probabilities[0].argmax())
    if len(predictions.columns) > 1:
        raise UsageError(
            f"The model gives several numbers: {', '.join(predictions.columns)}. Name the one to explain (--class "
            f"NAME)."
        )
    return 0


def _target_name(explainer: Explainer, index: int) -> str:
    return explainer.classes[index] if explainer.classes else f"output {index}"


def _target_value(predictions: TaskPredictions, index: int) -> float:
    """The probability of an output, or its value in the user's units."""
    row = predictions.values[0] if isinstance(predictions, RegressionPredictions) else predictions.probabilities[0]
    return float(row[index])


def _predicted_class(predictions: TaskPredictions) -> str:
    return predictions.classes[int(predictions.labels[0])] if isinstance(predictions, ClassificationPredictions) else ""


def _to_channels_last(image: UInt8[Tensor, "C H W"]) -> UInt8[np.ndarray, "H W C"]:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


# One explained image: its figure, and the files that are kept of it.


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """An image, its map, and what was answered."""

    name: str
    """The path, or the place of an array among the images."""
    image: UInt8[np.ndarray, "H W C"]
    """As the model sees it."""
    display_image: UInt8[np.ndarray, "h w C"]
    """The part of the image that the model sees, in the image's own shape and pixels, of large ones in fewer."""
    """The image as the model sees it."""
    patch: tuple[int, int]
    heatmap: AttributionMap
    """The map of this one image."""
    options: Mapping[str, Any]
    """What was asked of the method."""
    target: str
    """The class, label or column that the map explains; empty for a method that is blind to classes."""
    value: float | None
    """Its probability, or its value in the user's units; None where nobody knows."""
    predicted_class: str
    """The class that was answered; empty where there is none."""
    task: Task
    artefacts: Bool[np.ndarray, "rows columns"]
    """Patches whose tokens hold notes of the model instead of image; their heat is not drawn."""
    remarks: tuple[str, ...] = ()
    """What else a reader should know of the model."""

    @property
    def title(self) -> str:
        """What the map explains, and how likely it is."""
        if not self.target:
            return f"Answered: {self.predicted_class}" if self.predicted_class else self.heatmap.method.capitalize()
        if self.value is None:
            return self.target
        if self.task == "number":
            return f"{self.target} = {self.value:.4g}"
        other = (
            f"  (answered: {self.predicted_class})"
            if self.predicted_class and self.predicted_class != self.target
            else ""
        )
        return f"{self.target}, {self.value:.1%}{other}"

    @property
    def caption(self) -> OverlayCaption:
        """Title, method and layer, the honest line, notes."""
        name = "" if self.name.isdecimal() else f"{Path(self.name).name} · "  # a place in a list is no name
        made = f"{name}{self.heatmap.method} · {self.heatmap.layer}"
        return OverlayCaption(self.title, (made, self.heatmap.description, *self.notes), self.heatmap.unit)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was measured on the way, and what is not drawn."""
        count = int(self.artefacts.sum())
        told = (
            f"{count} of {self.artefacts.size} patches, hatched, hold notes of the model instead of picture: not drawn."
        )
        ends = ("Colours end at the largest 1 % of the patches.",) if self._is_clipped else ()
        return (*self.heatmap.notes, *([told] if count else []), *ends, *self.remarks)

    @property
    def _is_clipped(self) -> bool:
        """Whether the map goes beyond what is drawn in full strength."""
        heat, one_sided = self.heatmap.values[0][~self.artefacts], self.heatmap.scale == "positive"
        drawn = heat if one_sided else np.abs(heat)
        return self.heatmap.scale in ("positive", "signed") and float(drawn.max(initial=0)) > full_scale_value(drawn)

    def figure(self, opacity: float = OVERLAY_OPACITY) -> Figure:
        """What the model sees, the image under its map, the map alone, a scale bar, and the caption.

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
            "of_class": METHODS[self.heatmap.method].class_specific,
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

    def save(
        self, folder: Path, stem: str, opacity: float = OVERLAY_OPACITY, extra: Mapping[str, Any] | None = None
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
        to = Path(folder) / f"{stem}.{self.heatmap.method}"
        path = to.with_name(to.name + ".png")
        save_described_png(self.figure(opacity), path, f"{self.title}. {'. '.join(self.caption.below)}")
        arrays = {"values": self.heatmap.values[0], "artefacts": self.artefacts}
        if self.heatmap.pixels is not None:
            arrays["pixels"] = self.heatmap.pixels[0]
        data = io.BytesIO()
        np.savez_compressed(data, **arrays)
        atomic.write_bytes(to.with_name(to.name + ".npz"), data.getvalue())
        atomic.write_json(to.with_name(to.name + ".json"), {**self.to_json(), "opacity": opacity, **(extra or {})})
        return path


def make_unique_stems(names: list[str]) -> list[str]:
    """A name for each image's files: its own without the ending, numbered where others are called the same."""
    found, seen = [], set[str]()
    for name in names:
        stem = Path(name).stem or "picture"
        unique, count = stem, 1
        while unique in seen:
            count += 1
            unique = f"{stem}-{count}"
        seen.add(unique)
        found.append(unique)
    return found


# One image by all methods: a page, and the files that are kept of it.

ALL_METHODS = "all"
"""Stands for every method."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodComparison:
    """An image and its maps."""

    default_explanation: Explanation
    """By the default method of the model."""
    by_method: Mapping[str, Explanation | str]
    """By every method that the model has a use for; where a map says nothing, the reason."""

    @property
    def title(self) -> str:
        """As that of the first."""
        return self.default_explanation.title

    def figure(self, opacity: float = OVERLAY_OPACITY) -> Figure:
        """The image and all maps, each with its name, its numbers and its line.

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
        """Write STEM.all.png, .npz (the values, by method) and .json; arguments and errors as `Explained.save`."""
        path = Path(folder) / f"{stem}.{ALL_METHODS}.png"
        said = [
            f"{method}: {one if isinstance(one, str) else one.heatmap.description}"
            for method, one in self.by_method.items()
        ]
        save_described_png(self.figure(opacity), path, f"{self.title}. The picture, and its maps by {'; '.join(said)}")
        arrays = {method: one.heatmap.values[0] for method, one in self.by_method.items() if not isinstance(one, str)}
        data = io.BytesIO()
        np.savez_compressed(data, artefacts=self.default_explanation.artefacts, **arrays)
        atomic.write_bytes(path.with_suffix(".npz"), data.getvalue())
        atomic.write_json(path.with_suffix(".json"), {**self.to_json(), "opacity": opacity, **(extra or {})})
        return path


def explain_by_all_methods(
    explainer: Explainer, images: Sequence[ImageInput | bytes], request: ExplainRequest, skip_bad: bool = False
) -> Iterator[MethodComparison | tuple[str, str]]:
    """Every image by all methods, one after another. Only a class and a patch can be named.

    Without a patch, similarity is to the one that the default method marks most.

    Raises:
        UsageError: an option that only some methods know.
        as `explaining.explained`.
    """
    known = replace(request, method=None, target=None, patch=None)
    if others := [name for name, value in known.__dict__.items() if value is not None]:
        raise UsageError(f"With all methods only a class and a patch can be named. Got {', '.join(others)}.")
    for picture in images:
        (first,) = explain_images(explainer, [picture], ExplainRequest(target=request.target), skip_bad)
        if isinstance(first, tuple):
            yield first
        else:
            yield MethodComparison(
                default_explanation=first, by_method=_explain_other_methods(explainer, picture, request, first)
            )


def _explain_other_methods(
    explainer: Explainer, image: ImageInput | bytes, request: ExplainRequest, first: Explanation
) -> dict[str, Explanation | str]:
    patch = int(first.heatmap.values[0].argmax()) + 1 if request.patch is None else request.patch
    found: dict[str, Explanation | str] = {methods.default_method(explainer.model.config): first}
    for method, known in METHODS.items():
        if method in found or (known.class_specific and not explainer.model.config.outputs):
            continue
        wish = ExplainRequest(
            method=method,
            target=request.target if known.class_specific else None,
            patch=patch if method == "similarity" else None,
        )
        try:
            (one,) = explain_images(explainer, [image], wish)
        except EmptyMapError as problem:
            found[method] = str(problem)
        else:
            assert isinstance(one, Explanation)
            if method == "similarity" and request.patch is None:
                line = f"{one.heatmap.description} It is the one that {first.heatmap.method} marks most."
                one = replace(one, heatmap=replace(one.heatmap, description=line))
            found[method] = one
    return found


# A classic figure of any MODEL and some images, in one call: prepared, drawn, saved with its arrays and facts.


def draw_paper_figure(
    model_info: ModelInfo,
    figure_name: str,
    image_paths: Sequence[Path],
    output_path: Path,
    image_size: tuple[int, int] | None = None,
    choices: FigureOptions | None = None,
) -> list[Path]:
    """Write a figure of `book.FIGURES` to a PNG, and beside it its arrays (.npz) and facts (.json).

    Args:
        image_size: (height, width) that the images are enlarged or shrunk to, other than the model's own.

    Raises:
        UsageError: no such figure or option, another number of images than it takes, or a size that no patch divides.
        DataError: an image cannot be read.
        ResourceError: the files cannot be written.
    """
    model = model_info.model
    spec = model_info.spec if image_size is None else resize_spec(model_info.spec, image_size)
    names = [path.name for path in image_paths]
    shown = prepare_figure_inputs(model, spec, list(image_paths), names) if image_paths else empty_figure_inputs(model)
    return all_figures.save_figure(all_figures.draw_figure(figure_name, model, shown, choices), output_path)
