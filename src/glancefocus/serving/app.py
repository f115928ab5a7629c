"""The HTTP server: addresses, status codes, OpenAPI, the token, and the page. What is computed is in service.py."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import math
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import glancefocus
from glancefocus.errors import BadSetting, GlancefocusError
from glancefocus.exits.curve import accuracy_of
from glancefocus.serving import openapi
from glancefocus.serving.controller import promised_accuracy
from glancefocus.serving.requests import PICTURE, Refused, read_body, read_request
from glancefocus.serving.served import Served
from glancefocus.serving.service import Service

PAGE = Path(__file__).with_name("page.html")
OPEN_PATHS = ("/", "/health/live", "/health/ready", "/openapi.json")
"""Addresses that need no token."""


def make_app(service: Service, *, token: str | None = None, folder: Path | None = None, wait: bool = False) -> FastAPI:
    """The server for a service.

    token   requests must carry it as a bearer token; None: no token is needed
    folder  pictures in it may be named by their path; None: they may not
    wait    accept requests only once the bundles are loaded; raises what stopped loading
    """

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            if wait:
                await service.loading
                if service.failure is not None:
                    raise service.failure
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="glancefocus",
        version=glancefocus.__version__,
        description=openapi.DESCRIPTION,
        lifespan=running,
        docs_url=None,  # these pages would load scripts from other servers
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(_Gate, service=service, token=token)
    _add_errors(app, service)
    _add_predict(app, service, folder)
    _add_state(app, service)
    _add_reload(app, service, token)
    _add_page(app)
    return app


def _error(status: int, sentence: str, retry_s: float | None = None) -> JSONResponse:
    headers = {} if retry_s is None else {"Retry-After": str(int(retry_s))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": sentence}, status, headers)


class _Gate:
    """In front of everything: refuses requests without the token, and counts requests by address and status."""

    def __init__(self, app: ASGIApp, service: Service, token: str | None) -> None:
        self.app = app
        self.service = service
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        known = path if path in openapi.PATHS else "other"  # clients must not be able to add labels

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.service.metrics.requests.labels(known, message["status"]).inc()
            await send(message)

        if self.token is None or path in OPEN_PATHS or _has_token(Headers(scope=scope), self.token):
            await self.app(scope, receive, count)
        else:
            self.service.metrics.refused("token")
            refusal = _error(401, "this server needs a token. Send the header Authorization: Bearer TOKEN.")
            await refusal(scope, receive, count)


def _has_token(headers: Headers, token: str) -> bool:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _add_errors(app: FastAPI, service: Service) -> None:
    @app.exception_handler(GlancefocusError)
    async def mistake(request: Request, error: Exception) -> Response:
        refused = error if isinstance(error, Refused) else Refused(422, "request", str(error))
        if refused.reason != PICTURE:  # every such picture was counted
            service.metrics.refused(refused.reason)
        response = _error(refused.status, str(error), refused.retry_s)
        response.headers["X-Reason"] = refused.reason
        return response

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = {
            404: f"there is nothing at this address. The addresses are {', '.join(openapi.PATHS)}.",
            405: "this address does not take this method. See /openapi.json.",
        }.get(error.status_code, str(error.detail))
        response = _error(error.status_code, sentence)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: Exception) -> Response:
        service.metrics.refused("client gone")
        return Response(status_code=499)  # the client is gone; other servers log the same number


def _add_predict(app: FastAPI, service: Service, folder: Path | None) -> None:
    @app.post("/predict", openapi_extra=openapi.PREDICT, responses=openapi.PREDICT_RESPONSES)
    async def predict(request: Request) -> Response:
        """Classify one or several pictures."""
        came = time.perf_counter()
        if not service.ready and len(service.served) < len(service.bundles):
            raise Refused(503, "not ready", "the server is still loading. Try again in a few seconds.", 2)
        length = request.headers.get("content-length", "")
        size = min(int(length) if length.isdigit() else service.limits.body_bytes, service.limits.body_bytes)
        service.admit(size)
        try:
            body = await read_body(request.headers, request.stream(), service.limits)
            asked = await read_request(
                request.headers, request.query_params.multi_items(), body, service.limits, folder
            )
            del body
            answers = await _unless_gone(request, service.answer(asked, came))
        except asyncio.CancelledError:  # the server ends now
            service.dropped += 1
            raise
        finally:
            service.leave(size)
        milliseconds = 1000 * (time.perf_counter() - came)
        return JSONResponse(answers, headers={"Server-Timing": f"total;dur={milliseconds:.2f}"})


async def _unless_gone(request: Request, work: Any) -> Any:
    """The result of the work, which is cancelled if the client closes its connection."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, GlancefocusError):
            await working


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health/live", responses=openapi.LIVE_RESPONSES)
    async def live() -> dict[str, str]:
        """Whether the server runs."""
        return {"status": "live"}

    @app.get("/health/ready", responses=openapi.READY_RESPONSES)
    async def ready() -> Response:
        """Whether it can answer: its bundles are loaded and warmed up, and it is not stopping."""
        if service.answers:
            return JSONResponse({"status": "ready"})
        return _error(503, "the server is not ready: it is loading or stopping, or its computing thread has ended.", 2)

    @app.get("/metrics", responses=openapi.METRICS_RESPONSES, response_class=Response)
    async def metrics() -> Response:
        """Metrics in the format of Prometheus."""
        service.show_all()
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/info", responses=openapi.TOKEN_RESPONSES)
    async def info() -> dict[str, Any]:
        """The bundles, their classes, costs and operating points, and the limits of this server."""
        return {
            "version": glancefocus.__version__,
            "bundles": [_described(served) for served in service.served.values()],
            "limits": vars(service.limits),
            "batching": service.settings.batching,
            "latency_p99_ms": service.settings.latency_p99_ms,
        }

    @app.get("/stats", responses=openapi.TOKEN_RESPONSES)
    async def stats() -> dict[str, Any]:
        """What happened in each of the last seconds, for charts."""
        pending = sum(served.pending for served in service.served.values())
        return {"now": int(time.time()), "waiting": pending, "seconds": service.metrics.chart()}


