"""The metrics of a server in Prometheus' text format, by prometheus-client.

The number of series is fixed: paths that the server does not know are counted together, so clients cannot add series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER_PATH = "other"
"""Label of every path that the server does not know."""


class ServerMetrics:
    """Counters of one server in a registry of its own; updated in the event loop.

    Args:
        paths: paths that get a label of their own.
        read_gauges: values at the moment of a scrape, name -> (help, value); a name in `_total` is a counter.
    """

    def __init__(self, paths: Sequence[str], read_gauges: Callable[[], Mapping[str, tuple[str, float]]]):
        disable_created_metrics()  # one more series for each counter, which OpenMetrics alone has
        self.registry = CollectorRegistry()
        self._paths = frozenset(paths)
        self._requests = Counter(
            "vitrail_requests_total",
            "Requests by path and status; status 0: the client left.",
            ["path", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "vitrail_request_seconds",
            "From the head of a request to the end of its answer.",
            ["path"],
            registry=self.registry,
            buckets=SECONDS_BUCKETS,
        )
        for path in (*paths, OTHER_PATH):
            self._seconds.labels(path)
        self._batches = Histogram(
            "vitrail_batch_pictures",
            "Pictures that the model answered at once.",
            registry=self.registry,
            buckets=IMAGES_BUCKETS,
        )
        self._model_seconds = Counter(
            "vitrail_model_seconds_total",
            "Seconds of all batches; two may be computed at once.",
            registry=self.registry,
        )
        self.registry.register(_GaugeCollector(read_gauges))

    def count_request(self, path: str, status: int, seconds: float) -> str:
        """Count a finished request; status 0: the client left before there was one. Returns the path's label."""
        known = path if path in self._paths else OTHER_PATH
        self._requests.labels(known, status).inc()
        self._seconds.labels(known).observe(seconds)
        return known

    def count_batch(self, num_images: int, seconds: float) -> None:
        """Count a batch that the model has computed."""
        self._batches.observe(num_images)
        self._model_seconds.inc(seconds)

    def format_text(self) -> bytes:
        """All series, as `GET /metrics` sends them."""
        return generate_latest(self.registry)


class _GaugeCollector(Collector):
    """Values that are read at each scrape."""

    def __init__(self, read_gauges: Callable[[], Mapping[str, tuple[str, float]]]):
        self._read_gauges = read_gauges

    def collect(self) -> Iterator[Metric]:
        for name, (words, value) in self._read_gauges().items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, words, value=value)
