"""One picture by all methods: a page, and the files that are kept of it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.source import ImageInput
from ..errors import UsageError
from ..explain import methods
from ..explain.attribution import EmptyMapError
from ..explain.methods import METHODS
from ..explain.overlay import OVERLAY_OPACITY, SheetPanel, plot_sheet, save_described_png
from ..files import atomic
from .explained import Explained
from .explaining import Asked, Explainer, explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"
"""Stands for every method."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SideBySide:
    """A picture and its maps."""

    first: Explained
    """By the default method of the model."""
    parts: Mapping[str, Explained | str]
    """By every method that the model has a use for; where a map says nothing, the reason."""

    @property
    def title(self) -> str:
        """As that of the first."""
        return self.first.title

    def figure(self, opacity: float = OVERLAY_OPACITY) -> Figure:
        """The picture and all maps, each with its name, its numbers and its line.

        Raises:
            UsageError: opacity outside 0..1.
        """
        panels = [
            SheetPanel(method, one, None) if isinstance(one, str)
            else SheetPanel(method, one.found.line, one.found.values[0], one.found.scale, one.found.unit)
            for method, one in self.parts.items()
        ]  # fmt: skip
        first = self.first
        return plot_sheet(first.image, first.patch, panels, self.title, first.artefacts, opacity, first.own)

    def record(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        records = {
            method: {"nothing": one} if isinstance(one, str) else one.record() for method, one in self.parts.items()
        }
        return {"picture": self.first.name, "methods": records}

    def save(
        self, folder: Path, stem: str, opacity: float = OVERLAY_OPACITY, beside: Mapping[str, Any] | None = None
    ) -> Path:
        """Write STEM.all.png, .npz (the values, by method) and .json; arguments and errors as `Explained.save`."""
        path = Path(folder) / f"{stem}.{ALL}.png"
        said = [f"{method}: {one if isinstance(one, str) else one.found.line}" for method, one in self.parts.items()]
        save_described_png(self.figure(opacity), path, f"{self.title}. The picture, and its maps by {'; '.join(said)}")
        arrays = {method: one.found.values[0] for method, one in self.parts.items() if not isinstance(one, str)}
        data = io.BytesIO()
        np.savez_compressed(data, artefacts=self.first.artefacts, **arrays)
        atomic.write_bytes(path.with_suffix(".npz"), data.getvalue())
        atomic.write_json(path.with_suffix(".json"), {**self.record(), "opacity": opacity, **(beside or {})})
        return path


def by_all(
    explainer: Explainer, pictures: Sequence[ImageInput | bytes], asked: Asked, skip_bad: bool = False
) -> Iterator[SideBySide | tuple[str, str]]:
    """Every picture by all methods, one after another. Only a class and a patch can be named.

    Without a patch, similarity is to the one that the default method marks most.

    Raises:
        UsageError: an option that only some methods know.
        as `explaining.explained`.
    """
    known = replace(asked, method=None, of=None, patch=None)
    if others := [name for name, value in known.__dict__.items() if value is not None]:
        raise UsageError(f"With all methods only a class and a patch can be named. Got {', '.join(others)}.")
    for picture in pictures:
        (first,) = explained(explainer, [picture], Asked(of=asked.of), skip_bad)
        if isinstance(first, tuple):
            yield first
        else:
            yield SideBySide(first=first, parts=_parts(explainer, picture, asked, first))


def _parts(
    explainer: Explainer, picture: ImageInput | bytes, asked: Asked, first: Explained
) -> dict[str, Explained | str]:
    patch = int(first.found.values[0].argmax()) + 1 if asked.patch is None else asked.patch
    found: dict[str, Explained | str] = {methods.default_method(explainer.model.config): first}
    for method, known in METHODS.items():
        if method in found or (known.of_class and not explainer.model.config.outputs):
            continue
        wish = Asked(
            method=method,
            of=asked.of if known.of_class else None,
            patch=patch if method == "similarity" else None,
        )
        try:
            (one,) = explained(explainer, [picture], wish)
        except EmptyMapError as problem:
            found[method] = str(problem)
        else:
            assert isinstance(one, Explained)
            if method == "similarity" and asked.patch is None:
                line = f"{one.found.line} It is the one that {first.found.method} marks most."
                one = replace(one, found=replace(one.found, line=line))
            found[method] = one
    return found
