"""The HTTP server: pictures in every form, options, several bundles, tokens, paths, reloading, stopping."""

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.serving.decoding import Decoders
from glancefocus.serving.requests import Limits

Serving = Callable[..., AbstractContextManager[Any]]


def offline(bundle: Bundle, picture: bytes, topk: int = 1, **options: Any) -> dict[str, Any]:
    (answer,) = bundle.predict(picture, **options).answers(topk)
    return answer


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """All fields of `gf predict --json`; numbers up to rounding."""
    for name in ("label", "looks", "sure", "threshold", "boxes", "patch_px", "views", "cost_macs", "notes"):
        assert ours[name] == theirs[name]
    assert ours["confidence"] == pytest.approx(theirs["confidence"], abs=1e-5)
    assert [one["label"] for one in ours["top"]] == [one["label"] for one in theirs["top"]]


def test_a_picture_gets_the_same_answer_in_every_form(
    running: Any, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    picture = png(1)
    expected = offline(curved_bundle, picture)
    data = base64.b64encode(picture).decode()
    responses = [
        running.predict(files={"files": ("cat.png", picture)}),
        running.predict(files={"image": ("cat.png", picture)}),
        running.predict(content=picture, headers={"content-type": "image/png"}),
        running.predict(content=picture),
        running.predict(json={"images": [{"data": data, "name": "cat.png"}]}),
    ]
    for response in responses:
        assert response.status_code == 200, response.text
        (answer,) = response.json()
        assert_same(answer, expected)
        assert answer["budget_macs"] == curved_bundle.costs.macs_after_look[2]  # the point with the bundle's thresholds
    assert [response.json()[0]["file"] for response in responses] == ["cat.png"] * 2 + ["the picture"] * 2 + ["cat.png"]


def test_options_come_in_the_address_in_a_form_or_in_json(
    running: Any, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    picture = png(2)
    glance_macs = curved_bundle.costs.macs_after_look[0]
    files = {"files": ("a.png", picture)}
    for options, text in (
        ({"looks": 2}, {"looks": "2"}),
        ({"thresholds": [1.0, -1.0]}, {"thresholds": "1.0,-1.0"}),
        ({"budget_macs": float(glance_macs)}, {"budget_macs": str(glance_macs)}),
    ):
        expected = offline(curved_bundle, picture, **options)
        data = {"images": [{"data": base64.b64encode(picture).decode()}], **options}
        for response in (
            running.predict(files=files, params=text),
            running.predict(files=files, data=text),
            running.predict(json=data),
        ):
            assert response.status_code == 200, response.text
            assert_same(response.json()[0], expected)


def test_topk_and_steps_add_what_they_say(running: Any, png: Callable[..., bytes]) -> None:
    options = {"topk": 3, "steps": "true", "looks": 3}
    (answer,) = running.predict(content=png(3), params=options).json()
    assert len(answer["top"]) == 3
    assert len(answer["steps"]) == 3
    assert answer["steps"][-1] == {"label": answer["label"], "confidence": answer["confidence"]}


def test_several_pictures_are_answered_in_their_order_and_a_broken_one_says_so(
    running: Any, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    files = [("files", ("a.png", png(4))), ("files", ("broken.png", b"nonsense")), ("files", ("b.png", png(5)))]
    answers = running.predict(files=files).json()
    assert [answer["file"] for answer in answers] == ["a.png", "broken.png", "b.png"]
    assert_same(answers[0], offline(curved_bundle, png(4)))
    assert_same(answers[2], offline(curved_bundle, png(5)))
    assert answers[1] == {
        "file": "broken.png",
        "error": "broken.png is not an image in a known format. Convert it to JPEG, PNG, WebP or TIFF.",
    }


def test_many_requests_at_once_get_the_answers_of_predict(
    running: Any, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    pictures = [png(seed) for seed in range(24)]
    with ThreadPoolExecutor(12) as threads:
        responses = list(threads.map(lambda picture: running.predict(content=picture), pictures))
    for picture, response in zip(pictures, responses, strict=True):
        assert response.status_code == 200
        assert_same(response.json()[0], offline(curved_bundle, picture))


def test_a_deadline_is_kept_by_answering_after_the_glance(running: Any, png: Callable[..., bytes]) -> None:
    (answer,) = running.predict(content=png(6), params={"deadline_ms": "0.001", "looks": 3}).json()
    assert answer["looks"] == 1
    assert not answer["sure"]


def test_health_info_and_metrics_tell_the_state(running: Any, curved_bundle: Bundle, png: Callable[..., bytes]) -> None:
    assert running.http.get("/health/live").json() == {"status": "live"}
    assert running.http.get("/health/ready").json() == {"status": "ready"}
    running.predict(content=png(7), params={"looks": 2})
    (bundle,) = running.http.get("/info").json()["bundles"]
    assert bundle["name"] == "pets"
    assert bundle["classes"] == list(curved_bundle.classes)
    assert bundle["accuracy"] == 0.9
    assert [point["accuracy"] for point in bundle["curve"]] == [0.5, 0.7, 0.9]
    text = running.http.get("/metrics").text
    assert 'glancefocus_exits_total{bundle="pets",look="2"}' in text
    assert 'glancefocus_batch_rows_count{bundle="pets",look="1"}' in text
    assert 'glancefocus_waiting{bundle="pets"} 0.0' in text
    assert 'glancefocus_requests_total{path="/predict",status="200"}' in text
    seconds = running.http.get("/stats").json()["seconds"]
    assert sum(second["exits"].get("2", 0) for second in seconds) >= 1


def test_a_picture_that_cannot_be_read_is_counted_once(running: Any) -> None:
    def counted() -> float:
        lines = running.http.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[1]) for line in lines if line.startswith('glancefocus_errors_total{reason="picture"')
        )

    before = counted()
    assert running.predict(content=b"nonsense").status_code == 422
    assert counted() == before + 1


def test_the_description_names_every_address(running: Any) -> None:
    described = running.http.get("/openapi.json").json()
    assert set(described["paths"]) == {
        *("/predict", "/info", "/stats", "/metrics", "/health/live", "/health/ready", "/reload")
    }
    predict = described["paths"]["/predict"]["post"]
    assert predict["responses"]["200"]["content"]["application/json"]["example"][0]["looks"] == 2
    assert {"multipart/form-data", "application/json"} <= set(predict["requestBody"]["content"])


def test_unknown_addresses_and_methods_get_a_sentence(running: Any) -> None:
    response = running.http.get("/predictions")
    assert response.status_code == 404
    assert "there is nothing at this address" in response.json()["error"]
    response = running.http.get("/predict")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


def test_bundles_have_names(serving: Serving, small_bundle: Callable[..., Bundle], png: Callable[..., bytes]) -> None:
    first, second = small_bundle(thresholds=(0.9, 0.9, 0.0)), small_bundle(classes=5, seed=7)
    with serving({"small": first, "large": second}) as running:
        picture = png(8)
        assert_same(running.predict(content=picture).json()[0], offline(first, picture))
        answer = running.predict(content=picture, params={"bundle": "large"}).json()[0]
        assert_same(answer, offline(second, picture))
        response = running.predict(content=picture, params={"bundle": "largr"})
        assert response.status_code == 404
        assert response.json()["error"] == (
            "there is no bundle named 'largr'. Did you mean 'large'? This server has small, large."
        )


def test_a_server_with_a_token_refuses_everybody_else(
    serving: Serving, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    with serving({"pets": curved_bundle}, token="geheim") as running:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic geheim"}):
            response = running.http.post("/predict", content=png(9), headers=headers)
            assert response.status_code == 401
            assert "needs a token" in response.json()["error"]
            assert running.http.get("/metrics", headers=headers).status_code == 401
        right = {"authorization": "Bearer geheim"}
        assert running.http.post("/predict", content=png(9), headers=right).status_code == 200
        assert running.http.get("/health/ready").status_code == 200
        assert running.http.post("/reload").status_code == 401
        assert running.http.post("/reload", headers=right).json() == {"reloaded": ["pets"]}


def test_without_a_token_nobody_reloads_over_http(running: Any) -> None:
    response = running.http.post("/reload")
    assert response.status_code == 403
    assert "SIGHUP" in response.json()["error"]


def test_paths_are_read_inside_the_allowed_folder_only(
    serving: Serving, curved_bundle: Bundle, png: Callable[..., bytes], tmp_path: Path, running: Any
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.png").write_bytes(png(10))
    (tmp_path / "secret.png").write_bytes(png(11))
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    with serving({"pets": curved_bundle}, folder=inside) as allowed:
        (answer,) = allowed.predict(json={"images": [{"path": "a.png"}]}).json()
        assert_same(answer, offline(curved_bundle, png(10)))
        for path in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "/etc/passwd", "a\x00b"):
            response = allowed.predict(json={"images": [{"path": path}]})
            assert response.status_code == 403, path
            assert "is not in the folder" in response.json()["error"]
        assert allowed.predict(json={"images": [{"path": "none.png"}]}).status_code == 422
    response = running.predict(json={"images": [{"path": "a.png"}]})
    assert response.status_code == 403
    assert "does not read files by their path" in response.json()["error"]


def test_reloading_drops_no_request_and_the_new_bundle_answers(
    serving: Serving, small_bundle: Callable[..., Bundle], png: Callable[..., bytes]
) -> None:
    old, new = small_bundle(thresholds=(1.0, 1.0, 0.0)), small_bundle(thresholds=(-1.0, -1.0, 0.0))
    with serving({"pets": old}) as running:

        def ask(seed: int) -> list[int]:
            looks: list[int] = []
            while 1 not in looks and len(looks) < 10_000:
                response = running.predict(content=png(seed))
                assert response.status_code == 200
                looks.append(response.json()[0]["looks"])
            return looks

        with ThreadPoolExecutor(3) as threads:
            asking = [threads.submit(ask, seed) for seed in range(3)]
            running.service.bundles["pets"] = lambda: new
            running.service.reload_soon()
            for looks in (one.result() for one in asking):
                assert set(looks[:-1]) <= {3}  # 3 looks with the old thresholds, 1 with the new ones
                assert looks[-1] == 1
        assert running.service.served["pets"].bundle is new


def test_everything_that_was_accepted_is_answered_when_the_server_stops(
    serving: Serving, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    with serving({"pets": curved_bundle}) as running, ThreadPoolExecutor(16) as threads:
        asking = [threads.submit(running.predict, content=png(seed), params={"looks": 3}) for seed in range(16)]
        while running.service.served["pets"].pending < 4 and not all(one.done() for one in asking):
            time.sleep(0.001)
        running.service.ready = False
        running.server.should_exit = True
        answered = refused = 0
        for one in asking:
            try:
                answered += one.result().status_code == 200
            except httpx2.ConnectError:  # it came after the server had stopped to listen
                refused += 1
        assert answered + refused == 16
        assert answered >= 4


def test_a_killed_decoding_process_is_replaced(
    serving: Serving, curved_bundle: Bundle, png: Callable[..., bytes]
) -> None:
    with serving({"pets": curved_bundle}) as running:
        (before,) = running.service.decoders.process_ids()
        os.kill(before, signal.SIGKILL)
        response = running.predict(content=png(12))
        assert response.status_code == 200
        assert_same(response.json()[0], offline(curved_bundle, png(12)))
        (after,) = running.service.decoders.process_ids()
        assert after != before
        assert running.service.decoders.restarts == 1


def test_a_look_that_fails_is_answered_with_503_and_the_server_goes_on(
    serving: Serving, small_bundle: Callable[..., Bundle], png: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = small_bundle(thresholds=(0.9, 0.9, 0.0))
    with serving({"pets": bundle}) as running:
        glance = type(bundle.net).glance

        def fail(self: Any, scene: Any) -> Any:
            raise RuntimeError("no memory left")

        monkeypatch.setattr(type(bundle.net), "glance", fail)
        response = running.predict(content=png(13))
        assert response.status_code == 503
        assert response.json()["error"] == "a look could not be computed. Try again later."
        monkeypatch.setattr(type(bundle.net), "glance", glance)
        assert running.predict(content=png(13)).status_code == 200


def test_answers_that_are_not_numbers_are_answered_with_503(
    serving: Serving, small_bundle: Callable[..., Bundle], png: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = small_bundle(thresholds=(0.9, 0.9, 0.0))
    with serving({"pets": bundle}) as running:
        glance = type(bundle.net).glance

        def broken(self: Any, scene: Any) -> Any:
            look = glance(self, scene)
            return replace(look, logits=look.logits * float("nan"), known_best=None)

        monkeypatch.setattr(type(bundle.net), "glance", broken)
        response = running.predict(content=png(13), params={"looks": 1})
        assert response.status_code == 503
        assert "the network's answers are NaN or infinite" in response.json()["error"]
        assert running.service.served["pets"].pending == 0


def test_a_picture_that_takes_too_long_to_decode_is_refused_and_the_next_one_answered(
    serving: Serving, curved_bundle: Bundle, png: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glancefocus.serving.decoding.ATTEMPTS", 1)  # a process takes seconds to start
    decoders = Decoders(1, timeout_s=1e-6)
    try:
        with serving({"pets": curved_bundle}, decoders=decoders) as running:
            response = running.predict(content=png(14, (200, 200)))
            assert response.status_code == 422
            assert "could not be decoded: it took longer than 1e-06 seconds" in response.json()["error"]
            assert decoders.restarts == 1
            decoders.timeout_s = 15.0
            assert running.predict(content=png(14)).status_code == 200
    finally:
        decoders.close()


def test_the_page_may_run_its_own_script_only(running: Any) -> None:
    response = running.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "//" not in response.headers["content-security-policy"]


def test_limits_are_part_of_the_information(running: Any, limits: Callable[..., Limits]) -> None:
    assert running.http.get("/info").json()["limits"] == json.loads(json.dumps(vars(limits())))
