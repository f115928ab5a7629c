"""Small real objects that several tests share."""

import importlib.util
import json
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import main
from glancefocus.look import ImageBatch, Look
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.settings import GLANCE

torch.set_num_threads(1)


def look_with(confidence: Sequence[float], number: int = 1, rows: Sequence[int] | None = None) -> Look:
    """A look at grey images whose softmax probability for class 0 of two is as given."""
    p = torch.tensor(list(confidence), dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    logits = torch.stack([p.log(), (1 - p).log()], dim=1).float()
    count = len(confidence)
    return Look(
        number=number,
        scene=ImageBatch(torch.zeros(count, 3, 8, 8)),
        rows=torch.arange(count) if rows is None else torch.tensor(list(rows)),
        logits=logits,
        vector=torch.zeros(count, 4),
        map=torch.zeros(count, 4, 1, 1),
        candidate=GLANCE if number == 1 else 0,
        memory=torch.zeros(count, 4),
    )


@pytest.fixture(name="look_with")
def look_with_fixture() -> Callable[..., Look]:
    return look_with


@pytest.fixture(scope="session")
def small_net() -> Callable[..., GlanceFocus]:
    """Makes networks of a tenth of a second: 32 px glance and patches in images of 64 px, 3 looks, 3 classes."""

    def make(**changes: Any) -> GlanceFocus:
        settings: dict[str, Any] = {
            "backbone": "test_resnet",
            "classes": 3,
            "glance_px": 32,
            "looks": 3,
            "classifier_units": 16,
            "policy": {"units": 16, "conv_channels": 4},
            "seed": 0,
        }
        if "patch_px" not in changes:
            settings["focus"] = ("32",)
        view = {"height_px": 64, "width_px": 64, **changes.pop("view", {})}
        return gf.create(**{**settings, **changes}, view=view)

    return make


@pytest.fixture(scope="session")
def small_bundle(small_net: Callable[..., GlanceFocus]) -> Callable[..., Bundle]:
    """Makes bundles around small networks."""

    def make(**changes: Any) -> Bundle:
        more = {name: changes.pop(name) for name in ("thresholds", "curve", "notes") if name in changes}
        net = small_net(**changes)
        classes = ("cat", "dog", "eel", "fox", "gnu")[: net.settings.classes]
        return Bundle(net, classes, count_costs(net.settings), **more)

    return make


@pytest.fixture(scope="session")
def official() -> types.ModuleType:
    """tests/official/made_checkpoints.py: checkpoints as the paper's authors released them, with made-up weights."""
    path = Path(__file__).parent / "official" / "made_checkpoints.py"
    spec = importlib.util.spec_from_file_location("made_checkpoints", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def make_video() -> Callable[..., Path]:
    """Writes small videos: frame i is grey of brightness 8 x i, with a red square in its upper left corner."""

    def make(
        path: Path,
        *,
        frames: int = 30,
        codec: str = "libx264",
        pixels: str = "yuv420p",
        size: tuple[int, int] = (64, 48),
        turned: int | None = None,
        times: Sequence[int] | None = None,
        **options: str,
    ) -> Path:
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=10, options=options)
            stream.width, stream.height = size
            stream.pix_fmt = pixels
            if turned is not None:
                stream.set_display_rotation(turned)
            for number in range(frames):
                pixel = np.full((size[1], size[0], 3), 8 * number % 256, dtype=np.uint8)
                pixel[:16, :16] = (255, 0, 0)
                frame = av.VideoFrame.from_ndarray(pixel, format="rgb24")
                frame.pts = number if times is None else times[number]
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return make


@pytest.fixture(name="gf")
def gf_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command; what it printed as JSON where --json was asked for, else as text. Any other exit code is a failure."""

    def run(*words: object, code: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert ended.value.code == code, out + err
        if code != 0:
            assert out == ""
            return " ".join(err.split())
        return json.loads(out) if "--json" in words else " ".join(out.split())

    return run


@pytest.fixture
def large_pictures(tmp_path: Path, small_is_large: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two classes of eight pyramids each, of different sizes, which are large here, also for training."""
    pyvips = pytest.importorskip("pyvips")
    monkeypatch.setattr("glancefocus.data.large._LEAST_BYTES", 1)
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(8):
            coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
            pixels = np.asarray(coarse.resize((400 + 10 * number, 300), Image.Resampling.BICUBIC))
            pyvips.Image.new_from_array(pixels).tiffsave(
                str(tmp_path / "data" / label / f"{number}.tif"), tile=True, tile_width=64, tile_height=64, pyramid=True
            )
    return tmp_path / "data"


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pictures of more than 10,000 pixels are read part by part, those of more than 60,000 from tiles, in an own cache."""
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("glancefocus.data.images.SMALL_BYTES", 0)
    monkeypatch.setattr("glancefocus.data.large.LARGE_PIXELS", 10_000)
    monkeypatch.setattr("glancefocus.data.file_scene.LARGE_PIXELS", 10_000)
    monkeypatch.setattr("glancefocus.data.large.HELD_PIXELS", 60_000)
