"""`Service`: what all parts of one server share, and whether it is fit to answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial

from ..data.parallel import ImageName
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
        on_ready: Callable[[ServedModel], None],
        on_failed: Callable[[BaseException], None],
        log_request: RequestLog | None = None,
    ):
        self.name, self.limits, self.tokens = name, limits, tokens
        self.infer_path = f"/v2/models/{name}/infer"
        self.work_paths = frozenset((*WORK_PATHS, self.infer_path))
        self.metrics = ServerMetrics(
            (*WORK_PATHS, self.infer_path, "/about", "/metrics", "/v2/health/live", "/v2/health/ready", "/")
        )
        self.batcher = Batcher(
            partial(open_model, self._mark_broken),
            self._on_model_opened,
            self.metrics.count_batch,
            limits.max_batch_size,
        )
        self.admission = AdmissionControl(limits, lambda: self.batcher.seconds_per_image)
        self.served_model: ServedModel | None = None
        self.decode_pool: DecodePool | None = None
        self.is_draining = False
        self.is_broken = False
        self._on_ready, self._on_failed, self._log_request = on_ready, on_failed, log_request
        self._start_task: asyncio.Task[None] | None = None
        self._starting_pool: DecodePool | None = None

    @property
    def unavailable_reason(self) -> str:
        """Why nothing is answered now; empty if something is."""
        if self.is_draining:
            return "The server is stopping."
        if self.is_broken:
            return "The model produced NaN, so it is not to be trusted any more. Restart the server."
        return "The model is being read." if self.served_model is None or self.decode_pool is None else ""

    @property
    def not_ready_reason(self) -> str:
        """Why the server is not ready, though it may still answer; empty if it is."""
        healthy = self.decode_pool is None or self.decode_pool.is_healthy
        return self.unavailable_reason or ("" if healthy else "The processes that decode pictures keep dying.")

    def check_available(self) -> None:
        """Raise RefusedError (503) while nothing is answered."""
        if why := self.unavailable_reason:
            raise HttpError(503, why, retry_after=1, close=self.is_draining)

    def get_model(self) -> ServedModel:
        """The model; RefusedError (503) while it is being read."""
        if self.served_model is None:
            raise HttpError(503, "The model is being read.", retry_after=1)
        return self.served_model

    async def start_decoding(self, served_model: ServedModel) -> None:
        """The decoding processes, which need to know what the model reads; then it is ready."""
        self._starting_pool = DecodePool(served_model.spec, self.limits)
        await self._starting_pool.start()
        self.decode_pool = self._starting_pool
        gc.collect()
        gc.freeze()  # what is there now stays; to look through it while clients wait stops everybody
        self._on_ready(served_model)

    async def close(self) -> bool:
        """End every process and the model's threads; False if one is in the middle of something long."""
        self.is_draining = True
        if self._start_task is not None:
            self._start_task.cancel()
            await asyncio.wait([self._start_task])
        if self._starting_pool is not None:
            await self._starting_pool.close()
        return await self.batcher.close()

    def record_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request, and tell of it where that is wished; of the page's own files only what went wrong."""
        known = self.metrics.count_request(path, status, seconds)
        if self._log_request is not None and (known != OTHER_PATH or status >= 400):
            self._log_request(known, status, seconds)

    async def decode_image(self, body: bytearray | memoryview) -> PreparedImages:
        """One picture as the model reads it; RefusedError as `Pictures.prepare`."""
        assert self.decode_pool is not None
        return await self.decode_pool.decode("picture", body)

    async def predict_image(self, name: ImageName, body: bytearray | memoryview) -> tuple[PredictionBatch, list[str]]:
        """One picture answered, and remarks about its file."""
        made = await self.decode_image(body)
        found = await self.batcher.submit([name], made.images)
        return found, made.info["remarks"]

    def read_gauges(self) -> dict[str, tuple[str, float]]:
        """What is so at the moment, for `Metrics.text`."""
        pictures = self.decode_pool
        return {
            "vitrail_ready": ("1 if pictures are answered.", float(not self.not_ready_reason)),
            "vitrail_waiting_pictures": ("Pictures that are decoded, wait or are answered.", self.admission.num_images),
            "vitrail_requests_inside": ("Requests for answers that have not ended.", self.admission.num_requests),
            "vitrail_body_bytes": ("Bytes of requests that are held.", self.admission.body_bytes),
            "vitrail_decoder_deaths_total": (
                "Decoding processes that died.", pictures.num_died if pictures is not None else 0,
            ),
            "vitrail_decoder_stops_total": (
                "Decoding processes that were ended because of a slow picture.",
                pictures.num_stopped if pictures is not None else 0,
            ),
        }  # fmt: skip

    def _mark_broken(self) -> None:
        self.is_broken = True

    def _on_model_opened(self, served_model: ServedModel | None, problem: BaseException | None) -> None:
        if served_model is None or problem is not None:
            assert problem is not None
            self._on_failed(problem)
            return
        if self.is_draining:
            return
        self.served_model = served_model
        self._start_task = asyncio.get_running_loop().create_task(self.start_decoding(served_model))
        self._start_task.add_done_callback(self._on_started)

    def _on_started(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._on_failed(problem)
