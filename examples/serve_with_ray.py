"""A model behind Ray Serve: pictures that come within five milliseconds of each other are answered together.

    pip install vitrail 'ray[serve]'
    python examples/serve_with_ray.py runs/cells --port 8000 --replicas 2
    curl --data-binary @cell.png http://127.0.0.1:8000/

Every replica has the model once; Ray Serve spreads requests over them and over the machines of its cluster. The answer
is the row that `vitrail predict --json` gives.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import urllib.error
import urllib.request

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from vitrail.predict.predictor import Predictor
from vitrail.services.prediction import open_predictor


class Answers:
    """A replica: a model, and the pictures that wait for it."""

    def __init__(self, model: str):
        self._predictor = open_predictor(model)

    async def __call__(self, request: Request) -> JSONResponse:
        """One picture as the body of a request, one row as the answer; 400 where the body is no picture."""
        row = await self.together(await request.body())
        return JSONResponse(row, status_code=400 if "error" in row else 200)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)  # type: ignore[untyped-decorator]  # Ray has no types
    async def together(self, pictures: list[bytes]) -> list[dict[str, object]]:
        """The rows of pictures that came together, worked out beside the loop that takes requests."""
        return await asyncio.to_thread(rows_of, self._predictor, pictures)


def rows_of(predictor: Predictor, pictures: list[bytes]) -> list[dict[str, object]]:
    """A row for each picture in order, or why it has none."""
    answers = predictor.predict(pictures, skip_bad=True)
    replies: dict[str, dict[str, object]] = {place: {"error": reason} for place, reason in answers.skipped}
    replies |= {str(row["id"]): row for row in answers.records()}
    return [replies[str(place)] for place in range(len(pictures))]


def wait_for_proxy(port: int, seconds: float = 120.0) -> None:
    """Return once the proxy answers, which on a busy machine is later than the replicas are there."""
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/healthz", timeout=seconds):
                return
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def main() -> None:
    """Serve until somebody stops it."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("model", help="a run folder, a bundle, or hf:OWNER/NAME")
    words.add_argument("--port", type=int, default=8000)
    words.add_argument("--replicas", type=int, default=1)
    given = words.parse_args()
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    deployment = serve.deployment(max_ongoing_requests=256, health_check_period_s=10)(Answers)
    serve.run(deployment.options(num_replicas=given.replicas).bind(given.model))
    wait_for_proxy(given.port)
    print(f"ready on http://127.0.0.1:{given.port}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
