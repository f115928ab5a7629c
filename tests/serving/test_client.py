"""The client: the same answers as on this machine, in the order of the files; it tries again while the server is busy."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import glancefocus
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting, ServerError
from glancefocus.serving.client import Client

RunCommand = Callable[..., Any]


@contextmanager
def scripted(*responses: tuple[int, dict[str, str], Any]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these responses one after the other: its address, and the requests that came."""
    left, came = list(responses), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            came.append(self.path)
            status, headers, answer = left.pop(0)
            body = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def files(tmp_path: Path, png: Callable[..., bytes]) -> list[Path]:
    paths = [tmp_path / f"{seed}.png" for seed in range(6)]
    for seed, path in enumerate(paths):
        path.write_bytes(png(seed))
    return paths


def test_answers_come_in_the_order_of_the_files(running: Any, curved_bundle: Bundle, files: list[Path]) -> None:
    broken = files[0].with_name("broken.png")
    broken.write_bytes(b"nothing")
    sent: list[Any] = [*files, broken, files[0].with_name("missing.png"), files[0].read_bytes()]
    with glancefocus.Client(running.url, concurrency=4) as client:
        answers = client.predict(sent, topk=2)
        (single,) = client.predict(files[0], looks=2)
    assert [answer["file"] for answer in answers] == [*map(str, sent[:-1]), "the picture"]
    for answer, expected in zip(answers, curved_bundle.predict(files).answers(2), strict=False):
        assert (answer["label"], answer["looks"], answer["boxes"]) == (
            expected["label"],
            expected["looks"],
            expected["boxes"],
        )
        assert len(answer["top"]) == 2
    assert "broken.png is not an image" in answers[6]["error"]
    assert "there is no file" in answers[7]["error"]
    assert single["looks"] == 2


def test_a_wrong_option_is_an_error_not_an_answer(running: Any, files: list[Path]) -> None:
    with Client(running.url) as client:
        with pytest.raises(ServerError, match="refused the request \\(422\\): this network takes 1 to 3 looks"):
            client.predict(files[0], looks=9)
        with pytest.raises(ServerError, match="there is no bundle named 'dogs'"):
            client.predict(files[0], bundle="dogs")
        with pytest.raises(BadSetting, match="no option of a request named 'look'. Did you mean 'looks'"):
            client.predict(files[0], look=1)


def test_a_busy_server_is_asked_again(files: list[Path]) -> None:
    busy = (503, {"retry-after": "0"}, {"error": "too much to do."})
    with (
        scripted(busy, busy, (200, {}, [{"file": "", "label": "cat"}])) as (url, came),
        Client(url, concurrency=1) as client,
    ):
        assert client.predict(files[0]) == [{"file": str(files[0]), "label": "cat"}]
        assert came == ["/predict"] * 3


def test_a_request_whose_replica_has_died_is_repeated(files: list[Path]) -> None:
    died, answered = (500, {}, {}), (200, {}, [{"file": "a.png", "label": "cat"}])
    with scripted(died, answered) as (url, came), Client(url, concurrency=1) as client:
        assert client.predict(files[0]) == [{"file": str(files[0]), "label": "cat"}]
        assert came == ["/predict"] * 2


def test_a_picture_that_is_too_large_for_the_server_does_not_stop_the_others(files: list[Path]) -> None:
    large = (413, {"x-reason": "body too large"}, {"error": "the request has more than 5 bytes."})
    with (
        scripted(large, (200, {}, [{"file": "", "label": "cat"}])) as (url, _),
        Client(url, concurrency=1) as client,
    ):
        first, second = client.predict(files[:2])
    assert first == {"file": str(files[0]), "error": f"{files[0]}: the request has more than 5 bytes."}
    assert second["label"] == "cat"


def test_after_the_last_retry_the_reason_is_reported(files: list[Path]) -> None:
    busy = (503, {"retry-after": "0"}, {"error": "too much to do."})
    with (
        scripted(busy, busy) as (url, _),
        Client(url, retries=1) as client,
        pytest.raises(ServerError, match="refused the request \\(503\\): too much to do"),
    ):
        client.predict(files[0])


def test_a_server_that_is_not_there_is_reported(files: list[Path]) -> None:
    with Client("http://127.0.0.1:1", retries=0) as client, pytest.raises(ServerError, match="cannot be reached"):
        client.predict(files[0])
    with pytest.raises(BadSetting, match="begins with http"):
        Client("ftp://127.0.0.1")
    with pytest.raises(BadSetting, match="retries must be 0 or more, but got -1"):
        Client("http://127.0.0.1:1", retries=-1)


def test_gf_predict_asks_a_server(running: Any, curved_bundle: Bundle, files: list[Path], gf: RunCommand) -> None:
    folder = curved_bundle.save(files[0].parent / "bundle")
    words = [str(file) for file in files]
    there = gf("predict", f"{running.url}#pets", *words, "--json", "--topk", 2)
    here = gf("predict", folder, *words, "--json", "--topk", 2)
    for ours, theirs in zip(there, here, strict=True):
        assert ours.pop("budget_macs") == curved_bundle.costs.macs_after_look[2]
        assert ours.keys() == theirs.keys()
        for name in ("file", "label", "looks", "sure", "threshold", "boxes", "cost_macs"):
            assert ours[name] == theirs[name]

    assert "out of looks" in gf("predict", running.url, words[0], "--looks", 3)


def test_gf_predict_refuses_what_a_server_cannot_do(running: Any, files: list[Path], gf: RunCommand) -> None:
    assert "--draw is for bundles on this machine" in gf("predict", running.url, files[0], "--draw", "x", code=2)
    assert "Did you mean 'pets'" in gf("predict", f"{running.url}#pet", files[0], code=2)
