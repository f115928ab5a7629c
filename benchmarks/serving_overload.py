"""The check `overload` of serving_checks.py: what happens while more requests come than the server can answer, and afterwards."""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from serving_load import (
    Line,
    Sample,
    Server,
    capacity,
    load_bundle,
    offer,
    percentile,
    profile,
    serve_command,
    started,
)

from glancefocus.bundle.bundle import Bundle
from glancefocus.serving.controller import promised_accuracy

CALM_SHARE = 0.3  # of the capacity: the load before and after the overload
CALM_S = 30.0  # after the overload; recovering may take as long


@dataclass(frozen=True)
class Overload:
    """What happened before, while and after too many requests came."""

    samples: Sequence[Sample]
    began: float
    ended: float

    def during(self) -> list[Sample]:
        return [sample for sample in self.samples if self.began <= sample.sent < self.ended]

    def answered_meanwhile(self) -> int:
        """How many answers arrived during the overload; what was only answered afterwards is not among them."""
        arrived = [each.sent + each.latency_ms / 1000 for each in self.samples if each.status == 200]
        return sum(self.began <= time < self.ended for time in arrived)

    def recovered_after(self, limit_ms: float) -> float:
        """Seconds from the end of the overload to the last request that was refused, failed or slower than the limit."""
        late = [
            sample.sent - self.ended
            for sample in self.samples
            if sample.sent >= self.ended and (sample.status != 200 or sample.latency_ms > limit_ms)
        ]
        return max(late, default=0.0)


def overloaded(server: Server, files: Sequence[Path], rate: float, seconds: float) -> Overload:
    """A calm load for 5 s, three times the capacity, and the calm load again; rate: the capacity."""
    steps = [(CALM_SHARE * rate, 5.0), (3 * rate, seconds), (CALM_SHARE * rate, CALM_S)]
    samples = asyncio.run(offer(server.url, files, profile(steps, 0)))
    return Overload(samples, 5.0, 5.0 + seconds)


def overload(options: argparse.Namespace, files: Sequence[Path]) -> list[Line]:
    """The same overload without the controller and with it."""
    with started(*serve_command(options, options.bundle)) as server:
        rate = options.rate or capacity(server.url, files, options.capacity_seconds)
        without = overloaded(server, files, rate, options.seconds)
    limited = ("--latency-p99-ms", f"{options.limit_ms:g}")
    with started(*serve_command(options, options.bundle, *limited)) as server:
        info = httpx2.get(f"{server.url}/info").json()["bundles"][0]
        controlled = overloaded(server, files, rate, options.seconds)
    late = percentile([sample.late_ms for sample in [*without.samples, *controlled.samples]], 0.99)
    return [
        Line("answers a second without overload (capacity)", f"{rate:.1f}"),
        Line("requests sent later than they should be, 99 %", f"{late:.0f} ms"),
        *about_overload("without controller", without, rate, options),
        *about_overload("with controller", controlled, rate, options),
        *about_accuracy(controlled, info, load_bundle(options)),
    ]


def about_overload(name: str, run: Overload, rate: float, options: argparse.Namespace) -> list[Line]:
    """Latency, losses, throughput and recovery of one run."""
    samples, limit_ms = run.during(), options.limit_ms
    answered = [sample for sample in samples if sample.status == 200]
    refused = sum(sample.status == 503 for sample in samples)
    lost = sum(sample.status not in (200, 503) for sample in run.samples)
    per_second = run.answered_meanwhile() / options.seconds
    p99_ms = percentile([sample.latency_ms for sample in answered], 0.99)
    by_server = percentile([sample.server_ms for sample in answered if sample.server_ms is not None], 0.99)
    has_limit = name == "with controller"
    recovered = run.recovered_after(limit_ms)
    return [
        Line(f"{name}: requests, answered, refused (503)", f"{len(samples):,}, {len(answered):,}, {refused:,}"),
        Line(f"{name}: neither answered nor refused", f"{lost:,}", "0", lost == 0),
        Line(
            f"{name}: answers a second meanwhile, divided by the capacity",
            f"{per_second / rate:.2f}",
            "at least 0.8",
            per_second >= 0.8 * rate,
        ),
        Line(
            f"{name}: latency of answers, 99 %",
            f"{p99_ms:.0f} ms",
            f"at most {limit_ms:g} ms" if has_limit else "",
            p99_ms <= limit_ms if has_limit else None,
        ),
        Line(f"{name}: of that by the server's own clock", f"{by_server:.0f} ms"),
        Line(
            f"{name}: last request after the overload that was refused or slower than {limit_ms:g} ms",
            f"{recovered:.1f} s",
            "at most 10 s",
            recovered <= 10,
        ),
    ]


def about_accuracy(run: Overload, info: dict[str, Any], bundle: Bundle) -> list[Line]:
    """The accuracy of the answers of an overload, what the curve promises for their budgets, and what they should have been.

    info  of the bundle before the overload, when the usual budget was in force
    """
    promises: dict[float, float] = {}
    for budget in {each.budget_macs for each in run.during() if each.budget_macs is not None}:
        if (promise := promised_accuracy(info["curve"], budget)) is not None:
            promises[budget] = promise
    answered = [each for each in run.during() if each.budget_macs in promises]
    if not answered:
        return [Line("with controller: accuracy", "no answers with a budget that the curve has")]
    right = statistics.mean(each.right for each in answered)
    expected = statistics.mean(promises[each.budget_macs] for each in answered)
    alone = offline_right(bundle, answered, info["budget_macs"])
    points = 100 * (right - expected)
    mean_macs = statistics.mean(each.budget_macs for each in answered)
    return [
        Line("with controller: mean budget in force, number of budgets", f"{mean_macs / 1e6:.1f}M, {len(promises)}"),
        Line("with controller: accuracy", f"{100 * right:.1f} %"),
        Line(
            "promised by the curve for the budgets in force",
            f"{100 * expected:.1f} %, difference {points:+.1f} points",
            "within 1 point",
            abs(points) <= 1,
        ),
        Line(
            "the same pictures by `bundle.predict` with the same budgets",
            f"{100 * alone:.1f} %, difference {100 * (right - alone):+.1f} points",
        ),
    ]


def offline_right(bundle: Bundle, answered: Sequence[Sample], usual_macs: float | None) -> float:
    """The share of these requests that bundle.predict answers right with the budget of each.

    usual_macs  stands for the bundle's own thresholds
    """
    right: dict[tuple[Path | None, float | None], bool] = {}
    for budget in {each.budget_macs for each in answered}:
        files = sorted({each.file for each in answered if each.budget_macs == budget and each.file is not None})
        stopping = {} if budget == usual_macs else {"budget_macs": budget}
        labels = [label for outcome in bundle.predict_stream(files, **stopping) for label in outcome.label]
        right |= {(file, budget): label == file.parent.name for file, label in zip(files, labels, strict=True)}
    return statistics.mean(right[each.file, each.budget_macs] for each in answered)
