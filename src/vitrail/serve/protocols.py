"""Formats of requests and responses: explanations as JSON, multipart forms, and the Open Inference Protocol."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image
from python_multipart.multipart import parse_options_header
from torch import Tensor

from ..data.labels.run_lengths import compress_counts, encode_coco_counts
from ..data.source import Task
from ..explain.mask_overlay import mask_palette
from ..explain.methods import list_methods_of
from ..explain.overlay import map_colors, to_rgb
from ..model.config import ViTConfig
from ..predict import exported
from ..services.explanation import Explainer, ExplainRequest, Explanation, explain_images
from ..spec import ImageSpec
from .http_errors import HttpError

METHOD_DESCRIPTIONS = {
    "relevance": ("Relevance", "Attention that raises the chosen score, followed through all blocks."),
    "legrad": ("LeGrad", "Where more attention would raise the chosen score, in every block."),
    "grad-cam": ("Grad-CAM", "Patches whose features raise the chosen score, in the last block."),
    "integrated": ("Integrated gradients", "Shares of the score, pixel by pixel, on the way from an empty picture."),
    "occlusion": ("Occlusion", "How the score falls when a patch is covered; slow, and needs no theory."),
    "lens": ("Lens", "What the head would say to each patch alone."),
    "attention": ("Attention", "Where the last block looks, whatever the class."),
    "rollout": ("Attention rollout", "Attention multiplied through all blocks, whatever the class."),
    "distances": ("Distances", "How far each patch is from the most similar one in good pictures."),
}
"""Title and one line for each explanation method that needs only an image and a class."""
NUM_COLORS = 256


def list_methods(config: ViTConfig, default: str) -> list[dict[str, object]]:
    """The explanation methods for `/about`, the model's default first."""
    known = list_methods_of(config)
    names = sorted((name for name in METHOD_DESCRIPTIONS if name in known), key=lambda name: name != default)
    return [
        {
            "name": name,
            "title": METHOD_DESCRIPTIONS[name][0],
            "line": METHOD_DESCRIPTIONS[name][1],
            "of_class": known[name].class_specific,
        }
        for name in names
    ]


def make_palette() -> list[str]:
    """The colour map of one-sided heatmaps, from weakest to strongest, as #rrggbb."""
    colours = np.rint(255 * map_colors(np.linspace(0, 1, NUM_COLORS, dtype=np.float32), "positive")).astype(int)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours.tolist()]


def mask_colors(count: int) -> list[str]:
    """The colours of the classes of masks, as #rrggbb."""
    return ["#{:02x}{:02x}{:02x}".format(*color) for color in mask_palette(count)[:count].tolist()]


def mask_to_json(mask: UInt8[np.ndarray, "H W"], classes: Sequence[str]) -> dict[str, Any]:
    """A mask of a picture's own size as COCO's compressed run lengths of every class that it has."""
    present = [k for k in np.unique(mask).tolist() if k < len(classes)]
    counts = {classes[k]: compress_counts(encode_coco_counts(mask == k)) for k in present}
    return {"size": list(mask.shape), "counts": counts}


def explain_prepared_image(
    explainer: Explainer,
    image: Integer[Tensor, "C h w"],
    visible_size: tuple[float, float],
    method: str | None,
    target: str | None,
) -> dict[str, Any]:
    """Explain one preprocessed image; runs in the model's thread.

    Args:
        explainer: for preprocessed images.
        visible_size: rows and columns of the image's own pixels that the model sees.
        target: a class, label or column; None takes the predicted one.

    Raises:
        UsageError: no such method or class, or an empty map.
    """
    pixels = image.permute(1, 2, 0).contiguous().numpy()  # [h, w, C]
    request = ExplainRequest(method=method or explainer.default_method, target=target)
    (explanation,) = explain_images(explainer, [pixels], request)
    assert isinstance(explanation, Explanation)
    return explanation_to_json(explanation, visible_size[1] / visible_size[0])


def explanation_to_json(explanation: Explanation, aspect: float) -> dict[str, Any]:
    """An explanation as the web page draws it.

    Args:
        aspect: width over height of the visible part of the original image.
    """
    png = io.BytesIO()
    Image.fromarray(to_rgb(explanation.image)).save(png, "PNG")
    heatmap = explanation.heatmap
    heat = heatmap.values[0]
    shown = heat[~explanation.artefacts] if (~explanation.artefacts).any() else heat
    height, width, _ = explanation.image.shape
    number = explanation.task == "regression"
    return {
        "method": heatmap.method,
        "title": explanation.title,
        "caption": " ".join((f"{heatmap.method} · {heatmap.layer}.", *explanation.caption.below[1:])),
        "target": explanation.target or None,
        "probability": None if number else explanation.value,
        "value": explanation.value if number else None,
        "scale": heatmap.scale,
        "rows": heat.shape[0],
        "columns": heat.shape[1],
        "values": heat.tolist(),
        "low": float(shown.min()),
        "high": float(shown.max()),
        "height": height,
        "width": width,
        "aspect": aspect,
        "unit": heatmap.unit,
        "patch": list(explanation.patch),
        "picture": f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode('ascii')}",
        "artefacts": np.argwhere(explanation.artefacts).tolist(),
    }


