"""A real server in a thread of the tests, on a free port of this machine."""

import atexit
import functools
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.serving.app import Server, make_app, open_port
from glancefocus.serving.decoding import Decoders
from glancefocus.serving.requests import Limits
from glancefocus.serving.served import ServiceSettings
from glancefocus.serving.service import Service

SMALL_LIMITS = Limits(body_bytes=200_000, pictures=4, pixels=100_000, requests=32, waiting=64, receive_s=2.0)
CURVE = [
    {"thresholds": [-1.0, -1.0, 0.0], "mean_macs": 0.0, "accuracy": 0.5},
    {"thresholds": [0.5, -1.0, 0.0], "mean_macs": 0.0, "accuracy": 0.7},
    {"thresholds": [0.9, 0.9, 0.0], "mean_macs": 0.0, "accuracy": 0.9},
]


@dataclass
class Running:
    """A server that answers."""

    url: str
    port: int
    service: Service
    server: Server
    http: httpx2.Client

    def predict(self, **content: Any) -> httpx2.Response:
        return self.http.post("/predict", **content)


@functools.cache
def shared_decoders() -> Decoders:
    """One process for all servers: it takes seconds to start."""
    decoders = Decoders(1)
    atexit.register(decoders.close)
    return decoders


@contextmanager
def serve(
    bundles: dict[str, Bundle],
    *,
    token: str | None = None,
    folder: Path | None = None,
    limits: Limits = SMALL_LIMITS,
    decoders: Decoders | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve these bundles until the block ends; what was accepted is answered then."""
    loaders = {name: (lambda bundle=bundle: bundle) for name, bundle in bundles.items()}
    service = Service(loaders, ServiceSettings(limits=limits, full_batch=8, **settings), decoders or shared_decoders())
    server = Server(make_app(service, token=token, folder=folder), stop_s=10)
    listening = open_port("127.0.0.1", 0)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.serve_on, args=(listening,))
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx2.Client(base_url=url, timeout=30) as http:
            for _ in range(600):
                if service.ready or service.failure:
                    break
                time.sleep(0.05)
            assert service.ready, service.failure
            yield Running(url, port, service, server, http)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive()


@pytest.fixture(scope="session", name="serving")
def serving_fixture() -> Callable[..., AbstractContextManager[Running]]:
    return serve


def png(seed: int = 0, size: tuple[int, int] = (90, 70)) -> bytes:
    """A picture of noise of some brightness, as a file."""
    generator = np.random.default_rng(seed)
    bright, contrast = generator.random(2)
    pixels = 255 * (bright + contrast * (generator.random((size[1], size[0], 3)) - bright))
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session", name="png")
def png_fixture() -> Callable[..., bytes]:
    return png


@pytest.fixture(scope="session")
def curved_bundle(small_bundle: Callable[..., Bundle]) -> Bundle:
    """A bundle with a curve of three points: all stop at the glance; some; most take every look."""
    bundle = small_bundle(thresholds=(0.9, 0.9, 0.0))
    costs = bundle.costs.macs_after_look
    bundle.curve = [{**point, "mean_macs": float(cost)} for point, cost in zip(CURVE, costs, strict=True)]  # type: ignore[typeddict-item]
    return bundle


@pytest.fixture(scope="module")
def running(curved_bundle: Bundle) -> Iterator[Running]:
    """A server with one bundle, for all tests of a module that do not change it."""
    with serve({"pets": curved_bundle}) as found:
        yield found


@pytest.fixture(scope="session")
def limits() -> Callable[..., Limits]:
    return lambda **changes: replace(SMALL_LIMITS, **changes)
