"""Everything hostile that reaches the server: the right 4xx with a sentence, and the server goes on as if nothing had happened."""

import base64
import gc
import io
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.serving.requests import Limits

Serving = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(running: Any, png: Callable[..., bytes]) -> Iterator[None]:
    """After every test the server has let go of everything, and still answers."""
    yield
    service = running.service
    deadline = time.monotonic() + 10
    while (service.running or service.served["pets"].pending) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (service.running, service.received_bytes, service.served["pets"].pending) == (0, 0, 0)
    assert running.predict(content=png(0)).status_code == 200


def sentence(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    text = response.json()["error"]
    assert isinstance(text, str)
    assert "Traceback" not in text
    return text


def bomb() -> bytes:
    """A PNG that says it has 60,000 x 60,000 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def cut_off() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((200, 200), 50).convert("RGB").save(file, "JPEG")
    return file.getvalue()[:3000]


def large_cut_off() -> bytes:
    """About 100,000 bytes of a picture of 90,000 pixels."""
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()[:100_000]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"this is not an image", "not an image in a known format"),
        (b"", "is empty"),
        (cut_off(), "damaged or cut off"),
        (bomb(), "3,600,000,000 pixels (60000x60000), more than the limit of 100,000"),
        (b"\x89PNG\r\n\x1a\n", "damaged or cut off"),
        (b"GIF89a", "damaged or cut off"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image in a known format"),
    ],
    ids=["text", "empty", "cut off", "bomb", "header only", "short gif", "svg"],
)
def test_what_is_not_a_picture_gets_422(running: Any, content: bytes, words: str) -> None:
    assert words in sentence(running.predict(files={"files": ("x.png", content)}), 422)
    assert words in sentence(running.predict(content=content, headers={"content-type": "image/png"}), 422)
    data = base64.b64encode(content).decode()
    assert words in sentence(running.predict(json={"images": [{"data": data}]}), 422)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget_macs": "nan"}, "budget_macs must be a number above 0"),
        ({"budget_macs": "inf"}, "budget_macs must be a number above 0"),
        ({"budget_macs": "-1"}, "budget_macs must be a number above 0"),
        ({"budget_macs": "1"}, "less than one glance"),
        ({"budget_macs": "much"}, "but got 'much'"),
        ({"deadline_ms": "0"}, "deadline_ms must be a number above 0"),
        ({"topk": "0"}, "topk must be a whole number from 1"),
        ({"topk": "1.5"}, "topk must be a whole number from 1"),
        ({"looks": "99"}, "looks must be a whole number from 1 to 64"),
        ({"looks": "9"}, "this network takes 1 to 3 looks, not 9"),
        ({"thresholds": "0.5"}, "needs 2 thresholds, but got 1"),
        ({"thresholds": "NaN,1"}, "thresholds must be a list of numbers"),
        ({"thresholds": "[[0.1],[0.2]]"}, "needs one threshold for each look"),
        ({"thresholds": "[" * 5000}, "thresholds must be a list of numbers"),
        ({"thresholds": ""}, "thresholds must be a list of 1 to 64 numbers"),
        ({"thresholds": "0.5,0.5", "looks": "2"}, "give thresholds, or a number of looks, or a budget"),
        ({"steps": "perhaps"}, "steps must be true or false"),
        ({"toppk": "1"}, "there is no option named 'toppk'. Did you mean 'topk'?"),
    ],
)
def test_wrong_options_get_422(running: Any, png: Callable[..., bytes], options: dict[str, str], words: str) -> None:
    files = {"files": ("x.png", png(0))}
    assert words in sentence(running.predict(files=files, params=options), 422)
    if options != {"thresholds": ""}:  # httpx leaves empty fields of a form out
        assert words in sentence(running.predict(files=files, data=options), 422)


def test_an_option_given_twice_gets_422(running: Any, png: Callable[..., bytes]) -> None:
    response = running.http.post("/predict?topk=1&topk=2", content=png(0))
    assert "topk was given twice" in sentence(response, 422)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "it is not JSON"),
        (b"[]", "must be a table"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"images": 1}', "images must be a list"),
        (b'{"images": []}', "there is no picture in the request"),
        (b'{"images": [1]}', "images[0] must be a table"),
        (b'{"images": [{}]}', "images[0] must have either data"),
        (b'{"images": [{"data": "a", "path": "b"}]}', "images[0] must have either data"),
        (b'{"images": [{"data": "%%%"}]}', "images[0].data is not base64"),
        (b'{"images": [{"data": 5}]}', "images[0].data is not base64"),
        (b'{"images": [{"data": "AAAA", "size": 5}]}', "no field in images[0] named 'size'"),
        (b'{"pictures": []}', "there is no field named 'pictures'"),
        (b'{"images": [{"data": "AAAA"}], "budget_macs": NaN}', "it has NaN where a number should be"),
        (b'{"images": [{"data": "AAAA"}], "budget_macs": 1e999}', "too large"),
        (b'{"images": [{"data": "AAAA"}], "topk": true}', "topk must be a whole number"),
        (b'{"images": [{"data": "AAAA"}], "bundle": 7}', "bundle must be a text"),
        (b'{"images": [], "images": []}', "twice"),
    ],
)
def test_broken_json_gets_422(running: Any, body: bytes, words: str) -> None:
    response = running.predict(content=body, headers={"content-type": "application/json"})
    assert words in sentence(response, 422)


@pytest.mark.parametrize(
    ("kind", "body", "status", "words"),
    [
        ("text/html", b"x", 415, "the content type 'text/html' is not supported"),
        ("application/x-www-form-urlencoded", b"a=1", 415, "is not supported"),
        ("multipart/form-data", b"x", 422, "no boundary"),
        ("multipart/form-data; boundary=b", b"x", 422, "the form cannot be read"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx", 422, "the form cannot be read"),
        ("multipart/form-data; boundary=b", b"", 422, "there is no picture in the request"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
            422,
            "form",
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="cat"; filename="a"\r\n\r\nx\r\n--b--\r\n',
            422,
            "no field for files named 'cat'",
        ),
    ],
)
def test_broken_forms_and_foreign_types_get_a_sentence(
    running: Any, kind: str, body: bytes, status: int, words: str
) -> None:
    assert words in sentence(running.predict(content=body, headers={"content-type": kind}), status)


def test_many_files_in_one_request_get_413(running: Any, png: Callable[..., bytes]) -> None:
    small = png(0, (4, 4))
    files = [("files", (f"{number}.png", b"x")) for number in range(1000)]
    assert "at most 4 pictures" in sentence(running.predict(files=files), 413)
    data = base64.b64encode(small).decode()
    assert "at most 4 pictures" in sentence(running.predict(json={"images": [{"data": data}] * 500}), 413)


def received(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of a response."""
    connection.settimeout(20)
    text = b""
    while b"\r\n\r\n" not in text or b"}" not in text:
        part = connection.recv(65536)
        if not part:
            break
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def connected(running: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=20)


def test_a_body_of_10_gb_is_refused_before_it_is_sent(running: Any) -> None:
    with connected(running) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n")
        status, answer = received(connection)
    assert status == 413
    assert "more than 200,000 bytes" in answer["error"]


def test_an_endless_body_is_refused_as_soon_as_it_is_too_large(running: Any) -> None:
    with connected(running) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        block = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(5):
            connection.sendall(block)
        status, answer = received(connection)
    assert status == 413
    assert "more than 200,000 bytes" in answer["error"]


def test_a_client_that_sends_too_slowly_gets_408(running: Any) -> None:
    with connected(running) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
        status, answer = received(connection)
    assert status == 408
    assert "within 2 seconds" in answer["error"]


@pytest.mark.parametrize(
    "beginning", [b"", b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Le"], ids=["nothing", "half a head"]
)
def test_a_connection_without_a_whole_head_of_a_request_is_closed(running: Any, beginning: bytes) -> None:
    with connected(running) as connection:
        connection.sendall(beginning)
        connection.settimeout(20)
        assert connection.recv(1000) == b""


def test_a_connection_whose_second_request_has_half_a_head_is_closed(running: Any) -> None:
    with connected(running) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /health/li")
        status, _ = received(connection)
        assert status == 200
        assert connection.recv(1000) == b""


def test_a_connection_that_goes_on_with_requests_stays_open(running: Any) -> None:
    with connected(running) as connection:  # for longer than the 2 s in which a request must be received
        for _ in range(10):
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            status, _ = received(connection)
            assert status == 200
            time.sleep(0.4)


def test_a_client_that_goes_away_while_it_sends_leaves_nothing_behind(running: Any) -> None:
    with connected(running) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")


def test_a_client_that_goes_away_before_the_answer_leaves_nothing_behind(
    running: Any, png: Callable[..., bytes]
) -> None:
    picture = png(1)
    for _ in range(5):
        with connected(running) as connection:
            connection.sendall(
                b"POST /predict?looks=3 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(picture), picture)
            )


def test_hostile_requests_leave_the_memory_as_it_was(running: Any) -> None:
    def processes() -> list[psutil.Process]:
        return [psutil.Process(), *map(psutil.Process, running.service.decoders.process_ids())]

    def memory_bytes() -> int:
        gc.collect()
        return int(sum(process.memory_info().rss for process in processes()))

    noise = np.random.default_rng(0).bytes(190_000)
    bodies = [
        (noise, "image/png", 422),
        (large_cut_off(), "image/jpeg", 422),
        (bomb() + noise[:180_000], "image/png", 422),
        (b'{"images": [{"data": "' + base64.b64encode(noise[:130_000]), "application/json", 422),
        (b"--b\r\n" + noise, "multipart/form-data; boundary=b", 422),
        (noise * 2, "image/png", 413),
    ]

    def send(rounds: int) -> None:
        for content, kind, status in bodies * rounds:
            sentence(running.predict(content=content, headers={"content-type": kind}), status)

    send(10)
    before = memory_bytes()
    send(50)  # 300 requests with 60 million bytes
    assert memory_bytes() - before < 20_000_000


@pytest.mark.parametrize("garbage", [b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_not_http_gets_400(running: Any, garbage: bytes) -> None:
    with connected(running) as connection:
        connection.sendall(garbage)
        assert b" 400 " in connection.recv(1000)


def test_hostile_names_are_answered_as_text(running: Any, png: Callable[..., bytes]) -> None:
    for name in ("../../etc/passwd", "a\nb.png", "x" * 2000, "<script>.png", "\u202egnp.exe"):
        response = running.predict(files={"files": (name, b"nothing")})
        assert len(sentence(response, 422)) < 700
        response = running.predict(files={"files": (name, png(0))})
        assert response.status_code == 200, (name[:10], response.text)
        (answer,) = response.json()
        assert "\n" not in answer["file"]
        assert len(answer["file"]) <= 500


def test_too_many_requests_at_once_get_503_and_when_to_come_back(
    serving: Serving, curved_bundle: Bundle, limits: Callable[..., Limits], png: Callable[..., bytes]
) -> None:
    with serving({"pets": curved_bundle}, limits=limits(requests=1)) as running:
        with connected(running) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
            deadline = time.monotonic() + 10
            while not running.service.running and time.monotonic() < deadline:
                time.sleep(0.01)
            response = running.predict(content=png(0))
            assert "is overloaded" in sentence(response, 503)
            assert int(response.headers["retry-after"]) >= 1
            assert running.http.get("/health/live").status_code == 200
        with serving({"pets": curved_bundle}, limits=limits(waiting=2)) as full:
            files = [("files", (f"{number}.png", png(number))) for number in range(3)]
            assert "is overloaded" in sentence(full.predict(files=files), 503)


def test_a_picture_that_takes_too_long_to_answer_gets_503(
    serving: Serving, curved_bundle: Bundle, limits: Callable[..., Limits], png: Callable[..., bytes]
) -> None:
    with serving({"pets": curved_bundle}, limits=limits(answer_s=0.0)) as running:
        assert "no answer within 0 seconds" in sentence(running.predict(content=png(0)), 503)
        assert running.service.served["pets"].pending == 0