def _add_reload(app: FastAPI, service: Service, token: str | None) -> None:
    @app.post("/reload", responses=openapi.RELOAD_RESPONSES)
    async def reload() -> dict[str, list[str]]:
        """Load the bundles from their folders again, without dropping a request. Only on servers that need a token."""
        if token is None:
            raise Refused(
                403, "reload", "only a server with a token reloads over HTTP. Send SIGHUP to its process instead."
            )
        return {"reloaded": await service.reload()}


def _described(served: Served) -> dict[str, Any]:
    bundle = served.bundle
    budget = served.controller.stopping.budget_macs
    points = [
        {"mean_macs": point["mean_macs"], "accuracy": accuracy_of(point)}
        for point in bundle.curve
        if "mean_macs" in point
    ]
    return {
        "name": served.name,
        "classes": list(bundle.classes),
        "looks": bundle.settings.looks,
        "frames": bundle.settings.frames,
        "height_px": bundle.settings.view.height_px,
        "width_px": bundle.settings.view.width_px,
        "runtime": bundle.runtime,
        "score": bundle.score,
        "look_ms": [{"fixed": 1000 * each.fixed_s, "row": 1000 * each.row_s} for each in served.times],
        "macs_after_look": list(bundle.costs.macs_after_look),
        "backbone_macs": bundle.costs.backbone_macs,
        "curve": sorted(points, key=lambda point: point["mean_macs"]),
        "budget_macs": budget,
        "accuracy": None if budget is None else promised_accuracy(bundle.curve, budget),
    }


def _add_page(app: FastAPI) -> None:
    text = PAGE.read_text(encoding="utf-8")
    # The page may run its own script and style only, and talk to this server only.
    script, style = (re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("script", "style"))
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode() + "'"
        for found in (script, style)
        if found is not None
    ]
    policy = (
        f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; img-src blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(text, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})


def open_port(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; port 0: any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise BadSetting(
            f"the server cannot listen on {host}, port {port}: {error.strerror or error}. Choose another --host or --port."
        ) from None
    return listening


class Server(uvicorn.Server):
    """uvicorn's server, which ends without an error after Ctrl-C or SIGTERM, and reloads bundles after SIGHUP.

    connections  at the same time; more are answered with 503
    stop_s       after this time connections that are still open are closed; None: the longest time that a request may take
    """

    def __init__(self, app: FastAPI, *, connections: int = 1000, stop_s: int | None = None) -> None:
        self.service: Service = app.state.service
        limits = self.service.limits
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=connections,
            timeout_graceful_shutdown=math.ceil(limits.receive_s + limits.answer_s) + 1 if stop_s is None else stop_s,
            server_header=False,
        )
        super().__init__(config)
        self.service.on_failure = self._give_up
        self._silent: dict[Any, tuple[Any, float]] = {}

    def serve_on(self, listening: socket.socket) -> None:
        """Serve until Ctrl-C or SIGTERM; then everything that was accepted is answered first. Raises what stopped loading."""
        self.run(sockets=[listening])
        if self.service.failure is not None:
            raise self.service.failure

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Any] = {signal.SIGINT: self._end, signal.SIGTERM: self._end}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda number, frame: self.service.reload_soon()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            self._close_silent(time.monotonic())
        return await super().on_tick(counter)

    def _close_silent(self, now: float) -> None:
        """Close connections on which no request has begun for longer than it may take to receive one.

        uvicorn would wait forever for the rest of a head, and refuse others when there are too many such connections.
        """
        silent = {}
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)  # of the latest request whose head has arrived
            if cycle is None or cycle.response_complete:
                latest, since = self._silent.get(connection, (None, now))
                silent[connection] = (cycle, since if latest is cycle else now)
        self._silent = silent
        for connection, (_, since) in silent.items():
            if now - since > self.service.limits.receive_s and connection.transport is not None:
                connection.transport.close()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.service.ready = False
        self.handle_exit(number, frame)

    def _give_up(self) -> None:
        self.should_exit = True
