"""Press Ctrl-C in a terminal at random moments of `gf train`, resume each time, and compare with a run that was never stopped.

    python benchmarks/interrupt.py --moments 20 --seed 0

The run reads a folder of pictures with a worker process and goes through all stages in a pseudo-terminal of its own; Ctrl-C is
typed there, so that the signal reaches the workers, too. Moments are spread over the whole run, from the one on at which the
command handles signals, an import or two after Python has started. Prints one line for each, then "identical" and exits 0, or
what was wrong and exits 1.
"""

import argparse
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

SENTENCE = re.compile(r"gf: (stopped; everything learnt so far is saved in|stopped before anything was learnt)")
STAGES = ("backbone", "glance", "recognise", "point", "aim", "finetune")


def make_pictures(folder: Path, classes: int = 3, each: int = 12) -> None:
    """Images of a square on noise; its colour is the class."""
    dice = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            pixels = dice.integers(80, 120, (96, 96, 3), dtype=np.uint8)
            top, left = dice.integers(0, 64, 2)
            pixels[top : top + 32, left : left + 32, label] = 255
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.png")


def command(pictures: Path, run: Path, epochs: int, workers: int) -> list[str]:
    """The same options for every run; checkpoints are written every few steps only, so that Ctrl-C has something to save."""
    words = [
        "train",
        str(pictures),
        "-o",
        str(run),
        "--backbone",
        "test_resnet",
        "--weights",
        "none",
        "--fit",
        "stretch",
    ]
    words += [
        "--crop",
        "1",
        "--no-flip",
        "--height-px",
        "96",
        "--width-px",
        "96",
        "--glance-px",
        "32",
        "--patch-px",
        "32",
        "--looks",
        "2",
    ]
    words += ["--batch-size", "4", "--workers", str(workers), "--set", "data.hold_mib=0", "--stages", ",".join(STAGES)]
    words += ["--set", "network.classifier_units=8", "--set", "glance.evidence_weight=1"]
    for stage in STAGES:
        words += ["--set", f"{stage}.epochs={epochs}"]
    return [sys.executable, "-m", "glancefocus", *words]


class InTerminal:
    """A process in a pseudo-terminal of its own, with its output."""

    def __init__(self, words: list[str]) -> None:
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(words[0], words)
        self.started = time.monotonic()
        self.text = ""

    def read(self, seconds: float) -> bool:
        """Read the output for this many seconds; False if the process has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.terminal], [], [], left)[0]:
                continue
            try:
                self.text += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:  # the other end was closed
                return False
        return True

    def handles_signals(self) -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{self.process}/status").read_text())
        return caught is not None and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1 == 1

    def has_worker(self) -> bool:
        children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()
        return any(b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)

    def press_ctrl_c(self) -> None:
        os.write(self.terminal, b"\x03")

    def end(self, seconds: float = 300) -> int:
        """The exit code."""
        if self.read(seconds):
            os.kill(self.process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        os.close(self.terminal)
        return code


def what_it_became(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights, and the metrics without those that depend on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = torch.load(run / "last.ckpt", weights_only=True)["net"]
    return weights, [{name: value for name, value in row.items() if name != "images_per_s"} for row in lines]


def difference(whole: Path, stopped: Path) -> str:
    """The difference between two finished runs; an empty text if there is none."""
    (weights, metrics), (other_weights, other_metrics) = what_it_became(whole), what_it_became(stopped)
    different = [name for name, tensor in weights.items() if not torch.equal(tensor, other_weights[name])]
    if different:
        return f"weights differ: {different[:5]}"
    if metrics != other_metrics:
        return "metrics differ"
    files = ("bundle/model.safetensors",)
    if any((whole / name).read_bytes() != (stopped / name).read_bytes() for name in files):
        return "bundles differ"
    left = [path.name for path in stopped.iterdir() if path.name.endswith(".aside")]
    return f"left over: {left}" if left else ""


def progress(run: Path) -> str:
    try:
        content = torch.load(run / "last.ckpt", weights_only=True)
    except FileNotFoundError:
        return "no checkpoint yet"
    return f"checkpoint: stage {content['stage'] + 1}, epoch {content['epoch'] + 1}, step {content['step']}"


def stop_and_resume(words: list[str], run: Path, moment: float | None) -> tuple[str, str]:
    """(error, position of the run): Ctrl-C this many seconds after the signal handlers are set, then resume to the end.

    moment  None: when the first worker process has been started
    """
    stopping = InTerminal(words)
    while not stopping.handles_signals():
        stopping.read(0.001)
    if moment is None:
        while not stopping.has_worker() and stopping.read(0.001):
            pass
    else:
        stopping.read(moment)
    stopping.press_ctrl_c()
    pressed = time.monotonic()
    code = stopping.end()
    where = f"{time.monotonic() - pressed:.1f} s to stop; {progress(run)}"
    if code == 0:
        return "", f"had already ended; {where}"
    if code != 130 or "Traceback" in stopping.text or len(SENTENCE.findall(stopping.text)) != 1:
        return f"exit code {code}:\n{stopping.text}", where
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    if again.returncode != 0:
        return f"the resumed run ended with {again.returncode}:\n{again.stderr}", where
    return "", where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each stage")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--at", choices=["random", "workers"], default="random", help="workers: while worker processes are started"
    )
    words = parser.parse_args()
    dice = random.Random(words.seed)
    with tempfile.TemporaryDirectory() as parent:
        pictures = Path(parent) / "pictures"
        make_pictures(pictures)
        whole = Path(parent) / "whole"
        first = InTerminal(command(pictures, whole, words.epochs, words.workers))
        if first.end(900) != 0:
            sys.exit(f"the run that is not stopped did not finish:\n{first.text}")
        seconds = time.monotonic() - first.started
        print(f"a run takes {seconds:.1f} s", flush=True)
        for number in range(1, words.moments + 1):
            run = Path(parent) / f"stopped-{number}"
            moment = dice.uniform(0, seconds) if words.at == "random" else None
            wrong, where = stop_and_resume(command(pictures, run, words.epochs, words.workers), run, moment)
            wrong = wrong or difference(whole, run)
            when = "at worker start" if moment is None else f"after {moment:5.1f} s"
            print(f"{number:>2}: Ctrl-C {when}: {where}", flush=True)
            if wrong:
                sys.exit(wrong)
        print(f"identical after {words.moments} stops")


if __name__ == "__main__":
    main()
