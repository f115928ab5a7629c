"""Servers under open-loop Poisson arrivals: looks that are shared by requests, whole requests in batches, and the plain backbone.

    python benchmarks/serving.py runs/signs/bundle demo/scenes --rates 20 40 80 160 --limit-ms 100

look      gf serve
request   gf serve --batching request: a batch of requests is finished before the next one begins
plain     gf serve with the plain backbone at the cheapest size at which it is as accurate as the bundle on these pictures
litserve  LitServe with the same plain backbone, if it is installed (pip install litserve). It polls for requests all the time

Each server is a process of its own. They take turns at every rate; the others are suspended meanwhile. Requests arrive at random
times that do not depend on the answers. The folder has a subfolder for each class. Goodput is the number of answers a second that
arrive within the limit; servers are compared at the rate of their highest goodput at which 99 of 100 requests are within it.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from plain_backbone import Plain, accuracy, as_accurate
from results import machine, markdown_table, write_section
from serving_load import (
    Body,
    Sample,
    Server,
    add_options,
    as_bytes,
    as_json,
    free_port,
    offer,
    pictures_in,
    profile,
    serve_command,
    started,
    summary,
)

import glancefocus as gf
from glancefocus.training.run_folder import BACKBONE_FILE

SERVERS = ("look", "request", "plain", "litserve")


@dataclass(frozen=True)
class Arm:
    """How a server is started, when it is ready, and what it is asked."""

    command: list[str]
    port: int
    ready: str = "/health/ready"
    body: Body = as_bytes
    options: dict[str, str] = field(default_factory=dict)


def best(rows: Sequence[dict[str, Any]], arm: str, limit_ms: float) -> dict[str, Any] | None:
    """The row of the highest goodput of a server that kept the limit; None: it never did."""
    kept = [row for row in rows if row["server"] == arm and row["p99_ms"] <= limit_ms]
    return max(kept, key=lambda row: row["goodput"], default=None)


def arms(options: argparse.Namespace, plain: Path | None) -> dict[str, Arm]:
    """The servers that are compared; plain: the folder of the plain backbone."""
    asked = {} if options.budget_macs is None else {"budget_macs": str(options.budget_macs)}
    found = {}
    for name in options.servers:
        if name in ("look", "request"):
            found[name] = Arm(*serve_command(options, options.bundle, "--batching", name), options=asked)
        elif plain is not None and name == "plain":
            found[name] = Arm(*serve_command(options, plain, "--batching", "request"))
        elif plain is not None:
            found[name] = litserve(options, plain)
    return found


def litserve(options: argparse.Namespace, plain: Path) -> Arm:
    """LitServe with as many processes that work as `gf serve` has: those that decode, and one that computes."""
    port = free_port()
    words = [str(Path(__file__).with_name("litserve_plain.py")), str(plain), "--port", str(port)]
    words += ["--workers", str(options.litserve_workers or options.decoders + 1), "--threads", str(options.threads)]
    words += ["--full-batch", str(options.full_batch), "--wait-ms", str(options.litserve_wait_ms)]
    words += [] if options.runtime is None else ["--runtime", options.runtime]
    return Arm([sys.executable, *words], port, "/health", as_json)


def rival(options: argparse.Namespace, files: Sequence[Path]) -> tuple[Plain | None, str]:
    """The plain backbone that is as accurate as the bundle on these pictures, and a sentence about it."""
    weights = options.backbone or options.bundle.absolute().parent / BACKBONE_FILE
    if not {"plain", "litserve"} & set(options.servers):
        return None, ""
    if not weights.is_file():
        return (
            None,
            f"The plain backbone was not measured: there is no file {weights}. Name its weights with --backbone.",
        )
    bundle = gf.load(options.bundle, threads=options.threads)
    stopping = {} if options.budget_macs is None else {"budget_macs": options.budget_macs}
    ours = accuracy(bundle, files, **stopping)
    plain = as_accurate(bundle, weights, files, ours)
    words = "trained at that size" if plain.tuned else "trained at full size"
    text = (
        f"Accuracy on the {len(files):,} pictures, offline: the bundle {100 * ours:.1f} %, the plain backbone at {plain.px} px "
        f"({words}) {100 * plain.accuracy:.1f} %. "
    )
    if plain.accuracy < ours:
        return plain, text + "It is the most accurate size; none is as accurate as the bundle."
    return plain, text + "It is the cheapest size that is as accurate as the bundle on these pictures."


def measure(
    servers: dict[str, Server], known: dict[str, Arm], files: Sequence[Path], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each rate and server; in every round the servers take turns, in another order each time."""
    samples: dict[tuple[float, str], list[Sample]] = {}

    def run(arm: str, rate: float, seconds: float, seed: int) -> list[Sample]:
        server, kind = servers[arm], known[arm]
        server.send(signal.SIGCONT)
        times = profile([(rate, seconds)], seed)
        found = asyncio.run(offer(server.url, files, times, seed=seed, options=kind.options, body=kind.body))
        server.send(signal.SIGSTOP)
        return found

    for arm in servers:  # not measured: caches, allocations, connections
        run(arm, min(options.rates), 2.0, 0)
    for rate in options.rates:
        for number in range(options.rounds):
            order = list(servers)[number % len(servers) :] + list(servers)[: number % len(servers)]
            for arm in order:
                samples.setdefault((rate, arm), []).extend(run(arm, rate, options.seconds, number))
                time.sleep(0.5)  # so that nothing of one run is left in the next
        for arm in servers:
            row = summary(samples[rate, arm], options.rounds * options.seconds, options.limit_ms)
            print(json.dumps({"server": arm, **row}), flush=True)
    seconds = options.rounds * options.seconds
    return [{"server": arm, **summary(found, seconds, options.limit_ms)} for (_, arm), found in samples.items()]


