"""Load for the benchmarks of the server: servers in processes of their own, requests at random times, and what became of each."""

import argparse
import asyncio
import base64
import contextlib
import json
import math
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
from results import markdown_table

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
START_S = 600
NO_CONNECTION, CUT_OFF = -1, 0
"""Instead of a status of HTTP: the server could not be reached; the connection ended before the answer."""


@dataclass(frozen=True)
class Sample:
    """One request.

    sent         when it should have been sent, in seconds of the run; late_ms: how much later it was sent
    latency_ms   from when it should have been sent to its answer
    status       of HTTP, NO_CONNECTION or CUT_OFF
    right        whether the answer is the name of the picture's folder
    file         the picture
    budget_macs  the budget that the answer was made for; None: none, or there is no answer
    server_ms    how long the server says it took; None: it does not say
    """

    sent: float
    latency_ms: float
    status: int
    right: bool = False
    late_ms: float = 0.0
    file: Path | None = None
    budget_macs: float | None = None
    server_ms: float | None = None


def profile(steps: Sequence[tuple[float, float]], seed: int) -> list[float]:
    """Times of a Poisson process with a rate for some seconds, then the next rate: [(rate, seconds), ...]."""
    draw, began, times = random.Random(seed), 0.0, []
    for rate, seconds in steps:
        now = began
        while (now := now + draw.expovariate(rate)) < began + seconds:
            times.append(now)
        began += seconds
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


Body = Callable[[bytes], dict[str, Any]]


def as_bytes(content: bytes) -> dict[str, Any]:
    """A picture as the body of a request: its bytes, as `gf serve` takes them."""
    return {"content": content}


def as_json(content: bytes) -> dict[str, Any]:
    """The same in base64, in JSON, which LitServe takes for pictures of any size."""
    text = json.dumps({"image": base64.b64encode(content).decode()})
    return {"content": text.encode(), "headers": {"content-type": "application/json"}}


async def ask(
    http: httpx2.AsyncClient, body: dict[str, Any], options: Mapping[str, str]
) -> tuple[int, dict[str, Any], float | None]:
    """(status, answer, milliseconds that the server says it took) of a request for one picture."""
    try:
        response = await http.post("/predict", **body, params=options)
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        return NO_CONNECTION, {}, None
    except httpx2.TransportError:
        return CUT_OFF, {}, None
    answer = response.json()[0] if response.status_code == 200 else {}
    _, _, milliseconds = response.headers.get("server-timing", "").partition("dur=")
    return response.status_code, answer, float(milliseconds) if milliseconds else None


def _client(url: str, kept: int = 256) -> httpx2.AsyncClient:
    # Servers close connections that were not used for 5 s; a request that is sent then would be cut off.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=2.0)
    return httpx2.AsyncClient(base_url=url, timeout=90, limits=limits)


async def offer(
    url: str,
    files: Sequence[Path],
    times: Sequence[float],
    *,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
    body: Body = as_bytes,
    connections: int = 256,
) -> list[Sample]:
    """Send random files at these times, whatever the server does.

    connections  that are kept for later requests; 0: each request has its own
    """
    draw = random.Random(seed)
    chosen = [draw.choice(files) for _ in times]
    bodies = {file: body(file.read_bytes()) for file in set(chosen)}
    async with _client(url, connections) as http:
        started = time.perf_counter()

        async def one(sent: float, file: Path) -> Sample:
            await asyncio.sleep(max(0.0, started + sent - time.perf_counter()))
            late = time.perf_counter() - started - sent
            status, answer, server_ms = await ask(http, bodies[file], options or {})
            return Sample(
                sent,
                1000 * (time.perf_counter() - started - sent),
                status,
                right=answer.get("label") == file.parent.name,
                late_ms=1000 * late,
                file=file,
                budget_macs=answer.get("budget_macs"),
                server_ms=server_ms,
            )

        return list(await asyncio.gather(*map(one, times, chosen)))


@dataclass(frozen=True)
class Asked:
    """A request of `keep_busy`: a picture, the options, what became of it."""

    file: Path
    options: Mapping[str, str]
    status: int
    answer: dict[str, Any]


async def keep_busy(
    url: str,
    files: Sequence[Path],
    *,
    seconds: float = math.inf,
    count: float = math.inf,
    concurrency: int = 32,
    options: Sequence[Mapping[str, str]] = ({},),
    seed: int = 0,
) -> list[Asked]:
    """Always have this number of requests under way, until there were `count` or the time is up. Options are drawn for each."""
    draw, ends_at, sent = random.Random(seed), time.perf_counter() + seconds, 0
    found: list[Asked] = []
    bodies = {file: as_bytes(file.read_bytes()) for file in files}
    async with _client(url) as http:

        async def one_after_the_other() -> None:
            nonlocal sent
            while sent < count and time.perf_counter() < ends_at:
                sent += 1
                file, chosen = draw.choice(files), draw.choice(options)
                status, answer, _ = await ask(http, bodies[file], chosen)
                found.append(Asked(file, chosen, status, answer))

        await asyncio.gather(*(one_after_the_other() for _ in range(concurrency)))
    return found


