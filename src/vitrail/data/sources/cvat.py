"""Read an export of CVAT (XML, "CVAT for images"): polygons, masks, boxes and ellipses as classes of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Bool

from ...errors import DataError, UsageError
from ..labels.mask_shapes import box_corners, fill_ellipse, fill_polygon
from ..settings import DataSettings
from ..source import Source
from .mask_annotations import AnnotatedImage, Region, build_annotated_source

SHAPES = ("polygon", "mask", "box", "ellipse")


def open_cvat(path: Path, settings: DataSettings) -> Source:
    """The source of an export: every picture, those without a shape being background throughout; shapes lie on top of
    each other by their z_order.

    Raises:
        DataError: it is not XML, or a field is missing or of another kind.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes())
        if root.tag != "annotations":
            raise ValueError(f"the first element is {root.tag}")
        named = [str(label.text) for label in root.iterfind(".//labels/label/name")]
        used = [
            str(shape.attrib["label"]) for image in root.iterfind("image") for shape in image if shape.tag in SHAPES
        ]
        images = (
            AnnotatedImage(
                image.attrib["name"],
                (size := (int(image.attrib["height"]), int(image.attrib["width"]))),
                _draw_shapes(image, size, f"{path.name}, {image.attrib['name']}"),
            )
            for image in root.iterfind("image")
        )
        return build_annotated_source(path, "CVAT", images, [*named, *sorted(used)], settings)
    except (DataError, UsageError):
        raise
    except (ElementTree.ParseError, KeyError, ValueError, OSError) as error:
        raise DataError(
            f"{path} is not as CVAT writes its XML for images: annotations with image elements that have name, width "
            f"and height, and in them polygon, mask, box or ellipse with label. {type(error).__name__}: {error}."
        ) from error


def _draw_shapes(image: ElementTree.Element, size: tuple[int, int], where: str) -> Iterator[Region]:
    shapes = [shape for shape in image if shape.tag in SHAPES]
    for shape in sorted(shapes, key=lambda one: int(one.attrib.get("z_order", 0))):
        yield shape.attrib["label"], _draw_shape(shape, size, where)


def _draw_shape(shape: ElementTree.Element, size: tuple[int, int], where: str) -> Bool[np.ndarray, "H W"]:
    given = shape.attrib
    if shape.tag == "polygon":
        pairs = (pair.split(",") for pair in given["points"].split(";"))
        return fill_polygon([(float(x), float(y)) for x, y in pairs], size)
    if shape.tag == "ellipse":
        centre, radii = (float(given["cx"]), float(given["cy"])), (float(given["rx"]), float(given["ry"]))
        return fill_ellipse(centre, radii, float(given.get("rotation", 0)), size)
    if shape.tag == "box":
        left, top, right, bottom = (float(given[name]) for name in ("xtl", "ytl", "xbr", "ybr"))
        degrees = float(given.get("rotation", 0))
        return fill_polygon(box_corners(left, top, right - left, bottom - top, degrees, pivot=0.5), size)
    left, top, width, height = (int(given[name]) for name in ("left", "top", "width", "height"))
    runs = np.array(given["rle"].split(","), np.int64)
    if (runs < 0).any() or runs.sum() != width * height:
        raise DataError(
            f"{where}: the runs of a mask must add up to its {height} x {width} pixels. They are {int(runs.sum()):,}."
        )
    part = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
    drawn = np.zeros(size, bool)
    rows, columns = max(0, min(height, size[0] - top)), max(0, min(width, size[1] - left))
    drawn[top : top + rows, left : left + columns] = part[:rows, :columns]
    return drawn
