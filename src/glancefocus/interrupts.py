"""Ctrl-C and SIGTERM: raised as Interrupted where nothing is half done, kept back where something is, never shown as a traceback.

A step of training and the writing of a checkpoint are kept whole (`held`); everything else is interrupted at once. A second signal
ends the program without waiting for anything: files are written aside, so what was there before stays. Imports little, so that
signals are handled from the command's first moment on.
"""

import _thread
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
"""Set in processes that another process of this program started: that one says what there is to say."""
_CURSOR_SHOWN, _LINE_CLEARED = "\x1b[?25h", "\r\x1b[2K"


class Interrupted(KeyboardInterrupt):
    """The user has stopped the program."""


class InterruptedAgain(Interrupted):
    """And again, in the middle of something that is now half done."""


Farewell = Callable[[bool], str]
"""What is said at the end, given whether the program stops at once, without finishing what it was doing."""


def _default_farewell(at_once: bool) -> str:
    return "interrupted."


class _Process:
    """What this process knows of its signals.

    owned    the program is the whole process and may end it; otherwise another program uses it
    asked    how many signals have come
    ending   the exit code of work that is done, when only Python's own end is left
    """

    handles = False
    owned = False
    asked = 0
    held = False
    ending: int | None = None
    farewell: Farewell = staticmethod(_default_farewell)
    hook: Any = None


_process = _Process()


def take_over() -> None:
    """Ctrl-C and SIGTERM raise Interrupted from now on, or end this process: it belongs to the command."""
    _install(owned=True)


@contextmanager
def handled() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Interrupted in this block. Outside of the main thread they cannot, and nothing changes."""
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
        _process.handles, _process.asked, _process.held, _process.farewell = True, 0, False, _default_farewell
        _process.hook, sys.unraisablehook = sys.unraisablehook, _raise_again
        for number in SIGNALS:
            signal.signal(number, _on_signal)


@contextmanager
def farewell(words: str | Farewell) -> Iterator[None]:
    """What is said when the program is stopped in this block; it stays so where the block ends with an exception."""
    before = _process.farewell
    _process.farewell = (lambda at_once: words) if isinstance(words, str) else words
    yield
    _process.farewell = before


def first_farewell(words: list[str]) -> str:
    """What is said when a command with these words is stopped before it has begun."""
    if words[:1] in (["train"], ["demo"]):
        return "stopped before anything was learnt, so nothing is lost. The same command starts again."
    return "interrupted."


def last_words(*, at_once: bool = False) -> str:
    """The sentence for where the program was stopped."""
    return _process.farewell(at_once)


def interrupted() -> bool:
    """A signal has come."""
    return _process.handles and _process.asked > 0


@contextmanager
def held() -> Iterator[None]:
    """Signals wait until the end of this block, and are raised there, unless a block around it holds them, too."""
    before, _process.held = _process.held, True
    try:
        yield
    finally:
        _process.held = before
    if interrupted() and not before:
        raise Interrupted


@contextmanager
def let_through() -> Iterator[None]:
    """Signals are raised in this block, also within one in which they are held: nothing is half done here."""
    before, _process.held = _process.held, False
    try:
        if interrupted():
            raise Interrupted
        yield
    finally:
        _process.held = before


@contextmanager
def children_without_signals() -> Iterator[None]:
    """Processes started in this block do not get Ctrl-C and SIGTERM, from their first moment on; their parent ends them."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started in the block, it would unblock the signals
    # Another thread of ours may still take the signal, and Python then handles it in this one: a child whose start is interrupted
    # complains at length, so the signal waits until the child has started.
    with held():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ended(code: int) -> None:
    """The work is done: from now on a signal only cuts Python's own end short."""
    _process.ending = code if _process.owned else None


def owns_process() -> bool:
    """The command may end this process."""
    return _process.owned and _process.handles


def leave(code: int, sentence: str | None = None) -> NoReturn:
    """End this process and its children now, and leave the terminal as it was found."""
    with suppress(ValueError):  # outside of the main thread
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch complains of workers that are killed
    with suppress(OSError, ValueError, RuntimeError):
        sys.stdout.flush()
    if sentence is not None:
        write_past_buffers(f"gf: {sentence}")
    with suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nothing is to be said after that
        if "multiprocessing.util" in sys.modules:
            import multiprocessing.util

            for child in multiprocessing.active_children():
                child.kill()
            multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]  # or else semaphores stay behind
    os._exit(code)


def write_past_buffers(sentence: str) -> None:
    """To the terminal or wherever errors go, past Python's buffers, one of which the signal may have interrupted."""
    cleared = _CURSOR_SHOWN + _LINE_CLEARED if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{cleared}{sentence}\n".encode())


def speaks() -> bool:
    """Of several processes of one run, this is the one that talks to the user."""
    return LAUNCHED not in os.environ and os.environ.get("RANK", "0") == "0"


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _process.ending is not None:
        leave(_process.ending)
    _process.asked += 1
    again = _process.asked > 1
    if _process.held and not again:
        if _process.owned and speaks():
            write_past_buffers("gf: stopping when this step is saved. Ctrl-C again stops at once.")
        return
    # An import cannot be interrupted in its middle: some libraries crash then.
    if _process.owned and (again or _imports(frame)):
        leave(EXIT_CODE, last_words(at_once=True) if speaks() else None)
    raise InterruptedAgain if _process.held else Interrupted


def _raise_again(lost: Any) -> None:
    """In finalizers Python ignores exceptions, and with them Interrupted: it is raised again a moment later."""
    if lost.exc_type is not None and issubclass(lost.exc_type, Interrupted):
        _process.asked = 0
        threading.Timer(0.02, _thread.interrupt_main).start()
    else:
        _process.hook(lost)


def _imports(frame: FrameType | None) -> bool:
    """The main thread is importing a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
