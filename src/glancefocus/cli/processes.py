"""Trains in several processes of this machine, which are started, interrupted and ended together; an error is printed once."""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glancefocus.errors import BadRun, BadSetting
from glancefocus.interrupts import EXIT_CODE, LAUNCHED, Interrupted, interruptible, write_unbuffered
from glancefocus.training.journal import NONE
from glancefocus.training.run import threads_per_process
from glancefocus.training.run_folder import locked, prepare_folder, run_stop_message
from glancefocus.training.settings import TrainSettings

_POLL_S = 0.1
_GRACE_S = 5.0  # time for the other processes to end by themselves after one has failed
_PR_SET_PDEATHSIG = 1  # from sys/prctl.h of Linux


def run_in_processes(
    settings: TrainSettings,
    folder: Path,
    processes: int,
    *,
    asked: dict[str, Any] | None,
    as_json: bool,
    track: Sequence[str] = (),
) -> None:
    """Train in `processes` processes; only the first one prints."""
    if not 1 <= processes <= settings.batch_size:
        raise BadSetting(
            f"processes must be at least 1 and at most the batch size ({settings.batch_size}), but got {processes}."
        )
    with locked(folder):
        prepare_folder(folder, settings, asked)
    words = ["train-process", str(folder), "--track", ",".join(track) or NONE, *(["--json"] if as_json else [])]
    with run_stop_message(folder), _started(words, processes) as (running, errors):
        _wait(running, errors)


@contextlib.contextmanager
def _started(words: list[str], processes: int) -> Iterator[tuple[list["subprocess.Popen[bytes]"], int]]:
    """Start the processes; gives them and a pipe for their errors. At the end of the block they are ended, too."""
    errors, write_end = os.pipe()
    shared = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        LAUNCHED: str(write_end),
    }
    shared.setdefault("OMP_NUM_THREADS", str(threads_per_process(processes)))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(processes):
            # In its own session, so that Ctrl-C reaches it only once, through this process.
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "glancefocus", *words],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    pass_fds=(write_end,),
                    start_new_session=True,
                )
            )
        os.close(write_end)
        yield running, errors
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
        os.close(errors)


def _wait(running: list["subprocess.Popen[bytes]"], errors: int) -> None:
    """Wait until all processes have ended; an error or an interruption of one ends all."""
    try:
        with interruptible():
            while any(process.poll() is None for process in running):
                if select.select([errors], [], [], _POLL_S)[0] and (sentence := os.read(errors, 65536)):
                    raise BadRun(sentence.decode(errors="replace").strip())
                failed = [process.returncode for process in running if process.poll() not in (None, 0)]
                if failed:
                    _end(running)
                    _raise_failure(failed[0])
    except Interrupted:
        write_unbuffered("gf: stopping when this step is saved. Press Ctrl-C again to stop immediately.")
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()  # it saves its state; a second signal ends this process and all of them
        raise
    failed = [process.returncode for process in running if process.returncode != 0]
    if failed:
        _raise_failure(failed[0])


def _end(running: list["subprocess.Popen[bytes]"]) -> None:
    """End the other processes after one has failed. They wait for it, and would print long errors when the connection is lost."""
    until = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(_POLL_S)
    for process in running:
        if process.poll() is None:
            process.kill()


def _raise_failure(code: int) -> None:
    if code == EXIT_CODE:
        raise Interrupted
    if code < 0:
        name = signal.Signals(-code).name
        hint = " There may not have been enough memory." if name == "SIGKILL" else ""
        raise BadRun(f"a process of the run was ended by {name}.{hint} The last checkpoint is kept.")
    sys.exit(code)  # the process has printed what went wrong


def end_with_parent() -> None:
    """Send SIGTERM to this process, so that it saves its state, when the process that started it ends."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
