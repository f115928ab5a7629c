"""`gf serve`: answers over HTTP, with looks that are shared by many requests, and a page to try it."""

import os
import signal
import sys
import threading
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glancefocus.cli.main import Flag, LightWeights, Runtime, Threads, command_options
from glancefocus.cli.printing import notice
from glancefocus.errors import BadSetting, MissingExtra
from glancefocus.values import BatchSize, Count, MaxPixels, Mebibytes, Milliseconds, MultiplyAdds, Port, Processes

if TYPE_CHECKING:
    from glancefocus.serving.served import LoadBundle, ServiceSettings

TOKEN_VARIABLE = "GLANCEFOCUS_TOKEN"


@command_options
@dataclass(frozen=True)
class ServeOptions:
    """Options of `gf serve`."""

    bundles: list[str]
    """A bundle: the folder of a trained network, or hf://user/name. Several bundles need names: cats=runs/cats/bundle
    signs=runs/signs/bundle. A request selects a bundle by its name; without a name, the first one is used."""
    _: KW_ONLY
    host: str = "127.0.0.1"
    """Address to listen on. The default accepts requests from this machine only; 0.0.0.0 accepts them from every machine that can
    reach this one."""
    port: Port = 8000
    """Port to listen on; 0: any free one."""
    token_file: Path | None = None
    """File with a token. Requests must send it as Authorization: Bearer TOKEN. Default: the token in the environment variable
    GLANCEFOCUS_TOKEN; if it is not set, no token is needed."""
    latency_p99_ms: Milliseconds | None = None
    """Latency limit for 99 of 100 pictures, in milliseconds. It turns the budget controller on: under load it switches to cheaper
    thresholds, those of the bundle's curve (thresholds for a range of budgets). If even the cheapest ones are too slow, requests
    are refused (status 503). Default: no controller; the thresholds do not depend on the load."""
    budget_macs: MultiplyAdds | None = None
    """Mean multiply-adds of a picture, for requests without budget_macs, thresholds or looks. With --latency-p99-ms this is the
    budget without load; the controller lowers it under load. Default: the thresholds that are stored in the bundle."""
    batching: Literal["look", "request"] = "look"
    """look: each look is computed for a batch of pictures from all requests, and a picture is answered as soon as it stops.
    request: a batch of pictures is finished before the next one begins (for comparison)."""
    full_batch: BatchSize = 32
    """Largest number of pictures in a batch."""
    decoders: Processes | None = None
    """Number of processes that decode pictures. Default: one for every two CPU cores, at most 4."""
    allow_paths: Path | None = None
    """A folder on this machine: requests in JSON may give the path of a picture in it. Default: paths are refused."""
    max_body_mb: Mebibytes = 32
    """Refuse requests whose body is larger than this many MiB (status 413)."""
    max_pictures: Count = 64
    """Refuse requests with more pictures than this (status 413)."""
    max_pixels: MaxPixels = 50_000_000
    """Refuse pictures with more pixels than this (status 422)."""
    max_requests: Count = 256
    """Largest number of requests at the same time; more are refused (status 503)."""
    max_waiting: Count = 1024
    """Largest number of pictures, per bundle, that wait for their answer; more are refused (status 503)."""
    ray: Flag = False
    """Serve on the machines of a Ray cluster: the one whose address is in the environment variable RAY_ADDRESS; without it, Ray is
    started on this machine. Several replicas (copies of the server) share the requests; looks are computed together for the
    requests of one replica. Every machine must be able to read the bundles."""
    replicas: Count = 1
    """With --ray: smallest number of replicas."""
    max_replicas: Count | None = None
    """With --ray: largest number of replicas; more are started when requests wait. Default: the same as --replicas."""
    runtime: Runtime = None
    light_weights: LightWeights = False
    threads: Threads = None

    def __post_init__(self) -> None:
        if self.max_body_mb < 1:
            raise BadSetting(f"--max-body-mb must be at least 1, but got {self.max_body_mb}.")
        if not self.ray and (self.replicas != 1 or self.max_replicas is not None):
            raise BadSetting("--replicas and --max-replicas are for --ray. Add it, or leave them out.")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise BadSetting(f"--max-replicas {self.max_replicas} is below --replicas {self.replicas}. Raise it.")
        self.named()

    def named(self) -> dict[str, str]:
        """{name: bundle}, in their order."""
        found: dict[str, str] = {}
        for word in self.bundles:
            name, separator, path = word.partition("=")
            if not separator:
                name, path = ("default", word) if len(self.bundles) == 1 else ("", word)
            if not name or not path:
                raise BadSetting(f"with several bundles each needs a name, such as cats=runs/cats/bundle; got {word}.")
            if name in found:
                raise BadSetting(f"two bundles have the name {name}. Give each a name of its own.")
            found[name] = path
        return found

    def loaders(self) -> dict[str, "LoadBundle"]:
        """{name: function that loads the bundle}"""
        from glancefocus.bundle.bundle import load

        return {name: partial(load, path, **self.loading()) for name, path in self.named().items()}

    def loading(self) -> dict[str, Any]:
        """The options of glancefocus.load."""
        return {
            "runtime": self.runtime,
            "threads": self.threads,
            "batch": 1 if self.runtime == "auto" else None,
            "light_weights": self.light_weights,
        }

    def settings(self) -> "ServiceSettings":
        """The settings of the service."""
        from glancefocus.serving.requests import Limits
        from glancefocus.serving.served import ServiceSettings

        return ServiceSettings(
            batching=self.batching,
            full_batch=self.full_batch,
            latency_p99_ms=self.latency_p99_ms,
            budget_macs=self.budget_macs,
            decoders=self.decoders or max(1, min(4, (os.cpu_count() or 1) // 2)),
            limits=Limits(
                body_bytes=self.max_body_mb << 20,
                pictures=self.max_pictures,
                pixels=self.max_pixels,
                requests=self.max_requests,
                waiting=self.max_waiting,
            ),
        )


def serve(options: ServeOptions) -> None:
    """Start an HTTP server: POST /predict classifies pictures, / is a page to try it, /openapi.json describes the API.

    Each look is computed for a batch of pictures from all requests. A picture is answered as soon as its score is above a
    threshold; the others take their next look in a later batch. After Ctrl-C or SIGTERM the server answers the requests that it has
    accepted, then exits. SIGHUP loads the bundles again.

    Example: gf serve runs/signs/bundle

    Example: gf serve signs=runs/signs/bundle cats=hf://user/cats --latency-p99-ms 80

    Example: gf serve runs/signs/bundle --ray --replicas 2 --max-replicas 8
    """
    try:
        from glancefocus.serving.app import Server, make_app, open_port
        from glancefocus.serving.service import Service
    except ImportError as error:
        raise MissingExtra((error.name or "fastapi").partition(".")[0], "serve") from None
    token, folder = _token(options.token_file), options.allow_paths
    if folder is not None and not folder.is_dir():
        raise BadSetting(f"--allow-paths must be a folder, but {folder} is not one.")
    if options.ray:
        _serve_on_ray(options, token)
        return
    app = make_app(Service(options.loaders(), options.settings()), token=token, folder=folder)
    with open_port(options.host, options.port) as listening:
        host, port = listening.getsockname()[:2]
        notice(f"gf: http://{f'[{host}]' if ':' in host else host}:{port} answers as soon as the bundles are loaded.")
        if token is None and host not in ("127.0.0.1", "::1"):
            notice("gf: no token is needed, and other machines may reach this address. See --token-file.")
        Server(app, connections=4 * options.max_requests).serve_on(listening)
    dropped = app.state.service.dropped
    left = "everything that was accepted is answered" if not dropped else f"{dropped} requests were not answered"
    print(f"gf: stopped; {left}.", file=sys.stderr)


def _serve_on_ray(options: ServeOptions, token: str | None) -> None:
    try:
        from glancefocus.serving.ray_server import Scaling, application, start, stop
    except ImportError as error:
        raise MissingExtra((error.name or "ray").partition(".")[0], "ray") from None
    for load in options.loaders().values():
        load()  # a mistake gets its sentence here, and not in the log of a replica
    scaling = Scaling(options.replicas, options.max_replicas or options.replicas)
    app = application(
        options.named(),
        options.settings(),
        scaling=scaling,
        options=options.loading(),
        token=token,
        folder=None if options.allow_paths is None else options.allow_paths.resolve(),
    )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    start(app, host=options.host, port=options.port)
    notice(f"gf: http://{options.host}:{options.port} answers, with {options.replicas} replicas on Ray.")
    ended.wait()
    stop()


def _token(file: Path | None) -> str | None:
    from glancefocus.machine import read_file

    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = read_file(file, 4096).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"the token in {file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if not token:
        raise BadSetting(f"{file} is empty. Write a token into it, such as 32 random characters.")
    return token
