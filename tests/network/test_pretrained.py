"""Weights that timm names: taken from the local cache, or refused within seconds with the file to fetch by hand."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch

import glancefocus as gf
from glancefocus.errors import BadSetting
from glancefocus.network import backbones as pretrained
from glancefocus.network.backbones import check_pretrained, weights_source

HUB_MODEL = "timm/test_resnet.r160_in1k"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a hub that nobody answers for."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    huggingface_hub.close_session()
    yield tmp_path / "hub"
    huggingface_hub.close_session()


@contextlib.contextmanager
def server(status: int, seen: list[str]) -> Iterator[str]:
    """An HTTP server that answers every HEAD request with this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            seen.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def test_without_a_network_the_file_to_fetch_is_named_at_once() -> None:
    page = f"{huggingface_hub.constants.ENDPOINT}/{HUB_MODEL}"
    started = time.monotonic()
    with pytest.raises(BadSetting) as caught:
        gf.create(backbone="test_resnet", classes=3, weights="pretrained")
    assert time.monotonic() - started < pretrained.SECONDS_TO_ANSWER + 2
    assert str(caught.value).startswith("the pretrained weights of test_resnet cannot be downloaded: 127.0.0.1:")
    assert (
        f"They are {HUB_MODEL}: download model.safetensors from {page} on a machine with a network and pass "
        "--weights model.safetensors"
    ) in str(caught.value)


def test_a_host_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "SECONDS_TO_ANSWER", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(BadSetting, match=r"cannot be downloaded: 127.0.0.1:\d+ (did not answer|cannot be asked)"):
            check_pretrained("test_resnet")
        assert time.monotonic() - started < 5


def test_a_hub_that_is_switched_off_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadSetting, match="cannot be downloaded: HF_HUB_OFFLINE is set. They are timm/test_resnet"):
        check_pretrained("test_resnet")


def test_the_endpoint_is_asked_for_the_very_file(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with server(302, seen) as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        check_pretrained("test_resnet")
    assert seen == [f"/{HUB_MODEL}/resolve/main/model.safetensors"]


def test_what_the_hub_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(401, []) as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        with pytest.raises(BadSetting, match="answers with status 401"):
            check_pretrained("test_resnet")


def test_a_proxy_is_asked_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with server(200, seen) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://hub.invalid")
        huggingface_hub.close_session()
        check_pretrained("test_resnet")
    assert seen == [f"http://hub.invalid/{HUB_MODEL}/resolve/main/model.safetensors"]


def test_weights_in_the_cache_are_taken_without_a_network(hub: Path) -> None:
    torch.manual_seed(3)
    weights = timm.create_model("test_resnet").state_dict()
    folder = hub / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    safetensors.torch.save_file(weights, folder / "snapshots" / "abc" / "model.safetensors")
    net = gf.create(backbone="test_resnet", classes=3, glance_px=64, patch_px=64, weights="pretrained")
    assert net.focus_encoder.backbone.fc.weight.count_nonzero() == 0  # the classes are new to it
    for encoder in (net.glance_encoder, net.focus_encoder):
        assert torch.equal(encoder.backbone.state_dict()["conv1.0.weight"], weights["conv1.0.weight"])


def test_a_backbone_without_public_weights_says_so() -> None:
    with pytest.raises(BadSetting, match="no public weights of mobilenetv3_large_125. Give a file"):
        check_pretrained("mobilenetv3_large_125")


def test_weights_outside_the_hub_are_named_by_their_address() -> None:
    source = weights_source("gcvit_tiny")
    assert source.repository is None
    assert source.url.endswith(f"/{source.file}")
    assert source.kept_file() is None
    kept = Path(torch.hub.get_dir()) / "checkpoints" / source.file
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert source.kept_file() == kept
