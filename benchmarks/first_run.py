"""The first command of a new user, judged by photographs that it never saw.

    python benchmarks/first_run.py photos/ --unseen other-photos/ --weights tf_efficientnet_lite0.pth -o runs/first

Runs `gf train photos/` with no other option than the weights (and what follows `--`), and says: the time that the plan told and the
time that it took, the peak of the memory of the command with its child processes, and the accuracies that the run reported
beside those on unseen photographs, in class folders of the same names.
"""

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

GF = [sys.executable, "-m", "glancefocus.cli"]
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


def told_seconds(log: str) -> float | None:
    """What the plan says that the run takes."""
    found = re.search(r"^time +about ([\d.]+) (s|min|h|days)", log, re.MULTILINE)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def told_gigabytes(log: str) -> float | None:
    found = re.search(r"^memory +about ([\d.]+) GB", log, re.MULTILINE)
    return None if found is None else float(found[1])


def evaluated(bundle: Path, data: str) -> dict[str, Any]:
    words = [*GF, "evaluate", str(bundle), data, "--no-latency", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    findings: dict[str, Any] = json.loads(done.stdout)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--unseen", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("more", nargs="*", help="more words for gf train, after --")
    asked = parser.parse_args()
    log = asked.output.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*GF, "train", asked.data, "--weights", asked.weights, "-o", str(asked.output), *asked.more]
    seconds, peak = watched(command, log)
    text = log.read_text()
    print(text)
    told = told_seconds(text)
    print(f"seconds: {seconds:.0f}, told {told}, ratio {seconds / told if told else float('nan'):.2f}")
    print(f"peak memory: {peak / 2**30:.2f} GB, told {told_gigabytes(text)} GB")
    held_out = evaluated(asked.output / "bundle", asked.data)
    unseen = evaluated(asked.output / "bundle", asked.unseen)
    for name, findings in (("held out", held_out), ("unseen", unseen)):
        looks = " / ".join(f"{100 * a:.1f}" for a in findings["accuracy_after_look"])
        chosen = findings["chosen"]
        print(
            f"{name}: {findings['images']} images, after each look {looks} %, "
            f"own thresholds {100 * chosen['accuracy']:.1f} % with {chosen['mean_macs'] / 1e6:.1f}M"
        )


if __name__ == "__main__":
    main()
