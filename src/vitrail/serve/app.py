"""The paths of the server, as a FastAPI application behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from . import answers, metrics
from .described import BODIES, documents
from .gate import UNFORESEEN, Gate
from .inference_protocol import model_facts, server_facts
from .multipart import is_form
from .page_files import FIRST, HEADERS, PageFile, page_files
from .refusals import NO_GUESSING, RefusedError, as_json
from .rows import name_of
from .service import Service

MISSING = "This installation of Vitrail lacks the files of its web page. The API is described at /docs.\n"


class Plain(APIRoute):
    """A path whose function wants the request and nothing else, so that nothing is looked for in it: a third less of
    what the framework does for a picture."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The function itself."""
        return self.endpoint


def application(service: Service) -> ASGIApp:
    """Everything that the server answers."""
    app = FastAPI(
        title="Vitrail", version=version("vitrail"), docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False, summary="A Vision Transformer that answers questions about pictures.",
    )  # fmt: skip
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unforeseen)
    _answering(app, service)
    _protocol(app, service)
    _health(app, service)
    _pages(app)
    return Gate(app, service)


def _answering(app: FastAPI, service: Service) -> None:
    """The four doors to the model."""
    plain = APIRouter(route_class=Plain)

    @plain.post("/predict", tags=["answers"], openapi_extra=BODIES["picture or form"])
    async def predict(request: Request) -> Response:
        """Answer pictures. One picture as the body gives one row, with the columns of `vitrail predict`; a form gives
        `{"rows": [...]}` in the order of its files, each a row or `{"path", "error", "status"}`. The header X-Filename
        (percent-encoded) names a single picture."""
        kind = request.headers.get("content-type", "").encode("latin-1")
        if is_form(kind):
            return _json(await answers.rows_of_form(service, request.state.body, kind))
        name = name_of(request.headers.get("x-filename", "").encode("latin-1"))
        return _json(await answers.one_row(service, name, request.state.body))

    app.include_router(plain)

    @app.post("/explain", tags=["answers"], openapi_extra=BODIES["picture"])
    async def explain(request: Request, method: str | None = None, target: str | None = None) -> Response:
        """Explain the answer to a picture, or another class (`target`), by a method that /about lists: a number for
        each patch, and the picture as the model sees it."""
        return _json(await answers.explanation(service, request.state.body, method, target))

    @app.post("/embed", tags=["answers"], openapi_extra=BODIES["picture"])
    async def embed(request: Request) -> Response:
        """The features that the model makes of a picture before it answers."""
        return _json(await answers.embedding(service, request.state.body))

    @app.get("/about", tags=["model"])
    async def about() -> Response:
        """What the model answers, what it reads, what it may be asked, and what a request may hold."""
        return _json(service.model().about(service.limits, bool(service.tokens)))


def _protocol(app: FastAPI, service: Service) -> None:
    """The Open Inference Protocol, version 2."""
    model = f"/v2/models/{service.name}"

    @app.get("/v2", tags=["Open Inference Protocol"])
    async def server() -> Response:
        """The server's name and version."""
        return _json(server_facts())

    @app.get(model, tags=["Open Inference Protocol"])
    async def metadata() -> Response:
        """Inputs and outputs of the model."""
        found = service.model().predictor
        alone = len(found.members) == 1
        return _json(model_facts(service.name, found.task, len(found.classes), alone, found.spec))

    @app.get(f"{model}/ready", tags=["Open Inference Protocol"])
    async def ready() -> Response:
        """200 if the model answers, else 503."""
        return _json({"name": service.name, "ready": not service.why_not}, 503 if service.why_not else 200)

    @app.post(f"{model}/infer", tags=["Open Inference Protocol"], openapi_extra=BODIES["tensor"])
    async def infer(request: Request) -> Response:
        """Answer prepared pictures: uint8 [B, H, W, C] at the model's size, as JSON numbers."""
        return _json(await answers.inference(service, request.state.body))


def _health(app: FastAPI, service: Service) -> None:
    """Whether the server lives, whether it answers, and what it has done."""

    @app.get("/v2/health/live", tags=["health"])
    async def live() -> Response:
        """200 as long as the process does anything at all, also while the model is read or busy."""
        return _json({"live": True})

    @app.get("/v2/health/ready", tags=["health"])
    async def ready() -> Response:
        """200 if pictures are answered, else 503 with the reason."""
        why = service.why_not
        return _json({"ready": not why, **({"error": why} if why else {})}, 503 if why else 200)

    @app.get("/metrics", tags=["health"])
    async def counted() -> Response:
        """Counts in Prometheus' text format."""
        return Response(service.metrics.text(service.gauges()), media_type=metrics.CONTENT_TYPE)


def _pages(app: FastAPI) -> None:
    """The web page, and the description of all this, readable without any network."""
    files = page_files()
    described = documents(app)

    @app.get("/", include_in_schema=False)
    async def first(request: Request) -> Response:
        return _file(files, FIRST, request) if FIRST in files else Response(MISSING, media_type="text/plain")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        return _file(files, name, request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return _file(described, "docs", request)

    @app.get("/docs/{name}", include_in_schema=False)
    async def beside(name: str, request: Request) -> Response:
        return _file(described, name, request)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return _file(described, "openapi.json", request)


def _file(files: Mapping[str, PageFile], name: str, request: Request) -> Response:
    if name not in files:
        raise HTTPException(404)
    found = files[name]
    headers = {**HEADERS, "etag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.kind)


def _json(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status, NO_GUESSING, media_type="application/json")


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RefusedError)
    headers = {name.decode(): value.decode() for name, value in problem.headers}
    return Response(problem.body, problem.status, headers, media_type="application/json")


async def _http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    words = {404: "There is nothing at this path. See /docs.", 405: "This path knows another method. See /docs."}
    said = words.get(problem.status_code, str(problem.detail))
    headers = {**(problem.headers or {}), **NO_GUESSING}
    return Response(as_json({"error": said}), problem.status_code, headers, media_type="application/json")


async def _invalid(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = " ".join(map(str, first.get("loc", ())))
    return _json({"error": f"{where}: {first.get('msg', 'wrong')}."}, 422)


async def _unforeseen(request: Request, problem: Exception) -> Response:
    return _json({"error": UNFORESEEN}, 500)
