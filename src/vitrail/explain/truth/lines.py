"""What was measured of some methods, as lines of text: three short tables and one sentence for each comparison."""

from __future__ import annotations

from collections.abc import Sequence

from .differences import Verdict
from .results import Compared, Estimate, Located, Row, Truth

WORDS: dict[Verdict, str] = {
    "truer": "is truer than",
    "less true": "is less true than",
    "inconclusive": "cannot be told from",
}
WAYS = {"drop": "patches dropped", "blur": "patches blurred", "mean": "patches painted in the mean"}


def table(truth: Truth) -> str:
    """All of it for the terminal; every interval is 95 %."""
    lines = [f"{truth.pictures:,} pictures of {truth.patches} patches; intervals are 95 %", "", *_areas(truth)]
    if truth.rows[0].located is not None:
        lines += ["", *_places(truth, truth.rows[0].located)]
    if any(row.shuffled is not None for row in truth.rows):
        lines += ["", *_sanity(truth)]
    lines += ["", *(_sentence(one) for one in truth.compared)]
    lines += [
        f"{row.method} says nothing of {row.flat:,} pictures: the same everywhere" for row in truth.rows if row.flat
    ]
    return "\n".join(lines)


def _areas(truth: Truth) -> list[str]:
    head = ("insertion less deletion", *(WAYS[one.way] for one in truth.rows[0].faithful))
    return _aligned([head, *((row.method, *(_spanned(one.gap) for one in row.faithful)) for row in truth.rows)])


def _places(truth: Truth, first: Located) -> list[str]:
    """One row a method, one column a question that was asked; the last rows are what knowing nothing and all gives."""
    cells = [("planted evidence", *_questions(first)), *((row.method, *_answers(row, first)) for row in truth.rows)]
    chance = (first.chance_pointing, first.chance_box, first.chance_mask, first.chance_mask)
    for name, shares in (("chance", chance), ("a perfect map", (1.0, first.best_box, first.best_mask))):
        known = (name, *(f"{100 * share:.1f} %" for share in shares))
        cells.append((*known, *[""] * (len(cells[0]) - len(known))))
    return _aligned(cells)


def _questions(first: Located) -> list[str]:
    names = ["pointing", "in box", "in mask", "on decoy"]
    names += ["on tag"] * (first.on_tag is not None)
    return names + ["own class", "class correlation"] * (first.own_class is not None)


def _answers(row: Row, first: Located) -> list[str]:
    at = row.located
    assert at is not None
    shares = [at.pointing, at.in_box, at.in_mask, at.on_decoy] + [at.on_tag] * (first.on_tag is not None)
    found = [_share(one) for one in shares]
    if first.own_class is not None:
        alike = "" if at.class_correlation is None else f"{at.class_correlation.value:.2f}"
        found += [_share(at.own_class), alike]
    return found


def _sanity(truth: Truth) -> list[str]:
    cells = [("after all weights are shuffled", "rank correlation with the trained model's map")]
    cells += [(row.method, _spanned(row.shuffled)) for row in truth.rows if row.shuffled is not None]
    return _aligned(cells)


def _sentence(one: Compared) -> str:
    apart = ", ".join(f"{each.way} {each.mean:+.3f} ({_bounds(*each.interval)})" for each in one.differences)
    return f"{one.first} {WORDS[one.verdict]} {one.second}: {apart}"


def _spanned(one: Estimate) -> str:
    return f"{one.value:+.3f} ({_bounds(*one.interval)})"


def _bounds(low: float, high: float) -> str:
    return f"{low:+.3f} to {high:+.3f}"


def _share(one: Estimate | None) -> str:
    return "" if one is None else f"{100 * one.value:.1f} %"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side: the first to the left, numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join(
            [row[0].ljust(first), *(cell.rjust(wide) for cell, wide in zip(row[1:], others, strict=True))]
        ).rstrip()
        for row in rows
    ]
