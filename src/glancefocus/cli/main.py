"""The command `gf`: reads the options of a verb, calls it, prints rows, and turns a user's mistake into a sentence and exit code 2.

The options of a verb are one frozen dataclass: its fields are the signature, the texts below them the help.

    @command_options
    @dataclass(frozen=True)
    class ModelsOptions:
        json: Json = False

Numbers, texts and paths are checked by the type of their field. The ranges are those of `glancefocus.values`, so that an option and
the setting behind it have the same limits. Names, flags, choices and help pages are left to cyclopts. The modules of the verbs are
imported when they are needed, and import torch and everything that needs it inside their functions: `gf --help` is instant.
"""

import contextlib
import errno
import io
import os
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from glancefocus import interrupts

if __name__ == "__main__":
    interrupts.take_over()  # before the imports below, which take a while

import cyclopts
from cyclopts import Parameter, Token
from rich.console import Console, RenderableType

import glancefocus
from glancefocus import values
from glancefocus.errors import BadSetting, GlancefocusError
from glancefocus.machine import cache_path
from glancefocus.progress import ProgressBars
from glancefocus.values import Range, checked_number, lines_kept, shortened

# {verb: the function that runs it}, in the order of the help page. Their docstrings are their help.
VERBS = {
    "demo": "demo:demo",
    "train": "train:train",
    "evaluate": "evaluate:evaluate",
    "budget": "budget:budget",
    "predict": "predict:predict",
    "serve": "serve:serve",
    "tile": "tile:tile",
    "bench": "bench:bench_network",
    "export": "export:export",
    "import": "models:import_checkpoint",
    "models": "models:models",
    "study": "study:study",
}

app = cyclopts.App(
    name="gf",
    help="Classify images and clips by looks: first a glance at the whole image in low resolution, then focus looks at patches "
    "of it in full resolution, until the score of the answer is above a threshold. `gf train` writes a bundle: a folder with the "
    "trained network and its thresholds. Method: Glance and Focus Networks for Dynamic Visual Recognition (Huang, Wang et al., "
    "TPAMI 2022), called the paper in these pages.",
    version=glancefocus.__version__,
    suppress_keyboard_interrupt=False,
    default_parameter=cyclopts.Parameter(negative_iterable=()),  # no --empty-FILES
)
for place, (verb, function) in enumerate(VERBS.items()):
    app.command(f"glancefocus.cli.{function}", name=verb, sort_key=place)
app.command("glancefocus.cli.train:train_process", name="train-process", show=False)


def _describe_verbs() -> None:
    """Import the modules of all verbs for the help page that lists them; every other command imports only its own."""
    for verb in VERBS:
        app[verb]


