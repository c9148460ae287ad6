"""Numerics cards: the settings of a family of weights that no tensor gives, read from `cards/<name>.toml`.

At the top of a card stand `licence`, `repository`, optionally `about` (a note on the use of the weights) and `files`
(names of published files that only the name distinguishes from those of a sister card). Then follow up to three
tables, `[original]`, `[timm]` and `[transformers]`: fields of ViTConfig (norm_eps, activation, resample, pool ...),
fields of ImageSpec (mean, std, interpolation, fit), and `crop`, the side of the centre crop after the resize, as a
fraction (`crop_384` for images of 384 pixels, if it differs). `[original]` is complete; the other two hold what
differs there, and may be empty. A missing table means that there is no such implementation.
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
    """Numerics, preprocessing and licence of one family of weights."""

    name: str
    licence: str
    """Of the published weights, by its SPDX name where it has one."""
    repository: str
    """Owner and name of the code that the numerics were read from."""
    about: str
    """A note on the use of the weights, without a full stop; or empty."""
    files: tuple[str, ...]
    """Names of published files, each with the beginning of its SHA-256 in it."""
    tables: Mapping[str, Mapping[str, Any]]
    """original, timm, transformers -> the fields of that table."""

    def numerics(self, match: str | None = None) -> dict[str, Any]:
        """Fields of ViTConfig for `match`, or as the authors' code has them.

        Raises:
            UsageError: `match` has no implementation of this family that the card knows.
        """
        return {name: value for name, value in self._merge_tables(match).items() if name in _MODEL_FIELDS}

    def preprocessing(self, match: str | None = None) -> dict[str, Any]:
        """Fields of ImageSpec: mean, std, interpolation, fit."""
        fields = {name: value for name, value in self._merge_tables(match).items() if name in _IMAGE_FIELDS}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}

    def crop(self, match: str | None = None, size: tuple[int, int] | None = None) -> float:
        """The side of the centre crop, as a fraction of the resized side, for a model of this image size."""
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
    """The card of that name. A missing card or an unknown field is a bug, not a user's error."""
    content = tomllib.loads((CARDS_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {table: content[table] for table in CARD_TABLES if table in content}
    unknown = set(content) - set(CARD_TABLES) - {*_TEXT_FIELDS, "files"}
    unknown |= {word for table in tables.values() for word in table} - _MODEL_FIELDS - _IMAGE_FIELDS - _CROP_FIELDS
    assert not unknown and tables, f"cards/{name}.toml has unknown fields {sorted(unknown)}, or no table"
    texts = {text: content.get(text, "") for text in _TEXT_FIELDS}
    return NumericsCard(name=name, files=tuple(content.get("files", ())), tables=tables, **texts)


def find_card_for_file(default_card: NumericsCard | None, name: str) -> NumericsCard | None:
    """The sister card that lists a file of this name, else `default_card`.

    Names of sister cards begin with the same word, such as torchvision and torchvision_swag: their files have the same
    tensors.
    """
    if default_card is None:
        return None
    family = default_card.name.split("_")[0]
    sisters = [load_card(other) for other in list_cards() if other.split("_")[0] == family]
    return next((sister for sister in sisters if name in sister.files), default_card)


def list_cards() -> tuple[str, ...]:
    """The names of all cards."""
    return tuple(sorted(path.stem for path in CARDS_FOLDER.glob("*.toml")))
