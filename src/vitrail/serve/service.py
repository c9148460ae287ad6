"""`Service`: what all parts of one server share, and whether it is fit to answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial

from ..predict.batches import ImageName
from .admission import AdmissionControl
from .auth import BearerTokens
from .batcher import Batcher, PredictionBatch
from .decode_pool import DecodePool, PreparedImages
from .http_errors import HttpError
from .limits import ServerLimits
from .prometheus import OTHER_PATH, ServerMetrics
from .served_model import ServedModel

RequestLog = Callable[[str, int, float], None]
WORK_PATHS = ("/predict", "/explain", "/embed")


class Service:
    """One model, its threads, its decoding processes, and the counts. Made in the event loop.

    Args:
        open_model: reads the model; gets what to call when the model turns out to be broken.
        failed: called in the event loop with the reason why there is no model, or no processes.
        log: told of every request that ends: its path (`metrics.OTHER` for an unknown one), status and seconds.
    """

    def __init__(
        self,
        name: str,
        limits: ServerLimits,
        tokens: BearerTokens,
        open_model: Callable[[Callable[[], None]], ServedModel],
        ready: Callable[[ServedModel], None],
        failed: Callable[[BaseException], None],
        log: RequestLog | None = None,
    ):
        self.name, self.limits, self.tokens = name, limits, tokens
        self.infer = f"/v2/models/{name}/infer"
        self.work = frozenset((*WORK_PATHS, self.infer))
        self.metrics = ServerMetrics(
            (*WORK_PATHS, self.infer, "/about", "/metrics", "/v2/health/live", "/v2/health/ready", "/")
        )
        self.batcher = Batcher(partial(open_model, self._break), self._opened, self.metrics.batch, limits.batch)
        self.admission = AdmissionControl(limits, lambda: self.batcher.seconds)
        self.opened: ServedModel | None = None
        self.pictures: DecodePool | None = None
        self.draining = False
        self.broken = False
        self._ready, self._failed, self._log = ready, failed, log
        self._starting: asyncio.Task[None] | None = None
        self._decoders: DecodePool | None = None

    @property
    def shut(self) -> str:
        """Why nothing is answered now; empty if something is."""
        if self.draining:
            return "The server is stopping."
        if self.broken:
            return "The model produced NaN, so it is not to be trusted any more. Restart the server."
        return "The model is being read." if self.opened is None or self.pictures is None else ""

    @property
    def why_not(self) -> str:
        """Why the server is not ready, though it may still answer; empty if it is."""
        healthy = self.pictures is None or self.pictures.healthy
        return self.shut or ("" if healthy else "The processes that decode pictures keep dying.")

    def check_open(self) -> None:
        """Raise RefusedError (503) while nothing is answered."""
        if why := self.shut:
            raise HttpError(503, why, again=1, close=self.draining)

    def model(self) -> ServedModel:
        """The model; RefusedError (503) while it is being read."""
        if self.opened is None:
            raise HttpError(503, "The model is being read.", again=1)
        return self.opened

    async def start(self, opened: ServedModel) -> None:
        """The decoding processes, which need to know what the model reads; then it is ready."""
        self._decoders = DecodePool(opened.spec, self.limits)
        await self._decoders.start()
        self.pictures = self._decoders
        gc.collect()
        gc.freeze()  # what is there now stays; to look through it while clients wait stops everybody
        self._ready(opened)

    async def close(self) -> bool:
        """End every process and the model's threads; False if one is in the middle of something long."""
        self.draining = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._decoders is not None:
            await self._decoders.close()
        return await self.batcher.close()

    def ended(self, path: str, status: int, seconds: float) -> None:
        """Count a request, and tell of it where that is wished; of the page's own files only what went wrong."""
        known = self.metrics.request(path, status, seconds)
        if self._log is not None and (known != OTHER_PATH or status >= 400):
            self._log(known, status, seconds)

    async def prepared(self, body: bytearray | memoryview) -> PreparedImages:
        """One picture as the model reads it; RefusedError as `Pictures.prepare`."""
        assert self.pictures is not None
        return await self.pictures.prepare("picture", body)

    async def answered(self, name: ImageName, body: bytearray | memoryview) -> tuple[PredictionBatch, list[str]]:
        """One picture answered, and remarks about its file."""
        made = await self.prepared(body)
        found = await self.batcher.answer([name], made.images)
        return found, made.said["remarks"]

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What is so at the moment, for `Metrics.text`."""
        pictures = self.pictures
        return {
            "vitrail_ready": ("1 if pictures are answered.", float(not self.why_not)),
            "vitrail_waiting_pictures": ("Pictures that are decoded, wait or are answered.", self.admission.waiting),
            "vitrail_requests_inside": ("Requests for answers that have not ended.", self.admission.inside),
            "vitrail_body_bytes": ("Bytes of requests that are held.", self.admission.bytes),
            "vitrail_decoder_deaths_total": (
                "Decoding processes that died.", pictures.died if pictures is not None else 0,
            ),
            "vitrail_decoder_stops_total": (
                "Decoding processes that were ended because of a slow picture.",
                pictures.stopped if pictures is not None else 0,
            ),
        }  # fmt: skip

    def _break(self) -> None:
        self.broken = True

    def _opened(self, opened: ServedModel | None, problem: BaseException | None) -> None:
        if opened is None or problem is not None:
            assert problem is not None
            self._failed(problem)
            return
        if self.draining:
            return
        self.opened = opened
        self._starting = asyncio.get_running_loop().create_task(self.start(opened))
        self._starting.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._failed(problem)
