"""Counters and histograms for Prometheus, at /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCHES = (1, 2, 4, 8, 12, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        ProcessCollector(registry=self.registry)  # memory, processor time, open files
        PlatformCollector(registry=self.registry)
        self.requests = Counter(
            "vitruvian_requests", "Requests by route and status.", ("route", "status"), registry=self.registry
        )
        self.request_seconds = Histogram(
            "vitruvian_request_seconds", "Time of requests.", ("route",), buckets=_SECONDS, registry=self.registry
        )
        self.batch_size = Histogram(
            "vitruvian_batch_size", "Inputs in a batch.", ("task",), buckets=_BATCHES, registry=self.registry
        )
        self.stage_seconds = Histogram(
            "vitruvian_stage_seconds",
            "Time of each stage: queue, load, detect, prepare, forward, finish, encode. On a GPU, forward queues work.",
            ("task", "stage"),
            buckets=_SECONDS,
            registry=self.registry,
        )

    def gauge(self, name: str, text: str, value: Callable[[], float], **labels: str) -> None:
        """Add a value that is read when metrics are."""
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = Gauge(name, text, tuple(labels), registry=self.registry)
        (gauge.labels(**labels) if labels else gauge).set_function(value)

    @contextmanager
    def stage(self, task: str, stage: str) -> Iterator[None]:
        """Measure a stage of a task."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.stage_seconds.labels(task, stage).observe(time.monotonic() - started)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)
