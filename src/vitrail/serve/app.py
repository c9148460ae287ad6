"""The paths of the server, as a FastAPI application behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from ..data.decoding import decoded_image as remarks
from ..data.parallel import ImageName
from ..errors import DataError, UsageError
from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from . import prometheus
from .gate import UNEXPECTED_ERROR, Gate
from .http_errors import NOSNIFF_HEADERS, HttpError, encode_json
from .openapi import REQUEST_BODIES, render_api_docs
from .protocols import (
    FormFile,
    describe_model,
    describe_server,
    explain_prepared_image,
    format_inference_response,
    is_form,
    parse_form_files,
)
from .service import Service
from .static_files import INDEX_FILE, SECURITY_HEADERS, StaticFile, load_static_files

PAGE_MISSING = "This installation of Vitrail lacks the files of its web page. The API is described at /docs.\n"


class RawRoute(APIRoute):
    """A path whose function wants the request and nothing else, so that nothing is looked for in it: a third less of
    what the framework does for a picture."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The function itself."""
        return self.endpoint


def create_app(service: Service) -> ASGIApp:
    """Everything that the server answers."""
    app = FastAPI(
        title="Vitrail", version=version("vitrail"), docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False, summary="A Vision Transformer that answers questions about pictures.",
    )  # fmt: skip
    app.add_exception_handler(HttpError, _handle_http_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(Exception, _handle_unexpected_error)
    _add_model_routes(app, service)
    _add_protocol_routes(app, service)
    _add_health_routes(app, service)
    _add_page_routes(app)
    return Gate(app, service)


def _add_model_routes(app: FastAPI, service: Service) -> None:
    """The four doors to the model."""
    plain = APIRouter(route_class=RawRoute)

    @plain.post("/predict", tags=["answers"], openapi_extra=REQUEST_BODIES["picture or form"])
    async def predict(request: Request) -> Response:
        """Answer pictures. One picture as the body gives one row, with the columns of `vitrail predict`; a form gives
        `{"rows": [...]}` in the order of its files, each a row or `{"path", "error", "status"}`. The header X-Filename
        (percent-encoded) names a single picture."""
        kind = request.headers.get("content-type", "").encode("latin-1")
        if is_form(kind):
            return _json_response(await handle_predict_form(service, request.state.body, kind))
        name = image_name_from_header(request.headers.get("x-filename", "").encode("latin-1"))
        return _json_response(await handle_predict(service, name, request.state.body))

    app.include_router(plain)

    @app.post("/explain", tags=["answers"], openapi_extra=REQUEST_BODIES["picture"])
    async def explain(request: Request, method: str | None = None, target: str | None = None) -> Response:
        """Explain the answer to a picture, or another class (`target`), by a method that /about lists: a number for
        each patch, and the picture as the model sees it."""
        return _json_response(await handle_explain(service, request.state.body, method, target))

    @app.post("/embed", tags=["answers"], openapi_extra=REQUEST_BODIES["picture"])
    async def embed(request: Request) -> Response:
        """The features that the model makes of a picture before it answers."""
        return _json_response(await handle_embed(service, request.state.body))

    @app.get("/about", tags=["model"])
    async def about() -> Response:
        """What the model answers, what it reads, what it may be asked, and what a request may hold."""
        return _json_response(service.get_model().describe(service.limits, bool(service.tokens)))


def _add_protocol_routes(app: FastAPI, service: Service) -> None:
    """The Open Inference Protocol, version 2."""
    model = f"/v2/models/{service.name}"

    @app.get("/v2", tags=["Open Inference Protocol"])
    async def server() -> Response:
        """The server's name and version."""
        return _json_response(describe_server())

    @app.get(model, tags=["Open Inference Protocol"])
    async def metadata() -> Response:
        """Inputs and outputs of the model."""
        found = service.get_model().predictor
        alone = len(found.members) == 1
        return _json_response(describe_model(service.name, found.task, len(found.classes), alone, found.spec))

    @app.get(f"{model}/ready", tags=["Open Inference Protocol"])
    async def ready() -> Response:
        """200 if the model answers, else 503."""
        return _json_response(
            {"name": service.name, "ready": not service.not_ready_reason}, 503 if service.not_ready_reason else 200
        )

    @app.post(f"{model}/infer", tags=["Open Inference Protocol"], openapi_extra=REQUEST_BODIES["tensor"])
    async def infer(request: Request) -> Response:
        """Answer prepared pictures: uint8 [B, H, W, C] at the model's size, as JSON numbers."""
        return _json_response(await handle_infer(service, request.state.body))


def _add_health_routes(app: FastAPI, service: Service) -> None:
    """Whether the server lives, whether it answers, and what it has done."""

    @app.get("/v2/health/live", tags=["health"])
    async def live() -> Response:
        """200 as long as the process does anything at all, also while the model is read or busy."""
        return _json_response({"live": True})

    @app.get("/v2/health/ready", tags=["health"])
    async def ready() -> Response:
        """200 if pictures are answered, else 503 with the reason."""
        why = service.not_ready_reason
        return _json_response({"ready": not why, **({"error": why} if why else {})}, 503 if why else 200)

    @app.get("/metrics", tags=["health"])
    async def read_metrics() -> Response:
        """Counts in Prometheus' text format."""
        return Response(service.metrics.format_text(service.read_gauges()), media_type=prometheus.CONTENT_TYPE)


def _add_page_routes(app: FastAPI) -> None:
    """The web page, and the description of all this, readable without any network."""
    files = load_static_files()
    described = render_api_docs(app)

    @app.get("/", include_in_schema=False)
    async def first(request: Request) -> Response:
        return (
            _file_response(files, INDEX_FILE, request)
            if INDEX_FILE in files
            else Response(PAGE_MISSING, media_type="text/plain")
        )

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        return _file_response(files, name, request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return _file_response(described, "docs", request)

    @app.get("/docs/{name}", include_in_schema=False)
    async def beside(name: str, request: Request) -> Response:
        return _file_response(described, name, request)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return _file_response(described, "openapi.json", request)


def _file_response(files: Mapping[str, StaticFile], name: str, request: Request) -> Response:
    if name not in files:
        raise HTTPException(404)
    found = files[name]
    headers = {**SECURITY_HEADERS, "etag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)


def _json_response(value: object, status: int = 200) -> Response:
    return Response(encode_json(value), status, NOSNIFF_HEADERS, media_type="application/json")


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body, error.status, headers, media_type="application/json")


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "There is nothing at this path. See /docs.", 405: "This path knows another method. See /docs."}
    said = words.get(error.status_code, str(error.detail))
    headers = {**(error.headers or {}), **NOSNIFF_HEADERS}
    return Response(encode_json({"error": said}), error.status_code, headers, media_type="application/json")


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = " ".join(map(str, first.get("loc", ())))
    return _json_response({"error": f"{where}: {first.get('msg', 'wrong')}."}, 422)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    return _json_response({"error": UNEXPECTED_ERROR}, 500)


# What each kind of request is answered, once all of its body is here.


async def handle_predict(service: Service, name: ImageName, body: bytearray | memoryview) -> dict[str, Any]:
    """`POST /predict` with one picture.

    Raises:
        RefusedError: the picture cannot be read, or the server is full.
    """
    with service.admission.admit_images(1):
        return await _predict_row(service, name, body)


async def handle_predict_form(service: Service, body: bytearray, content_type: bytes) -> dict[str, Any]:
    """`POST /predict` with a form: a row for each file, or why there is none.

    Raises:
        RefusedError: no form, too many files, or the server is full.
    """
    parts = parse_form_files(body, content_type, service.limits.max_images)
    if not parts:
        raise HttpError(400, "The form holds no file. Send one with: curl -F picture=@photo.jpg")
    with service.admission.admit_images(len(parts)):
        return {"rows": await asyncio.gather(*(_predict_row_or_error(service, part) for part in parts))}


async def handle_explain(service: Service, body: bytearray, method: str | None, target: str | None) -> dict[str, Any]:
    """`POST /explain`.

    Raises:
        RefusedError: 422, no such method or class; or as `one_row`.
    """
    explainer = service.get_model().explainer
    if explainer is None:
        raise HttpError(422, "Several models answer together here, and only one can be looked into.")
    with service.admission.admit_images(1), service.admission.admit_task():
        (image,), said = await service.decode_image(body)
        rows, columns = said["seen"]
        work = partial(explain_prepared_image, explainer, image, (rows, columns), method or None, target or None)
        try:
            return await service.batcher.run_exclusive(work)
        except (UsageError, DataError) as problem:
            raise HttpError(422, str(problem)) from problem


async def handle_embed(service: Service, body: bytearray) -> dict[str, Any]:
    """`POST /embed`; RefusedError as `one_row`."""
    opened = service.get_model()
    with service.admission.admit_images(1), service.admission.admit_task():
        image = (await service.decode_image(body)).images[0]
        return await service.batcher.run_exclusive(partial(opened.embed_image, image))


async def handle_infer(service: Service, body: bytearray) -> dict[str, Any]:
    """`POST /v2/models/NAME/infer`.

    Raises:
        RefusedError: 422, no such request; 413, too many pictures; 503, the server is full.
    """
    assert service.decode_pool is not None
    with service.admission.admit_images(1):
        images, said = await service.decode_pool.decode("tensor", body)
    with service.admission.admit_images(len(images)):
        found = await service.batcher.submit([ImageName("", "")] * len(images), images)
    return format_inference_response(service.name, said["id"], found.outputs, said["outputs"])


async def _predict_row(service: Service, name: ImageName, body: bytearray | memoryview) -> dict[str, Any]:
    found, remarks = await service.predict_image(name, body)
    return add_notes(found.rows[0], service.get_model().predictor.decisions, remarks)


async def _predict_row_or_error(service: Service, part: FormFile) -> dict[str, Any]:
    try:
        return await _predict_row(service, image_name_from_path(part.name), part.data)
    except HttpError as refused:
        return {"path": image_name_from_path(part.name).path, "error": refused.message, "status": refused.status}


# A row of predictions as a client gets it: the columns of `vitrail predict`, and what else a person should know.

MAX_NAME_LENGTH = 1000
FILE_REMARKS = {
    remarks.END_MISSING: "The file lacks its end, and nothing of the picture is missing.",
    remarks.SEVERAL_FRAMES: "The file holds several frames. The answer is about the first.",
    remarks.PROFILE_IGNORED: "The file carries a colour profile, which is not applied.",
    remarks.EXIF_UNREADABLE: "The file's EXIF block cannot be read, so the picture may lie on its side.",
    remarks.DAMAGE_OUTSIDE_PIXELS: "The file is damaged beside its pixels.",
    remarks.DAMAGE_IN_PIXELS: "The file is damaged among its pixels. The answer may be about other pixels than were "
    "taken.",
}
"""What clients are told of a file; that it was turned upright is nothing to worry about."""


def image_name_from_header(header: bytes) -> ImageName:
    """What a client calls its picture: the header X-Filename, percent-encoded or plain. No file is opened by it."""
    return image_name_from_path(unquote(header.decode("latin-1"), errors="replace"))


def image_name_from_path(path: str) -> ImageName:
    """A path of the client's and its last part, of bounded length."""
    short = path[:MAX_NAME_LENGTH]
    return ImageName(short, short.replace("\\", "/").rpartition("/")[2])


def add_notes(row: Mapping[str, object], decisions: Decisions, file_remarks: Sequence[str]) -> dict[str, object]:
    """A row and its notes.

    Args:
        file_remarks: remarks about the file.
    """
    return {
        **row,
        "notes": [
            *_explain_abstention(row, decisions),
            *(FILE_REMARKS[one] for one in file_remarks if one in FILE_REMARKS),
        ],
    }


def _explain_abstention(row: Mapping[str, object], decisions: Decisions) -> list[str]:
    """Why nothing is answered."""
    if row.get("abstain") == UNSURE:
        return [f"No class is likely enough: an answer needs a probability of at least {decisions.sure:.1%}."]
    if row.get("abstain") == UNLIKE:
        return ["This picture is unlike those that the model was trained on, so its answer is not to be relied on."]
    return []
