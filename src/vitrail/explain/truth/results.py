"""What was measured of some methods, as plain values: one row a method, and how sure the differences are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import config
from ...stats.intervals import Interval
from .differences import Difference, Verdict
from .removal import Way


@dataclass(frozen=True)
class Estimate:
    """A mean over pictures with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Faithful:
    """The areas of one way of taking patches away."""

    way: Way
    deletion: Estimate
    """Mean height of the curve while the most relevant patches go first: small is true."""
    insertion: Estimate
    """Mean height while the most relevant come first: large is true."""
    gap: Estimate
    """Insertion less deletion: large is true, 0 is random."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where maps of planted pictures lie; see `evidence.Found` and `localisation.Sensitivity`."""

    pointing: Estimate
    in_box: Estimate
    in_mask: Estimate
    overlap: Estimate
    on_decoy: Estimate
    on_tag: Estimate | None = None
    own_class: Estimate | None = None
    """Of pictures with two classes: share of the relevance on either glyph that lies on the one asked about."""
    class_correlation: Estimate | None = None
    """Correlation of the maps of the two classes; 1 for a method that is blind to the class."""
    chance_pointing: float
    """Pointing of a random map."""
    chance_box: float
    """Share of the picture that the box covers."""
    chance_mask: float
    """Share of the picture that the glyph's pixels cover, and the decoy's as well."""
    best_box: float
    """`in_box` of the map of whoever knows."""
    best_mask: float
    """`in_mask` of it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one method."""

    method: str
    baseline: bool
    """It knows nothing of the model: noise, the middle, or the picture's edges."""
    faithful: tuple[Faithful, ...]
    located: Located | None = None
    flat: int
    """Pictures whose map is the same everywhere: it points nowhere, and the patches go in an order drawn blindly."""
    shuffled: Estimate | None = None
    """Rank correlation with the map of the same model after all its weights were shuffled: near 0 is sane."""


@dataclass(frozen=True)
class Compared:
    """Two methods on the same pictures."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Truth:
    """All of it; `lines.table` says it in lines."""

    pictures: int
    patches: int
    rows: tuple[Row, ...]
    """The methods as they were given, then the baselines."""
    compared: tuple[Compared, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; what could not be measured is absent."""
        return config.write(self)
