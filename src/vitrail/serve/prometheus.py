"""What the server has done, in Prometheus' text format: a fixed number of lines, whatever clients send."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER_PATH = "other"
"""Stands for every path that the server does not know, so that nobody can make it remember new ones."""
CLIENT_LEFT = 0
"""In the place of a status, where the client left before there was one."""


@dataclass
class Histogram:
    """How often values were at most so large."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def format_lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Its buckets, sum and count."""
        seen, comma = 0, "," if labels else ""
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {seen}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.total:.9g}"
        yield f"{name}_count{braces} {seen}"


class ServerMetrics:
    """Counted in the event loop.

    Args:
        paths: those that are told apart.
    """

    def __init__(self, paths: Sequence[str]):
        self._paths = frozenset(paths)
        self.requests: Counter[tuple[str, int]] = Counter()
        self._seconds = {path: Histogram(SECONDS_BUCKETS) for path in (*paths, OTHER_PATH)}
        self._batches = Histogram(IMAGES_BUCKETS)
        self._model_seconds = 0.0

    def count_request(self, path: str, status: int, seconds: float) -> str:
        """One request has ended, after so long; gives the path that it is counted under."""
        known = path if path in self._paths else OTHER_PATH
        self.requests[known, status] += 1
        self._seconds[known].observe(seconds)
        return known

    def count_batch(self, num_images: int, seconds: float) -> None:
        """The model has answered so many pictures at once."""
        self._batches.observe(num_images)
        self._model_seconds += seconds

    def format_text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything.

        Args:
            gauges: what is so at the moment: name -> (help, value).
        """
        return "\n".join((*self._format_counters(), *_format_gauges(gauges), ""))

    def _format_counters(self) -> Iterator[str]:
        yield from _format_header(
            "vitrail_requests_total", "counter", "Requests by path and status; status 0: the client left."
        )
        for (path, status), count in sorted(self.requests.items()):
            yield f'vitrail_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _format_header(
            "vitrail_request_seconds", "histogram", "From the head of a request to the end of its answer."
        )
        for path, seconds in self._seconds.items():
            yield from seconds.format_lines("vitrail_request_seconds", f'path="{path}"')
        yield from _format_header("vitrail_batch_pictures", "histogram", "Pictures that the model answered at once.")
        yield from self._batches.format_lines("vitrail_batch_pictures")
        yield from _format_header(
            "vitrail_model_seconds_total",
            "counter",
            "Seconds of all batches; two may be computed at once.",
        )
        yield f"vitrail_model_seconds_total {self._model_seconds:.9g}"


def _format_gauges(gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    for name, (words, value) in gauges.items():
        yield from _format_header(name, "counter" if name.endswith("_total") else "gauge", words)
        yield f"{name} {value:.9g}"


def _format_header(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} {kind}"
