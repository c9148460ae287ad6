"""Read the annotations of COCO: polygons and run lengths of instances as classes of pixels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from ...errors import DataError, UsageError
from ...formatting import format_count
from ..labels.mask_shapes import fill_polygon
from ..labels.run_lengths import decode_coco_counts
from ..settings import DataSettings
from ..source import Source
from .mask_annotations import AnnotatedImage, Region, build_annotated_source


def open_coco(path: Path, content: Mapping[str, Any], settings: DataSettings) -> Source:
    """The source of an instances file: every picture, those without an annotation being background throughout.

    Where instances overlap the smaller one is on top. Annotations with a box and no segmentation are refused.

    Raises:
        DataError: a field is missing or of another kind.
    """
    try:
        labels = {int(one["id"]): str(one["name"]) for one in content["categories"]}
        by_image: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for one in content.get("annotations", ()):
            by_image[int(one["image_id"])].append(one)
        if unknown := by_image.keys() - {int(image["id"]) for image in content["images"]}:
            raise DataError(f"{path.name} has annotations of image {min(unknown)}, which is not among its images.")
        images = (
            AnnotatedImage(
                str(image["file_name"]), (size := (int(image["height"]), int(image["width"]))),
                _draw_instances(by_image[int(image["id"])], labels, size, f"{path.name}, {image['file_name']}"),
            )
            for image in content["images"]
        )  # fmt: skip
        return build_annotated_source(path, "COCO", images, [labels[key] for key in sorted(labels)], settings)
    except (DataError, UsageError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} is not as COCO writes instances: images with id, file_name, height and width, categories with id "
            f"and name, annotations with image_id, category_id and segmentation. {type(error).__name__}: {error}."
        ) from error


def _draw_instances(
    instances: Sequence[Mapping[str, Any]], labels: Mapping[int, str], size: tuple[int, int], where: str
) -> Iterator[Region]:
    regions = []
    for one in instances:
        if not one.get("segmentation"):
            raise DataError(
                f"{where}: an annotation has a box and no segmentation. Masks are learnt from segmentations."
            )
        if int(one["category_id"]) not in labels:
            raise DataError(f"{where}: an annotation has category {one['category_id']}, which no category is.")
        mask = decode_segmentation(one["segmentation"], size, where)
        regions.append((int(mask.sum()), labels[int(one["category_id"])], mask))
    for _, label, mask in sorted(regions, key=lambda region: -region[0]):
        yield label, mask


def decode_segmentation(segmentation: Any, size: tuple[int, int], where: str) -> Bool[np.ndarray, "H W"]:
    """The pixels of polygons [[x, y, x, y, ...], ...] together, or of run lengths {"counts": ..., "size": [H, W]}.

    Raises:
        DataError: run lengths of another size, or a polygon of fewer than three points.
    """
    if isinstance(segmentation, Mapping):
        if tuple(segmentation["size"]) != size:
            raise DataError(f"{where}: run lengths are of {segmentation['size']}, and the picture has {list(size)}.")
        return decode_coco_counts(segmentation["counts"], size, where)
    masks = []
    for flat in segmentation:
        if len(flat) < 6 or len(flat) % 2:
            raise DataError(
                f"{where}: a polygon needs three points or more, x and y of each. Got "
                f"{format_count(len(flat), 'number')}."
            )
        masks.append(fill_polygon(list(zip(flat[::2], flat[1::2], strict=True)), size))
    drawn: Bool[np.ndarray, "H W"] = np.logical_or.reduce(masks)
    return drawn