def _shorten_spinning() -> None:
    """Let OpenMP threads, which torch uses, spin only briefly after their work, instead of for milliseconds.

    Threads that spin take the cores from ONNX Runtime, data loaders and other programs. torch reads the variable at its import.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _keep_caches_together() -> None:
    """Put the caches of matplotlib and torch's compiler into our cache folder, instead of the home folder and the system's.

    They read these variables when they are imported. Values that the user has set are kept.
    """
    with contextlib.suppress(RuntimeError):  # there is no home folder
        for variable, name in (("MPLCONFIGDIR", "matplotlib"), ("TORCHINDUCTOR_CACHE_DIR", "torchinductor")):
            os.environ.setdefault(variable, str(cache_path() / name))


def _print_any_character() -> None:
    """Escape characters that the terminal's encoding does not have, and bytes of file names that are not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 a mistake of the user, reported in a sentence, 130 interrupted.

    arguments  None: those of this process; the command then owns the process, and may end it
    """
    _shorten_spinning()
    _keep_caches_together()
    _print_any_character()
    if arguments is None:
        interrupts.take_over()
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] in ([], ["--help"], ["-h"]):
        _describe_verbs()
    with interrupts.handled(), interrupts.stop_message(interrupts.first_stop_message(words)):
        code = _exit_code(arguments)
        interrupts.work_is_done(code)
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    """Run the verb, report errors, and return the exit code."""
    try:
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except cyclopts.CycloptsError:
        return 2  # cyclopts has printed what is wrong
    except GlancefocusError as error:
        return _mistake(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # the program that reads our output has ended, as `| head` does
        return 1
    except SystemExit:
        raise
    except BaseException as error:
        return _stopped() if isinstance(error, KeyboardInterrupt) or interrupts.interrupted() else _system_error(error)
    return code if isinstance(code, int) else 0


def _mistake(sentence: str) -> int:
    if interrupts.prints_messages():
        print(f"gf: {lines_kept(sentence)}", file=sys.stderr)
    else:
        _report_from_one_process(lines_kept(sentence))
    return 2


def _report_from_one_process(sentence: str) -> None:
    """Report an error of one of several processes. Usually all of them have the same error, which is printed only once."""
    if interrupts.LAUNCHED in os.environ:
        with contextlib.suppress(OSError, ValueError):
            os.write(int(os.environ[interrupts.LAUNCHED]), sentence.encode())
            time.sleep(60)  # until the parent process ends all: if this one ended first, the others would fail, too
    else:
        time.sleep(3)  # usually the first process prints it, and torchrun ends this one meanwhile
        print(f"gf: {sentence}", file=sys.stderr)


def _stopped() -> int:
    """Print how to continue."""
    if interrupts.owns_process():
        interrupts.end_process(
            interrupts.EXIT_CODE, interrupts.stop_sentence() if interrupts.prints_messages() else None
        )
    if interrupts.prints_messages():
        print(f"gf: {interrupts.stop_sentence()}", file=sys.stderr)
    return interrupts.EXIT_CODE


def _system_error(error: BaseException) -> int:
    """Report full disks and paths that cannot be used; raise every other error, which is a fault of the program."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = f": {error.filename} cannot be written" if error.filename else ""
        return _mistake(f"the disk is full{where} ({error.strerror}). Free some space and run the same command again.")
    if isinstance(error, OSError) and error.filename is not None:
        return _mistake(f"{shortened(os.fsdecode(error.filename), 200)}: {error.strerror or error}.")
    raise error


Options = TypeVar("Options", bound=type)


# Types of options that several verbs have.
BundleName = Annotated[
    str,
    Parameter(
        help="A bundle: the folder of a trained network, written by `gf train` or `gf import`; "
        "or hf://user/name (hf://user/name@revision) on the Hugging Face hub."
    ),
]


OutputName = Parameter(name=["--output", "-o"])


Flag = Annotated[bool, Parameter(negative="", show_default=False)]


Json = Annotated[Flag, Parameter(name="--json", help="Print JSON for programs instead of text for people.")]


Runtime = Annotated[
    str | None,
    Parameter(
        help="Inference backend. plain: torch, without any preparation; eager: torch, batch norms folded into convolutions; "
        "compile: torch.compile; onnx: ONNX Runtime; openvino: OpenVINO; auto: the fastest one for this network and "
        "device, measured once, then read from the cache. Answers are the same up to rounding. Default: plain, but with tensors in "
        "channels-last order."
    ),
]


Threads = Annotated[
    values.Threads | None, Parameter(help="Number of CPU threads. Default: that of torch, usually one for each core.")
]


LightWeights = Annotated[
    Flag,
    Parameter(
        help="With --runtime onnx: int8 weights in memory-bound layers, faster for single pictures and small batches. "
        "The weights are rounded, so a few answers may differ.",
    ),
]


SplitName = typing.Literal["train", "val", "test", "all"]


def command_options(options: Options) -> Options:
    """The dataclass, flattened into options of the command. A wrong value raises BadSetting, not an error of cyclopts."""
    for name, hint in typing.get_type_hints(options, include_extras=True).items():
        reader = _reader_of(hint, name)
        if reader is not None:
            options.__annotations__[name] = Annotated[hint, Parameter(converter=reader.read)]
    return Parameter(name="*")(options)


