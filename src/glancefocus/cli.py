"""The command `gf`: reads the words, calls what does the job, and turns a user's mistake into one sentence and exit code 2.

Nothing heavy is imported before a job needs it: `gf --help` is instant.
"""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

import glancefocus
from glancefocus.commands.options import read_by_type
from glancefocus.commands.words import Json, LightWeights, Runtime, Threads
from glancefocus.commands.words_bench import bench
from glancefocus.commands.words_budget import budget, evaluate
from glancefocus.commands.words_export import export
from glancefocus.commands.words_train import train
from glancefocus.errors import GlancefocusError, UnknownName
from glancefocus.ranges import (
    BatchSize,
    Count,
    Looks,
    MaxPixels,
    Milliseconds,
    MultiplyAdds,
    Pixels,
    Seed,
    Threshold,
    shortened,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = cyclopts.App(
    name="gf",
    help="Classify images by looking quickly first, and closely only where and when it matters.",
    version=glancefocus.__version__,
)


@app.command
def models(*, json: Json = False) -> None:
    """List the presets with parameters and multiply-adds per look, beside the paper's figures.

    Example: gf models
    """
    from glancefocus.commands.models import list_models

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
    from glancefocus.commands.import_checkpoint import import_checkpoint

    import_checkpoint(checkpoint, output, model=model, patch_px=patch_px, looks=looks, as_json=json)


@app.command
@read_by_type
def predict(
    bundle: Path,
    files: Annotated[list[str], Parameter(allow_leading_hyphen=True)],  # a lone - is standard input
    *,
    looks: Looks | None = None,
    thresholds: Annotated[list[Threshold] | None, Parameter(consume_multiple=True)] = None,
    budget_macs: MultiplyAdds | None = None,
    budget_ms: Milliseconds | None = None,
    deadline_ms: Milliseconds | None = None,
    topk: Count = 1,
    draw: Path | None = None,
    batch_size: BatchSize = 32,
    merge_batches: bool | None = None,
    max_pixels: MaxPixels | None = None,
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
        Take exactly this many looks (anytime answer) instead of stopping above a threshold.
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
        Undecided pictures of several batches are pooled, so that batches stay full. Answers stay the same, but for the rounding of
        --light-weights. Left out: on where there are several batches, without --draw and --deadline-ms.
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
        thresholds=thresholds,
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


for verb in (train, evaluate, budget, bench, export):
    app.command(read_by_type(verb))


@app.command
@read_by_type
def demo(
    *, output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("demo"), seed: Seed = 0, json: Json = False
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


def _let_threads_rest() -> None:
    """Make threads of GNU's OpenMP, with which torch computes, spin for a fraction of the usual milliseconds after their work.

    They would take the cores from those who have something to do: ONNX Runtime's threads, loaders, other programs. torch reads the
    number when it is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _print_any_character() -> None:
    """Escape what the terminal cannot show: characters that its encoding does not have, bytes of file names that are not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _place(error: OSError) -> str:
    """The file or folder that a system call failed for, followed by a colon; nothing where it is unknown."""
    return "" if error.filename is None else f"{shortened(os.fsdecode(error.filename), 200)}: "


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 a mistake of the user's, said in a sentence, 130 interrupted."""
    _let_threads_rest()
    _print_any_character()
    try:
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except cyclopts.CycloptsError:
        sys.exit(2)  # cyclopts has said what is wrong
    except GlancefocusError as error:
        print(f"gf: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, as `| head` does
        sys.exit(1)
    except OSError as error:  # a path that is too long, without permission, on a full disk, ...
        if error.filename is None and error.errno not in _FULL:
            raise
        print(f"gf: {_place(error)}{error.strerror or error}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        if type(stop) is KeyboardInterrupt:  # a run that saved itself has said so
            print("gf: interrupted.", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
