"""Masks of the task segmentation: PNG files of class numbers, palette numbers or colours, as maps of class indices."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt8

from ...errors import DataError, UsageError
from ...formatting import format_count
from ...spec import ImageSpec
from ..decoding.decode import read_file_bytes, read_image
from ..parallel import map_in_order
from ..settings import DataSettings
from ..source import MAX_MASK_CLASSES, UNKNOWN_PIXEL, MaskLegend, Source, spelling_key
from .defects import MASK_COLUMN
from .run_lengths import RUNS_PREFIX, decode_class_map

LEGEND_FILE = "classes.csv"
"""The legend in a folder of images/ and masks/, or beside a manifest."""
UNKNOWN_VALUE = 255
"""The value of unknown pixels, unless a legend gives it a name."""
UNKNOWN_NAMES = frozenset(("unknown", "ignore", "ignored", "void", "unlabeled", "unlabelled"))
"""Names of a legend that mean unknown."""
COLOR_BASE = 256
MAX_SHOWN = 5
_COLOR = re.compile(r"#([0-9a-fA-F]{6})")


class MaskValues(NamedTuple):
    """The stored values of a mask."""

    values: Integer[np.ndarray, "H W"]
    """Class numbers, palette numbers, or colours as 0xRRGGBB."""
    is_color: bool


def read_masks(source: Source, settings: DataSettings) -> Source:
    """The source with the classes of its masks, and as targets the fraction of every class among all pixels.

    Every mask is read once. Without a legend the classes are the numbers that occur.

    Raises:
        UsageError: the source has no masks, or the legend cannot be read.
        DataError: a mask is missing or no mask, has a value without a name, or all pixels are of one class.
    """
    cells = source.metadata.get(MASK_COLUMN)
    if cells is None:
        raise UsageError(
            f"--task segmentation needs a mask for each picture, and {source.name} has none: give a folder with "
            f"images/ and masks/, or a manifest with a column {MASK_COLUMN}."
        )
    below = Path(settings.data_root or Path(settings.source).parent).expanduser()
    files = [str(cell) if is_drawn(cell) else str(below / str(cell)) for cell in cells]
    if settings.legend and any(map(is_drawn, files)):
        raise UsageError(f"{source.name} names its classes itself. Leave --data.legend {settings.legend} out.")
    legend = None if any(map(is_drawn, files)) else _find_legend(settings)
    legend = legend or source.legend
    counts = list(map_in_order(partial(_count_values, legend=legend), files))
    if legend is None:
        legend = _number_classes(source, counts)
    table = legend.table
    fractions = np.zeros((len(files), len(legend.classes)), np.float32)
    unnamed: list[tuple[str, int]] = []
    for row, found in enumerate(counts):
        total = found.total()
        for value, count in found.items():
            if value not in table:
                unnamed.append((files[row], value))
            elif table[value] != UNKNOWN_PIXEL:
                fractions[row, table[value]] += count / total
    if unnamed:
        _refuse_unnamed(unnamed, legend)
    if len(legend.classes) < 2:
        raise DataError(_explain_one_class(source, legend))
    return replace(
        source,
        classes=legend.classes,
        targets=fractions,
        legend=legend,
        metadata={**source.metadata, MASK_COLUMN: files},
    )


def is_drawn(cell: str) -> bool:
    """Whether a cell of the column of masks is a class map itself, see `run_lengths`, and not the name of a file."""
    return str(cell).startswith(RUNS_PREFIX)


def read_class_map(path: Path | str, legend: MaskLegend) -> UInt8[np.ndarray, "H W"]:
    """The class of every pixel of a mask, `UNKNOWN_PIXEL` where it is unknown.

    Raises:
        DataError: it cannot be read, or has a value without a name.
    """
    values = _to_legend(path, read_mask_values(path), legend)
    found, inverse = np.unique(values, return_inverse=True)
    table = legend.table
    if missing := [value for value in found.tolist() if value not in table]:
        _refuse_unnamed([(str(path), value) for value in missing], legend)
    return np.array([table[value] for value in found.tolist()], np.uint8)[inverse].reshape(values.shape)


def read_source_mask(source: Source, row: int, spec: ImageSpec) -> UInt8[np.ndarray, "H W"]:
    """The class map of an image, at the image's own size.

    Raises:
        DataError: it cannot be read, or has another size than the image.
    """
    assert source.legend is not None
    classes = read_class_map(str(source.metadata[MASK_COLUMN][row]), source.legend)
    if problem := describe_size_difference(
        source, row, classes.shape, read_image(source.images[row], spec).values.shape
    ):
        raise DataError(problem)
    return classes


def find_borders(classes: UInt8[np.ndarray, "H W"]) -> Bool[np.ndarray, "H W"]:
    """Whether one of the four neighbours of a pixel is of another class, both known."""
    border = np.zeros(classes.shape, bool)
    for values, marks in ((classes, border), (classes.T, border.T)):
        first, second = values[:-1], values[1:]
        differs = (first != second) & (first != UNKNOWN_PIXEL) & (second != UNKNOWN_PIXEL)
        marks[:-1] |= differs
        marks[1:] |= differs
    return border


def describe_size_difference(source: Source, row: int, mask: Sequence[int], image: Sequence[int]) -> str:
    """A sentence if a mask and its image differ in height or width, else empty."""
    if tuple(mask[:2]) == tuple(image[:2]):
        return ""
    file = source.metadata[MASK_COLUMN][row]
    return (
        f"The mask{'' if is_drawn(file) else f' {file}'} has {mask[0]}x{mask[1]} pixels, and its picture "
        f"{source.ids[row]} has {image[0]}x{image[1]}. A mask needs the size of its picture."
    )


def read_mask_values(path: Path | str) -> MaskValues:
    """The stored values of a mask file, or of a class map as text.

    Raises:
        DataError: it is missing, no image, or a JPEG, whose values are not those that were drawn.
    """
    import io

    from PIL import Image, UnidentifiedImageError

    if is_drawn(str(path)):
        return MaskValues(decode_class_map(str(path)).astype(np.int64), False)
    try:
        with Image.open(io.BytesIO(read_file_bytes(Path(path)))) as image:
            if image.format in ("JPEG", "WEBP"):
                raise DataError(
                    f"{path}: a mask of the kind {image.format} does not keep its class numbers. Save masks as PNG."
                )
            if image.mode in ("P", "L", "1", "I;16", "I;16B", "I"):
                grey = np.asarray(image).astype(np.int64)
                return MaskValues(grey, False)
            if image.mode not in ("RGB", "RGBA", "LA"):
                raise DataError(f"{path}: a mask has class numbers or colours. Got the kind {image.mode}.")
            colors = np.asarray(image.convert("RGB")).astype(np.int64)  # [H, W, 3]
    except DataError:
        raise
    except Exception as error:  # decoders of untrusted bytes raise anything
        why = "it is no picture" if isinstance(error, UnidentifiedImageError) else str(error).partition("\n")[0]
        raise DataError(f"{path}: the mask cannot be read ({why}).") from error
    packed = (colors[..., 0] * COLOR_BASE + colors[..., 1]) * COLOR_BASE + colors[..., 2]
    is_grey = (colors[..., :1] == colors).all()
    return MaskValues(colors[..., 0] if is_grey else packed, not is_grey)


def _to_legend(path: Path | str, stored: MaskValues, legend: MaskLegend | None) -> Int64[np.ndarray, "H W"]:
    """The values as the legend has them: colours, or numbers."""
    if legend is not None and legend.is_color and not stored.is_color:
        return stored.values * (COLOR_BASE * COLOR_BASE + COLOR_BASE + 1)  # grey as a colour
    if stored.is_color and (legend is None or not legend.is_color):
        shown = ", ".join(map(format_color, np.unique(stored.values)[:MAX_SHOWN].tolist()))
        raise DataError(
            f"{path}: this mask has colours ({shown}), and nothing says which classes they are. Write a legend with "
            f"the columns value and name, such as '#ff0000,road', as {LEGEND_FILE} beside images/, or name it with "
            "--data.legend FILE."
        )
    return stored.values


def _count_values(file: str, legend: MaskLegend | None) -> Counter[int]:
    """Pixels of every value of one mask."""
    values, counts = np.unique(_to_legend(file, read_mask_values(file), legend), return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _number_classes(source: Source, counts: Sequence[Counter[int]]) -> MaskLegend:
    """The legend of masks without one: every number that occurs is a class, called by its number."""
    values = sorted(set[int]().union(*counts) - {UNKNOWN_VALUE})
    if len(values) > MAX_MASK_CLASSES:
        raise DataError(
            f"The masks of {source.name} have {format_count(len(values), 'different value')}, and masks have at most "
            f"{MAX_MASK_CLASSES} classes. Are they masks of class numbers?"
        )
    codes = [(value, k) for k, value in enumerate(values)]
    return MaskLegend(tuple(map(str, values)), (*codes, (UNKNOWN_VALUE, UNKNOWN_PIXEL)))


def _explain_one_class(source: Source, legend: MaskLegend) -> str:
    if len(same := [value for value, k in legend.codes if k != UNKNOWN_PIXEL]) > 1:
        return (
            f"The legend of {source.name} gives all its {format_count(len(same), 'value')} one name, "
            f"{legend.classes[0]!r}; telling apart takes two classes."
        )
    only = "no pixel of a class" if not legend.classes else f"only one class, {legend.classes[0]!r}"
    return (
        f"The masks of {source.name} have {only}; telling apart takes two. {UNKNOWN_VALUE} means unknown: if it is a "
        f"class, name it in a legend, {LEGEND_FILE} with the lines value,name and 0,background and "
        f"{UNKNOWN_VALUE},part."
    )


def _refuse_unnamed(unnamed: Sequence[tuple[str, int]], legend: MaskLegend) -> None:
    values = Counter(value for _, value in unnamed)
    show: Callable[[int], str] = format_color if legend.is_color else str
    shown = ", ".join(map(show, sorted(values)[:MAX_SHOWN])) + ("" if len(values) <= MAX_SHOWN else ", ...")
    where = format_count(len({file for file, _ in unnamed}), "mask")
    raise DataError(
        f"Values without a name in {where}: {shown}, such as {unnamed[0][0]}. "
        "Add them to the legend; the name unknown leaves such pixels out."
    )


# -- The legend


def _find_legend(settings: DataSettings) -> MaskLegend | None:
    """The legend of the settings, or the one in the source's folder; None without one."""
    if settings.legend:
        return read_legend(Path(settings.legend).expanduser())
    source = Path(settings.source).expanduser()
    beside = (source if source.is_dir() else source.parent) / LEGEND_FILE
    return read_legend(beside) if beside.is_file() and beside != source else None


