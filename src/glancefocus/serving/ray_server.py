"""The server on many machines, with Ray Serve: replicas that scale with the load, each with its own shared looks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import serve

from glancefocus.bundle.bundle import load
from glancefocus.serving.app import make_app
from glancefocus.serving.served import ServiceSettings
from glancefocus.serving.service import Service


@dataclass(frozen=True)
class Scaling:
    """How many replicas there are.

    replicas      at least
    most          at most; the same: no scaling
    busy          requests in progress at each replica, above which there will be more replicas
    cpus          CPU cores of each, for looks and decoding
    """

    replicas: int = 1
    most: int = 1
    busy: int = 8
    cpus: float = 1.0


@serve.ingress()
class Replica:
    """One replica: the whole server of app.py, without its port."""

    def __init__(
        self,
        bundles: Mapping[str, str],
        settings: ServiceSettings,
        options: Mapping[str, Any],
        token: str | None,
        folder: Path | None,
    ) -> None:
        loaders = {name: partial(load, path, **options) for name, path in bundles.items()}
        self.service = Service(loaders, settings)
        self.token, self.folder = token, folder

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self.service, token=self.token, folder=self.folder, wait=True)

    async def check_health(self) -> None:
        """Called by Ray, which replaces a replica whose bundles could not be loaded or whose thread has ended."""
        if not self.service.computes:
            raise RuntimeError("the thread that computes looks has ended")


def application(
    bundles: Mapping[str, str],
    settings: ServiceSettings | None = None,
    *,
    scaling: Scaling | None = None,
    options: Mapping[str, Any] | None = None,
    token: str | None = None,
    folder: Path | None = None,
) -> serve.Application:
    """The server as an application of Ray Serve, for `serve.run`.

    bundles  {name: folder or hub name that every machine can read}; the first one answers requests that name none
    options  of glancefocus.load, such as runtime
    """
    settings, scaling = settings or ServiceSettings(), scaling or Scaling()
    numbers: dict[str, Any] = {"num_replicas": scaling.replicas}
    if scaling.most > scaling.replicas:
        limits = {"min_replicas": scaling.replicas, "max_replicas": scaling.most}
        numbers = {"autoscaling_config": {**limits, "target_ongoing_requests": scaling.busy}}
    deployment = serve.deployment(
        Replica,
        name="glancefocus",
        max_ongoing_requests=settings.limits.requests,
        ray_actor_options={"num_cpus": scaling.cpus},
        **numbers,
    )
    paths = {name: str(Path(path).resolve()) if Path(path).is_dir() else path for name, path in bundles.items()}
    return deployment.bind(paths, settings, dict(options or {}), token, folder)


def start(app: serve.Application, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve an application on the cluster that RAY_ADDRESS names, otherwise on this machine; returns when it answers."""
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    serve.start(http_options={"host": host, "port": port})
    serve.run(app, name="glancefocus", route_prefix="/")


def stop() -> None:
    """End the application; replicas answer what they have accepted first."""
    serve.shutdown()
