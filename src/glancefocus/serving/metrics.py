"""What the server reports about itself: metrics for Prometheus, and the last two minutes for the charts of the page."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import prometheus_client as prometheus

CHART_S = 120
"""Length of the charts, in seconds."""
_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class Second:
    """What happened in one second."""

    answered: int = 0
    refused: int = 0
    exits: Counter[int] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    budget_macs: float | None = None

    def plain(self) -> dict[str, Any]:
        ordered = sorted(self.latencies_ms)
        return {
            "answered": self.answered,
            "refused": self.refused,
            "exits": {str(look): count for look, count in sorted(self.exits.items())},
            "median_ms": _share(ordered, 0.5),
            "p99_ms": _share(ordered, 0.99),
            "budget_macs": self.budget_macs,
        }


def _share(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else None


class Metrics:
    """Counts requests, looks and pictures. Requests are counted in the server's thread, looks in the one that computes."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.clock = clock
        self._seconds: deque[tuple[int, Second]] = deque(maxlen=CHART_S)
        counter, histogram, gauge = prometheus.Counter, prometheus.Histogram, prometheus.Gauge
        own: dict[str, Any] = {"registry": self.registry, "namespace": "glancefocus"}
        self.requests = counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.errors = counter("errors", "Requests and pictures that were refused, by reason.", ("reason",), **own)
        self.pictures = counter("pictures", "Pictures that were answered.", ("bundle",), **own)
        self.exits = counter("exits", "Pictures that stopped after this look.", ("bundle", "look"), **own)
        self.macs = counter("multiply_adds", "Multiply-adds that were computed.", ("bundle",), **own)
        self.latency = histogram(
            "latency_seconds",
            "From the arrival of the request to the answer for a picture, by the look after which it stopped.",
            ("bundle", "look"),
            buckets=_LATENCY_S,
            **own,
        )
        self.decoding = histogram("decoding_seconds", "Decoding of a picture.", buckets=_LATENCY_S, **own)
        self.batch_rows = histogram(
            "batch_rows", "Pictures that took a look together.", ("bundle", "look"), buckets=_ROWS, **own
        )
        self.look_time = histogram(
            "look_seconds", "Computing one look for a batch.", ("bundle", "look"), buckets=_LATENCY_S, **own
        )
        self.waiting = gauge("waiting", "Pictures without an answer.", ("bundle",), **own)
        self.budget = gauge("budget_macs", "Budget in force, in multiply-adds a picture.", ("bundle",), **own)
        self.level = gauge(
            "budget_level", "Level of the budget controller; 0: the usual thresholds.", ("bundle",), **own
        )
        self.running = gauge("requests_running", "Requests that are being worked on.", **own)
        self.restarts = gauge("decoder_restarts", "How often decoding processes had to be replaced.", **own)

    def looked(self, bundle: str, look: int, rows: int, seconds: float) -> None:
        """A look was computed for a batch."""
        self.batch_rows.labels(bundle, look).observe(rows)
        self.look_time.labels(bundle, look).observe(seconds)

    def answered(self, bundle: str, look: int, cost_macs: int, seconds: float, budget_macs: float | None) -> None:
        """A picture was answered."""
        self.pictures.labels(bundle).inc()
        self.exits.labels(bundle, look).inc()
        self.macs.labels(bundle).inc(cost_macs)
        self.latency.labels(bundle, look).observe(seconds)
        now = self._now()
        now.answered += 1
        now.exits[look] += 1
        now.latencies_ms.append(1000 * seconds)
        now.budget_macs = budget_macs

    def refused(self, reason: str) -> None:
        """A request or a picture was refused."""
        self.errors.labels(reason).inc()
        self._now().refused += 1

    def _now(self) -> Second:
        number = int(self.clock())
        if not self._seconds or self._seconds[-1][0] != number:
            self._seconds.append((number, Second()))
        return self._seconds[-1][1]

    def chart(self) -> list[dict[str, Any]]:
        """One table for each of the last seconds, the latest last; seconds in which nothing happened are left out."""
        earliest = self.clock() - CHART_S
        return [{"time": number, **second.plain()} for number, second in self._seconds if number >= earliest]

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        written: bytes = prometheus.generate_latest(self.registry)
        return written