def report(rows: list[dict[str, Any]], limit_ms: float) -> str:
    """The table, the goodput of each server within the limit, and `look` beside the others."""
    columns = ("server", "offered", "goodput", "median_ms", "p99_ms", "refused", "failed", "accuracy")
    heads = ["server", "offered a second", "within the limit a second", "median, ms", "99 %, ms"]
    heads += ["refused", "failed", "accuracy"]
    text = markdown_table([heads, *([str(row[name]) for name in columns] for row in rows)])
    names = list(dict.fromkeys(row["server"] for row in rows))
    found = {name: best(rows, name, limit_ms) for name in names}
    for name, row in found.items():
        if row is None:
            text += f"\n\n{name}: 99 of 100 requests were never within {limit_ms:g} ms."
        else:
            text += f"\n\n{name}: {row['goodput']:g} answers a second within {limit_ms:g} ms."
    ours = found.get("look")
    for name, row in found.items():
        if ours is not None and row is not None and name != "look":
            text += f"\n\nlook has {ours['goodput'] / row['goodput']:.2f} times the goodput of {name}. "
            text += f"Its median latency at equal rates: {'; '.join(medians(rows, name))}."
    return text


def medians(rows: Sequence[dict[str, Any]], other: str) -> list[str]:
    """How much longer or shorter the median latency of `look` is than that of another server, at each rate."""
    theirs = [row for row in rows if row["server"] == other]
    ours = [row for row in rows if row["server"] == "look"]
    return [
        f"{100 * (mine['median_ms'] / its['median_ms'] - 1):+.0f} % at {mine['offered']:g} a second"
        for mine, its in zip(ours, theirs, strict=True)
    ]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument(
        "--backbone", type=Path, help=f"weights of the plain backbone; default: {BACKBONE_FILE} beside the bundle"
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[20, 40, 80, 160], help="requests a second")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-ms", type=float, default=100)
    parser.add_argument("--budget-macs", type=float, help="of look and request; default: the bundle's own thresholds")
    parser.add_argument("--litserve-workers", type=int, help="default: one more than --decoders")
    parser.add_argument(
        "--litserve-wait-ms", type=float, default=5.0, help="for which LitServe waits for a batch to fill"
    )
    parser.add_argument("--write", type=Path, help="page whose section `serving` gets the table")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    files, notes = pictures_in(options.folder), [options.note]
    if "litserve" in options.servers and importlib.util.find_spec("litserve") is None:
        options.servers.remove("litserve")
        notes.append("LitServe was not measured: it is not installed here (pip install litserve).")
    plain, words = rival(options, files)
    notes.append(words)
    print("\n".join(filter(None, notes)), flush=True)
    with ExitStack() as stack:
        folder = None
        if plain is not None:
            folder = plain.bundle.save(Path(stack.enter_context(tempfile.TemporaryDirectory()), "plain"))
        known, servers = arms(options, folder), {}
        for name, arm in known.items():
            server = servers[name] = stack.enter_context(started(arm.command, arm.port, arm.ready))
            if name != "litserve":
                info = httpx2.get(f"{server.url}/info").json()["bundles"][0]
                print(json.dumps({"server": name, "look_ms": info["look_ms"]}), flush=True)
            server.send(signal.SIGSTOP)
        rows = measure(servers, known, files, options)
    text = report(rows, options.limit_ms)
    print(text)
    if options.write is not None:
        write_section(
            options.write,
            "serving",
            title="Serving: looks shared by requests, batches of requests, and the plain backbone",
            command=shlex.join(["python", *sys.argv]),
            machine=machine(options.threads),
            body="\n\n".join(filter(None, [*notes, text])),
        )


if __name__ == "__main__":
    main()
