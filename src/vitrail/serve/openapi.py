"""The API documentation as OpenAPI JSON and as an HTML page, without resources from other servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .http_errors import encode_json
from .static_files import MEDIA_TYPES, StaticFile, make_static_file

TEMPLATE, STYLE, SCRIPT = "described.html.j2", "described.css", "described.js"
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_PICTURE = {"image/*": _BYTES, "application/octet-stream": _BYTES, "application/dicom": _BYTES}
_FILES = {"type": "object", "properties": {"picture": {"type": "array", "items": _BYTES["schema"]}}}
_TENSOR = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype", "data"],
                "properties": {
                    "name": {"const": "images"},
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "datatype": {"const": "UINT8"},
                    "data": {"type": "array"},
                },
            },
        },
        "outputs": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
}
_ERROR = {
    "content": {
        "application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}},
    }
}
_STATUSES = {
    "400": "The request contradicts itself.",
    "401": "A token is missing or wrong.",
    "408": "The request came too slowly.",
    "413": "Too many bytes, pixels or pictures.",
    "415": "No picture of a known format.",
    "422": "A damaged picture, or a wrong option.",
    "429": "Too many requests of this address; Retry-After says when to come again.",
    "503": "Too many pictures wait, or the server is starting or stopping; Retry-After.",
    "504": "There was no answer before the deadline.",
}


def _describe_body(content: Mapping[str, object]) -> dict[str, Any]:
    """The OpenAPI entry of a path that reads the raw body: media types and error responses."""
    refusals = {status: {"description": words, **_ERROR} for status, words in _STATUSES.items()}
    return {"requestBody": {"required": True, "content": dict(content)}, "responses": refusals}


REQUEST_BODIES = {
    "picture": _describe_body(_PICTURE),
    "picture or form": _describe_body({**_PICTURE, "multipart/form-data": {"schema": _FILES}}),
    "tensor": _describe_body({"application/json": {"schema": _TENSOR}}),
}
"""`openapi_extra` of a path by the kind of body that it reads."""

DECISION_PARAMETER: dict[str, Any] = {
    "parameters": [
        {"name": "decision", "in": "query", "required": False, "schema": {"type": "string"}},
    ]
}
"""`openapi_extra` of a path that takes a kept decision, for routes whose parameters FastAPI does not parse."""
CASE_PARAMETER: dict[str, Any] = {
    "parameters": [
        *DECISION_PARAMETER["parameters"],
        {"name": "case", "in": "query", "required": False, "schema": {"type": "string"}},
    ]
}
"""The same with the name of a case."""


def render_api_docs(app: FastAPI) -> dict[str, StaticFile]:
    """Render the page `docs`, its style and script, and `openapi.json` as static files."""
    described = app.openapi()
    folder = Path(__file__).parent
    loader = FileSystemLoader(folder)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = environment.get_template(TEMPLATE).render(
        version=described["info"]["version"], paths=described["paths"], statuses=_STATUSES
    )
    return {
        "docs": make_static_file(page.encode(), "text/html; charset=utf-8"),
        STYLE: make_static_file((folder / STYLE).read_bytes(), MEDIA_TYPES[".css"]),
        SCRIPT: make_static_file((folder / SCRIPT).read_bytes(), MEDIA_TYPES[".js"]),
        "openapi.json": make_static_file(encode_json(described), "application/json"),
    }
