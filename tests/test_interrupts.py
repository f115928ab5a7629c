"""Signals are raised where nothing is half done, held where something is, and never lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glancefocus.cli.main import main
from glancefocus.interrupts import (
    Interrupted,
    InterruptedAgain,
    children_without_signals,
    handled,
    held,
    interrupted,
    interruptible,
    stop_message,
    stop_sentence,
)


def press(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # Python runs handlers between two instructions


@pytest.fixture
def _handled() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with handled():
        yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_at_once(number: signal.Signals) -> None:
    with pytest.raises(Interrupted):
        press(number)


@pytest.mark.usefixtures("_handled")
def test_a_held_signal_is_raised_at_the_end_of_the_outermost_block() -> None:
    done = []
    with pytest.raises(Interrupted), held():  # noqa: PT012
        with held():
            press()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    assert interrupted()


@pytest.mark.usefixtures("_handled")
def test_a_block_that_lets_signals_through_raises_one_that_was_held() -> None:
    with pytest.raises(Interrupted), held():  # noqa: PT012
        press()
        with interruptible():
            raise AssertionError("not reached")


@pytest.mark.usefixtures("_handled")
def test_a_second_signal_does_not_wait_and_raises_that_work_is_incomplete() -> None:
    with pytest.raises(InterruptedAgain), held():  # noqa: PT012
        press()
        press()


@pytest.mark.usefixtures("_handled")
def test_an_error_in_a_held_block_is_not_hidden_by_the_signal() -> None:
    with pytest.raises(ValueError, match="full"), held():  # noqa: PT012
        press()
        raise ValueError("full")


@pytest.mark.usefixtures("_handled")
def test_the_message_of_the_innermost_block_is_printed() -> None:
    with stop_message("outer."):
        with stop_message(lambda immediately: "half." if immediately else "inner."):
            assert (stop_sentence(), stop_sentence(immediately=True)) == ("inner.", "half.")
        assert stop_sentence() == "outer."


class Stubborn:
    def __del__(self) -> None:
        press()


@pytest.mark.usefixtures("_handled")
def test_a_signal_within_a_finalizer_is_raised_after_it() -> None:
    with pytest.raises(Interrupted):  # noqa: PT012
        stubborn = Stubborn()
        del stubborn  # Python ignores what is raised in there
        time.sleep(2)
        raise AssertionError("lost")


@pytest.mark.usefixtures("_handled")
def test_children_do_not_get_signals_and_their_parent_gets_those_that_came_meanwhile() -> None:
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with pytest.raises(Interrupted), children_without_signals():  # noqa: PT012
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # other threads do not block it
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(">")[0].startswith("[<Signals.SIGINT")
    assert "SIGTERM" in done.stdout
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM}


@pytest.mark.parametrize("verb", ["models", "predict"])
def test_a_command_that_is_interrupted_prints_one_sentence(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glancefocus.cli.models.read_table", press)
    monkeypatch.setattr("glancefocus.bundle.bundle.load", lambda *words, **more: press())
    with pytest.raises(SystemExit) as end:
        main([verb] if verb == "models" else [verb, "bundle", "a.jpg"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "gf: interrupted.\n"


@pytest.mark.parametrize("module", ["glancefocus", "glancefocus.cli.main"])
def test_an_import_that_is_interrupted_ends_without_a_traceback(module: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", module, "train", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "gf: stopped before anything was learnt, so nothing is lost. The same command starts again.\n"


@pytest.mark.parametrize(("done", "code"), [(True, 0), (False, -signal.SIGINT)])
def test_a_signal_during_the_shutdown_of_python_does_not_fail_a_command_whose_work_is_done(
    done: bool, code: int
) -> None:
    program = f"""
import os, signal
from glancefocus import interrupts

interrupts.take_over()
if {done}:
    interrupts.work_is_done(0)

class Late:
    def __del__(self, kill=os.kill, own=os.getpid()):
        kill(own, signal.SIGINT)

late = Late()  # is deleted when Python has restored the default handlers
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == code
