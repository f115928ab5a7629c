"""Shared by the tests of training: a context for stages, the toy world of bright squares, a tiny run, and checks of run folders."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from glancefocus.data.sources import Data
from glancefocus.data.splits import MemorySplit
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoding, LearntPolicy
from glancefocus.region import shrink
from glancefocus.settings import NetworkSettings, PolicySettings, ViewSettings
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import TrainingContext
from glancefocus.values import from_plain

IMAGE_PX, SQUARE_PX, PATCH_PX, GLANCE_PX = 32, 4, 12, 8
AS_IT_IS = ViewSettings(
    fit="whole", height_px=IMAGE_PX, width_px=IMAGE_PX, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
)  # pixels stay as they are


@functools.cache
def bright_squares(count: int, seed: int) -> MemorySplit:
    """One bright square on grey, at a random place; its colour, red or green, is the class."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.full((count, 3, IMAGE_PX, IMAGE_PX), 64, dtype=torch.uint8)
    labels = torch.randint(0, 2, (count,), generator=generator)
    start = torch.randint(0, IMAGE_PX - SQUARE_PX + 1, (count, 2), generator=generator)
    for row, (label, (top, left)) in enumerate(zip(labels.tolist(), start.tolist(), strict=True)):
        images[row, label, top : top + SQUARE_PX, left : left + SQUARE_PX] = 255
    boxes = torch.cat([start, start + SQUARE_PX], dim=1).float()
    return MemorySplit(images, labels, AS_IT_IS, boxes=boxes)


class Brightness(nn.Module):
    """Encodes by hand: the map shows where it is bright; the vector says red or green where the whole square is seen."""

    vector_features = 2

    def forward(self, images: Tensor) -> Encoding:
        bright = 4 * shrink((images - 0.3).clamp_min(0), GLANCE_PX).sum(dim=1, keepdim=True)
        whole = ((images[:, :2] > 0.9).sum(dim=(2, 3)) == SQUARE_PX**2).float()
        return Encoding(bright, whole)

    def own_head(self, vector: Tensor) -> Tensor:
        return 6 * vector

    def evidence(self, images: Tensor, labels: Tensor) -> Tensor:
        return self(images).map[:, 0]  # type: ignore[no-any-return]


class Evidence(nn.Module):
    """Answers rightly exactly when one of the patches held the whole square; until then it cannot know."""

    def remember(self, vector: Tensor, memory: Tensor | None, candidate: int = 0) -> Tensor:
        return vector if memory is None else torch.maximum(vector, memory)

    def answer(self, memory: Tensor, look: int) -> Tensor:
        return 6 * memory


TINY_RUN = Path(__file__).with_name("tiny_run.py")


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """accelerate keeps one state a process; every test starts with none."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def context_of() -> Callable[..., TrainingContext]:
    """Makes the context of a network and data with these settings."""

    def make(net: GlanceFocus, train: MemorySplit, val: MemorySplit, **settings: Any) -> TrainingContext:
        plain = {"data": {"source": "here", "workers": 0}, "network": {"backbone": "none"}, **settings}
        whole: TrainSettings = from_plain(TrainSettings, plain)
        accelerator = Accelerator(cpu=True, mixed_precision=whole.precision)
        return TrainingContext(net, Data(train, val, ("red", "green")), whole, accelerator)

    return make


@pytest.fixture
def square_world(context_of: Callable[..., TrainingContext]) -> Callable[..., TrainingContext]:
    """Makes the toy world: a frozen network that reads any square that it is aimed at, under a policy that knows nothing yet."""

    def make(
        head: Any = "conv", looks: int = 3, seed: int = 0, point: Any = None, place: bool = False, **aim: Any
    ) -> TrainingContext:
        policy_settings = PolicySettings(head=head, conv_channels=4, linear_units=64, units=64, place=place)
        settings = NetworkSettings("none", 2, GLANCE_PX, (str(PATCH_PX),), looks, policy=policy_settings, view=AS_IT_IS)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            extents = (PATCH_PX / AS_IT_IS.height_px,)
            policy = LearntPolicy(policy_settings, 1, GLANCE_PX, (GLANCE_PX,), (1, 0), extents=extents)
        net = GlanceFocus(settings, Brightness(), Brightness(), Evidence(), policy).eval()  # type: ignore[arg-type]
        return context_of(net, bright_squares(2000, 1), bright_squares(300, 2), aim=aim, point=point or {})

    return make


@pytest.fixture(scope="session")
def tiny_run() -> types.ModuleType:
    """tiny_run.py: a run of seconds."""
    spec = importlib.util.spec_from_file_location("tiny_run", TINY_RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_settings(tiny_run: types.ModuleType) -> Callable[..., TrainSettings]:
    """Makes the settings of tiny_run.py, with changes."""
    settings: Callable[..., TrainSettings] = tiny_run.tiny_settings
    return settings


@pytest.fixture(scope="session")
def _tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The scenes are drawn once for all runs of a session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLANCEFOCUS_CACHE", str(tmp_path_factory.getbasetemp() / "tiny-world"))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


class Runs:
    """Reads and compares the folders of runs, and interrupts runs."""

    @staticmethod
    def weights(run: Path) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = torch.load(run / "last.ckpt", weights_only=True)["net"]
        assert weights
        return weights

    @staticmethod
    def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
        return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())

    @classmethod
    def of_two_processes(cls, run: Path, changes: dict[str, Any]) -> dict[str, Tensor]:
        """The weights after a run of tiny_run.py in two processes, which must agree on them."""
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TINY_RUN)]
        words = [*launch, str(run), json.dumps(changes)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        weights: list[dict[str, Tensor]] = [torch.load(run / f"rank-{n}.pt", weights_only=True) for n in (0, 1)]
        assert cls.same(*weights)
        return weights[0]

    @staticmethod
    def metrics(run: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    @staticmethod
    def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
        """Sends SIGINT, as Ctrl-C does, once the condition holds."""

        def press() -> None:
            until = time.monotonic() + 60
            while not condition() and time.monotonic() < until:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        return thread

    @classmethod
    def interrupted(cls, settings: TrainSettings, run: Path, when: Callable[[], bool] | None = None) -> None:
        """Starts a run and interrupts it after its first checkpoint, or when the condition holds; it is then half done."""
        thread = cls.interrupt_when(when or (run / "last.ckpt").exists)
        with pytest.raises(KeyboardInterrupt):
            train(settings, run, quiet=True)
        thread.join()
        saved = torch.load(run / "last.ckpt", weights_only=True)
        assert saved["stage"] < len(saved["plan"])  # something is left to do
        assert (saved["stage"], saved["epoch"], saved["step"]) > (0, 0, 0)  # and something is done


@pytest.fixture(scope="session")
def runs() -> type[Runs]:
    return Runs
