"""`Service`: the state that all parts of one server share, and whether it can answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from ..data.parallel import ImageName
from ..evaluate.decisions import Decisions
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
FOLLOW_SECONDS = 0.5
"""How often the server looks whether another decision was put to use."""


class Service:
    """One model with its batcher, decoding processes, admission control and metrics. Made in the event loop.

    Args:
        open_model: loads the model; gets a callback for a model that gives NaN.
        on_failed: called in the event loop with the error if the model or the decoding processes cannot start.
        log_request: called after each request with its path (`OTHER_PATH` for an unknown one), status and seconds.
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
            (*WORK_PATHS, self.infer_path, "/about", "/metrics", "/v2/health/live", "/v2/health/ready", "/"),
            self._read_gauges,
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
        self._follow_task: asyncio.Task[None] | None = None
        self._starting_pool: DecodePool | None = None

    @property
    def unavailable_reason(self) -> str:
        """Why requests to the model are refused now; empty if they are accepted."""
        if self.is_draining:
            return "The server is stopping."
        if self.is_broken:
            return "The model produced NaN, so it is not to be trusted any more. Restart the server."
        return "The model is being read." if self.served_model is None or self.decode_pool is None else ""

    @property
    def not_ready_reason(self) -> str:
        """Why the readiness check fails (the server may still answer); empty if it is ready."""
        healthy = self.decode_pool is None or self.decode_pool.is_healthy
        return self.unavailable_reason or ("" if healthy else "The processes that decode pictures keep dying.")

    def check_available(self) -> None:
        """Raise HttpError (503) while requests are refused."""
        if why := self.unavailable_reason:
            raise HttpError(503, why, retry_after=1, close=self.is_draining)

    def get_model(self) -> ServedModel:
        """The model; raises HttpError (503) while it is being read."""
        if self.served_model is None:
            raise HttpError(503, "The model is being read.", retry_after=1)
        return self.served_model

    async def start_decoding(self, served_model: ServedModel) -> None:
        """Start the decoding processes, which need the model's image specification; then the server is ready."""
        self._starting_pool = DecodePool(served_model.spec, self.limits)
        await self._starting_pool.start()
        self.decode_pool = self._starting_pool
        gc.collect()
        gc.freeze()  # the model stays; collecting over it would pause all requests
        self._on_ready(served_model)

    async def close(self) -> bool:
        """Stop the decoding processes and the model's threads; False if a thread is still computing."""
        self.is_draining = True
        if tasks := [task for task in (self._start_task, self._follow_task) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._starting_pool is not None:
            await self._starting_pool.close()
        return await self.batcher.close()

    def record_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request and log it; unknown paths and the page's files are logged only if they fail."""
        known = self.metrics.count_request(path, status, seconds)
        if self._log_request is not None and (known != OTHER_PATH or status >= 400):
            self._log_request(known, status, seconds)

    async def decode_image(self, body: bytearray | memoryview) -> PreparedImages:
        """Decode and preprocess one image; raises HttpError as `DecodePool.decode`."""
        assert self.decode_pool is not None
        return await self.decode_pool.decode("picture", body)

    async def predict_image(
        self, name: ImageName, body: bytearray | memoryview, decisions: Decisions
    ) -> tuple[PredictionBatch, dict[str, Any]]:
        """Predictions for one image, and what `decode_worker.read_image` says of it."""
        prepared = await self.decode_image(body)
        batch = await self.batcher.submit([name], prepared.images, decisions)
        return batch, prepared.info

    def _read_gauges(self) -> dict[str, tuple[str, float]]:
        num_died, num_stopped = (0, 0) if (pool := self.decode_pool) is None else (pool.num_died, pool.num_stopped)
        return {
            "vitrail_ready": ("1 if pictures are answered.", float(not self.not_ready_reason)),
            "vitrail_waiting_pictures": ("Pictures that are decoded, wait or are answered.", self.admission.num_images),
            "vitrail_requests_inside": ("Requests for answers that have not ended.", self.admission.num_requests),
            "vitrail_body_bytes": ("Bytes of requests that are held.", self.admission.body_bytes),
            "vitrail_decoder_deaths_total": ("Decoding processes that died.", num_died),
            "vitrail_decoder_stops_total": (
                "Decoding processes that were ended because of a slow picture.",
                num_stopped,
            ),
        }

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
        self._follow_task = asyncio.get_running_loop().create_task(self._follow_decisions(served_model))

    async def _follow_decisions(self, served_model: ServedModel) -> None:
        while served_model.folder is not None:
            await asyncio.sleep(FOLLOW_SECONDS)
            await asyncio.to_thread(served_model.reload_decisions)

    def _on_started(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not self.is_draining:  # a signal to the whole group ends what was starting too
            self._on_failed(problem)