@dataclass(frozen=True)
class _Reader:
    """Converts the words of one option.

    kind    type of a value: int, float, str or Path
    bounds  range of a number
    shape   list or tuple for several values; the numbers of a list may also be separated by commas
    name    name of the parameter, for values without an option in front
    """

    kind: type
    bounds: Range | None
    shape: type | None
    name: str

    def read(self, tokens: Sequence[Token]) -> Any:
        with_commas = self.shape is list and self.bounds is not None
        words = [
            (token, word)
            for token in tokens
            for word in (filter(None, token.value.split(",")) if with_commas else [token.value])
        ]
        values = [self._value(word, token.keyword or self.name.upper()) for token, word in words]
        return values[0] if self.shape is None else self.shape(values)

    def _value(self, word: str, option: str) -> Any:
        if self.bounds is None:
            return self.kind(_checked_text(word, option))
        try:
            return read_number(self.kind, self.bounds, word, option)
        except BadSetting as error:
            if self.shape is not list or _is_number(word):
                raise
            raise BadSetting(f"{error} Arguments without an option go before {option}.") from None


def _checked_text(text: str, option: str) -> str:
    if not text:
        raise BadSetting(f"{option} is an empty text. Leave it out, or give it a value.")
    if "\0" in text:
        raise BadSetting(f"{option} contains a zero character, which names cannot contain. Remove it.")
    return text


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _reader_of(hint: Any, name: str) -> _Reader | None:
    """How to read an option of this type; None: cyclopts reads it."""
    hint, shape = _bare(hint), None
    if typing.get_origin(hint) in (list, tuple):
        shape = typing.get_origin(hint)
        hint = _bare(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Annotated:
        kind, bounds = typing.get_args(hint)[:2]
        return _Reader(kind, bounds, shape, name)
    return _Reader(hint, None, shape, name) if hint in (str, Path) else None


def _bare(hint: Any) -> Any:
    """Without `| None`, and without Annotated unless it holds a range."""
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated and not isinstance(arguments[1], Range):
            hint = arguments[0]
        elif origin in (typing.Union, types.UnionType):
            inner = [argument for argument in arguments if argument is not type(None)]
            if len(inner) != 1:
                return hint
            (hint,) = inner
        else:
            return hint


def words_of(given: Sequence[str]) -> list[str]:
    """Words that were given one by one, or separated by commas."""
    return [word for text in given for word in text.split(",") if word]


def read_number(kind: type, bounds: Range, text: str, name: str) -> Any:
    """A number from text: 2e8 and 1_000 are read as Python reads them, 64.0 and 1e3 count as whole numbers."""
    value = _parsed(text)
    if kind is int and isinstance(value, float) and value in bounds and value.is_integer():
        value = int(value)
    try:
        return checked_number(kind, bounds, value, name)
    except BadSetting:
        raise BadSetting(f"{name} must be {bounds.words(kind)}, but got {shortened(text) or repr(text)}.") from None


def _parsed(text: str) -> float | None:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:  # raised for too many digits, too
            pass
    return None


WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output; as wide as the terminal, or wide enough for our tables if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def notices() -> Console:
    """Standard error, for progress and remarks, so that standard output can be piped."""
    return Console(stderr=True)


class Display:
    """Rows on standard output, and below them a progress bar with the remaining time."""

    def __init__(self, console: Console, progress: Callable[[str, float, float], None]) -> None:
        self.console = console
        self.progress = progress

    def show(self, row: RenderableType) -> None:
        """Print a row, a table, ..."""
        self.console.print(row)


@contextmanager
def display(*, for_programs: bool = False, in_percent: bool = False, quiet: bool = False) -> Iterator[Display]:
    """Show a progress bar on the terminal while the block runs, and print rows above it.

    for_programs  standard output is read by a program: the bar is shown only if standard output is not the terminal
    quiet         show no bar
    """
    console = output()
    # If one terminal shows both, one console must write both; otherwise rows and bar would overwrite each other.
    place = console if console.is_terminal and not for_programs else notices()
    if quiet or not place.is_terminal or (for_programs and console.is_terminal):
        yield Display(console, lambda what, done, total: None)
        return
    # Rich must not redirect standard output: rows for a program would end up on standard error.
    with ProgressBars(place, in_percent=in_percent, redirect=False) as bars:
        yield Display(console, bars.show)


if __name__ == "__main__":
    main()
