"""Bundles on the hub: published and fetched through its real client, against a server of this machine that stands in for it."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image

import glancefocus as gf
from glancefocus.bundle import sharing as hub_module
from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.files import is_hub_name
from glancefocus.bundle.sharing import HubName, hub_name
from glancefocus.data.split_record import DIGEST_DIGITS, Content, RecordedFile, SplitRecord
from glancefocus.errors import BadBundle, BadSetting

# Of the hub's own client, when it uploads a file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TOKEN = "hf_secret"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A hub of this machine, with an empty cache for what is fetched from it."""
    spec = importlib.util.spec_from_file_location("hub_server", Path(__file__).with_name("hub_server.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.Hub().serving() as serving:
        monkeypatch.setattr(constants, "ENDPOINT", serving.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", serving.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield serving


@pytest.fixture
def published(hub: Any, small_bundle: Callable[..., Bundle]) -> Any:
    bundle = small_bundle()
    bundle.thresholds = (0.4, 0.4, 0.0)
    assert bundle.push_to_hub("anna/birds", token=TOKEN) == f"{hub.address}/anna/birds"
    return hub


def images() -> torch.Tensor:
    return torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_a_published_bundle_answers_as_it_did(published: Any, small_bundle: Callable[..., Bundle]) -> None:
    assert sorted(published.files["anna/birds"]["main"]) == ["README.md", "bundle.json", "model.safetensors"]
    assert "anna/birds" not in published.private
    bundle, own = gf.load("hf://anna/birds", device="cpu"), small_bundle()
    assert bundle.thresholds == (0.4, 0.4, 0.0)
    assert bundle.fingerprint == own.fingerprint
    torch.testing.assert_close(bundle.predict(images(), looks=2).logits, own.predict(images(), looks=2).logits)


def test_the_record_of_the_split_is_published_unless_it_is_left_out(
    hub: Any, small_bundle: Callable[..., Bundle]
) -> None:
    bundle = small_bundle()
    files = [RecordedFile("train", "cat/1.jpg", 0, Content(3, "0" * DIGEST_DIGITS))]
    bundle.split = SplitRecord.of("photos", bundle.classes, files, val_share=None, seed=0)
    bundle.push_to_hub("anna/open", token=TOKEN)
    found = gf.load("hf://anna/open", device="cpu").split
    assert found is not None
    assert list(found.files()) == files
    bundle.push_to_hub("anna/closed", token=TOKEN, split=False)
    assert gf.load("hf://anna/closed", device="cpu").split is None


def test_only_files_of_a_bundle_are_fetched(published: Any) -> None:
    published.files["anna/birds"]["main"] |= {"evil.py": b"import os", "model.pkl": b"...", "sub/x.bin": b"..."}
    gf.load("hf://anna/birds", device="cpu")
    fetched = {request.rpartition("/")[2] for request in published.requests if request.startswith("GET")}
    assert fetched == {"bundle.json", "model.safetensors"}


def test_a_revision_is_fetched_by_its_name(published: Any) -> None:
    files = published.files["anna/birds"]
    older = dict(files["main"])
    plain = json.loads(older["bundle.json"])
    older["bundle.json"] = json.dumps(plain | {"thresholds": [0.9, 0.9, 0.0]}).encode()
    files["v1"] = older
    assert gf.load("hf://anna/birds@v1", device="cpu").thresholds == (0.9, 0.9, 0.0)
    assert gf.load("hf://anna/birds", device="cpu").thresholds == (0.4, 0.4, 0.0)
    assert gf.load(f"hf://anna/birds@{published.commit_of('anna/birds', 'v1')}", device="cpu").thresholds == (
        0.9,
        0.9,
        0.0,
    )
    with pytest.raises(BadBundle, match="has no branch, tag or commit named 'v2'"):
        gf.load("hf://anna/birds@v2")


def test_what_was_fetched_is_there_without_a_network(published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gf.load("hf://anna/birds", device="cpu")
    before = len(published.requests)
    gf.load("hf://anna/birds", device="cpu")
    assert all(request.startswith("HEAD") for request in published.requests[before:])  # nothing is fetched twice
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        assert gf.load("hf://anna/birds", device="cpu").thresholds == (0.4, 0.4, 0.0)
    published.broken = True
    assert gf.load("hf://anna/birds", device="cpu").thresholds == (0.4, 0.4, 0.0)


def test_without_a_network_a_sentence_comes_within_seconds(
    hub: Any, monkeypatch: pytest.MonkeyPatch, small_bundle: Callable[..., Bundle]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"  # where nothing listens
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        started = time.monotonic()
        with pytest.raises(BadBundle, match="does not answer, and there is no copy on this machine. Check the network"):
            gf.load("hf://anna/birds")
        assert time.monotonic() - started < 10  # a fraction of a second; the hub's client alone would try for 45
        with pytest.raises(BadBundle, match="hf://anna/birds cannot be published: "):
            small_bundle().push_to_hub("anna/birds", token=TOKEN)


def test_a_hub_that_does_not_answer_is_waited_for_a_few_seconds(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "ANSWER_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        with pytest.raises(BadBundle, match="does not answer, and there is no copy"):
            gf.load("hf://anna/birds")


def test_what_is_not_there_or_not_allowed_is_reported(
    published: Any, small_bundle: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        BadBundle, match="there is no anna/bird on .*, or it is private. Check the name; if it is private"
    ):
        gf.load("hf://anna/bird")
    published.files["anna/text"] = {"main": {"README.md": b"# a model of words"}}
    with pytest.raises(BadBundle, match="hf://anna/text is not a bundle of glancefocus: bundle.json or model.safeten"):
        gf.load("hf://anna/text")
    published.gated.add("anna/birds")
    with pytest.raises(BadBundle, match="access to .* is restricted. Ask for it at http.*anna/birds, then log"):
        gf.load("hf://anna/birds")
    with pytest.raises(
        BadBundle, match="cannot be published: .* does not allow it .status 401.. You may need another tok"
    ):
        small_bundle().push_to_hub("anna/others", token="hf_wrong")


def test_private_bundles_need_the_token(
    hub: Any, small_bundle: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_bundle().push_to_hub("hf://anna/secret", private=True, token=TOKEN)
    assert hub.private == {"anna/secret"}
    with pytest.raises(BadBundle, match="there is no anna/secret on .*, or it is private"):
        gf.load("hf://anna/secret")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    gf.load("hf://anna/secret", device="cpu")
    small_bundle().push_to_hub("anna/secret")  # once more into the same place, with the token of the environment


@pytest.mark.parametrize("file", ["bundle.json", "model.safetensors"])
@pytest.mark.parametrize("size", [10**12, None])
def test_files_that_are_too_large_are_not_fetched(published: Any, file: str, size: int | None) -> None:
    published.sizes[file] = size
    words = "unknown size" if size is None else "1,000,000,000,000 bytes"
    with pytest.raises(BadBundle, match=f"{file} of hf://anna/birds has {words}; at most"):
        gf.load("hf://anna/birds")
    assert not any(request.startswith("GET") for request in published.requests)


def test_a_damaged_bundle_is_refused(published: Any) -> None:
    published.files["anna/birds"]["main"]["bundle.json"] = b"[]"
    with pytest.raises(BadBundle, match="is not the settings of a bundle"):
        gf.load("hf://anna/birds")


def test_names_are_taken_apart() -> None:
    assert hub_name("hf://anna/birds") == HubName("anna/birds")
    assert hub_name("anna/birds") == HubName("anna/birds")
    assert hub_name(str(Path("hf://anna/birds@v1"))) == HubName("anna/birds", "v1")
    assert is_hub_name("hf://x")
    assert is_hub_name(Path("hf://anna/birds"))
    assert not is_hub_name("runs/hf/bundle")
    for name in (
        "hf://birds",
        "hf://anna/birds/more",
        "hf://anna/birds@",
        "hf://../birds",
        "hf://anna/bi rds",
        "hf://",
    ):
        with pytest.raises(BadSetting, match="does not name a bundle on the hub. Write hf://user/name"):
            hub_name(name)
    with pytest.raises(BadSetting, match="published to a repository's main branch. Leave @v1 out"):
        hub_module.publish(None, HubName("anna/birds", "v1"))  # type: ignore[arg-type]


def test_the_command_takes_a_name_of_the_hub(published: Any, tmp_path: Path) -> None:
    """In a process of its own, which finds the hub by HF_ENDPOINT as users set it."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "home").mkdir()
    changes = {"HF_ENDPOINT": published.address, "HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "-m", "glancefocus.cli.main", *words]
        return subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True, check=False)

    done = run("predict", "hf://anna/birds", str(tmp_path / "a.png"), "--json")
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["label"] in ("cat", "dog", "eel")


def test_a_bundle_on_the_hub_is_not_changed(gf: Callable[..., str]) -> None:
    printed = gf("budget", "hf://anna/birds", "signs", "--macs", "1e6", code=2)
    assert (
        "hf://anna/birds is on the hub and cannot be changed from here. Copy it to a folder first: hf download"
        in printed
    )
