"""What happens to a hundred people, each a pane of a window: found, missed, alarmed for nothing, rightly left alone."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from .sought import Sought

SIDE, GAP, ACROSS = 13, 3, 20
FEWEST = 2.0
"""Of so many people at least one in a round number must have what is looked for, or the number is made larger."""
LOTS = (100, 1000, 10000, 100000)


class People(NamedTuple):
    """A round number of people, in whole ones."""

    n: int
    found: int
    missed: int
    alarmed: int
    left: int

    @property
    def present(self) -> int:
        """Those who have it."""
        return self.found + self.missed

    @property
    def answered(self) -> int:
        """Those who are said to have it."""
        return self.found + self.alarmed


def people(thing: Sought) -> People | None:
    """What becomes of a hundred people, or of more where it is rare; None where a rate could not be measured."""
    if thing.missed is None or thing.alarms is None:
        return None
    least = min(thing.prevalence, 1 - thing.prevalence)
    n = next((lot for lot in LOTS if lot * least >= FEWEST), LOTS[-1])
    present = round(n * thing.prevalence)
    missed, alarmed = round(present * thing.missed.value), round((n - present) * thing.alarms.value)
    return People(n, present - missed, missed, alarmed, n - present - alarmed)


def draw(some: People, name: str) -> str:
    """An SVG element with a hundred panes in rows of twenty; the page's style sheet gives the colours."""
    step = SIDE + GAP
    width, height = ACROSS * step - GAP, 100 // ACROSS * step - GAP
    says = (
        f"Of 100, {some.present} have {name}: {some.found} are found and {some.missed} missed. "
        f"Of the others {some.alarmed} get a false alarm and {some.left} are rightly left alone."
    )
    parts = [f'<svg class="panes-of-people" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(says)}">']
    start = 0
    kinds = {"found": some.found, "missed": some.missed, "alarmed": some.alarmed, "left": some.left}
    for kind, count in kinds.items():
        places = [divmod(place, ACROSS) for place in range(start, start + count)]
        path = "".join(f"M{column * step} {row * step}h{SIDE}v{SIDE}h-{SIDE}z" for row, column in places)
        parts += [f'<path class="{kind}" d="{path}"/>'] if path else []
        start += count
    return "".join([*parts, "</svg>"])
