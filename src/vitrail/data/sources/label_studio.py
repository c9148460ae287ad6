"""Read an export of Label Studio (JSON): polygons, brushes, boxes and ellipses as classes of pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
from jaxtyping import Bool

from ...errors import DataError, UsageError
from ...formatting import format_count
from ..labels.mask_shapes import box_corners, fill_ellipse, fill_polygon
from ..labels.run_lengths import decode_brush
from ..settings import DataSettings
from ..source import Source
from .mask_annotations import AnnotatedImage, Region, build_annotated_source

KINDS = ("polygonlabels", "brushlabels", "rectanglelabels", "ellipselabels")
"""Types of results that are regions."""
_UPLOAD = re.compile(r"^[0-9a-f]{8}-")
"""What Label Studio puts before the name of a file that was uploaded."""


def open_label_studio(path: Path, tasks: Sequence[Any], settings: DataSettings) -> Source:
    """The source of an export: of every task the first annotation that was not cancelled; tasks without one are left
    out.

    Raises:
        DataError: a field is missing or of another kind.
    """
    try:
        annotated = [(task, results) for task in tasks if (results := _find_regions(task))]
        labels = dict.fromkeys(label for _, results in annotated for one in results for label in _labels_of(one))
        images = (
            AnnotatedImage(
                _find_file_name(task["data"], path),
                (size := (int(results[0]["original_height"]), int(results[0]["original_width"]))),
                _draw_regions(results, size, path),
            )
            for task, results in annotated
        )
        source = build_annotated_source(path, "Label Studio", images, sorted(labels), settings)
    except (DataError, UsageError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"{path} is not as Label Studio writes its JSON: tasks with data and annotations, whose results have type, "
            f"value, original_width and original_height. {type(error).__name__}: {error}."
        ) from error
    if left := len(tasks) - len(annotated):
        note = f"Left out {format_count(left, 'task')} of {path.name} without a region."
        return replace(source, notes=(*source.notes, note))
    return source


def _find_regions(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for annotation in task["annotations"]:
        if not annotation.get("was_cancelled"):
            return [one for one in annotation["result"] if one.get("type") in KINDS]
    return []


def _labels_of(result: Mapping[str, Any]) -> list[str]:
    return [str(label) for label in result["value"][result["type"]]]


def _find_file_name(data: Mapping[str, Any], path: Path) -> str:
    """The name of a task's picture: the last part of its address, without the letters of an upload."""
    address = str(data.get("image") or next(value for value in data.values() if isinstance(value, str)))
    parts = urlsplit(address)
    stored = parse_qs(parts.query).get("d", [""])[0] or unquote(parts.path)
    name = stored.replace("\\", "/").rpartition("/")[2]
    if not name:
        raise DataError(f"{path}: a task names no picture. Got {address!r}.")
    return _UPLOAD.sub("", name) if "/upload/" in address else name


def _draw_regions(results: Sequence[Mapping[str, Any]], size: tuple[int, int], path: Path) -> Iterator[Region]:
    for one in results:
        mask = _draw(one, size, f"{path.name}, region {one.get('id', '')}")
        for label in _labels_of(one)[:1]:
            yield label, mask


def _draw(result: Mapping[str, Any], size: tuple[int, int], where: str) -> Bool[np.ndarray, "H W"]:
    """The pixels of a result, whose numbers are percentages of the picture's sides."""
    value, (height, width) = result["value"], size
    across, down = width / 100, height / 100
    if result["type"] == "brushlabels":
        return decode_brush(value["rle"], size, where)
    if result["type"] == "polygonlabels":
        return fill_polygon([(x * across, y * down) for x, y in value["points"]], size)
    degrees, corner = float(value.get("rotation", 0)), (value["x"] * across, value["y"] * down)
    if result["type"] == "ellipselabels":
        return fill_ellipse(corner, (value["radiusX"] * across, value["radiusY"] * down), degrees, size)
    return fill_polygon(box_corners(*corner, value["width"] * across, value["height"] * down, degrees), size)
