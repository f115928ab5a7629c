"""Whether `gf serve` keeps its promises: five checks, each with a server of its own on 127.0.0.1.

    python benchmarks/serving_checks.py runs/six/bundle unseen idle overload equal --limit-ms 400

idle      one request at a time, in turns with bundle.predict in this process: how much longer a request takes
overload  three times as many requests as the server can answer, with the budget controller and without it
equal     answers under load are those of bundle.predict, in every field, without the controller
soak      half as many requests as the server can answer, for a long time: whether its memory grows
stop      SIGTERM under load; then, with another server, SIGKILL of a process that decodes

The folder has a subfolder for each class. Each check is bounded: --seconds for overload and stop, --count for idle and equal,
--minutes for soak. With --write the tables go to a page, each check to its own section.
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from results import machine, write_section
from serving_load import (
    CUT_OFF,
    NO_CONNECTION,
    Line,
    Sample,
    Server,
    add_options,
    capacity,
    keep_busy,
    load_bundle,
    offer,
    percentile,
    pictures_in,
    profile,
    serve_command,
    started,
    table,
)
from serving_overload import overload

from glancefocus.bundle.bundle import Bundle

IN_DOUBT_S = 0.5  # a request that is sent in this time before SIGTERM may not have reached the server yet
CLOSE = 1e-4  # numbers of an answer that are computed in float32 may differ by this
NUMBERS = ("confidence", "where", "threshold")
SLICE_S = 30.0


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    """Run a coroutine in another thread; its result is put into the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(work)), daemon=True)
    thread.start()
    return thread, found


def idle(options: argparse.Namespace, files: Sequence[Path]) -> list[Line]:
    """Single requests and single predictions of the same pictures in turns."""
    bundle, local, remote, by_server = load_bundle(options), [], [], []
    pictures = [files[number % len(files)].read_bytes() for number in range(options.count)]
    with started(*serve_command(options, options.bundle)) as server, httpx2.Client(base_url=server.url) as http:

        def predict(picture: bytes) -> None:
            began = time.perf_counter()
            bundle.predict(picture).answers(1)
            local.append(1000 * (time.perf_counter() - began))

        def request(picture: bytes) -> None:
            began = time.perf_counter()
            response = http.post("/predict", content=picture)
            remote.append(1000 * (time.perf_counter() - began))
            by_server.append(float(response.headers["server-timing"].partition("dur=")[2]))

        for number, picture in enumerate([*pictures[:10], *pictures]):
            if number == 10:  # the first ones only warm up
                local, remote, by_server = [], [], []
            for turn in (predict, request) if number % 2 else (request, predict):
                turn(picture)
    ratio = statistics.median(one / other for one, other in zip(remote, local, strict=True))
    return [
        Line("pictures, each in both ways, in turns", f"{len(pictures):,}"),
        Line("median of `bundle.predict`", f"{statistics.median(local):.1f} ms"),
        Line("median of a request", f"{statistics.median(remote):.1f} ms"),
        Line("of that by the server's own clock", f"{statistics.median(by_server):.1f} ms"),
        Line("median of the quotients", f"{ratio:.3f}", "at most 1.05", ratio <= 1.05),
    ]


def option_sets(bundle: Bundle) -> list[dict[str, str]]:
    """Options of the requests, which are drawn: requests with different ones are computed together."""
    looks = bundle.settings.looks
    found = [{}, {"topk": str(min(3, len(bundle.classes)))}, {"looks": str(looks)}, {"looks": "1"}]
    costs = [point["mean_macs"] for point in bundle.curve if "mean_macs" in point]
    return [*found, {"budget_macs": str(statistics.median(costs))}] if costs else found


def equal(options: argparse.Namespace, files: Sequence[Path]) -> list[Line]:
    """Answers under load beside those of bundle.predict for the same picture and options."""
    bundle = load_bundle(options)
    kinds = option_sets(bundle)
    with started(*serve_command(options, options.bundle)) as server:
        found = asyncio.run(keep_busy(server.url, files, count=options.count, options=kinds))
    known = offline(bundle, files, kinds)
    answered = [each for each in found if each.status == 200]
    fields: Counter[str] = Counter()
    largest = dict.fromkeys(NUMBERS, 0.0)
    wrong = 0
    for each in answered:
        theirs = known[each.file, json.dumps(each.options)]
        others = different(each.answer, theirs, largest)
        fields.update(others)
        wrong += bool(others)
    others = ", ".join(f"{name} {count}" for name, count in fields.most_common())
    return [
        Line("requests, 32 at the same time, with options drawn from", f"{len(found):,}, {len(kinds)}"),
        Line("not answered", f"{len(found) - len(answered):,}", "0", len(found) == len(answered)),
        Line(
            "answers that differ from `bundle.predict` in a field",
            f"{wrong:,}{others and f' ({others})'}",
            "0",
            wrong == 0,
        ),
        *(Line(f"largest difference of {name}", f"{largest[name]:.1e}", f"at most {CLOSE:g}") for name in NUMBERS),
    ]


