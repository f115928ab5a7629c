"""Requests to the server: pictures and options are read from what a client has sent, within limits; mistakes get a sentence."""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from glancefocus.errors import BadSetting, GlancefocusError, UnknownName
from glancefocus.machine import parse_json
from glancefocus.outcome import Outcome
from glancefocus.serving.client import OPTIONS
from glancefocus.values import Answer, Count, Fields, Milliseconds, MultiplyAdds, Threshold, checked, shortened, text_of
from glancefocus.values import Looks as LooksRange

FILE_FIELDS = ("files", "file", "images", "image")
LONGEST_NAME = 500
PICTURE = "picture"
"""Reason of a refusal: no picture of the request can be read."""


class Refused(GlancefocusError):
    """A request that is answered with an error.

    status   of HTTP
    reason   a word for metrics
    retry_s  after this time the client may try again; None: it should not
    """

    def __init__(self, status: int, reason: str, sentence: str, retry_s: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.retry_s = retry_s


@dataclass(frozen=True)
class Limits:
    """What the server accepts.

    body_bytes    a request
    pictures      in one request
    pixels        of a picture
    requests      at the same time
    waiting       pictures that wait for their answer
    receive_s     time for receiving a request
    answer_s      time for answering it
    """

    body_bytes: int = 32 << 20
    pictures: int = 64
    pixels: int = 50_000_000
    requests: int = 256
    waiting: int = 1024
    receive_s: float = 30.0
    answer_s: float = 60.0


@dataclass(frozen=True)
class Upload:
    """A picture as it was sent: its bytes, or the path of a file on the server's machine."""

    name: str
    source: bytes | Path


@dataclass(frozen=True)
class Asked:
    """The pictures and options of a request.

    bundle       name of the bundle; None: the first one
    topk         number of likeliest classes to list
    budget_macs, thresholds, looks  when to stop, at most one of them; see Bundle.exit_rule
    deadline_ms  from the arrival of the request; when time is up, the answer is that of the last finished look
    steps        also send the answer after each look
    """

    uploads: tuple[Upload, ...] = ()
    bundle: str | None = None
    topk: int = 1
    budget_macs: float | None = None
    deadline_ms: float | None = None
    thresholds: tuple[Any, ...] | None = None
    looks: int | None = None
    steps: bool = False


async def read_body(headers: Headers, chunks: AsyncIterator[bytes], limits: Limits) -> bytes:
    """The body of a request, as long as it is within the limits of size and time."""
    too_large = Refused(
        413,
        "body too large",
        f"the request has more than {limits.body_bytes:,} bytes. Send fewer or smaller pictures, "
        "or start the server with a larger --max-body-mb.",
    )
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.receive_s):
            async for chunk in chunks:
                size += len(chunk)
                if size > limits.body_bytes:
                    raise too_large
                parts.append(chunk)
    except TimeoutError:
        raise Refused(
            408, "slow client", f"the request was not received within {limits.receive_s:g} seconds. Send it again."
        ) from None
    return b"".join(parts)


async def read_request(
    headers: Headers, query: Sequence[tuple[str, str]], body: bytes, limits: Limits, folder: Path | None
) -> Asked:
    """The pictures and options of a request.

    query   options in the address; in a form or in JSON they may stand beside the pictures instead
    folder  pictures in it may be named by their path; None: they may not
    """
    asked = _with_options(Asked(), [(name, value) for name, value in query])
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        asked = await _read_form(asked, headers, body, limits)
    elif kind == "application/json":
        asked = _read_json(asked, body, limits, folder)
    elif kind in ("", "application/octet-stream") or kind.startswith(("image/", "video/")):
        asked = replace(asked, uploads=(Upload("the picture", body),))
    else:
        raise Refused(
            415,
            "content type",
            f"the content type {shortened(kind)!r} is not supported. Send multipart/form-data with files, application/json, "
            "or the bytes of one picture as image/jpeg, image/png, ... or application/octet-stream.",
        )
    if not asked.uploads:
        raise BadSetting("there is no picture in the request. Send at least one file.")
    if len(asked.uploads) > limits.pictures:
        raise _too_many(limits)
    return asked


def _too_many(limits: Limits) -> Refused:
    return Refused(
        413,
        "too many pictures",
        f"a request may have at most {limits.pictures} pictures. Send the others in another request.",
    )


async def _read_form(asked: Asked, headers: Headers, body: bytes, limits: Limits) -> Asked:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    _, options = parse_options_header(headers["content-type"])
    if b"boundary" not in options:
        raise BadSetting("the form has no boundary in its content type. Let your HTTP library write that header.")
    parser = MultiPartParser(headers, whole(), max_files=limits.pictures, max_fields=len(OPTIONS) + 1)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise _too_many(limits) from None
        raise BadSetting(f"the form cannot be read: {error.message.rstrip('.')}.") from None
    except (ValueError, UnicodeError, LookupError) as error:  # wrong headers of a part, an unknown charset
        raise BadSetting(f"the form cannot be read: {shortened(str(error))}.") from None
    try:
        uploads, fields = [], []
        for name, value in form.multi_items():
            if not isinstance(value, UploadFile):
                fields.append((name, value))
            elif name in FILE_FIELDS:
                uploads.append(Upload(_file_name(value.filename), await value.read()))
            else:
                raise UnknownName("field for files", name, FILE_FIELDS, "Name the field files.")
    finally:
        await form.close()
    return replace(_with_options(asked, fields), uploads=tuple(uploads))


