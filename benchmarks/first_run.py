"""The first command of a new user, measured on photographs that it was not trained on.

    python benchmarks/first_run.py photos/ --unseen other-photos/ --weights tf_efficientnet_lite0.pth -o runs/first

Runs `gf train photos/` with no other option than the weights (and the words after `--`). Reports the time that the plan predicted
and the time that it took, the peak memory of the command with its child processes, and the accuracies that the run reported beside
those on unseen photographs, which are in class folders of the same names.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from results import machine, markdown_table, write_section

GF = [sys.executable, "-m", "glancefocus.cli.main"]
_UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}


def watched(command: list[str], log: Path) -> tuple[float, int]:
    """(seconds, peak bytes of resident memory, children included) of a command, whose output goes to a log."""
    peak, started = 0, time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            own = psutil.Process(process.pid)
            while not done.wait(0.2):
                peak = max(peak, _resident(own))

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        done.set()
        watcher.join()
    if code:
        sys.exit(f"{' '.join(command)} ended with {code}:\n{log.read_text()}")
    return time.monotonic() - started, peak


def _resident(process: psutil.Process) -> int:
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.Error:  # it has just ended
        pass
    return total


def planned_seconds(log: str) -> float | None:
    """The duration of the run according to its plan."""
    found = re.search(r"^time +about ([\d.]+) (s|min|h|days)", log, re.MULTILINE)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def planned_gigabytes(log: str) -> float | None:
    found = re.search(r"^memory +about ([\d.]+) GB", log, re.MULTILINE)
    return None if found is None else float(found[1])


def evaluated(bundle: Path, data: str) -> dict[str, Any]:
    words = [*GF, "evaluate", str(bundle), data, "--no-latency", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    findings: dict[str, Any] = json.loads(done.stdout)
    return findings


def looks_words(findings: dict[str, Any]) -> str:
    return " / ".join(f"{100 * accuracy:.1f}" for accuracy in findings["accuracy_after_look"])


def body_of(
    rows: list[tuple[str, dict[str, Any]]], times: tuple[float, float], memory: tuple[int, float], said: str
) -> str:
    """The findings as Markdown: held out beside unseen, time and memory planned beside measured, and the verdict."""
    cells = [["", "images", "after each look, %", "own thresholds, %", "multiply-adds"]]
    for name, findings in rows:
        chosen = findings["chosen"]
        accuracy, cost = f"{100 * chosen['accuracy']:.1f}", f"{chosen['mean_macs'] / 1e6:.0f}M"
        cells.append([name, f"{findings['images']:,}", looks_words(findings), accuracy, cost])
    (planned_s, seconds), (peak, planned_gb) = times, memory
    return (
        f"{markdown_table(cells)}\n\nTime planned {planned_s:.0f} s, measured {seconds:.0f} s ({seconds / planned_s:.2f} times). "
        f'Memory planned {planned_gb} GB, peak {peak / 2**30:.2f} GB. The run\'s verdict: "{said}"'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--unseen", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--write", type=Path, help="put the figures into this file, such as docs/results.md")
    words = sys.argv[1:]
    before = words.index("--") if "--" in words else len(words)
    asked, more = parser.parse_args(words[:before]), words[before + 1 :]
    log = asked.output.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*GF, "train", asked.data, "--weights", asked.weights, "-o", str(asked.output), *more]
    seconds, peak = watched(command, log)
    text = log.read_text()
    print(text)
    planned_s, planned_gb = planned_seconds(text) or float("nan"), planned_gigabytes(text) or float("nan")
    unseen = evaluated(asked.output / "bundle", asked.unseen)
    rows = [("held out", evaluated(asked.output / "bundle", asked.data)), ("unseen", unseen)]
    notes = json.loads((asked.output / "bundle" / "bundle.json").read_text())["notes"]
    body = body_of(rows, (planned_s, seconds), (peak, planned_gb), notes["verdict"]["sentence"])
    print(body)
    if asked.write is not None:
        write_section(
            asked.write,
            "first_run",
            title="The first command on photographs",
            command=shlex.join(["python", "benchmarks/first_run.py", *sys.argv[1:]]),
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