def offline(bundle: Bundle, files: Sequence[Path], kinds: Sequence[Mapping[str, str]]) -> dict[tuple[Path, str], Any]:
    """{(picture, options as JSON): answer of bundle.predict}"""
    found = {}
    for kind in kinds:
        stopping = {name: float(value) if name == "budget_macs" else int(value) for name, value in kind.items()}
        topk = int(stopping.pop("topk", 1))
        outcomes = bundle.predict_stream(files, **stopping)
        answers = [answer for outcome in outcomes for answer in outcome.answers(topk)]
        found |= {(file, json.dumps(kind)): answer for file, answer in zip(files, answers, strict=True)}
    return found


def different(ours: Mapping[str, Any], theirs: Mapping[str, Any], largest: dict[str, float]) -> list[str]:
    """The fields in which two answers differ; `largest` keeps the largest difference of each field of numbers."""
    found = []
    for name, expected in theirs.items():
        if name in ("file", "top"):
            continue
        if name in NUMBERS:
            gap = largest_gap(ours[name], expected)
            largest[name] = max(largest[name], gap)
            if gap > CLOSE:
                found.append(name)
        elif ours[name] != expected:
            found.append(name)
    gaps = [
        abs(one["confidence"] - other["confidence"]) for one, other in zip(ours["top"], theirs["top"], strict=False)
    ]
    same = [one["label"] for one in ours["top"]] == [one["label"] for one in theirs["top"]]
    return found if same and max(gaps, default=0.0) <= CLOSE else [*found, "top"]


def largest_gap(ours: Any, theirs: Any) -> float:
    """Between two numbers, or lists of lists of them; infinite if they do not have the same form."""
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return float("inf")
        return max((largest_gap(one, other) for one, other in zip(ours, theirs, strict=True)), default=0.0)
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else float("inf")
    return float(abs(ours - theirs))


def soak(options: argparse.Namespace, files: Sequence[Path]) -> list[Line]:
    """Memory and latency in slices of half a minute."""
    memory, p99s, answered, others = [], [], 0, 0
    with started(*serve_command(options, options.bundle)) as server:
        rate = options.rate or capacity(server.url, files, options.capacity_seconds)
        slice_s = min(SLICE_S, 60 * options.minutes / 10)
        for number in range(max(10, round(60 * options.minutes / slice_s))):
            samples = asyncio.run(offer(server.url, files, profile([(rate / 2, slice_s)], number), seed=number))
            fine = [sample.latency_ms for sample in samples if sample.status == 200]
            answered, others = answered + len(fine), others + len(samples) - len(fine)
            memory.append(server.memory_bytes() / 2**20)
            p99s.append(percentile(fine, 0.99))
            row = {"slice": number, "memory_mb": round(memory[-1], 1), "p99_ms": round(p99s[-1], 1)}
            print(json.dumps(row), flush=True)
    first, last = beginning_and_end(memory)
    grown = 100 * (last / first - 1)
    return [
        Line(
            "duration, and requests a second (half of the capacity)",
            f"{len(memory) * slice_s / 60:.1f} minutes, {rate / 2:.1f}",
        ),
        Line("answered, not answered", f"{answered:,}, {others:,}", "0 not answered", others == 0),
        Line("memory of all processes after a tenth of the time", f"{first:.0f} MiB"),
        Line("at the end", f"{last:.0f} MiB, {grown:+.2f} %", "below +2 %", grown < 2),
        Line(
            "latency, 99 %: median of the slices, and the worst",
            f"{statistics.median(p99s):.0f} ms, {max(p99s):.0f} ms",
        ),
    ]


