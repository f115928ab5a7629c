"""`gf predict http://...` and `gf predict --ray`: answers from a running `gf serve`, or from the machines of a Ray cluster."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from glancefocus.cli.serve import TOKEN_VARIABLE
from glancefocus.errors import BadSetting, MissingExtra, UnknownName
from glancefocus.values import Answer

if TYPE_CHECKING:
    from glancefocus.serving.client import Client

_NOT_ON_RAY = ("draw", "camera", "max_pixels", "deadline_ms", "json", "jsonl", "csv")
_LOCAL_ONLY = ("ray", "budget_ms", "draw", "max_pixels", "camera", "runtime", "light_weights", "threads")


def open_server(address: str, options: Any) -> tuple["Client", str]:
    """The client for an address, and the name of the bundle after its #; "": the first one."""
    from glancefocus.serving.client import Client

    for name in _LOCAL_ONLY:
        if getattr(options, name):
            raise BadSetting(
                f"--{name.replace('_', '-')} is for bundles on this machine, not for a server. Leave it out."
            )
    url, _, bundle = address.partition("#")
    return Client(url, token=os.environ.get(TOKEN_VARIABLE) or None), bundle


class ServerBundle:
    """A bundle on a server.

    info  the description of the bundle by the server; see GET /info
    """

    def __init__(self, client: "Client", name: str) -> None:
        self.client = client
        self.name = name
        bundles = {bundle["name"]: bundle for bundle in client.info()["bundles"]}
        if not bundles:
            raise BadSetting(f"the server {client.url} has not loaded its bundles yet. Try again in a few seconds.")
        if name and name not in bundles:
            raise UnknownName("bundle on this server", name, bundles, f"It has {', '.join(bundles)}.")
        self.info = bundles[name] if name else next(iter(bundles.values()))

    def answers(
        self, names: Sequence[tuple[str, str | None]], topk: int, **stopping: Any
    ) -> Iterator[tuple[Answer, str, Sequence[str]]]:
        """(answer, why it stopped, remarks) of every file, in their order; names: (file, what is wrong with it)."""
        bundle = {"bundle": self.name} if self.name else {}
        sent = self.client.predict_stream(_readable(names), topk=topk, **bundle, **stopping)
        for name, error in names:
            answer = {"file": name, "error": error} if error is not None else next(sent)
            yield answer, self._stopped(answer), ()

    def _stopped(self, answer: Answer) -> str:
        """In the words of Outcome.stopped."""
        if "error" in answer:
            return ""
        if not answer["sure"]:
            return "out of looks" if answer["looks"] == self.info["looks"] else "out of time"
        threshold = answer["threshold"]
        if threshold is None or threshold < 0:
            return "all stop here"
        what = "above threshold" if self.info["score"] == "confidence" else f"{self.info['score']} above"
        return f"{what} {threshold:.2f}"


def _readable(names: Iterable[tuple[str, str | None]]) -> Iterator[str | bytes]:
    for name, error in names:
        if name == "-":
            raise BadSetting("standard input cannot be sent to a server. Name a file.")
        if error is None:
            yield name


def predict_on_ray(options: Any) -> int:
    """Write the answers of a source as Parquet; 0 if all pictures were answered, 2 if some could not be read."""
    for name in _NOT_ON_RAY:
        if getattr(options, name):
            raise BadSetting(f"--{name.replace('_', '-')} does not go together with --ray. Leave one of them out.")
    if len(options.files or ()) != 1:
        raise BadSetting(f"--ray takes one folder, Parquet file or .tar, but got {len(options.files or ())} names.")
    if options.output is None or options.output.is_file():
        raise BadSetting("--ray writes Parquet files into a folder: name it with --output.")
    try:
        from glancefocus.serving.ray_jobs import predict_files
    except ImportError as error:
        raise MissingExtra((error.name or "ray").partition(".")[0], "ray") from None
    from glancefocus.bundle.bundle import load

    choices = load(options.bundle).settings.view_choices
    loading = {"runtime": options.runtime, "light_weights": options.light_weights}
    counts = predict_files(
        options.bundle,
        options.files[0],
        options.output,
        topk=options.topk,
        batch_size=options.batch_size,
        options={**loading, **({} if options.threads is None else {"threads": options.threads})},
        **{name: value for name, value in options.stopping(choices).items() if value is not None},
    )
    words = f"{counts['answered']} answered, {counts['failed']} could not be read, {counts['skipped']} had an answer"
    print(f"gf: {words}; {options.output}", file=sys.stderr)
    return 2 if counts["failed"] else 0
