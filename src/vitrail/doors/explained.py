"""One explained picture: its figure, and the files that are kept of it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, UInt8

from ..data.source import Task
from ..explain.attribution import AttributionMap
from ..explain.methods import METHODS
from ..explain.overlay import OVERLAY_OPACITY, OverlayCaption, full_scale_value, plot_overlay, save_described_png
from ..files import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained:
    """A picture, its map, and what was answered."""

    name: str
    """The path, or the place of an array among the pictures."""
    image: UInt8[np.ndarray, "H W C"]
    """As the model sees it."""
    own: UInt8[np.ndarray, "h w C"]
    """The part of the picture that the model sees, in the picture's own shape and pixels, of large ones in fewer."""
    """The picture as the model sees it."""
    patch: tuple[int, int]
    found: AttributionMap
    """The map of this one picture."""
    options: Mapping[str, Any]
    """What was asked of the method."""
    of: str
    """The class, label or column that the map explains; empty for a method that is blind to classes."""
    value: float | None
    """Its probability, or its value in the user's units; None where nobody knows."""
    answered: str
    """The class that was answered; empty where there is none."""
    task: Task
    artefacts: Bool[np.ndarray, "rows columns"]
    """Patches whose tokens hold notes of the model instead of picture; their heat is not drawn."""
    remarks: tuple[str, ...] = ()
    """What else a reader should know of the model."""

    @property
    def title(self) -> str:
        """What the map explains, and how likely it is."""
        if not self.of:
            return f"Answered: {self.answered}" if self.answered else self.found.method.capitalize()
        if self.value is None:
            return self.of
        if self.task == "number":
            return f"{self.of} = {self.value:.4g}"
        other = f"  (answered: {self.answered})" if self.answered and self.answered != self.of else ""
        return f"{self.of}, {self.value:.1%}{other}"

    @property
    def caption(self) -> OverlayCaption:
        """Title, method and layer, the honest line, notes."""
        name = "" if self.name.isdecimal() else f"{Path(self.name).name} · "  # a place in a list is no name
        made = f"{name}{self.found.method} · {self.found.layer}"
        return OverlayCaption(self.title, (made, self.found.line, *self.notes), self.found.unit)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was measured on the way, and what is not drawn."""
        count = int(self.artefacts.sum())
        told = (
            f"{count} of {self.artefacts.size} patches, hatched, hold notes of the model instead of picture: not drawn."
        )
        ends = ("Colours end at the largest 1 % of the patches.",) if self._ends_early else ()
        return (*self.found.notes, *([told] if count else []), *ends, *self.remarks)

    @property
    def _ends_early(self) -> bool:
        """Whether the map goes beyond what is drawn in full strength."""
        heat, one_sided = self.found.values[0][~self.artefacts], self.found.scale == "positive"
        drawn = heat if one_sided else np.abs(heat)
        return self.found.scale in ("positive", "signed") and float(drawn.max(initial=0)) > full_scale_value(drawn)

    def figure(self, opacity: float = OVERLAY_OPACITY) -> Figure:
        """What the model sees, the picture under its map, the map alone, a scale bar, and the caption.

        Raises:
            UsageError: opacity outside 0..1.
        """
        heat, scale = self.found.values[0], self.found.scale
        return plot_overlay(self.image, heat, scale, self.patch, self.caption, self.artefacts, opacity, self.own)

    def record(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        heat = self.found.values[0]
        return {
            "picture": self.name,
            "picture_sha256": hashlib.sha256(self.image.tobytes()).hexdigest(),
            "method": self.found.method,
            "class": self.of or None,
            "value": self.value,
            "answered": self.answered or None,
            "of_class": METHODS[self.found.method].of_class,
            "layer": self.found.layer,
            "options": {
                name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()
            },
            "scale": self.found.scale,
            "rows": heat.shape[0],
            "columns": heat.shape[1],
            "patch": list(self.patch),
            "lowest": float(heat.min()),
            "highest": float(heat.max()),
            "artefacts": int(self.artefacts.sum()),
            "unit": self.found.unit,
            "line": self.found.line,
            "notes": list(self.notes),
        }

    def save(
        self, folder: Path, stem: str, opacity: float = OVERLAY_OPACITY, beside: Mapping[str, Any] | None = None
    ) -> Path:
        """Write STEM.METHOD.png, .npz (values, artefacts, and pixels where the method knows them) and .json.

        Args:
            beside: further facts for the .json file.

        Returns:
            Where the PNG lies.

        Raises:
            UsageError: opacity outside 0..1.
            ResourceError: the disk is full or read-only.
        """
        to = Path(folder) / f"{stem}.{self.found.method}"
        path = to.with_name(to.name + ".png")
        save_described_png(self.figure(opacity), path, f"{self.title}. {'. '.join(self.caption.below)}")
        arrays = {"values": self.found.values[0], "artefacts": self.artefacts}
        if self.found.pixels is not None:
            arrays["pixels"] = self.found.pixels[0]
        data = io.BytesIO()
        np.savez_compressed(data, **arrays)
        atomic.write_bytes(to.with_name(to.name + ".npz"), data.getvalue())
        atomic.write_json(to.with_name(to.name + ".json"), {**self.record(), "opacity": opacity, **(beside or {})})
        return path


def stems(names: list[str]) -> list[str]:
    """A name for each picture's files: its own without the ending, numbered where others are called the same."""
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
