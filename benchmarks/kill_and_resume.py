"""Kill a run with SIGKILL at random moments, start it again each time, and compare it with one that was never killed.

    python benchmarks/kill_and_resume.py --kills 10 --seed 0

Prints one line per kill, then "identical" and exits 0, or the difference and exits 1. Kills before the first checkpoint are not
counted: such a run starts again from the beginning. Each attempt is a process of its own, forked after the imports, so that
training is killed and not the start of Python.
"""

import argparse
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

TINY_RUN = Path(__file__).parent.parent / "tests" / "training" / "tiny_run.py"


def tiny_run() -> Any:
    spec = importlib.util.spec_from_file_location("tiny_run", TINY_RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(settings: Any, folder: Path) -> int:
    """Start a process that trains; returns its id."""
    process = os.fork()
    if process:
        return process
    from glancefocus.training.run import train

    torch.set_num_threads(1)
    code = 1
    try:
        train(settings, folder, quiet=True)
        code = 0
    finally:
        os._exit(code)


def ended(process: int, seconds: float) -> int | None:
    """The exit code; None if the process still runs after this many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def progress(folder: Path) -> str:
    """The position of the last checkpoint of a run."""
    try:
        content = torch.load(folder / "last.ckpt", weights_only=True)
    except FileNotFoundError:
        return "before the first checkpoint"
    return f"stage {content['stage'] + 1}, epoch {content['epoch'] + 1}, step {content['step']}"


def what_it_became(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights, and the metrics without those that depend on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = torch.load(folder / "last.ckpt", weights_only=True)["net"]
    return weights, [{name: value for name, value in row.items() if name != "images_per_s"} for row in lines]


def compare(whole: Path, killed: Path) -> None:
    (weights, metrics), (weights_killed, metrics_killed) = what_it_became(whole), what_it_became(killed)
    different = [name for name, tensor in weights.items() if not torch.equal(tensor, weights_killed[name])]
    left = sorted(path.name for path in killed.iterdir() if path.name.endswith(".aside"))
    if different or metrics != metrics_killed or left:
        sys.exit(f"not the same: {different[:5]}, same metrics: {metrics == metrics_killed}, left over: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", nargs="*", help="default: the five of the paper")
    words = parser.parse_args()
    import glancefocus.training.run  # noqa: F401  (before the first fork)

    changes = {"stages": words.stages} if words.stages else {}
    settings = tiny_run().tiny_settings(**changes)
    dice = random.Random(words.seed)
    with tempfile.TemporaryDirectory() as parent:
        whole = Path(parent) / "whole"
        started = time.monotonic()
        if ended(start(settings, whole), 600) != 0:
            sys.exit("the run that is not killed did not finish")
        seconds = time.monotonic() - started
        kills = runs = 0
        while kills < words.kills:  # a run that ends before it is killed again is followed by another one
            runs += 1
            killed = Path(parent) / f"killed-{runs}"
            while (code := ended(process := start(settings, killed), dice.uniform(0.02, 0.8 * seconds))) is None:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                kills += (killed / "last.ckpt").exists()
                print(f"run {runs}, kill {kills:>2}: {progress(killed)}", flush=True)
                if kills == words.kills:
                    code = ended(start(settings, killed), 600)
                    break
            if code != 0:
                sys.exit(f"the run ended with {code} after {kills} kills")
            compare(whole, killed)
        print(f"identical after {kills} kills in {runs} runs of {seconds:.1f} s")


if __name__ == "__main__":
    main()
