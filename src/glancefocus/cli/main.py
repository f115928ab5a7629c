"""The command `gf`: reads the words, calls what does the job, and turns a user's mistake into one sentence and exit code 2.

Nothing heavy is imported before a job needs it: `gf --help` is instant.
"""

import contextlib
import errno
import io
import os
import sys
import time
from pathlib import Path
from typing import Annotated

from glancefocus import interrupts

if __name__ == "__main__":
    interrupts.take_over()  # before the imports below, which take a while

import cyclopts
from cyclopts import Parameter

import glancefocus
from glancefocus.cli.options import read_by_type
from glancefocus.cli.words import Json
from glancefocus.cli.words_bench import bench
from glancefocus.cli.words_budget import budget, evaluate
from glancefocus.cli.words_export import export
from glancefocus.cli.words_predict import predict
from glancefocus.cli.words_train import train, train_process
from glancefocus.errors import GlancefocusError
from glancefocus.escaping import lines_kept
from glancefocus.files import cache_path
from glancefocus.values import Looks, Pixels, Seed, shortened

app = cyclopts.App(
    name="gf",
    help="Classify images by looking quickly first, and closely only where and when it matters.",
    version=glancefocus.__version__,
    suppress_keyboard_interrupt=False,
)


@app.command
def models(*, json: Json = False) -> None:
    """List the presets with parameters and multiply-adds per look, beside the paper's figures.

    Example: gf models
    """
    from glancefocus.cli.models import list_models

    list_models(as_json=json)


@app.command(name="import")
@read_by_type
def import_(
    checkpoint: Path,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    model: str | None = None,
    patch_px: Pixels | None = None,
    looks: Looks | None = None,
    json: Json = False,
) -> None:
    """Turn a checkpoint of the paper into a bundle.

    Example: gf import gfnet_resnet50_96.pth.tar -o bundles/resnet50-96

    Parameters
    ----------
    checkpoint
        A *.pth.tar of the paper's release, or one saved by its training script.
    output
        The folder to write.
    model
        Its backbone, where the file does not say it, such as resnet50 or regnety_600m.
    patch_px
        Side of its glance and patches, where the file does not say it.
    looks
        Number of looks, where the file does not say it.
    """
    from glancefocus.cli.import_checkpoint import import_checkpoint

    import_checkpoint(checkpoint, output, model=model, patch_px=patch_px, looks=looks, as_json=json)


for verb in (predict, train, evaluate, budget, bench, export):
    app.command(read_by_type(verb))
app.command(train_process, show=False)


@app.command
@read_by_type
def demo(
    *, output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None, seed: Seed = 0, json: Json = False
) -> None:
    """Show the whole story on the built-in world: train, compare, draw, report. No download; minutes on two cores.

    Example: gf demo

    Parameters
    ----------
    output
        The folder to write; a demo that was stopped goes on there. Left out: the run and its bundle go to runs/signs, as those
        of `gf train signs`; the report and some scenes to try go to demo/.
    seed
        Another seed is another run.
    """
    from glancefocus.cli.demo import run_demo

    run_demo(output, seed=seed, as_json=json)


def _let_threads_rest() -> None:
    """Make threads of GNU's OpenMP, with which torch computes, spin for a fraction of the usual milliseconds after their work.

    They would take the cores from those who have something to do: ONNX Runtime's threads, loaders, other programs. torch reads the
    number when it is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _keep_caches_together() -> None:
    """Let matplotlib and torch's compiler write their caches into ours, instead of into the home folder and the system's for all.

    They read these when they are imported. Values that a user has set stay.
    """
    with contextlib.suppress(RuntimeError):  # there is no home folder
        for variable, name in (("MPLCONFIGDIR", "matplotlib"), ("TORCHINDUCTOR_CACHE_DIR", "torchinductor")):
            os.environ.setdefault(variable, str(cache_path() / name))


def _print_any_character() -> None:
    """Escape what the terminal cannot show: characters that its encoding does not have, bytes of file names that are not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 a mistake of the user's, said in a sentence, 130 interrupted.

    arguments  None: those of this process, which then belongs to the command and may be ended by it
    """
    _let_threads_rest()
    _keep_caches_together()
    _print_any_character()
    if arguments is None:
        interrupts.take_over()
    words = sys.argv[1:] if arguments is None else arguments
    with interrupts.handled(), interrupts.farewell(interrupts.first_farewell(words)):
        code = _exit_code(arguments)
        interrupts.ended(code)
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    """Of the command, whose mistakes are said."""
    try:
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except cyclopts.CycloptsError:
        return 2  # cyclopts has said what is wrong
    except GlancefocusError as error:
        return _mistake(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, as `| head` does
        return 1
    except SystemExit:
        raise
    except BaseException as error:
        return _stopped() if isinstance(error, KeyboardInterrupt) or interrupts.interrupted() else _trouble(error)
    return code if isinstance(code, int) else 0


def _mistake(sentence: str) -> int:
    if interrupts.speaks():
        print(f"gf: {lines_kept(sentence)}", file=sys.stderr)
    else:
        _mistake_of_one_process(lines_kept(sentence))
    return 2


def _mistake_of_one_process(sentence: str) -> None:
    """All processes of a run make the same mistake: it is said once. Where only this one does, it is not lost."""
    if interrupts.LAUNCHED in os.environ:
        with contextlib.suppress(OSError, ValueError):
            os.write(int(os.environ[interrupts.LAUNCHED]), sentence.encode())
            time.sleep(60)  # until the process that started this one ends all: one that left would make the others fail
    else:
        time.sleep(3)  # the first process says it, and torchrun ends this one
        print(f"gf: {sentence}", file=sys.stderr)


def _stopped() -> int:
    """Say how to go on."""
    if interrupts.owns_process():
        interrupts.leave(interrupts.EXIT_CODE, interrupts.last_words() if interrupts.speaks() else None)
    if interrupts.speaks():
        print(f"gf: {interrupts.last_words()}", file=sys.stderr)
    return interrupts.EXIT_CODE


def _trouble(error: BaseException) -> int:
    """Full disks, and paths that are too long or without permission, are no fault of the program's; everything else is raised."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = f" while {error.filename} was written" if error.filename else ""
        return _mistake(
            f"there is no room on the disk{where} ({error.strerror}). Make room and run the same command again."
        )
    if isinstance(error, OSError) and error.filename is not None:
        return _mistake(f"{shortened(os.fsdecode(error.filename), 200)}: {error.strerror or error}.")
    raise error


if __name__ == "__main__":
    main()
