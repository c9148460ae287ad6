"""From a MODEL and pictures to explained pictures: the map, what was answered, and the words around both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from .. import runtime
from ..checkpoints import bundle
from ..checkpoints.bundle import find_bundle
from ..data.decoding.decode import decode_image
from ..data.preprocess import crop_for_display, fit_array_to_tensor, normalize
from ..data.source import ImageInput, Task, parse_task
from ..errors import DataError, UsageError
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import ClassificationPredictions, RegressionPredictions
from ..evaluate.tables import image_path
from ..explain import methods
from ..explain.attribution import EmptyMapError
from ..explain.methods import AVERAGED_NOTE, METHODS, MethodOptions
from ..explain.overlay import MIN_SIDE_PIXELS
from ..explain.patch_features import ATTENTION_METHODS, find_artifact_patches
from ..files import strict_json
from ..files.suggest import suggest_path
from ..model.vit import ViT
from ..predict.predictor import Predictor, PredictorMember
from ..spec import ImageSpec
from .explained import Explained
from .models import find, located
from .predicting import open_predictor, several

Fill = Literal["mean", "black", "white", "drop"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person asks for; None leaves it to the method."""

    method: str | None = None
    """A name in `explain.methods.METHODS`."""
    of: str | None = None
    """The class, label or column to explain, or the number of an output that has no name; None takes the answer."""
    layer: int | None = None
    heads: tuple[int, ...] | None = None
    patch: int | None = None
    window: int | None = None
    steps: int | None = None
    fill: Fill | None = None
    """What stands for an empty picture or a covered patch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explainer:
    """A model with all that it takes to explain its answers."""

    given: str
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
    """Views of a picture that its answer is the mean over."""

    def output(self, of: str) -> int:
        """The number of an output by its name, or by its number where it has none.

        Raises:
            UsageError: there is no such output.
        """
        if of in self.classes:
            return self.classes.index(of)
        if not self.classes and of.isdecimal() and int(of) < self.model.config.outputs:
            return int(of)
        if not self.model.config.outputs:
            raise UsageError(f"The model has no output {of!r}: it gives features, of which none has a name.")
        known = ", ".join(self.classes[:20]) + (", ..." if len(self.classes) > 20 else "")
        known = known or f"0 to {self.model.config.outputs - 1}"
        raise UsageError(f"The model has no output {of!r}. Its outputs are {known}.")


def open_explainer(given: str | Path, device: str = "auto") -> Explainer:
    """The model of a run folder, a bundle or a weights file, with its answers if its outputs have names.

    Raises:
        UsageError: nothing there, an ensemble, or a device that is not here.
        DamagedFileError: the files cannot be trusted.
    """
    place = located(str(given))
    if place is None:
        raise UsageError(
            f"A model is needed to explain: a run folder, a bundle or weights. {given} does not exist."
            f"{suggest_path(str(given))}"
        )
    folder = find_bundle(place.path)
    if folder is not None and strict_json.read_json(folder / bundle.CONFIG_FILE).get("classes"):
        return of_predictor(open_predictor(place.path, device), str(given))
    found = find(str(place.path))
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    runtime.apply(machine)
    if found.classes:
        member = PredictorMember(model=found.model, spec=found.spec, classes=found.classes, task=parse_task(found.task))
        return of_predictor(Predictor([member], machine.device), str(given))
    here = torch.device(machine.device)
    return Explainer(
        given=str(given), model=found.model.to(here), spec=found.spec, classes=(), task="classes", device=here,
        predictor=None,
    )  # fmt: skip


def of_predictor(predictor: Predictor, given: str) -> Explainer:
    """The same from a predictor of one model."""
    member = predictor.alone()
    assert isinstance(member.model, ViT)
    return Explainer(
        given=given, model=member.model, spec=predictor.spec, classes=predictor.classes, task=predictor.task,
        device=predictor.device, predictor=predictor, views=member.views.count,
    )  # fmt: skip


def explained(
    explainer: Explainer, pictures: Sequence[ImageInput | bytes], asked: Asked, skip_bad: bool = False
) -> Iterator[Explained | tuple[str, str]]:
    """Every picture explained, one after another.

    Args:
        skip_bad: give (name, reason) of a picture that cannot be read or has no map, instead of raising.

    Raises:
        DataError: a picture that cannot be read, by name.
        EmptyMapError: a picture whose map says nothing, by name.
        UsageError: what was asked for cannot be.
    """
    _check_fill(asked, explainer.model)
    of = None if asked.of is None else explainer.output(asked.of)
    options = _options(asked, explainer)
    for place, picture in enumerate(pictures):
        name = str(place) if isinstance(picture, np.ndarray | bytes) else image_path(picture)
        try:
            yield _one(explainer, picture, name, asked, options, of)
        except DataError as problem:
            if not skip_bad:
                raise
            yield name, str(problem)
        except EmptyMapError as problem:
            if not skip_bad:
                raise EmptyMapError(f"{name}: {problem}") from problem
            yield name, str(problem)


def of_pictures(predictor: Predictor, given: str, pictures: object, asked: Asked) -> list[Explained]:
    """One picture or a list of them, as `predicting.several` takes them, explained.

    Raises:
        DataError, UsageError: as `explained`, and as `several`.
    """
    listed = isinstance(pictures, list | tuple) or getattr(pictures, "ndim", 0) > 3
    found = explained(of_predictor(predictor, given), several(pictures if listed else [pictures]), asked)
    return [one for one in found if not isinstance(one, tuple)]


def fingerprint(model: ViT) -> str:
    """SHA-256 of all weights, by name: which model a map was made with."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _one(
    explainer: Explainer, picture: ImageInput | bytes, name: str, asked: Asked, options: MethodOptions, of: int | None
) -> Explained:
    decoded = decode_image(picture, explainer.spec)
    image = fit_array_to_tensor(decoded, explainer.spec)  # uint8 [C, H, W]
    answers = None if explainer.predictor is None else explainer.predictor.predict([picture])
    method = asked.method or methods.default_method(explainer.model.config)
    if method in METHODS and METHODS[method].of_class and of is None:
        of = _answered(answers)
    images = normalize(image[None].to(explainer.device), explainer.spec)
    found = methods.explain_images(explainer.model, images, method, of, options)
    number = None if found.of is None else found.of[0]
    artefacts = np.zeros(found.values.shape[1:], bool)
    if method in ATTENTION_METHODS:
        artefacts = find_artifact_patches(explainer.model, images)[0]
    return Explained(
        name=name,
        image=_channels_last(image),
        own=crop_for_display(decoded, explainer.spec, MIN_SIDE_PIXELS),
        patch=explainer.model.config.patch,
        found=found,
        options={word: value for word, value in asked.__dict__.items() if value is not None} | {"method": method},
        of="" if number is None else _name(explainer, number),
        value=None if number is None or answers is None else _value(answers, number),
        answered="" if answers is None else _said(answers),
        task=explainer.task,
        artefacts=artefacts,
        remarks=(AVERAGED_NOTE.format(explainer.views),) if explainer.views > 1 and number is not None else (),
    )


