"""Explanations over HTTP: which methods a model offers, in words, and one explained image as JSON."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from ..data.source import Task
from ..explain.methods import METHODS, default_method
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
}
"""Title and one line for each method that needs nothing but an image and a class."""
NUM_COLORS = 256


def list_methods(config: ViTConfig) -> list[dict[str, object]]:
    """The methods that a model offers, its default first."""
    default = default_method(config)
    names = sorted(METHOD_DESCRIPTIONS, key=lambda name: name != default)
    return [
        {
            "name": name,
            "title": METHOD_DESCRIPTIONS[name][0],
            "line": METHOD_DESCRIPTIONS[name][1],
            "of_class": METHODS[name].class_specific,
        }
        for name in names
    ]


def make_palette() -> list[str]:
    """The colours of one-sided maps from nothing to the strongest, as #rrggbb."""
    colours = np.rint(255 * map_colors(np.linspace(0, 1, NUM_COLORS, dtype=np.float32), "positive")).astype(int)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours.tolist()]


def explain_prepared_image(
    explainer: Explainer,
    image: UInt8[Tensor, "C h w"],
    visible_size: tuple[float, float],
    method: str | None,
    target: str | None,
) -> dict[str, Any]:
    """One prepared image explained; runs in the model's thread.

    Args:
        explainer: for images that have been prepared already.
        visible_size: rows and columns of the image's own pixels that it shows.
        target: a class, label or column; None takes the answer.

    Raises:
        UsageError: no such method or class, or a map that says nothing.
    """
    picture = image.permute(1, 2, 0).contiguous().numpy()  # [h, w, C]
    asked = ExplainRequest(method=method or default_method(explainer.model.config), target=target)
    (found,) = explain_images(explainer, [picture], asked)
    assert isinstance(found, Explanation)
    return explanation_to_json(found, visible_size[1] / visible_size[0])


def explanation_to_json(explanation: Explanation, aspect: float) -> dict[str, Any]:
    """What the page draws.

    Args:
        aspect: width over height of what is seen, as the image itself has it.
    """
    heat = explanation.heatmap.values[0]
    shown = heat[~explanation.artefacts] if (~explanation.artefacts).any() else heat
    height, width, _ = explanation.image.shape
    number = explanation.task == "number"
    return {
        "method": explanation.heatmap.method,
        "title": explanation.title,
        "caption": " ".join(
            (f"{explanation.heatmap.method} · {explanation.heatmap.layer}.", *explanation.caption.below[1:])
        ),
        "target": explanation.target or None,
        "probability": None if number else explanation.value,
        "value": explanation.value if number else None,
        "scale": explanation.heatmap.scale,
        "rows": heat.shape[0],
        "columns": heat.shape[1],
        "values": heat.tolist(),
        "low": float(shown.min()),
        "high": float(shown.max()),
        "height": height,
        "width": width,
        "aspect": aspect,
        "unit": explanation.heatmap.unit,
        "patch": list(explanation.patch),
        "picture": f"data:image/png;base64,{base64.b64encode(_encode_png(explanation.image)).decode('ascii')}",
        "artefacts": np.argwhere(explanation.artefacts).tolist(),
    }


def _encode_png(image: UInt8[np.ndarray, "h w C"]) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(to_rgb(image)).save(data, "PNG")
    return data.getvalue()


# The file parts of a form, as places in a body that is already whole: nothing is copied and nothing goes to a disk.

MAX_PART_HEADER_BYTES = 8192
"""Bytes of a part's head at most."""
MAX_BOUNDARY_BYTES = 200


class FormFile(NamedTuple):
    """One file."""

    name: str
    """As the client calls it; words, never a path that is opened."""
    data: memoryview


def is_form(content_type: bytes) -> bool:
    """Whether a body is to be read as a form."""
    return content_type.partition(b";")[0].strip().lower() == b"multipart/form-data"


def parse_form_files(body: bytearray, content_type: bytes, max_parts: int) -> list[FormFile]:
    """Every part with a file name, in order; other fields are left out.

    Args:
        max_parts: parts that a form may have.

    Raises:
        HttpError: 400, no form by RFC 7578; 413, too many parts.
    """
    from python_multipart.multipart import parse_options_header

    boundary = parse_options_header(content_type.decode("latin-1"))[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise HttpError(400, "The form's Content-Type names no boundary.")
    found: list[FormFile] = []
    view, edge = memoryview(body), b"\r\n--" + boundary
    start = _find_first_part(body, b"--" + boundary)
    for _ in range(max_parts + 1):
        if bytes(body[start : start + 2]) == b"--":
            return found
        head, end = body.find(b"\r\n\r\n", start, start + MAX_PART_HEADER_BYTES), body.find(edge, start)
        if bytes(body[start : start + 2]) != b"\r\n" or head < 0 or end < head:
            raise HttpError(400, "The form ends in the middle of a part, or a part has no head.")
        name = _parse_file_name(bytes(body[start + 2 : head]))
        if name is not None:
            found.append(FormFile(name, view[head + 4 : max(head + 4, end)]))
        start = end + len(edge)
    raise HttpError(413, f"One form may have {max_parts} parts. Send the others in another one.")


def _find_first_part(body: bytearray, edge: bytes) -> int:
    """Where the head of the first part begins."""
    if body.startswith(edge):
        return len(edge)
    place = body.find(b"\r\n" + edge, 0, MAX_PART_HEADER_BYTES)
    if place < 0:
        raise HttpError(400, "The form does not begin with its boundary.")
    return place + 2 + len(edge)


def _parse_file_name(head: bytes) -> str | None:
    """The name of a part's file; None for a field that is none."""
    from python_multipart.multipart import parse_options_header

    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            name = parse_options_header(value.strip().decode("latin-1"))[1].get(b"filename")
            return None if name is None else name.decode("utf-8", "replace")
    return None


# The Open Inference Protocol, version 2: what a model is, and answers to tensors, as JSON.

DATATYPES = {"f": "FP32", "i": "INT64"}
MODEL_VERSION = "1"
"""The model's version, as the protocol calls it: a server holds one."""


def describe_server() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": "vitrail", "version": version("vitrail"), "extensions": []}


def describe_model(name: str, task: Task, num_outputs: int, is_single_model: bool, spec: ImageSpec) -> dict[str, Any]:
    """`GET /v2/models/NAME`.

    Args:
        num_outputs: K.
        is_single_model: one model; several together have no logits.
    """
    of_labels = [-1, num_outputs] if task == "labels" else [-1]
    shapes = {
        exported.PROBABILITIES: ("FP32", [-1, num_outputs]),
        exported.VALUES: ("FP32", [-1, num_outputs]),
        exported.LOGITS: ("FP32", [-1, num_outputs]),
        exported.DECISIONS: ("INT64", of_labels),
        exported.ABSTAINED: ("INT64", [-1]),
    }
    names = [
        one
        for one in exported.list_output_names(task, has_distances=False)
        if is_single_model or one != exported.LOGITS
    ]
    images = {"name": exported.INPUT_NAME, "datatype": "UINT8", "shape": [-1, spec.height, spec.width, spec.channels]}
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
        requested: names of outputs; none asks for all.

    Raises:
        HttpError: 422, an output that the model does not have.
    """
    if unknown := [one for one in requested if one not in outputs]:
        raise HttpError(422, f"The model has no output {unknown[0]!r}. Its outputs are {', '.join(outputs)}.")
    found = {one: outputs[one] for one in (requested or outputs)}
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
            for one, values in found.items()
        ],
    }
