"""The FastAPI application: routes, their handlers and error responses, behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jaxtyping import UInt8
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from ..checkpoints.decision_versions import TRAINED
from ..data.parallel import ImageName
from ..data.preprocess import unfit_mask
from ..data.source import UNKNOWN_PIXEL
from ..errors import DataError, UsageError
from ..evaluate.decisions import Decisions
from ..predict import exported
from ..predict.answer_notes import add_notes
from ..services.mask_files import encode_mask
from ..version import __version__
from .batcher import PredictionBatch, concat_batches
from .gate import TOKEN_MISSING, UNEXPECTED_ERROR, Gate
from .http_errors import NOSNIFF_HEADERS, HttpError, encode_json
from .openapi import CASE_PARAMETER, REQUEST_BODIES, render_api_docs
from .protocols import (
    FormFile,
    describe_model,
    explain_prepared_image,
    format_inference_response,
    is_form,
    mask_to_json,
    parse_form_files,
)
from .service import Service
from .static_files import INDEX_FILE, SECURITY_HEADERS, StaticFile, load_static_files

DECISION_HEADER = "X-Decision"
"""Names the decision of an answer; "training" for the training's own."""
MASK_MEDIA_TYPE = "image/png"
PAGE_MISSING = "This installation of Vitrail lacks the files of its web page. The API is described at /docs.\n"


class RawRoute(APIRoute):
    """A route whose endpoint takes only the request, so FastAPI parses no parameters: a third less time in the
    framework for each image."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The endpoint itself."""
        return self.endpoint


