"""A client of `gf serve`: sends files in several requests at once, tries again when the server is busy, and keeps their order."""

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glancefocus.errors import BadImage, BadSetting, ServerError, UnknownName
from glancefocus.machine import read_file
from glancefocus.values import Answer, Count, checked, shortened

if TYPE_CHECKING:
    import httpx2

OPTIONS = ("bundle", "topk", "budget_macs", "deadline_ms", "thresholds", "looks", "steps")
"""Options of a request, beside its pictures."""
_MOST_BYTES = 1 << 30
_PICTURE_REASONS = ("picture", "body too large")
_LONGEST_WAIT_S = 30.0
_ABOUT_PICTURES = (413, 422)  # too large, or not a picture; 422 may also be about the options
_RETRIED = (408, 429, 500, 502, 503, 504)  # 500: what the proxy of Ray answers if a replica dies


class Client:
    """Classifies pictures on a server.

    url          address of the server, such as http://127.0.0.1:8000
    token        the server's token, if it needs one
    concurrency  requests at the same time
    retries      how often a request is sent again if the server is busy or cannot be reached
    timeout_s    for one request

    import glancefocus as gf
    answers = gf.Client("http://127.0.0.1:8000").predict(["a.jpg", "b.jpg"])
    """

    def __init__(
        self, url: str, *, token: str | None = None, concurrency: int = 8, retries: int = 5, timeout_s: float = 120.0
    ) -> None:
        import httpx2

        if not url.startswith(("http://", "https://")):
            raise BadSetting(f"the address of a server begins with http:// or https://, but got {shortened(url)!r}.")
        self.url = url.rstrip("/")
        self.concurrency = checked(Count, concurrency, "concurrency")
        if retries < 0:
            raise BadSetting(f"retries must be 0 or more, but got {retries}.")
        self.retries = retries
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._http = httpx2.Client(headers=headers, timeout=timeout_s, limits=limits)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def info(self) -> dict[str, Any]:
        """The bundles and limits of the server."""
        found: dict[str, Any] = self._sent("GET", "/info").json()
        return found

    def predict(self, pictures: str | Path | bytes | Sequence[str | Path | bytes], **options: Any) -> list[Answer]:
        """The answers for files, or for the bytes of files, in their order, as `gf predict --json` gives them.

        A picture that cannot be read has the fields file and error instead.

        options  bundle, topk, budget_macs, deadline_ms, thresholds, looks, steps; see docs/serve.md
        """
        single = isinstance(pictures, (str, Path, bytes))
        return list(self.predict_stream([pictures] if single else pictures, **options))  # type: ignore[list-item, arg-type]

    def predict_stream(self, pictures: Iterable[str | Path | bytes], **options: Any) -> Iterator[Answer]:
        """The same, one by one as they arrive, for any number of files."""
        query = _query(options)
        threads = ThreadPoolExecutor(self.concurrency)
        try:
            sent: deque[Future[Answer]] = deque()
            for picture in pictures:
                sent.append(threads.submit(self._answer, picture, query))
                if len(sent) >= 2 * self.concurrency:
                    yield sent.popleft().result()
            while sent:
                yield sent.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)  # after an error the others are not sent any more

    def _answer(self, picture: str | Path | bytes, query: dict[str, str]) -> Answer:
        name = "the picture" if isinstance(picture, bytes) else str(picture)
        try:
            content = picture if isinstance(picture, bytes) else _content(Path(picture))
        except BadImage as error:
            return {"file": name, "error": str(error)}
        response = self._sent("POST", "/predict", params=query, files={"files": (Path(name).name, content)})
        if response.status_code in _ABOUT_PICTURES:
            return {"file": name, "error": f"{name}: {_sentence(response)}"}
        (answer,) = response.json()
        return {**answer, "file": name}

    def _sent(self, method: str, path: str, **content: Any) -> "httpx2.Response":
        """The response; requests are repeated while the server is busy. Raises ServerError, except for pictures (413, 422)."""
        import httpx2

        for attempt in range(self.retries + 1):
            try:
                response = self._http.request(method, self.url + path, **content)
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                problem = (
                    f"the server {self.url} cannot be reached: {error or type(error).__name__}. Is `gf serve` running?"
                )
                wait_s = 0.1 * 2**attempt
            else:
                if response.status_code in _ABOUT_PICTURES and response.headers.get("x-reason") in _PICTURE_REASONS:
                    return response
                if response.status_code < 400:
                    return response
                problem = f"the server {self.url} refused the request ({response.status_code}): {_sentence(response)}"
                if response.status_code not in _RETRIED:
                    break
                wait_s = _retry_after(response, 0.1 * 2**attempt)
            if attempt < self.retries:
                # Clients that were refused together must not come back together.
                time.sleep(min(_LONGEST_WAIT_S, wait_s * random.uniform(0.5, 1.5)))
        raise ServerError(problem)


def _retry_after(response: "httpx2.Response", otherwise: float) -> float:
    given = response.headers.get("retry-after", "")
    return float(given) if given.isdigit() else otherwise


def _sentence(response: "httpx2.Response") -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return shortened(response.text, 200) or response.reason_phrase


def _content(file: Path) -> bytes:
    try:
        return read_file(file, _MOST_BYTES)
    except FileNotFoundError:
        raise BadImage(f"there is no file {file}. Check the path.") from None
    except (OSError, ValueError) as error:
        raise BadImage(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _query(options: dict[str, Any]) -> dict[str, str]:
    for name in options:
        if name not in OPTIONS:
            raise UnknownName("option of a request", name, OPTIONS)
    return {name: _text(value) for name, value in options.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(each) for each in value) + "]"
    return str(value)
