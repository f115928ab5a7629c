"""Servers under open-loop Poisson arrivals: looks that are shared by requests, and whole requests in batches.

Each server is a process of its own; all of them run the whole time, and take turns at every rate. Requests arrive at random times
that do not depend on the answers. The folder has a subfolder for each class. Goodput is the number of answers a second that arrive
within the limit; servers are compared at the rate of their highest goodput at which 99 of 100 requests are within it.

python benchmarks/serving.py runs/signs/bundle demo/scenes --rates 20 40 80 160 --limit-ms 100
"""

import argparse
import asyncio
import json
import math
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from results import machine, markdown_table, write_section

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
START_S = 180


@dataclass(frozen=True)
class Sample:
    """One request: when it should have been sent, in seconds of the run; how long it took; its status; whether it was right."""

    sent: float
    latency_ms: float
    status: int
    right: bool


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of a Poisson process."""
    draw, now, times = random.Random(seed), 0.0, []
    while (now := now + draw.expovariate(rate)) < seconds:
        times.append(now)
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed; NaN without any."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def summary(samples: Sequence[Sample], seconds: float, limit_ms: float) -> dict[str, Any]:
    """What a run achieved. A request that was refused counts as late."""
    answered = [sample for sample in samples if sample.status == 200]
    within = [sample for sample in answered if sample.latency_ms <= limit_ms]
    everything = [sample.latency_ms if sample.status == 200 else math.inf for sample in samples]
    return {
        "offered": round(len(samples) / seconds, 1),
        "goodput": round(len(within) / seconds, 1),
        "median_ms": round(percentile([sample.latency_ms for sample in answered], 0.5), 1),
        "p99_ms": round(percentile(everything, 0.99), 1),
        "refused": sum(sample.status == 503 for sample in samples),
        "failed": sum(sample.status not in (200, 503) for sample in samples),
        "accuracy": round(statistics.mean([sample.right for sample in answered]), 4) if answered else None,
    }


def best(rows: Sequence[dict[str, Any]], arm: str, limit_ms: float) -> dict[str, Any] | None:
    """The row of the highest goodput of a server that kept the limit; None: it never did."""
    kept = [row for row in rows if row["server"] == arm and row["p99_ms"] <= limit_ms]
    return max(kept, key=lambda row: row["goodput"], default=None)


async def offer(
    url: str, files: Sequence[Path], rate: float, seconds: float, seed: int, options: dict[str, str]
) -> list[Sample]:
    """Send files at random times, whatever the server does. Latency counts from the time at which a request should be sent."""
    times, draw = arrivals(rate, seconds, seed), random.Random(seed)
    chosen = [draw.choice(files) for _ in times]
    contents = {file: file.read_bytes() for file in set(chosen)}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx2.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        started = time.perf_counter()

        async def one(sent: float, file: Path) -> Sample:
            await asyncio.sleep(max(0.0, started + sent - time.perf_counter()))
            try:
                response = await http.post("/predict", content=contents[file], params=options)
                status, answer = response.status_code, response.json() if response.status_code == 200 else []
            except httpx2.TransportError:
                status, answer = 0, []
            right = bool(answer) and answer[0]["label"] == file.parent.name
            return Sample(sent, 1000 * (time.perf_counter() - started - sent), status, right)

        return list(await asyncio.gather(*map(one, times, chosen)))


@contextmanager
def started(command: list[str], port: int) -> Iterator[str]:
    """A server in a process of its own, until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(10 * START_S):
            if process.poll() is not None:
                sys.exit(f"{shlex.join(command)} has ended")
            try:
                if httpx2.get(f"{url}/health/ready").status_code == 200:
                    break
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def commands(options: argparse.Namespace) -> dict[str, tuple[list[str], int]]:
    """{server: its command and port}"""
    found = {}
    for arm in ("look", "request"):
        port = free_port()
        words = [
            "serve",
            str(options.bundle),
            "--port",
            str(port),
            "--batching",
            arm,
            "--decoders",
            str(options.decoders),
        ]
        words += ["--threads", str(options.threads), "--full-batch", str(options.full_batch), *options.gf]
        found[arm] = ([sys.executable, "-m", "glancefocus", *words], port)
    return found


def measure(urls: dict[str, str], files: Sequence[Path], options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each rate and server; in every round the servers take turns, in another order each time."""
    samples: dict[tuple[float, str], list[Sample]] = {}
    asked = {} if options.budget_macs is None else {"budget_macs": str(options.budget_macs)}
    for arm, url in urls.items():
        print(
            json.dumps({"server": arm, "look_ms": httpx2.get(f"{url}/info").json()["bundles"][0]["look_ms"]}),
            flush=True,
        )
    for url in urls.values():  # not measured: caches, allocations, connections
        asyncio.run(offer(url, files, min(options.rates), 2.0, 0, asked))
    for rate in options.rates:
        for number in range(options.rounds):
            order = list(urls)[number % len(urls) :] + list(urls)[: number % len(urls)]
            for arm in order:
                found = asyncio.run(offer(urls[arm], files, rate, options.seconds, number, asked))
                samples.setdefault((rate, arm), []).extend(found)
                time.sleep(0.5)  # so that nothing of one run is left in the next
        for arm in urls:
            row = summary(samples[rate, arm], options.rounds * options.seconds, options.limit_ms)
            print(json.dumps({"server": arm, **row}), flush=True)
    return [
        {"server": arm, **summary(found, options.rounds * options.seconds, options.limit_ms)}
        for (_, arm), found in samples.items()
    ]


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The table, and the goodput of each server within the limit beside that of batches of requests."""
    columns = ("server", "offered", "goodput", "median_ms", "p99_ms", "refused", "accuracy")
    heads = ["server", "offered a second", "within the limit a second", "median, ms", "99 %, ms", "refused", "accuracy"]
    text = markdown_table([heads, *([str(row[name]) for name in columns] for row in rows)])
    reference = best(rows, "request", options.limit_ms)
    for arm in dict.fromkeys(row["server"] for row in rows):
        found = best(rows, arm, options.limit_ms)
        if found is None:
            text += f"\n\n{arm}: 99 of 100 requests were never within {options.limit_ms:g} ms."
        else:
            ratio = "" if not reference else f", {found['goodput'] / reference['goodput']:.2f} times that of `request`"
            text += f"\n\n{arm}: {found['goodput']:g} answers a second within {options.limit_ms:g} ms{ratio}."
    return text


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path, help="pictures, in a subfolder for each class")
    parser.add_argument("--rates", type=float, nargs="+", default=[20, 40, 80, 160], help="requests a second")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-ms", type=float, default=100)
    parser.add_argument("--budget-macs", type=float)
    parser.add_argument("--full-batch", type=int, default=32)
    parser.add_argument("--decoders", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gf", nargs=argparse.REMAINDER, default=[], help="more options of gf serve, at the end")
    parser.add_argument("--note", default="", help="a paragraph to put before the table")
    parser.add_argument("--write", type=Path, help="page whose section `serving` gets the table")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    files = sorted(file for file in options.folder.rglob("*") if file.suffix.lower() in ENDINGS)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    with ExitStack() as stack:
        urls = {arm: stack.enter_context(started(*each)) for arm, each in commands(options).items()}
        rows = measure(urls, files, options)
    text = report(rows, options)
    print(text)
    if options.write is not None:
        write_section(
            options.write,
            "serving",
            title="Serving: looks shared by requests, and batches of requests",
            command=shlex.join(["python", *sys.argv]),
            machine=machine(options.threads),
            body=f"{options.note}\n\n{text}",
        )


if __name__ == "__main__":
    main()
