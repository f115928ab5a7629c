"""`gf serve` as a command: options, mistakes in a sentence, and a real process that is stopped under load."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.serve import ServeOptions
from glancefocus.errors import BadSetting

RunCommand = Callable[..., Any]


def test_one_bundle_needs_no_name_several_do() -> None:
    assert ServeOptions(["runs/signs/bundle"]).named() == {"default": "runs/signs/bundle"}
    assert ServeOptions(["a=x/bundle", "b=hf://user/b"]).named() == {"a": "x/bundle", "b": "hf://user/b"}
    with pytest.raises(BadSetting, match="each needs a name"):
        ServeOptions(["x/bundle", "y/bundle"])
    with pytest.raises(BadSetting, match="two bundles have the name a"):
        ServeOptions(["a=x", "a=y"])


def test_options_become_limits() -> None:
    settings = ServeOptions(["x"], max_body_mb=2, max_pictures=3, max_pixels=100, decoders=1).settings()
    limits = settings.limits
    assert (limits.body_bytes, limits.pictures, limits.pixels) == (2 << 20, 3, 100)
    assert settings.decoders == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "70000"], "--port must be a whole number from 0 to 65,535, but got 70000."),
        (["--latency-p99-ms", "nan"], "--latency-p99-ms must be a number above 0"),
        (["--max-body-mb", "0"], "--max-body-mb must be at least 1"),
        (["--token-file", "missing"], "the token in missing cannot be read: No such file or directory."),
        (["--allow-paths", "missing"], "--allow-paths must be a folder, but missing is not one."),
        (["--host", "256.1.1.1", "--port", "0"], "the server cannot listen on 256.1.1.1, port 0"),
    ],
)
def test_wrong_options_get_a_sentence(gf: RunCommand, words: list[str], sentence: str) -> None:
    assert sentence in gf("serve", "bundle", *words, code=2)


def test_a_missing_bundle_ends_the_server_with_its_sentence(gf: RunCommand, tmp_path: Path) -> None:
    printed = gf("serve", tmp_path / "none", "--port", 0, "--decoders", 1, code=2)
    assert re.search(r"gf: .*none", printed)
    assert "Traceback" not in printed


def test_a_port_that_is_taken_gets_a_sentence(gf: RunCommand) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}: Address already in use" in gf("serve", "bundle", "--port", port, code=2)


def test_sigterm_under_load_answers_everything_that_was_accepted(
    small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    folder = small_bundle(thresholds=(0.9, 0.9, 0.0)).save(tmp_path / "bundle")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)).save(tmp_path / "a.png")
    picture = (tmp_path / "a.png").read_bytes()
    words = ["serve", str(folder), "--port", "0", "--decoders", "1", "--threads", "1"]
    server = subprocess.Popen(
        [sys.executable, "-m", "glancefocus", *words], stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert server.stderr is not None
    found = re.search(r"http://[\d.:]+", server.stderr.readline())
    assert found is not None
    url = found[0]
    try:
        for _ in range(1200):
            try:
                if httpx2.get(f"{url}/health/ready").status_code == 200:
                    break
            except httpx2.TransportError:
                pass
            time.sleep(0.05)
        outcomes: list[str] = []
        enough = threading.Event()

        def ask() -> None:
            with httpx2.Client(base_url=url, timeout=60) as http:
                while True:
                    try:
                        response = http.post("/predict", content=picture)
                    except httpx2.ConnectError:
                        return  # the server does not listen any more, so nothing was accepted
                    except httpx2.TransportError as error:
                        # The server may close an idle connection just before a request is written to it.
                        outcomes.append(
                            "closed"
                            if isinstance(error, httpx2.RemoteProtocolError | httpx2.WriteError | httpx2.ReadError)
                            else repr(error)
                        )
                        return
                    outcomes.append(str(response.status_code))
                    if len(outcomes) > 20:
                        enough.set()

        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        assert enough.wait(60)
        server.send_signal(signal.SIGTERM)
        for asker in askers:
            asker.join(60)
        rest = server.stderr.read()
        assert server.wait(60) == 0, rest
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
    assert set(outcomes) <= {"200", "closed"}
    assert "everything that was accepted is answered" in rest
    assert "Traceback" not in rest