def create_app(service: Service) -> ASGIApp:
    """The application with all routes of a service."""
    app = FastAPI(
        title="Vitrail", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
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
    for route in app.routes:  # FastAPI answers HEAD with 405, but `wget --spider` and other probes ask so
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            route.methods = {"GET", "HEAD"}
    return Gate(app, service)


def _add_model_routes(app: FastAPI, service: Service) -> None:
    """Predict, explain, embed and describe. The gate has already read the body."""
    plain = APIRouter(route_class=RawRoute)

    @plain.post("/predict", tags=["answers"], openapi_extra={**REQUEST_BODIES["picture or form"], **CASE_PARAMETER})
    async def predict(request: Request) -> Response:
        """Answer pictures. One picture as the body gives one row, with the columns of `vitrail predict`; a form gives
        `{"rows": [...]}` in the order of its files, each a row or `{"path", "error", "status"}`. The header X-Filename
        (percent-encoded) names a single picture. `?decision=NAME` takes a kept decision instead of the one in use; the
        header X-Decision of the answer names it. A model of masks adds `mask`, at the picture's own size: `counts` are
        COCO's compressed run lengths of every class; a single picture with `Accept: image/png` gets a PNG of class
        numbers with a palette instead. `?case=NAME` answers the files of a form as one case too, of a model that does:
        its row is `case`, and each picture's `share` is its part of that answer."""
        body, content_type = request.state.body, request.headers.get("content-type", "").encode("latin-1")
        asked = request.query_params.get("decision") if request.scope["query_string"] else None
        case = request.query_params.get("case") if request.scope["query_string"] else None
        decisions = service.get_model().choose_decision(asked)  # of the whole request, whatever is put to use meanwhile
        if case is not None:
            service.get_model().require_cases()
            if not case or not is_form(content_type):
                raise HttpError(
                    400, "A case is a form of its pictures with a name: curl -F picture=@1.png URL?case=NAME"
                )
        if not is_form(content_type):
            name = image_name_from_path(unquote(request.headers.get("x-filename", ""), errors="replace"))
            with service.admission.admit_images(1):
                if wants_mask(service, request.headers.get("accept", "")):
                    mask = await _predict_mask(service, name, body, decisions)
                    return Response(mask, 200, NOSNIFF_HEADERS, media_type=MASK_MEDIA_TYPE)
                row, _ = await _predict_row(service, name, body, decisions)
            return _json_response(row, decisions=decisions)
        parts = parse_form_files(body, content_type, service.limits.max_images)
        if not parts:
            raise HttpError(400, "The form holds no file. Send one with: curl -F picture=@photo.jpg")
        with service.admission.admit_images(len(parts)):
            answers = await asyncio.gather(*(_predict_row_or_error(service, part, decisions) for part in parts))
        rows = [row for row, _ in answers]
        if case is None:
            return _json_response({"rows": rows}, decisions=decisions)
        batches = [batch for _, batch in answers if batch is not None]
        if len(batches) < len(rows):
            unread = next(row for row in rows if "error" in row)
            why = {
                "error": f"The case lacks {unread['path'] or 'a picture'}: {unread['error']}",
                "status": unread["status"],
            }
            return _json_response({"rows": rows, "case": why}, decisions=decisions)
        answer, shares = service.get_model().answer_case(case[:MAX_NAME_LENGTH], concat_batches(batches), decisions)
        rows = [{**row, "share": share} for row, share in zip(rows, shares, strict=True)]
        return _json_response({"rows": rows, "case": answer}, decisions=decisions)

    app.include_router(plain)

    @app.post("/explain", tags=["answers"], openapi_extra=REQUEST_BODIES["picture"])
    async def explain(
        request: Request, method: str | None = None, target: str | None = None, decision: str | None = None
    ) -> Response:
        """Explain the answer to a picture, or another class (`target`), by a method that /about lists: a number for
        each patch, and the picture as the model sees it."""
        decisions = service.get_model().choose_decision(decision)
        explainer = service.get_model().explainer_for(decisions)
        if explainer is None:
            why = "Several models answer together here, and only one can be looked into."
            is_mask = service.get_model().predictor.task == "segmentation"
            raise HttpError(422, "The mask is this model's answer, pixel by pixel: POST /predict." if is_mask else why)
        with service.admission.admit_images(1), service.admission.admit_task():
            (image,), info = await service.decode_image(request.state.body)
            rows, columns = info["seen"]
            work = partial(explain_prepared_image, explainer, image, (rows, columns), method or None, target or None)
            try:
                explanation = await service.batcher.run_exclusive(work)
            except (UsageError, DataError) as problem:
                raise HttpError(422, str(problem)) from problem
        return _json_response(explanation, decisions=decisions)

    @app.post("/embed", tags=["answers"], openapi_extra=REQUEST_BODIES["picture"])
    async def embed(request: Request) -> Response:
        """The features that the model makes of a picture before it answers."""
        model = service.get_model()
        with service.admission.admit_images(1), service.admission.admit_task():
            image = (await service.decode_image(request.state.body)).images[0]
            features = await service.batcher.run_exclusive(partial(model.embed_image, image))
        return _json_response(features)

    @app.get("/decisions", tags=["model"])
    async def decisions(request: Request) -> Response:
        """The decisions that may be asked for, and the scores of the validation pictures from which their costs are
        counted: of each label in rising order, as float32 in base64."""
        if not service.tokens.is_allowed(request.headers.get("authorization", "").encode("latin-1")):
            raise HttpError(401, TOKEN_MISSING)
        return _json_response(await asyncio.to_thread(service.get_model().describe_decisions))

    @app.get("/about", tags=["model"])
    async def about() -> Response:
        """What the model answers, what it reads, what it may be asked, and what a request may hold."""
        return _json_response(service.get_model().describe(service.limits, bool(service.tokens)))


def _add_protocol_routes(app: FastAPI, service: Service) -> None:
    """The Open Inference Protocol, version 2."""
    path = f"/v2/models/{service.name}"

    @app.get("/v2", tags=["Open Inference Protocol"])
    async def server() -> Response:
        """The server's name and version."""
        return _json_response({"name": "vitrail", "version": __version__, "extensions": []})

    @app.get(path, tags=["Open Inference Protocol"])
    async def metadata() -> Response:
        """Inputs and outputs of the model."""
        model = service.get_model().predictor
        is_single = len(model.members) == 1
        return _json_response(describe_model(service.name, model.task, len(model.classes), is_single, model.spec))

    @app.get(f"{path}/ready", tags=["Open Inference Protocol"])
    async def ready() -> Response:
        """200 if the model answers, else 503."""
        reason = service.not_ready_reason
        return _json_response({"name": service.name, "ready": not reason}, 503 if reason else 200)

    @app.post(f"{path}/infer", tags=["Open Inference Protocol"], openapi_extra=REQUEST_BODIES["tensor"])
    async def infer(request: Request, decision: str | None = None) -> Response:
        """Answer prepared pictures: uint8 or uint16 [B, H, W, C] at the model's size, as JSON numbers."""
        assert service.decode_pool is not None
        decisions = service.get_model().choose_decision(decision)
        with service.admission.admit_images(1):
            images, info = await service.decode_pool.decode("tensor", request.state.body)
        with service.admission.admit_images(len(images)):
            batch = await service.batcher.submit([ImageName("", "")] * len(images), images, decisions)
        answer = format_inference_response(service.name, info["id"], batch.outputs, info["outputs"])
        return _json_response(answer, decisions=decisions)


def _add_health_routes(app: FastAPI, service: Service) -> None:
    """Liveness, readiness and metrics."""

    @app.get("/v2/health/live", tags=["health"])
    async def live() -> Response:
        """200 as long as the process does anything at all, also while the model is read or busy."""
        return _json_response({"live": True})

    @app.get("/v2/health/ready", tags=["health"])
    async def ready() -> Response:
        """200 if pictures are answered, else 503 with the reason."""
        if reason := service.not_ready_reason:
            return _json_response({"ready": False, "error": reason}, 503)
        return _json_response({"ready": True})

    @app.get("/metrics", tags=["health"])
    async def read_metrics() -> Response:
        """Counts in Prometheus' text format."""
        return Response(service.metrics.format_text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_page_routes(app: FastAPI) -> None:
    """The web page and the API documentation, without resources from other servers."""
    files = load_static_files()
    described = render_api_docs(app)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        if INDEX_FILE in files:
            return _file_response(files, INDEX_FILE, request)
        return Response(PAGE_MISSING, media_type="text/plain")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        return _file_response(files, name, request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return _file_response(described, "docs", request)

    @app.get("/docs/{name}", include_in_schema=False)
    async def docs_asset(name: str, request: Request) -> Response:
        return _file_response(described, name, request)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return _file_response(described, "openapi.json", request)


def _file_response(files: Mapping[str, StaticFile], name: str, request: Request) -> Response:
    if name not in files:
        raise HTTPException(404)
    file = files[name]
    headers = {**SECURITY_HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)


def _json_response(value: object, status: int = 200, decisions: Decisions | None = None) -> Response:
    named = {} if decisions is None else {DECISION_HEADER: decisions.version or TRAINED}
    return Response(encode_json(value), status, {**NOSNIFF_HEADERS, **named}, media_type="application/json")


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body, error.status, headers, media_type="application/json")


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "There is nothing at this path. See /docs.", 405: "This path knows another method. See /docs."}
    message = messages.get(error.status_code, str(error.detail))
    headers = {**(error.headers or {}), **NOSNIFF_HEADERS}
    return Response(encode_json({"error": message}), error.status_code, headers, media_type="application/json")


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = " ".join(map(str, first.get("loc", ())))
    return _json_response({"error": f"{where}: {first.get('msg', 'wrong')}."}, 422)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    return _json_response({"error": UNEXPECTED_ERROR}, 500)


async def _predict_row(
    service: Service, name: ImageName, body: bytearray | memoryview, decisions: Decisions
) -> tuple[dict[str, Any], PredictionBatch]:
    batch, info = await service.predict_image(name, body, decisions)
    row = add_notes(batch.rows[0], decisions, info["remarks"])
    if exported.MASKS not in batch.outputs:
        return row, batch
    classes = service.get_model().predictor.classes
    mask = await asyncio.to_thread(lambda: mask_to_json(_own_mask(service, batch, info), classes))
    height, width = info["size"]
    areas = service.get_model().measure_areas(row, (height, width), decisions)
    return {**row, **areas, "mask": mask}, batch


def wants_mask(service: Service, accept: str) -> bool:
    """Whether a request asks for a mask as a PNG, by its header Accept.

    Raises:
        HttpError: 422, it asks a model of another task.
    """
    if MASK_MEDIA_TYPE not in accept or "application/json" in accept or "*/*" in accept:
        return False
    if service.get_model().predictor.task != "segmentation":
        raise HttpError(422, "This model answers no masks. Leave Accept out, or ask for application/json.")
    return True


async def _predict_mask(service: Service, name: ImageName, body: bytearray | memoryview, decisions: Decisions) -> bytes:
    batch, info = await service.predict_image(name, body, decisions)
    count = len(service.get_model().predictor.classes)
    return await asyncio.to_thread(lambda: encode_mask(_own_mask(service, batch, info), count))


def _own_mask(service: Service, batch: PredictionBatch, info: Mapping[str, Any]) -> UInt8[np.ndarray, "H W"]:
    """The mask of one picture at its own size."""
    height, width = info["size"]
    return unfit_mask(batch.outputs[exported.MASKS][0], (height, width), service.get_model().spec, UNKNOWN_PIXEL)


async def _predict_row_or_error(
    service: Service, part: FormFile, decisions: Decisions
) -> tuple[dict[str, Any], PredictionBatch | None]:
    try:
        return await _predict_row(service, image_name_from_path(part.name), part.data, decisions)
    except HttpError as refused:
        refusal = {"path": image_name_from_path(part.name).path, "error": refused.message, "status": refused.status}
        return refusal, None


# -- Response rows.

MAX_NAME_LENGTH = 1000


def image_name_from_path(path: str) -> ImageName:
    """A client's path and its last part, of bounded length. It is never opened."""
    short = path[:MAX_NAME_LENGTH]
    return ImageName(short, short.replace("\\", "/").rpartition("/")[2])