# -- multipart/form-data (RFC 7578), parsed in memory: files are views into the body, without copies.

MAX_PART_HEADER_BYTES = 8192
"""Most bytes of a part's head."""
MAX_BOUNDARY_BYTES = 200


class FormFile(NamedTuple):
    """One file of a form."""

    name: str
    """The client's file name; it is never opened as a path."""
    data: memoryview


def is_form(content_type: bytes) -> bool:
    """Whether a Content-Type is multipart/form-data."""
    return content_type.partition(b";")[0].strip().lower() == b"multipart/form-data"


def parse_form_files(body: bytearray, content_type: bytes, max_parts: int) -> list[FormFile]:
    """Every part with a file name, in order; other fields are left out.

    Args:
        max_parts: most parts of a form.

    Raises:
        HttpError: 400, a malformed form; 413, too many parts.
    """
    boundary = parse_options_header(content_type.decode("latin-1"))[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise HttpError(400, "The form's Content-Type names no boundary.")
    files: list[FormFile] = []
    view, edge = memoryview(body), b"\r\n--" + boundary
    start = _find_first_part(body, b"--" + boundary)
    for _ in range(max_parts + 1):
        if bytes(body[start : start + 2]) == b"--":
            return files
        head, end = body.find(b"\r\n\r\n", start, start + MAX_PART_HEADER_BYTES), body.find(edge, start)
        if bytes(body[start : start + 2]) != b"\r\n" or head < 0 or end < head:
            raise HttpError(400, "The form ends in the middle of a part, or a part has no head.")
        name = _parse_file_name(bytes(body[start + 2 : head]))
        if name is not None:
            files.append(FormFile(name, view[head + 4 : max(head + 4, end)]))
        start = end + len(edge)
    raise HttpError(413, f"One form may have {max_parts} parts. Send the others in another one.")


def _find_first_part(body: bytearray, edge: bytes) -> int:
    """Offset of the first part's head."""
    if body.startswith(edge):
        return len(edge)
    place = body.find(b"\r\n" + edge, 0, MAX_PART_HEADER_BYTES)
    if place < 0:
        raise HttpError(400, "The form does not begin with its boundary.")
    return place + 2 + len(edge)


def _parse_file_name(head: bytes) -> str | None:
    """The file name in a part's head; None for a field without one."""
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            name = parse_options_header(value.strip().decode("latin-1"))[1].get(b"filename")
            return None if name is None else name.decode("utf-8", "replace")
    return None


# -- The Open Inference Protocol, version 2: model metadata, and responses to tensors, as JSON.

DATATYPES = {"f": "FP32", "i": "INT64", "u": "UINT8"}
MODEL_VERSION = "1"
"""The protocol's model version; a server holds one model."""


def describe_model(name: str, task: Task, num_outputs: int, is_single_model: bool, spec: ImageSpec) -> dict[str, Any]:
    """`GET /v2/models/NAME`.

    Args:
        num_outputs: K.
        is_single_model: False for an ensemble, which has no logits.
    """
    decisions_shape = [-1, num_outputs] if task == "multilabel" else [-1]
    shapes = {
        exported.PROBABILITIES: ("FP32", [-1, num_outputs]),
        exported.VALUES: ("FP32", [-1, num_outputs]),
        exported.LOGITS: ("FP32", [-1, num_outputs]),
        exported.DECISIONS: ("INT64", decisions_shape),
        exported.ABSTAINED: ("INT64", [-1]),
        exported.MASKS: ("UINT8", [-1, *spec.size]),
    }
    names = [
        one
        for one in exported.list_output_names(task, has_distances=False)
        if is_single_model or one != exported.LOGITS
    ]
    images = {"name": exported.INPUT_NAME, "datatype": spec.dtype.upper(), "shape": [-1, *spec.size, spec.channels]}
    return {
        "name": name,
        "versions": [MODEL_VERSION],
        "platform": "vitrail",
        "inputs": [images],
        "outputs": [{"name": one, "datatype": shapes[one][0], "shape": shapes[one][1]} for one in names],
    }


def format_inference_response(
    name: str, request_id: str, outputs: dict[str, np.ndarray], requested: Sequence[str]
) -> dict[str, Any]:
    """`POST /v2/models/NAME/infer`.

    Args:
        requested: names of outputs; empty for all.

    Raises:
        HttpError: 422, an output that the model does not have.
    """
    if unknown := [one for one in requested if one not in outputs]:
        raise HttpError(422, f"The model has no output {unknown[0]!r}. Its outputs are {', '.join(outputs)}.")
    selected = {one: outputs[one] for one in (requested or outputs)}
    return {
        "model_name": name,
        "model_version": MODEL_VERSION,
        **({"id": request_id} if request_id else {}),
        "outputs": [
            {
                "name": one,
                "datatype": DATATYPES[values.dtype.kind],
                "shape": list(values.shape),
                "data": values.ravel().tolist(),
            }
            for one, values in selected.items()
        ],
    }