def beginning_and_end(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the second tenth, since the first one warms up, and of the last tenth."""
    tenth = len(values) // 10
    return statistics.median(values[tenth : 2 * tenth]), statistics.median(values[-tenth:])


def stop(options: argparse.Namespace, files: Sequence[Path]) -> list[Line]:
    """SIGTERM while requests wait, and SIGKILL of a decoding process."""
    with started(*serve_command(options, options.bundle)) as server:
        rate = options.rate or capacity(server.url, files, options.capacity_seconds)
        lines = killed(server, files, rate, options)
    with started(*serve_command(options, options.bundle)) as server:
        return [*terminated(server, files, rate, options), *lines]


def terminated(server: Server, files: Sequence[Path], rate: float, options: argparse.Namespace) -> list[Line]:
    """Twice as many requests as can be answered, each with a connection of its own, and SIGTERM in the middle."""
    thread, samples = in_thread(offer(server.url, files, profile([(2 * rate, options.seconds)], 0), connections=0))
    began = time.perf_counter()
    time.sleep(options.seconds / 2)
    signalled = time.perf_counter() - began
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(90)
    ended = time.perf_counter() - began
    thread.join(120)
    accepted, lost, waiting = outcome_of_stop(samples, signalled)
    return [
        Line("SIGTERM: requests sent before it, of which unanswered at that time", f"{accepted:,}, {waiting:,}"),
        Line("of these neither answered nor refused", f"{lost:,}", "0", lost == 0),
        Line("exit code, and seconds until the server ended", f"{code}, {ended - signalled:.1f}", "0", code == 0),
    ]


def outcome_of_stop(samples: Sequence[Sample], signalled: float) -> tuple[int, int, int]:
    """Of the requests that were sent before a signal: how many, how many got no answer, how many waited for it at the time.

    Those of the last moment are left out: whether the server had accepted them is not known.
    """
    before = [sample for sample in samples if sample.sent + sample.late_ms / 1000 < signalled - IN_DOUBT_S]
    lost = [sample for sample in before if sample.status in (CUT_OFF, NO_CONNECTION)]
    waiting = [sample for sample in before if sample.sent + sample.latency_ms / 1000 >= signalled]
    return len(before), len(lost), len(waiting)


def killed(server: Server, files: Sequence[Path], rate: float, options: argparse.Namespace) -> list[Line]:
    """Half as many requests as can be answered, and SIGKILL of a decoding process in the middle."""
    thread, samples = in_thread(offer(server.url, files, profile([(rate / 2, options.seconds)], 1)))
    time.sleep(options.seconds / 2)
    victims = server.decoders()
    victims[0].send_signal(signal.SIGKILL)
    thread.join(options.seconds + 120)
    others = sum(sample.status != 200 for sample in samples)
    slowest = max(sample.latency_ms for sample in samples) / 1000
    restarts = server.metric("glancefocus_decoder_restarts")
    return [
        Line("SIGKILL of a decoding process: requests", f"{len(samples):,}"),
        Line("of these not answered", f"{others:,}", "0", others == 0),
        Line("pools of processes that were replaced", f"{restarts:.0f}", "1", restarts == 1),
        Line("slowest answer, which waited for the new process", f"{slowest:.1f} s"),
    ]


CHECKS: dict[str, tuple[str, Callable[[argparse.Namespace, Sequence[Path]], list[Line]]]] = {
    "idle": ("A single request on an idle server", idle),
    "overload": ("Three times as many requests as the server can answer", overload),
    "equal": ("Answers under load beside those of bundle.predict", equal),
    "soak": ("Memory of the server at half load", soak),
    "stop": ("Servers that are stopped, and processes that are killed", stop),
}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("checks", nargs="+", choices=list(CHECKS))
    parser.add_argument(
        "--seconds", type=float, default=60, help="overload: how long; stop: of load, the signal is in the middle"
    )
    parser.add_argument("--minutes", type=float, default=120, help="soak: how long")
    parser.add_argument("--count", type=int, help="idle: pictures, default 200; equal: answers, default 20000")
    parser.add_argument("--rate", type=float, help="answers a second that the server can give; default: it is measured")
    parser.add_argument("--capacity-seconds", type=float, default=15, help="for which that is measured")
    parser.add_argument("--limit-ms", type=float, default=400, help="overload: limit of the controller")
    parser.add_argument("--pictures", type=int, default=500, help="of the folder, at most, in equal steps")
    parser.add_argument("--write", type=Path, help="page whose sections `serving-CHECK` get the tables")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    files = pictures_in(options.folder)
    files = files[:: -(-len(files) // options.pictures)]
    count = options.count
    for name in options.checks:
        title, check = CHECKS[name]
        options.count = count or {"idle": 200}.get(name, 20_000)
        text = table(check(options, files))
        print(f"{title}\n\n{text}\n", flush=True)
        if options.write is not None:
            write_section(
                options.write,
                f"serving-{name}",
                title=title,
                command=shlex.join(["python", *sys.argv]),
                machine=machine(options.threads),
                body="\n\n".join(filter(None, [options.note, f"{len(files):,} pictures.", text])),
            )


if __name__ == "__main__":
    main()