def _read_json(asked: Asked, body: bytes, limits: Limits, folder: Path | None) -> Asked:
    try:
        fields = Fields(parse_json(body))
    except BadSetting as error:
        raise BadSetting(f"the body must be a JSON object, but {error}") from None
    fields.refuse_others(("images", *OPTIONS))
    images = fields.value("images")
    if not isinstance(images, list):
        raise BadSetting('images must be a list such as [{"data": "..."}], with each picture in base64.')
    if len(images) > limits.pictures:
        raise _too_many(limits)
    uploads = tuple(_json_upload(Fields(one, f"images[{number}]"), folder) for number, one in enumerate(images))
    options = [(name, value) for name, value in fields.plain.items() if name != "images" and value is not None]
    return replace(_with_options(asked, options), uploads=uploads)


def _json_upload(fields: Fields, folder: Path | None) -> Upload:
    fields.refuse_others(("data", "path", "name"))
    if ("data" in fields.plain) == ("path" in fields.plain):
        raise BadSetting(f"{fields.where} must have either data, the picture in base64, or path.")
    if "path" in fields.plain:
        path = fields.text("path", 4096)
        return Upload(_file_name(path), _allowed_path(path, folder))
    name = _file_name(fields.text("name", LONGEST_NAME, default=""))
    data = fields.value("data")
    try:
        if not isinstance(data, str):
            raise ValueError
        return Upload(name, base64.b64decode(data.encode("ascii"), validate=True))
    except (ValueError, binascii.Error):
        raise BadSetting(f"{fields.where}.data is not base64. Encode the bytes of the picture as base64.") from None


def _allowed_path(path: str, folder: Path | None) -> Path:
    """The file, if it is in the folder that the server may read; links are followed before that is decided."""
    if folder is None:
        raise Refused(
            403, "path", "this server does not read files by their path. Send the picture itself, as data in base64."
        )
    try:
        found = (folder / path).resolve()
    except (OSError, ValueError, RuntimeError):
        found = None
    if found is None or not found.is_relative_to(folder.resolve()):
        raise Refused(403, "path", f"{shortened(path)!r} is not in the folder that this server may read.")
    return found


def _file_name(name: str | None) -> str:
    return shortened(name, LONGEST_NAME) if name else "the picture"


def _with_options(asked: Asked, options: Sequence[tuple[str, Any]]) -> Asked:
    """The request with these options; texts, as in an address or a form, are read as numbers."""
    values: dict[str, Any] = {}
    for name, value in options:
        if name not in OPTIONS:
            raise UnknownName("option", name, OPTIONS)
        if name in values:
            raise BadSetting(f"the option {name} was given twice.")
        values[name] = _READERS[name](value, name)
    return replace(asked, **values)


def _number(kind: type, hint: Any, value: Any, name: str) -> Any:
    if isinstance(value, str):
        try:
            value = kind(value)
        except ValueError:
            value = shortened(value)
    return checked(hint, value, name)


def _thresholds(value: Any, name: str) -> tuple[Any, ...]:
    """Numbers, or a list of numbers for each look; as text [0.9, 0.8] or 0.9,0.8."""
    if isinstance(value, str):
        try:
            value = parse_json((value if value.lstrip().startswith("[") else f"[{value}]").encode())
        except BadSetting:
            raise BadSetting(
                f"{name} must be a list of numbers such as 0.9,0.8, but got {shortened(value)!r}."
            ) from None
    if not isinstance(value, list) or not value or len(value) > 64:
        raise BadSetting(f"{name} must be a list of 1 to 64 numbers, one for each look.")
    return tuple(
        _thresholds(each, name) if isinstance(each, list) else checked(Threshold, each, name) for each in value
    )


def _switch(value: Any, name: str) -> bool:
    known: Mapping[Any, bool] = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    if isinstance(value, (bool, str)) and value in known:
        return known[value]
    raise BadSetting(f"{name} must be true or false, but got {shortened(str(value))!r}.")


_READERS: dict[str, Any] = {
    "bundle": lambda value, name: text_of(value, name, LONGEST_NAME),
    "topk": lambda value, name: _number(int, Count, value, name),
    "budget_macs": lambda value, name: _number(float, MultiplyAdds, value, name),
    "deadline_ms": lambda value, name: _number(float, Milliseconds, value, name),
    "thresholds": _thresholds,
    "looks": lambda value, name: _number(int, LooksRange, value, name),
    "steps": _switch,
}


def steps_of(outcome: Outcome, row: int) -> list[Answer]:
    """The answer for one picture after each look, the glance first, with its confidence."""
    taken = int(outcome.looks[row])
    pairs = zip(outcome.answer_after[row, :taken].tolist(), outcome.confidence_after[row, :taken].tolist(), strict=True)
    return [{"label": outcome.name(index), "confidence": share} for index, share in pairs]
