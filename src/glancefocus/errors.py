"""All errors for mistakes of users, as one tree. Each message says what is wrong, what we got, and what to do.

    GlancefocusError
    ├── BadSetting            a value or a combination of values that cannot work
    │   └── UnknownName       a preset, backbone, ... that does not exist ("did you mean")
    ├── BadImage              a file that is missing, empty, broken, too large, or not an image
    │   ├── ImageTooSmall     an image without pixels, or smaller than the patch to cut out of it
    │   └── BadClip           a video or a folder of frames that cannot be read
    ├── BadCheckpoint         a checkpoint that is damaged, unsafe to open, or of another kind of network
    ├── BadBundle             a bundle with a missing, damaged or foreign file
    ├── BadBudget             a budget that cannot be met
    ├── BadData               a data set that cannot be used
    ├── BadRun                a run that cannot be started or resumed as asked
    ├── BadExport             an export that cannot be written, or whose answers differ from its bundle's
    ├── ServerError           a server that cannot be reached, or that has refused a request
    ├── ForkedThreads         a network is used in a forked process, but its threads exist only in the parent
    └── MissingExtra          an optional dependency that is not installed
        ├── MissingPackage      one that is not part of an extra
        └── MissingEnvironment  one that cannot be installed beside the others

The command prints the message and exits with 2.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path


class GlancefocusError(Exception):
    """A mistake of the user, described in one sentence or two."""


class BadSetting(GlancefocusError):
    """A value or a combination of values that cannot work."""


class UnknownName(BadSetting):
    """A name that does not exist; the message suggests similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
        suggestion = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(f"there is no {kind} named {name!r}.{suggestion}{' ' + hint if hint else ''}")


class BadImage(GlancefocusError):
    """A file that is missing, empty, broken, too large, or not an image."""


class ImageTooSmall(BadImage):
    """An image without pixels, or smaller than the patch to cut out of it."""


class BadClip(BadImage):
    """A video or a folder of frames that cannot be read."""


class BadCheckpoint(GlancefocusError):
    """A checkpoint that is damaged, unsafe to open, or of another kind of network."""


class BadBundle(GlancefocusError):
    """A bundle with a missing, damaged or foreign file."""


class BadBudget(GlancefocusError):
    """A budget that cannot be met."""


class BadData(GlancefocusError):
    """A data set that cannot be used."""


class BadRun(GlancefocusError):
    """A run that cannot be started or resumed as asked."""


class BadExport(GlancefocusError):
    """An export that cannot be written, or whose answers differ from its bundle's."""


class ServerError(GlancefocusError):
    """A server that cannot be reached, or that has refused a request."""


class ForkedThreads(GlancefocusError):
    """A network is used in a forked process, but its threads exist only in the parent."""

    def __init__(self, threads: int) -> None:
        super().__init__(
            f"this process was forked from one that computed with {threads} threads, and a fork does not copy threads. "
            'Start processes with spawn (multiprocessing.get_context("spawn")) and load the bundle there, or use one thread '
            "before the fork and after it (threads=1)."
        )


class MissingExtra(GlancefocusError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}. Install it with: {install_command(extra)}.")


class MissingPackage(MissingExtra):
    """An optional dependency that is not part of an extra."""

    def __init__(self, package: str) -> None:
        GlancefocusError.__init__(self, f"this needs the package {package!r}. Install it with: pip install {package}.")


class MissingEnvironment(MissingExtra):
    """An optional dependency that cannot be installed beside the others."""

    def __init__(self, package: str, environment: str) -> None:
        GlancefocusError.__init__(
            self,
            f"this needs the package {package!r}, which needs a separate environment. Create it in your clone of glancefocus with: "
            f"make environment-{environment}, and use .venv-{environment}/bin/gf; docs/export.md says more.",
        )


def install_command(extra: str | None, requirements: str = "") -> str:
    """The command that installs this program with an extra, or beside other requirements; from its clone if there is one."""
    clone, editable = _clone()
    name = "glancefocus" if clone is None else "."
    target = name if extra is None else f"'{name}[{extra}]'"
    options = (
        "" if clone is None or requirements or not (clone / "constraints.txt").is_file() else "-c constraints.txt "
    )
    options += "-e " if editable and not requirements else ""
    place = "" if clone is None else f" (in the folder {clone})"
    return f"pip install {options}{requirements + ' ' if requirements else ''}{target}{place}"


def _clone() -> tuple[Path | None, bool]:
    """The folder that this program was installed from, and whether it runs from there; None if it came from an index."""
    beside = Path(__file__).resolve().parents[2]
    if (beside / "pyproject.toml").is_file():
        return beside, True
    import importlib.metadata  # here, because most commands do not need them
    import json
    import urllib.parse

    try:
        text = importlib.metadata.distribution("glancefocus").read_text("direct_url.json")  # PEP 610
        folder = Path(urllib.parse.unquote(urllib.parse.urlparse(json.loads(text or "")["url"]).path))
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None, False
    return (folder, False) if (folder / "pyproject.toml").is_file() else (None, False)