def capacity(url: str, files: Sequence[Path], seconds: float, concurrency: int = 32) -> float:
    """Answers a second while there is always something to compute."""
    asyncio.run(keep_busy(url, files, seconds=min(2.0, seconds), concurrency=concurrency))  # not measured: allocations
    began = time.perf_counter()
    found = asyncio.run(keep_busy(url, files, seconds=seconds, concurrency=concurrency))
    answered = sum(each.status == 200 for each in found)
    if not answered:
        sys.exit(f"the server answered none of {len(found)} requests")
    return answered / (time.perf_counter() - began)


@dataclass(frozen=True)
class Server:
    """A server in a process of its own, and its processes."""

    url: str
    process: subprocess.Popen[bytes]

    def processes(self) -> list[psutil.Process]:
        """The server's process and all that it has started."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def decoders(self) -> list[psutil.Process]:
        """The processes that decode pictures."""
        return [each for each in self.processes()[1:] if "spawn_main" in " ".join(each.cmdline())]

    def memory_bytes(self) -> int:
        """Of all its processes; memory that they share counts once (on Linux)."""
        found = [each.memory_full_info() for each in self.processes()]
        return int(sum(getattr(each, "pss", 0) or each.rss for each in found))

    def send(self, number: int) -> None:
        """A signal to all its processes: SIGSTOP so that it takes no time while another server is measured, SIGCONT."""
        for each in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        lines = httpx2.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@contextmanager
def started(command: list[str], port: int, ready: str = "/health/ready") -> Iterator[Server]:
    """A server in a process of its own, until the block ends; `ready` is the path that answers 200 as soon as it can answer."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        for _ in range(10 * START_S):
            if process.poll() is not None:
                sys.exit(f"{shlex.join(command)} has ended")
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{server.url}{ready}").status_code == 200:
                    break
            time.sleep(0.1)
        else:
            sys.exit(f"{shlex.join(command)} was not ready within {START_S} s")
        yield server
    finally:
        _end(server)


def _end(server: Server) -> None:
    """Stop a server in order; whatever is left of it after a minute is killed."""
    if server.process.poll() is not None:
        return
    left = server.processes()
    server.send(signal.SIGCONT)
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(60)
    except subprocess.TimeoutExpired:
        server.process.kill()
    _, alive = psutil.wait_procs(left, timeout=5)
    for each in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of all programs that start `gf serve`."""
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path, help="pictures, in a subfolder for each class")
    parser.add_argument("--full-batch", type=int, default=32)
    parser.add_argument("--decoders", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runtime", help="of all networks; default: torch")
    parser.add_argument("--gf", nargs=argparse.REMAINDER, default=[], help="more options of gf serve, at the end")
    parser.add_argument("--note", default="", help="a paragraph to put before the table")


def serve_command(options: argparse.Namespace, bundle: Path, *more: str) -> tuple[list[str], int]:
    """`gf serve` with a bundle on a free port of this machine, and that port."""
    port = free_port()
    words = ["serve", str(bundle), "--port", str(port), "--decoders", str(options.decoders)]
    words += ["--threads", str(options.threads), "--full-batch", str(options.full_batch)]
    words += [] if options.runtime is None else ["--runtime", options.runtime]
    return [sys.executable, "-m", "glancefocus", *words, *more, *options.gf], port


def pictures_in(folder: Path) -> list[Path]:
    """All pictures of a folder, sorted."""
    found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    return found or sys.exit(f"there are no pictures ({', '.join(ENDINGS)}) in {folder}")


def load_bundle(options: argparse.Namespace) -> Bundle:
    """The bundle in this process, as the server loads it."""
    batch = 1 if options.runtime == "auto" else None
    return gf.load(options.bundle, runtime=options.runtime, threads=options.threads, batch=batch)


@dataclass(frozen=True)
class Line:
    """One promise: what was measured, what it should be, and whether it is; None: there is nothing to reach."""

    what: str
    measured: str
    bar: str = ""
    kept: bool | None = None


def table(lines: Sequence[Line]) -> str:
    """All promises of a check."""
    words = {True: "yes", False: "**no**", None: ""}
    rows = [[line.what, line.measured, line.bar, words[line.kept]] for line in lines]
    return markdown_table([["", "measured", "should be", "is"], *rows])
