"""Check for shortcuts (Geirhos et al. 2020): features such as size, format, name or origin that predict the label.

A model that uses a shortcut scores well on the same data and fails elsewhere. Each feature of the images and each
further column of the source is tested alone: does it identify one class, or predict the label much better than the
majority class does?
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ...formatting import format_count
from ..source import Source
from .findings import DataIssue
from .image_stats import ImageStatsTable

MIN_CLASS_IMAGES = 10
"""Least number of images of a class, and of all others, for a shortcut to be reported."""
MIN_OVERLAP = 0.98
"""Least recall (fraction of a class with a value) and precision (fraction of the value's images in the class)."""
MIN_ERROR_REDUCTION = 0.5
"""Fraction of the errors of the majority-class baseline that a feature must avoid."""
MIN_EXPLAINED_VARIANCE = 0.5
"""Fraction of the variance of a number that a feature must explain."""
MIN_VALUE_COUNT = 5
"""Values with fewer images count as one value."""
RARE_VALUES = "one of the rare values"
MAX_DISTINCT_VALUES = 50
"""Number of values from which numbers are binned into ten ranges."""

Codes = NDArray[np.int64]


def find_shortcuts(source: Source, stats: ImageStatsTable, strata: str = "") -> list[DataIssue]:
    """Report each class that one feature identifies, and each feature that predicts the label.

    Args:
        strata: a column to leave out, because the splits are stratified by it.
    """
    if len(stats) < 2 * MIN_CLASS_IMAGES or source.task in ("anomaly", "segmentation"):  # no label of pictures
        return []
    features = []
    for name, values in _iter_features(source, stats, strata):
        if len(set(values)) > 1:
            features.append((name, *_encode_values(values)))
    if source.task == "regression":
        rows = stats.rows
        return [issue for name, codes, _ in features for issue in _check_explained_variance(source, rows, name, codes)]
    return [issue for target in _iter_targets(source, stats.rows) for issue in _check_target(target, features)]


class ShortcutTarget(NamedTuple):
    """The target to predict: the class, or the presence of one label."""

    label: str
    is_known: NDArray[np.bool_]
    class_indices: Codes
    descriptions: tuple[str, ...]
    """Description of the images of each class index: of class 'cat'."""


def _check_target(target: ShortcutTarget, features: Sequence[tuple[str, Codes, list[str]]]) -> Iterator[DataIssue]:
    """Report each class with the first feature that identifies it; without any, features that predict the target."""
    reported: set[int] = set()
    known = target.is_known
    if known.sum() < 2 * MIN_CLASS_IMAGES:
        return
    classes = len(target.descriptions)
    for feature, codes, names in features:
        table_indices = codes[known] * classes + target.class_indices[known]
        table = np.bincount(table_indices, minlength=len(names) * classes).reshape(-1, classes)  # counts of images
        for number, text in _find_class_shortcuts(feature, names, target.descriptions, table):
            if number not in reported:
                yield _shortcut_issue(text)
            reported.add(number)
        if not reported:
            yield from _check_predictive_feature(feature, target.label, table)


def _iter_features(source: Source, stats: ImageStatsTable, strata: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Iterate over features, as names with one value per image, that do not depend on the image's content."""
    sizes = [f"{height} x {width}" for height, width in zip(stats.heights.tolist(), stats.widths.tolist(), strict=True)]
    kinds = stats.kinds.tolist()
    yield "size and format", [f"{size} {kind}" for size, kind in zip(sizes, kinds, strict=True)]
    if len(set(sizes)) > MAX_DISTINCT_VALUES:
        yield "size", [str(area) for area in (stats.heights.astype(np.int64) * stats.widths).tolist()]
    else:
        yield "size", sizes
    yield "format", kinds
    yield "depth", stats.depths.tolist()
    yield "colour", ["grey" if grey else "in colour" for grey in stats.is_grey.tolist()]
    if not isinstance(source.images, np.ndarray):
        yield from _name_features([source.ids[row] for row in stats.rows.tolist()], source.classes)
    for column, values in source.metadata.items():
        if column != strata:
            yield f"column {column!r}", [values[row] for row in stats.rows.tolist()]


def _name_features(ids: Sequence[str], classes: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """First and last word of the file names, and folders; skipped if they hold a class name, as names often do."""
    plain = [letters for name in classes if (letters := _normalize_name(name))]
    paths = [PurePosixPath(name) for name in ids]
    words = [[word for word in re.split(r"[\W_]+|(?<=[a-zA-Z])(?=\d)", path.stem) if word] or [""] for path in paths]
    parts = {
        "name's beginning": [each[0] for each in words],
        "name's end": [each[-1] for each in words],
        "folder": [str(path.parent) for path in paths],
    }
    for part, values in parts.items():
        texts = ["" if value.isdigit() else value for value in values]
        used = {_normalize_name(value) for value in texts} - {""}
        if not any(name in value or (len(value) > 2 and value in name) for value in used for name in plain):
            yield part, texts


def _normalize_name(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _iter_targets(source: Source, rows: NDArray[np.int64]) -> Iterator[ShortcutTarget]:
    targets = source.targets[rows]
    if source.task == "classification":
        numbers = targets.argmax(1) if source.has_soft_labels else targets
        subjects = tuple(f"of class {name!r}" for name in source.classes)
        yield ShortcutTarget("the class", np.ones(len(rows), np.bool_), numbers.astype(np.int64), subjects)
        return
    for column, name in enumerate(source.classes):
        known = ~np.isnan(targets[:, column])
        present = (targets[:, column] >= 0.5).astype(np.int64)
        yield ShortcutTarget(f"label {name!r}", known, present, (f"without {name!r}", f"with {name!r}"))


def _encode_values(values: Sequence[str]) -> tuple[Codes, list[str]]:
    """Encode values as integer codes; many numbers become ten ranges, rare values become one."""
    texts = np.array(values, dtype=np.str_)
    names, codes, counts = np.unique(texts, return_inverse=True, return_counts=True)
    if len(names) > MAX_DISTINCT_VALUES and (numbers := _parse_numbers(texts)) is not None:
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, 11)[1:-1]))
        codes = np.searchsorted(edges, numbers, side="right")
        bounds = [f"{edge:g}" for edge in edges.tolist()]
        spans = [f"{low} to {high}" for low, high in zip(["least", *bounds], [*bounds, "most"], strict=True)]
        return codes.astype(np.int64) + 1, [RARE_VALUES, *spans]
    rare = counts < MIN_VALUE_COUNT
    renumbered = np.where(rare, 0, np.cumsum(~rare))
    return renumbered[codes].astype(np.int64), [RARE_VALUES, *names[~rare].tolist()]


def _parse_numbers(texts: Shaped[np.ndarray, " n"]) -> NDArray[np.float64] | None:
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _find_class_shortcuts(
    feature: str, names: list[str], subjects: tuple[str, ...], table: NDArray[np.int64]
) -> Iterator[tuple[int, str]]:
    """Sentences on classes whose images nearly all have a value that hardly any other image has."""
    for number, subject in enumerate(subjects):
        mine = int(table[:, number].sum())
        if mine < MIN_CLASS_IMAGES or table.sum() - mine < MIN_CLASS_IMAGES or len(table) < 2:
            continue
        value = int(table[1:, number].argmax()) + 1  # 0 is all rare values together
        both, others = int(table[value, number]), int(table[value].sum() - table[value, number])
        if both < MIN_OVERLAP * mine or both < MIN_OVERLAP * (both + others):
            continue
        plain = feature in ("size and format", "size", "format", "depth", "colour")
        phrase = names[value] if plain else f"{names[value]!r} by their {feature}"
        if both == mine and not others:
            yield number, f"All {format_count(mine, 'picture')} {subject} are {phrase}, no other is."
        else:
            rest = format_count(others, "picture")
            yield (
                number,
                (f"{both:,} of {format_count(mine, 'picture')} {subject} are {phrase}, and only {rest} of all others."),
            )


def _check_predictive_feature(feature: str, label: str, table: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report a feature whose values, each predicting its most frequent class, avoid most errors."""
    n = int(table.sum())
    majority = int(table.sum(0).max()) / n
    right = float(np.maximum(table.max(1) - 1, 0).sum()) / n  # - 1: leave-one-out, so that rare values do not count
    if n - majority * n >= MIN_CLASS_IMAGES and right - majority >= MIN_ERROR_REDUCTION * (1 - majority):
        yield _shortcut_issue(
            f"The {feature} alone tells {label} of {right:.0%} of the pictures; always saying the most frequent answer "
            f"is right for {majority:.0%}."
        )


def _shortcut_issue(text: str) -> DataIssue:
    return DataIssue(
        code="shortcut",
        severity="warning",
        text=f"Shortcut: {text[0].lower()}{text[1:]}",
        advice="If pictures show it, a model learns that instead of what you mean, and fails elsewhere. Collect, cut "
        "and convert all classes in the same way.",
    )


def _check_explained_variance(
    source: Source, rows: NDArray[np.int64], feature: str, codes: Codes
) -> Iterator[DataIssue]:
    """Report a feature that explains most of a number's variance."""
    for column, name in enumerate(source.classes):
        numbers = source.targets[rows, column].astype(np.float64)
        known = ~np.isnan(numbers)
        n = int(known.sum())
        if n < 2 * MIN_CLASS_IMAGES or not numbers[known].std():
            continue
        counts = np.bincount(codes[known])
        sums = np.bincount(codes[known], weights=numbers[known])
        squares = np.bincount(codes[known], weights=numbers[known] ** 2)
        used = counts > 0
        inside = float((squares[used] - sums[used] ** 2 / counts[used]).sum()) / max(1, n - int(used.sum()))
        explained = 1 - inside / float(numbers[known].var(ddof=1))
        if explained >= MIN_EXPLAINED_VARIANCE:
            yield _shortcut_issue(f"The {feature} alone explains {explained:.0%} of the variance of {name!r}.")
