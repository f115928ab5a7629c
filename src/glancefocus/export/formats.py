"""The formats that a network can be exported to, and what each of them needs."""

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glancefocus.errors import MissingEnvironment, MissingExtra, UnknownName


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing below an error is logged, warned of or printed while the block runs."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@dataclass(frozen=True)
class Format:
    """One format.

    suffix       of its graphs
    batch        the only batch size that its graphs take; None: any
    packages     that writing and running it needs
    extra        of glancefocus that brings them; None: they need an environment of their own
    environment  what to install in that
    """

    name: str
    suffix: str
    batch: int | None
    packages: tuple[str, ...]
    extra: str | None = None
    environment: str = ""

    def check_installed(self) -> None:
        for package in self.packages:
            try:
                with quiet():
                    importlib.import_module(package)
            except ModuleNotFoundError as error:
                if self.extra is not None:
                    raise MissingExtra(package, self.extra) from None
                raise MissingEnvironment(str(error.name or package), self.environment) from None

    def graphs(self) -> Any:
        """The class that runs its graphs."""
        return importlib.import_module(f"glancefocus.export.standalone.graphs_{self.name}").Graphs


FORMATS = {
    one.name: one
    for one in (
        Format("onnx", ".onnx", None, ("onnx", "onnxscript", "onnxruntime"), "export"),
        Format("openvino", ".xml", None, ("onnx", "onnxscript", "openvino"), "openvino"),
        Format(
            "executorch",
            ".pte",
            1,
            ("executorch.runtime",),
            environment="executorch",
        ),
        Format(
            "litert",
            ".tflite",
            1,
            ("litert_torch", "ai_edge_litert"),
            environment="litert",
        ),
    )
}


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS, f"There are {', '.join(FORMATS)}.")
    return FORMATS[name]