def _options(asked: Asked, explainer: Explainer) -> MethodOptions:
    """As the methods know them; the empty picture is made from the model's own white and black."""
    plain = MethodOptions(
        layer=asked.layer, heads=asked.heads, patch=asked.patch, window=asked.window, steps=asked.steps,
        drop=True if asked.fill == "drop" else None,
    )  # fmt: skip
    if asked.fill in (None, "drop"):
        return plain
    spec = explainer.spec
    level = torch.full((1, spec.channels, *spec.size), 255 if asked.fill == "white" else 0, dtype=torch.uint8)
    empty = normalize(level, spec).to(explainer.device)
    return replace(plain, cover=torch.zeros_like(empty) if asked.fill == "mean" else empty)


def _check_fill(asked: Asked, model: ViT) -> None:
    method = asked.method or methods.default_method(model.config)
    if asked.fill is None or method not in METHODS:
        return
    if "cover" not in METHODS[method].uses:
        raise UsageError(f"{method} has no use for fill. Only integrated and occlusion need something for nothing.")
    if asked.fill == "drop" and "drop" not in METHODS[method].uses:
        raise UsageError(f"{method} needs an empty picture: fill must be mean, black or white. Got drop.")


def _answered(answers: TaskPredictions | None) -> int | None:
    """The output that is explained if none is named: the answer, the most likely label, the only column.

    Raises:
        UsageError: there are several columns.
    """
    if answers is None:
        return None
    if isinstance(answers, ClassificationPredictions):
        return int(answers.labels[0])
    if not isinstance(answers, RegressionPredictions):
        return int(answers.probabilities[0].argmax())
    if len(answers.columns) > 1:
        raise UsageError(
            f"The model gives several numbers: {', '.join(answers.columns)}. Name the one to explain (--class NAME)."
        )
    return 0


def _name(explainer: Explainer, number: int) -> str:
    return explainer.classes[number] if explainer.classes else f"output {number}"


def _value(answers: TaskPredictions, number: int) -> float:
    """The probability of an output, or its value in the user's units."""
    row = answers.values[0] if isinstance(answers, RegressionPredictions) else answers.probabilities[0]
    return float(row[number])


def _said(answers: TaskPredictions) -> str:
    return answers.classes[int(answers.labels[0])] if isinstance(answers, ClassificationPredictions) else ""


def _channels_last(image: UInt8[Tensor, "C H W"]) -> UInt8[np.ndarray, "H W C"]:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())
