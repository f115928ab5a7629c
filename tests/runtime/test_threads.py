"""The same answers from several threads at once, in every runtime; after a fork an answer or a sentence, never a wait."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import ForkedThreads
from glancefocus.network.parts import take_apart
from glancefocus.runtime.backends import _NO_SIGNAL_STACK, CompiledRunner, _SignalStack
from glancefocus.runtime.runner import PartsRunner

THREADS, CALLS = 8, 60

# torch's own insides, while it compiles
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

RUNTIMES: dict[str, dict[str, Any]] = {
    "the network itself": {},
    "plain": {"runtime": "plain"},
    "eager": {"runtime": "eager"},
    "onnx": {"runtime": "onnx"},
    "onnx, light weights": {"runtime": "onnx", "light_weights": True},
    "openvino": {"runtime": "openvino"},
}


@pytest.fixture(autouse=True)
def shared_cache(graph_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(graph_cache))


@pytest.fixture(scope="module")
def folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = small_bundle()
    bundle.thresholds = (0.4, 0.4, 0.0)
    return bundle.save(tmp_path_factory.mktemp("threads") / "bundle")


def images(count: int, *, frames: int | None = None) -> Tensor:
    shape = (count, 3, 64, 64) if frames is None else (count, frames, 3, 64, 64)
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def assert_same_from_threads(bundle: Bundle, seen: Tensor, batch: int) -> None:
    """Every call has images of its own, so that an answer to another call's images is found."""
    batches = [seen[i : i + batch] for i in range(0, len(seen), batch)]
    expected = [bundle.predict(pictures) for pictures in batches]
    assert len({outcome.confidence[0].item() for outcome in expected}) == len(expected)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(bundle.predict, batches * 2))
    for one, other in zip(found, expected * 2, strict=True):
        assert torch.equal(one.looks, other.looks)
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.where, other.where, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_eight_threads_get_the_answers_of_one(folder: Path, runtime: str, batch: int) -> None:
    bundle = gf.load(folder, device="cpu", **RUNTIMES[runtime])
    assert_same_from_threads(bundle, images(CALLS), batch)


def test_eight_threads_may_be_the_first_to_look_at_single_images(folder: Path) -> None:
    expected = gf.load(folder, device="cpu").predict(images(CALLS))
    bundle = gf.load(folder, device="cpu", runtime="onnx")
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(bundle.predict, images(CALLS)))
    for row, outcome in enumerate(found):
        assert outcome.label == [expected.label[row]]
        torch.testing.assert_close(outcome.logits[0], expected.logits[row], rtol=1e-4, atol=1e-4)


def test_eight_threads_get_the_answers_of_one_from_compiled_parts(folder: Path) -> None:
    """Compiled by torch's tracer alone: kernels in C++ take torch half a minute."""
    bundle = gf.load(folder, device="cpu")
    run = CompiledRunner(take_apart(bundle.net), backend="eager")
    bundle.net = bundle.net.computed_by(PartsRunner.of(bundle.net, run), "compile")
    assert_same_from_threads(bundle, images(24), batch=2)


@pytest.mark.parametrize("runtime", ["eager", "openvino"])
def test_eight_threads_get_the_answers_of_one_for_clips(small_bundle: Callable[..., Bundle], runtime: str) -> None:
    bundle = small_bundle(frames=2, shift_div=4, classifier="cascaded", first_answer="own_head").use(runtime)
    assert_same_from_threads(bundle, images(24, frames=2), batch=1)


# Forks a child for every line of its input, and prints what became of it. A child that waits for threads that are gone is ended by
# its alarm.
FORKING = """
    import os, signal, sys, torch
    import glancefocus as gf

    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    images = torch.rand(64, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    bundles = {}
    for line in sys.stdin.read().splitlines():
        runtime, child = line.split(": ")
        if runtime not in bundles:
            bundles[runtime] = gf.load(folder, device="cpu", runtime=None if runtime == "none" else runtime)
            expected = bundles[runtime].predict(images).logits
            [bundles[runtime].predict(image) for image in images[:3]]
        bundle = bundles[runtime]
        process = os.fork()
        if process == 0:
            signal.alarm(60)
            try:
                if child == "loads":
                    bundle = gf.load(folder, device="cpu")
                if child == "uses one thread":
                    torch.set_num_threads(1)
                same = torch.allclose(bundle.predict(images).logits, expected, atol=1e-5)
                same &= torch.allclose(bundle.predict(images[0]).logits, expected[:1], atol=1e-5)
                print(line, "answers" if same else "answers wrongly", flush=True)
            except gf.GlancefocusError as error:
                print(line, error, flush=True)
            sys.exit()
        ended = os.waitpid(process, 0)[1]
        if ended != 0:
            print(line, "ended with", ended, flush=True)
        assert torch.allclose(bundle.predict(images).logits, expected, atol=1e-5)
"""


def after_forks(folder: Path, threads: int, *children: str) -> list[str]:
    """What became of the children of a process that computes with so many threads, without what they were asked to do."""
    words = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKING), str(folder), str(threads)]
    done = subprocess.run(words, input="\n".join(children), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(children), done.stdout
    return [line.removeprefix(f"{child} ") for line, child in zip(lines, children, strict=True)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_refuses_threads_that_it_does_not_have(folder: Path) -> None:
    names = ["none", "eager", "onnx", "openvino"]
    refused = [*(f"{name}: predicts" for name in names), "none: loads", "onnx: uses one thread"]
    *said, answer = after_forks(folder, 2, *refused, "eager: uses one thread")
    assert set(said) == {str(ForkedThreads(2))}
    assert "forked from one that computed with 2 threads" in said[0]
    assert 'Start processes with spawn (multiprocessing.get_context("spawn"))' in said[0]
    assert answer == "answers"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_answers_with_one_thread(folder: Path) -> None:
    children = [f"{name}: predicts" for name in ("none", "plain", "eager", "onnx", "openvino")]
    assert after_forks(folder, 1, *children, "none: loads") == ["answers"] * 6


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of stack_t is that of Linux")
def test_freed_openvino_graphs_leave_no_stack_for_signal_handlers_behind(folder: Path) -> None:
    """OpenVINO leaves freed memory as that stack; Python's handlers use it, so that Ctrl-C would be a segmentation fault."""
    for _ in range(2):
        gf.load(folder, device="cpu", runtime="openvino").predict(images(1))
    gc.collect()
    now = _SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(now)) == 0
    assert now.flags == _NO_SIGNAL_STACK
