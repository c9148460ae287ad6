"""What each kind of request is answered, once all of its body is here."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from ..errors import DataError, UsageError
from ..predict.batches import ImageName
from .explanations import explain
from .inference_protocol import inferred
from .multipart import Part, files_in
from .refusals import RefusedError
from .rows import named, with_notes
from .service import Service


async def one_row(service: Service, name: ImageName, body: bytearray | memoryview) -> dict[str, Any]:
    """`POST /predict` with one picture.

    Raises:
        RefusedError: the picture cannot be read, or the server is full.
    """
    with service.admission.pictures(1):
        return await _row(service, name, body)


async def rows_of_form(service: Service, body: bytearray, content_type: bytes) -> dict[str, Any]:
    """`POST /predict` with a form: a row for each file, or why there is none.

    Raises:
        RefusedError: no form, too many files, or the server is full.
    """
    parts = files_in(body, content_type, service.limits.pictures)
    if not parts:
        raise RefusedError(400, "The form holds no file. Send one with: curl -F picture=@photo.jpg")
    with service.admission.pictures(len(parts)):
        return {"rows": await asyncio.gather(*(_row_or_reason(service, part) for part in parts))}


async def explanation(service: Service, body: bytearray, method: str | None, target: str | None) -> dict[str, Any]:
    """`POST /explain`.

    Raises:
        RefusedError: 422, no such method or class; or as `one_row`.
    """
    explainer = service.model().explainer
    if explainer is None:
        raise RefusedError(422, "Several models answer together here, and only one can be looked into.")
    with service.admission.pictures(1), service.admission.task():
        (image,), said = await service.prepared(body)
        rows, columns = said["seen"]
        work = partial(explain, explainer, image, (rows, columns), method or None, target or None)
        try:
            return await service.batcher.do(work)
        except (UsageError, DataError) as problem:
            raise RefusedError(422, str(problem)) from problem


async def embedding(service: Service, body: bytearray) -> dict[str, Any]:
    """`POST /embed`; RefusedError as `one_row`."""
    opened = service.model()
    with service.admission.pictures(1), service.admission.task():
        image = (await service.prepared(body)).images[0]
        return await service.batcher.do(partial(opened.embed, image))


async def inference(service: Service, body: bytearray) -> dict[str, Any]:
    """`POST /v2/models/NAME/infer`.

    Raises:
        RefusedError: 422, no such request; 413, too many pictures; 503, the server is full.
    """
    assert service.pictures is not None
    with service.admission.pictures(1):
        images, said = await service.pictures.prepare("tensor", body)
    with service.admission.pictures(len(images)):
        found = await service.batcher.answer([ImageName("", "")] * len(images), images)
    return inferred(service.name, said["id"], found.outputs, said["outputs"])


async def _row(service: Service, name: ImageName, body: bytearray | memoryview) -> dict[str, Any]:
    found, remarks = await service.answered(name, body)
    return with_notes(found.rows[0], service.model().predictor.decided, remarks)


async def _row_or_reason(service: Service, part: Part) -> dict[str, Any]:
    try:
        return await _row(service, named(part.name), part.data)
    except RefusedError as refused:
        return {"path": named(part.name).path, "error": refused.sentence, "status": refused.status}
