"""The numerics cards: what must match beside the names of a family's tensors, read from `cards/<name>.toml`.

A card is a TOML file. At its top: `licence`, `repository`, optionally `about` (what to know before the weights are
used; a note) and `files` (names of published files that nothing else tells apart from those of a sister card). Then up
to three tables, `[original]`, `[timm]` and `[transformers]`: fields of ViTConfig (norm_eps, activation, resample, pool
...), fields of ImageSpec (mean, std, interpolation, fit), and `crop`, the side of the centre that the reference keeps
after its resize, as a fraction (`crop_384` for images of 384 pixels, where it differs). `[original]` holds
everything; the other two what differs there, and may be empty. A table that is not on the card means: no such
implementation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..model.config import ViTConfig
from ..spec import ImageSpec

CARDS_FOLDER = Path(__file__).parent / "cards"
CARD_TABLES = ("original", "timm", "transformers")
_MODEL_FIELDS = {field.name for field in fields(ViTConfig)} - {"image_size", "channels"}
_IMAGE_FIELDS = {field.name for field in fields(ImageSpec)} - {"height", "width", "channels", "low", "high"}
_TEXT_FIELDS = ("licence", "repository", "about")
_CROP_FIELDS = {"crop", "crop_384"}


@dataclass(frozen=True, kw_only=True)
class NumericsCard:
    """One family's card."""

    name: str
    licence: str
    """Of the published weights, by its SPDX name where it has one."""
    repository: str
    """Owner and name of the code that the numerics were read from."""
    about: str
    """What a person should know before the weights are used, without a full stop; or nothing."""
    files: tuple[str, ...]
    """Names of published files, each with the beginning of its SHA-256 in it."""
    tables: Mapping[str, Mapping[str, Any]]
    """original, timm, transformers -> what stands there."""

    def numerics(self, match: str | None = None) -> dict[str, Any]:
        """Fields of ViTConfig, as the authors' code has them or as `match` runs them.

        Raises:
            UsageError: `match` has no implementation of this family that the card knows.
        """
        return {name: value for name, value in self._merge_tables(match).items() if name in _MODEL_FIELDS}

    def preprocessing(self, match: str | None = None) -> dict[str, Any]:
        """Fields of ImageSpec: mean, std, interpolation, fit."""
        return {name: _as_tuple(value) for name, value in self._merge_tables(match).items() if name in _IMAGE_FIELDS}

    def crop(self, match: str | None = None, size: tuple[int, int] | None = None) -> float:
        """The side of the centre that the reference keeps after its resize, as a fraction of what it resized to.

        Args:
            size: (height, width) in pixels of the images that the model reads.
        """
        table = self._merge_tables(match)
        usual = table.get("crop", 1.0)
        return float(table.get("crop_384", usual) if size == (384, 384) else usual)

    def _merge_tables(self, match: str | None) -> dict[str, Any]:
        if match is not None and match not in self.tables:
            raise UsageError(
                f'match="{match}" is not known for {self.name}. Name one that its card knows: {", ".join(self.tables)}.'
            )
        return {**self.tables.get("original", {}), **self.tables.get(match or "original", {})}


@cache
def load_card(name: str) -> NumericsCard:
    """The card of that name; one that is missing or holds a word that nobody reads is our mistake, not a person's."""
    content = tomllib.loads((CARDS_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {whose: content[whose] for whose in CARD_TABLES if whose in content}
    strange = set(content) - set(CARD_TABLES) - {*_TEXT_FIELDS, "files"}
    strange |= {word for table in tables.values() for word in table} - _MODEL_FIELDS - _IMAGE_FIELDS - _CROP_FIELDS
    assert not strange and tables, f"cards/{name}.toml: nobody reads {sorted(strange)}, or it has no table"
    texts = {text: content.get(text, "") for text in _TEXT_FIELDS}
    return NumericsCard(name=name, files=tuple(content.get("files", ())), tables=tables, **texts)


def find_card_for_file(default_card: NumericsCard | None, name: str) -> NumericsCard | None:
    """The sister card that lists a file of this name, where one does; else `default_card`.

    Sisters begin with the same word, such as torchvision and torchvision_swag: their files have the same tensors.
    """
    if default_card is None:
        return None
    family = default_card.name.split("_")[0]
    sisters = [load_card(other) for other in list_cards() if other.split("_")[0] == family]
    return next((sister for sister in sisters if name in sister.files), default_card)


def list_cards() -> tuple[str, ...]:
    """The names of all cards."""
    return tuple(sorted(path.stem for path in CARDS_FOLDER.glob("*.toml")))


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
