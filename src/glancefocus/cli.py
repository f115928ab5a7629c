"""The command `gf`: reads the words, calls what does the job, and turns a user's mistake into one sentence and exit code 2.

Nothing heavy is imported before a job needs it: `gf --help` is instant.
"""

import contextlib
import errno
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
from glancefocus.commands.words import Json, LightWeights, Runtime, Threads
from glancefocus.commands.words_bench import bench
from glancefocus.commands.words_budget import budget, evaluate
from glancefocus.commands.words_export import export
from glancefocus.commands.words_train import train, train_process
from glancefocus.errors import BadSetting, GlancefocusError, UnknownName

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
    from glancefocus.commands.models import list_models

    list_models(as_json=json)


@app.command(name="import")
def import_(
    checkpoint: Path,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    model: str | None = None,
    patch_px: int | None = None,
    looks: int | None = None,
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
    from glancefocus.commands.import_checkpoint import import_checkpoint

    import_checkpoint(checkpoint, output, model=model, patch_px=patch_px, looks=looks, as_json=json)


@app.command
def predict(
    bundle: Path,
    files: Annotated[list[str], Parameter(allow_leading_hyphen=True)],  # a lone - is standard input
    *,
    looks: int | None = None,
    thresholds: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    budget_macs: float | None = None,
    budget_ms: float | None = None,
    deadline_ms: float | None = None,
    topk: int = 1,
    draw: Path | None = None,
    batch_size: int = 32,
    merge_batches: bool | None = None,
    max_pixels: int | None = None,
    runtime: Runtime = None,
    light_weights: LightWeights = False,
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Say what is in pictures or clips, after how many looks, where they went and what they cost.

    Example: gf predict runs/signs/bundle photo.jpg folder/ --draw drawings

    Example: gf predict runs/signs/bundle folder/ --runtime auto --threads 2

    Parameters
    ----------
    bundle
        A folder written by training or by `gf import`.
    files
        Image files, folders, or - for one image on standard input. For a network of clips video files, folders of frames, and
        folders of these.
    looks
        Take exactly so many looks (anytime answer) instead of stopping when sure.
    thresholds
        One score for each look but the last: stop above it. --thresholds 0.9 0.8, or 0.9,0.8, after the files. With several
        patch sizes one for each look and size, look by look.
    budget_macs
        Average multiply-adds that an answer may cost; found on the bundle's stored curve.
    budget_ms
        The same in milliseconds, where they were measured on this device (gf budget --ms).
    deadline_ms
        For each batch of pictures: the best answers so far when time is up.
    topk
        How many likely classes to name.
    draw
        Write each picture into this folder, with the looks drawn on it; of a clip four frames. Boxes are coloured by right and
        wrong where the picture's folder is named like a class.
    batch_size
        Pictures looked at together.
    merge_batches
        What is not sure looks on together with that of other batches, so that these stay full; the answers are the same, but for
        the rounding of --light-weights. Unless said otherwise this is done where there are several batches, without --draw and
        --deadline-ms.
    max_pixels
        Refuse pictures with more pixels than this.
    """
    for word in files:
        if word.startswith("-") and word != "-":
            options = [f"--{name.replace('_', '-')}" for name in predict.__kwdefaults__ or ()]
            raise UnknownName(
                "option", word, options, "A file whose name begins so is named with its folder: ./-a.png."
            )
    from glancefocus.commands.predict import predict_files

    return predict_files(
        bundle,
        files,
        looks=looks,
        thresholds=None if thresholds is None else _numbers(thresholds),
        budget_macs=budget_macs,
        budget_ms=budget_ms,
        deadline_ms=deadline_ms,
        topk=topk,
        draw=draw,
        batch_size=batch_size,
        merge_batches=merge_batches,
        max_pixels=max_pixels,
        runtime=runtime,
        light_weights=light_weights,
        threads=threads,
        as_json=json,
    )


app.command(train)
app.command(train_process, show=False)
app.command(evaluate)
app.command(budget)
app.command(bench)
app.command(export)


@app.command
def demo(
    *, output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("demo"), seed: int = 0, json: Json = False
) -> None:
    """Show the whole story on the built-in world: train, compare, draw, report. No download; minutes on two cores.

    Example: gf demo

    Parameters
    ----------
    output
        The folder to write; a demo that was stopped goes on there.
    seed
        Another seed is another run.
    """
    from glancefocus.commands.demo import run_demo

    run_demo(output, seed=seed, as_json=json)


def _numbers(words: list[str]) -> list[float]:
    """Numbers given apart or with commas."""
    numbers = []
    for word in [part for text in words for part in text.split(",") if part]:
        try:
            numbers.append(float(word))
        except ValueError:
            raise BadSetting(f"a threshold is a number, but got {word!r}. Put the files before --thresholds.") from None
    return numbers


def _let_threads_rest() -> None:
    """Make threads of GNU's OpenMP, with which torch computes, spin for a fraction of the usual milliseconds after their work.

    They would take the cores from those who have something to do: ONNX Runtime's threads, loaders, other programs. torch reads the
    number when it is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 a mistake of the user's, told in a sentence, 130 interrupted.

    arguments  None: those of this process, which then belongs to the command and may be ended by it
    """
    _let_threads_rest()
    if arguments is None:
        interrupts.take_over()
    words = sys.argv[1:] if arguments is None else arguments
    with interrupts.handled(), interrupts.farewell(_first_farewell(words)):
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
        return _stopped() if isinstance(error, KeyboardInterrupt) or interrupts.interrupted() else _no_room(error)
    return code if isinstance(code, int) else 0


def _first_farewell(words: list[str]) -> str:
    if words[:1] in (["train"], ["demo"]):
        return "stopped before anything was learnt, so nothing is lost. The same command starts again."
    return "interrupted."


def _mistake(sentence: str) -> int:
    if interrupts.speaks():
        print(f"gf: {sentence}", file=sys.stderr)
    else:
        _mistake_of_one_process(sentence)
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


def _no_room(error: BaseException) -> int:
    """A full disk is no fault of the program's; everything else is, and is shown as it is."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = f" while {error.filename} was written" if error.filename else ""
        return _mistake(
            f"there is no room on the disk{where} ({error.strerror}). Make room and run the same command again."
        )
    raise error


if __name__ == "__main__":
    main()
