"""The service without HTTP: replaced bundles, requests that fail in part, readiness, and retries of decoding."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadImage
from glancefocus.serving.app import Server, make_app
from glancefocus.serving.decoding import Decoded, Decoders, decode
from glancefocus.serving.requests import Asked, Limits, Upload
from glancefocus.serving.served import ServiceSettings
from glancefocus.serving.service import Service
from glancefocus.settings import NetworkSettings


class HeldDecoders(Decoders):
    """Decodes in this process, once `go` is set; a picture named "broken" fails in an unexpected way."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go = asyncio.Event()

    async def start(self) -> None:
        pass

    async def decode(self, source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int) -> Decoded:
        if name == "broken":
            raise RuntimeError("not foreseen")
        await self.go.wait()
        return decode(source, name, settings, max_pixels)


def served_by(bundle: Bundle, limits: Limits) -> Service:
    return Service({"pets": lambda: bundle}, ServiceSettings(limits=limits, full_batch=8), HeldDecoders())


async def started(bundle: Bundle, limits: Limits) -> Service:
    service = served_by(bundle, limits)
    service.start()
    await service.loading
    return service


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def asked(*pictures: tuple[str, bytes]) -> Asked:
    return Asked(tuple(Upload(name, content) for name, content in pictures))


def test_a_bundle_that_was_replaced_is_forgotten_once_its_pictures_are_answered(
    curved_bundle: Bundle, limits: Callable[..., Limits], png: Callable[..., bytes]
) -> None:
    async def check() -> None:
        service = await started(curved_bundle, limits())
        old = service.served["pets"]
        answering = asyncio.create_task(service.answer(asked(("a", png(0))), 0.0))
        await until(lambda: old.pending == 1)
        await service.reload()
        await service.reload()
        assert service._computing == [old, service.served["pets"]]
        service.decoders.go.set()  # type: ignore[attr-defined]
        assert (await answering)[0]["file"] == "a"
        assert service._computing == [service.served["pets"]]
        await service.stop()

    asyncio.run(check())


def test_after_an_unexpected_error_no_picture_of_the_request_is_worked_on(
    curved_bundle: Bundle, limits: Callable[..., Limits], png: Callable[..., bytes]
) -> None:
    async def check() -> None:
        service = await started(curved_bundle, limits())
        with pytest.raises(RuntimeError, match="not foreseen"):
            await service.answer(asked(("a", png(0)), ("broken", b""), ("c", png(1))), 0.0)
        served = service.served["pets"]
        assert (served.pending, served.decoding, served.requests) == (0, 0, 0)
        await service.stop()

    asyncio.run(check())


def test_a_server_whose_computing_thread_has_ended_is_not_ready(
    curved_bundle: Bundle, limits: Callable[..., Limits]
) -> None:
    async def check() -> None:
        service = await started(curved_bundle, limits())
        assert service.answers
        running, service._thread = service._thread, threading.Thread()
        assert not service.answers
        service._thread = running
        await service.stop()
        assert not service.answers

    asyncio.run(check())


def test_a_server_that_stops_waits_as_long_as_a_request_may_take(
    curved_bundle: Bundle, limits: Callable[..., Limits]
) -> None:
    app = make_app(served_by(curved_bundle, limits(receive_s=30.0, answer_s=60.0)))
    assert Server(app).config.timeout_graceful_shutdown == 91
    assert Server(app, stop_s=10).config.timeout_graceful_shutdown == 10


class FragileDecoders(Decoders):
    """A picture named "bad" ends the process, so everything that is in the pool at that time fails."""

    def __init__(self) -> None:
        super().__init__(1)
        self.together: list[asyncio.Future[None]] = []

    async def _run(self, function: Any, *arguments: Any) -> Any:
        name = arguments[1]
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.together.append(failed)
        await asyncio.sleep(0.001)  # others come into the pool
        if name == "bad":
            for each in self.together:
                if not each.done():
                    each.set_exception(BrokenProcessPool())
            self.together = []
        else:
            await asyncio.sleep(0.002)
        if failed.done():
            failed.result()
        failed.cancel()
        return name


def test_a_picture_that_ends_its_process_does_not_take_others_with_it(curved_bundle: Bundle) -> None:
    names = ["bad", *(f"good{number}" for number in range(6))]

    async def check() -> list[Any]:
        decoders = FragileDecoders()
        return await asyncio.gather(
            *(decoders.decode(b"", name, curved_bundle.settings, 100) for name in names), return_exceptions=True
        )

    first, *others = asyncio.run(check())
    assert isinstance(first, BadImage)
    assert others == names[1:]