def read_legend(path: Path) -> MaskLegend:
    """Read a legend: lines of a value, which is a class number or a colour #rrggbb, and a name.

    Classes are in the order of the file; equal names are one class. A first line value,name is skipped.

    Raises:
        UsageError: it cannot be read, or a line is no value and name.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"The legend {path} must be a CSV of value,name. It cannot be read: {error}.") from error
    if rows and not _is_value(rows[0][0]):
        rows = rows[1:]
    codes: dict[int, str] = {}
    kinds = set()
    for row in rows:
        if len(row) != 2 or not _is_value(row[0]) or not row[1]:
            raise UsageError(
                f"The legend {path} must have lines of a value and a name, such as '1,road' or '#ff0000,road'. Got "
                f"{','.join(row)!r}."
            )
        is_color = row[0].startswith("#")
        value = int(row[0][1:], 16) if is_color else int(row[0])
        kinds.add(is_color)
        if codes.setdefault(value, row[1]) != row[1]:
            raise UsageError(f"The legend {path} gives {row[0]} two names, {codes[value]!r} and {row[1]!r}. Keep one.")
    if len(kinds) != 1:
        what = "both numbers and colours" if kinds else "no values"
        raise UsageError(f"The legend {path} must have class numbers, or colours. It has {what}.")
    names = tuple(dict.fromkeys(name for name in codes.values() if spelling_key(name) not in UNKNOWN_NAMES))
    if len(names) > MAX_MASK_CLASSES:
        raise UsageError(
            f"The legend {path} has {format_count(len(names), 'class', 'classes')}; masks have at most "
            f"{MAX_MASK_CLASSES}."
        )
    table = [(value, names.index(name) if name in names else UNKNOWN_PIXEL) for value, name in codes.items()]
    is_color = kinds == {True}
    if not is_color and UNKNOWN_VALUE not in codes:
        table.append((UNKNOWN_VALUE, UNKNOWN_PIXEL))
    return MaskLegend(names, tuple(table), is_color)


def number_legend(names: Sequence[str]) -> MaskLegend:
    """The legend of class maps that hold the places of these names."""
    codes = [(place, place) for place in range(len(names))]
    return MaskLegend(tuple(names), (*codes, (UNKNOWN_VALUE, UNKNOWN_PIXEL)))


def _is_value(text: str) -> bool:
    return bool(_COLOR.fullmatch(text)) or (text.isascii() and text.isdigit() and len(text) <= 9)


def format_color(value: int) -> str:
    """A colour as #rrggbb."""
    return f"#{value:06x}"
