"""Every mistake that a user can make, as one tree. Each message says what is wrong, what we got, and what to do.

    GlancefocusError
    ├── BadSetting            a value or a combination of values that cannot work
    │   └── UnknownName       a preset, backbone, ... that does not exist ("did you mean")
    ├── BadImage              a file that is missing, empty, broken, too large, or not an image
    │   ├── ImageTooSmall     an image smaller than the patch that is to be cut out of it
    │   └── BadClip           a video or a folder of frames that no clip can be read from
    ├── BadCheckpoint         a checkpoint of something else, damaged, or unsafe to open
    ├── BadBundle             a bundle with a missing, damaged or foreign file
    ├── BadBudget             a budget that cannot be met
    ├── BadData               a data set that nothing can be learnt from
    ├── BadRun                a run that cannot be started or resumed as asked
    ├── BadExport             a place that no export can be put into, or an export that does not answer as its bundle
    ├── ForkedThreads         a network is asked in a forked process, and its threads stayed in the other one
    └── MissingExtra          an optional dependency that is not installed
        ├── MissingPackage      one that is in no extra of ours
        └── MissingEnvironment  one that does not install beside the others

The command prints the message and exits with 2.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path


class GlancefocusError(Exception):
    """A user's mistake, told in one sentence or two."""


class BadSetting(GlancefocusError):
    """A value or a combination of values that cannot work."""


class UnknownName(BadSetting):
    """A name that does not exist, with the nearest ones that do."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
        suggestion = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(f"there is no {kind} named {name!r}.{suggestion}{' ' + hint if hint else ''}")


class BadImage(GlancefocusError):
    """A file that is missing, empty, broken, too large, or not an image."""


class ImageTooSmall(BadImage):
    """An image smaller than the patch that is to be cut out of it."""


class BadClip(BadImage):
    """A video or a folder of frames that no clip can be read from."""


class BadCheckpoint(GlancefocusError):
    """A checkpoint of something else, damaged, or unsafe to open."""


class BadBundle(GlancefocusError):
    """A bundle with a missing, damaged or foreign file."""


class BadBudget(GlancefocusError):
    """A budget that cannot be met."""


class BadData(GlancefocusError):
    """A data set that nothing can be learnt from."""


class BadRun(GlancefocusError):
    """A run that cannot be started or resumed as asked."""


class BadExport(GlancefocusError):
    """A place that no export can be put into, or an export that does not answer as its bundle does."""


class ForkedThreads(GlancefocusError):
    """A network is asked in a forked process, and its threads stayed in the other one."""

    def __init__(self, threads: int) -> None:
        super().__init__(
            f"this process was forked from one that had computed with {threads} threads, and threads do not survive a fork. "
            'Start processes with spawn (multiprocessing.get_context("spawn")) and load the bundle there, or use one thread '
            "before the fork and after it (threads=1)."
        )


class MissingExtra(GlancefocusError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}. Install it with: {install_command(extra)}.")


class MissingPackage(MissingExtra):
    """An optional dependency that is in no extra of ours."""

    def __init__(self, package: str) -> None:
        GlancefocusError.__init__(self, f"this needs the package {package!r}. Install it with: pip install {package}.")


class MissingEnvironment(MissingExtra):
    """An optional dependency that does not install beside the others."""

    def __init__(self, package: str, environment: str) -> None:
        GlancefocusError.__init__(
            self,
            f"this needs the package {package!r}, which has an environment of its own. Make it in your clone of glancefocus with: "
            f"make environment-{environment}, and use .venv-{environment}/bin/gf; docs/export.md says more.",
        )


def install_command(extra: str | None, requirements: str = "") -> str:
    """How to install this program again with an extra, or beside other requirements: out of its clone where there is one."""
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
    """The folder that this program was installed from, and whether it runs from there; None where it came from an index."""
    beside = Path(__file__).resolve().parents[2]
    if (beside / "pyproject.toml").is_file():
        return beside, True
    import importlib.metadata  # here, since commands that miss nothing start faster without
    import json
    import urllib.parse

    try:
        text = importlib.metadata.distribution("glancefocus").read_text("direct_url.json")  # PEP 610
        folder = Path(urllib.parse.unquote(urllib.parse.urlparse(json.loads(text or "")["url"]).path))
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None, False
    return (folder, False) if (folder / "pyproject.toml").is_file() else (None, False)
