"""The command `gf`: reads the command line, calls the verb, and turns a user's mistake into one sentence and exit code 2.

The modules of the verbs are imported when they are needed, and import nothing slow before they run: `gf --help` is instant.
"""

import contextlib
import errno
import io
import os
import sys
import time

from glancefocus import interrupts

if __name__ == "__main__":
    interrupts.take_over()  # before the imports below, which take a while

import cyclopts

import glancefocus
from glancefocus.errors import GlancefocusError
from glancefocus.escaping import lines_kept
from glancefocus.files import cache_path
from glancefocus.values import shortened

# {verb: the function that runs it}, in the order of the help page. Their docstrings are their help.
VERBS = {
    "demo": "demo:demo",
    "train": "train:train",
    "evaluate": "evaluate:evaluate",
    "budget": "budget:budget",
    "predict": "predict:predict",
    "bench": "bench:bench_network",
    "export": "export:export",
    "import": "import_checkpoint:import_checkpoint",
    "models": "models:models",
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


if __name__ == "__main__":
    main()
