"""Ctrl-C and SIGTERM: raised as Interrupted where the program can stop, delayed where it cannot, never shown as a traceback.

A step of training and the writing of a checkpoint are not interrupted (`held`); everything else is interrupted immediately. A
second signal ends the program without waiting. Files are still whole then, because a new file replaces an old one only when it is
complete. This module imports little, so that signals are handled from the start of the command.
"""

import _thread
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130
LAUNCHED = "GLANCEFOCUS_LAUNCHED"
"""Set in processes that were started by another process of this program; only that one prints messages."""
_CURSOR_SHOWN, _LINE_CLEARED = "\x1b[?25h", "\r\x1b[2K"


class Interrupted(KeyboardInterrupt):
    """The user has stopped the program."""


class InterruptedAgain(Interrupted):
    """The user has stopped the program a second time, in the middle of work that is now incomplete."""


StopMessage = Callable[[bool], str]
"""Gives the message that is printed when the program is stopped; the argument: it stops without finishing the current step."""


def _default_message(immediately: bool) -> str:
    return "interrupted."


class _Process:
    """The state of signal handling in this process.

    handles  our handlers are installed
    owned    the command is the whole process and may end it; otherwise it runs inside another program
    signals  number of signals that have arrived
    held     signals are delayed
    ending   exit code when all work is done and only Python's own shutdown is left; None before
    hook     the handler for exceptions in finalizers that was there before
    """

    handles = False
    owned = False
    signals = 0
    held = False
    ending: int | None = None
    stop_message: StopMessage = staticmethod(_default_message)
    hook: Any = None


_process = _Process()


def take_over() -> None:
    """Ctrl-C and SIGTERM raise Interrupted from now on, or end this process, which the command owns."""
    _install(owned=True)
    atexit.register(_ignore_signals)  # first registered, so it runs last


def _ignore_signals() -> None:
    """Ignore signals in the last moments of a process whose work is done.

    Python restores the default handlers when it shuts down: a signal would then end the process with an error.
    """
    if _process.ending is not None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def handled() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Interrupted in this block. Outside the main thread that is impossible, and nothing changes."""
    if _process.handles or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _install(owned=False)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook, _process.handles = _process.hook, False


def _install(owned: bool) -> None:
    _process.owned = owned
    if not _process.handles:
        _process.handles, _process.signals, _process.held, _process.stop_message = True, 0, False, _default_message
        _process.hook, sys.unraisablehook = sys.unraisablehook, _raise_again
        for number in SIGNALS:
            signal.signal(number, _on_signal)


@contextmanager
def stop_message(words: str | StopMessage) -> Iterator[None]:
    """The message that is printed if the program is stopped in this block; it stays if the block ends with an exception."""
    before = _process.stop_message
    _process.stop_message = (lambda immediately: words) if isinstance(words, str) else words
    yield
    _process.stop_message = before


def first_stop_message(words: list[str]) -> str:
    """The message for a command that is stopped before it has begun; words: its arguments."""
    if words[:1] in (["train"], ["demo"]):
        return "stopped before anything was learnt, so nothing is lost. The same command starts again."
    return "interrupted."


def stop_sentence(*, immediately: bool = False) -> str:
    """The message for the place where the program was stopped."""
    return _process.stop_message(immediately)


def interrupted() -> bool:
    """Whether a signal has arrived."""
    return _process.handles and _process.signals > 0


@contextmanager
def held() -> Iterator[None]:
    """Delay signals until the end of this block, where Interrupted is raised, unless an outer block delays them, too."""
    before, _process.held = _process.held, True
    try:
        yield
    finally:
        _process.held = before
    if interrupted() and not before:
        raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise signals in this block, even inside one that delays them: it is safe to stop here."""
    before, _process.held = _process.held, False
    try:
        if interrupted():
            raise Interrupted
        yield
    finally:
        _process.held = before


@contextmanager
def children_without_signals() -> Iterator[None]:
    """Processes that are started in this block never get Ctrl-C and SIGTERM; their parent ends them."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # if it were started in the block, it would unblock the signals
    # Another of our threads may still receive the signal, and Python then handles it in this one. If the start of a child is
    # interrupted, the child prints long errors; so the signal is delayed until the child has started.
    with held():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work_is_done(code: int) -> None:
    """All work is done: from now on a signal only shortens Python's own shutdown."""
    _process.ending = code if _process.owned else None


def owns_process() -> bool:
    """Whether the command may end this process."""
    return _process.owned and _process.handles


def end_process(code: int, sentence: str | None = None) -> NoReturn:
    """End this process and its children immediately, and restore the terminal."""
    with suppress(ValueError):  # outside the main thread
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report workers that are killed
    with suppress(OSError, ValueError, RuntimeError):
        sys.stdout.flush()
    if sentence is not None:
        write_unbuffered(f"gf: {sentence}")
    with suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nothing more is printed after the message
        if "multiprocessing.util" in sys.modules:
            import multiprocessing.util

            for child in multiprocessing.active_children():
                child.kill()
            multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]  # otherwise semaphores leak
    os._exit(code)


def write_unbuffered(sentence: str) -> None:
    """Write to standard error without Python's buffers: the signal may have interrupted a write to one of them."""
    cleared = _CURSOR_SHOWN + _LINE_CLEARED if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{cleared}{sentence}\n".encode())


def prints_messages() -> bool:
    """Whether this process prints messages; only one of several processes of a run does."""
    return LAUNCHED not in os.environ and os.environ.get("RANK", "0") == "0"


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _process.ending is not None:
        end_process(_process.ending)
    _process.signals += 1
    again = _process.signals > 1
    if _process.held and not again:
        if _process.owned and prints_messages():
            write_unbuffered("gf: stopping when this step is saved. Press Ctrl-C again to stop immediately.")
        return
    # An import must not be interrupted: some libraries crash then. The process is ended instead.
    if _process.owned and (again or _imports(frame)):
        end_process(EXIT_CODE, stop_sentence(immediately=True) if prints_messages() else None)
    raise InterruptedAgain if _process.held else Interrupted


def _raise_again(lost: Any) -> None:
    """Python ignores exceptions in finalizers, Interrupted included: raise it again a moment later."""
    if lost.exc_type is not None and issubclass(lost.exc_type, Interrupted):
        _process.signals = 0
        threading.Timer(0.02, _thread.interrupt_main).start()
    else:
        _process.hook(lost)


def _imports(frame: FrameType | None) -> bool:
    """Whether the main thread is importing a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
