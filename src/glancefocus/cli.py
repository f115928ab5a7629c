"""The command `gf`: reads the words, calls what does the job, and turns a user's mistake into one sentence and exit code 2.

Nothing heavy is imported before a job needs it: `gf --help` is instant.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter

import glancefocus
from glancefocus.errors import BadSetting, GlancefocusError, UnknownName

app = cyclopts.App(
    name="gf",
    help="Classify images by looking quickly first, and closely only where and when it matters.",
    version=glancefocus.__version__,
)

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for machines instead of a table.")]


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
    max_pixels: int | None = None,
    json: Json = False,
) -> int:
    """Say what is in pictures, after how many looks, where they went and what they cost.

    Example: gf predict runs/signs/bundle photo.jpg folder/ --draw drawings

    Parameters
    ----------
    bundle
        A folder written by training or by `gf import`.
    files
        Image files, folders, or - for one image on standard input.
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
        Write each picture into this folder, with the looks drawn on it. Boxes are coloured by right and wrong where the
        picture's folder is named like a class.
    batch_size
        Pictures looked at together.
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
        max_pixels=max_pixels,
        as_json=json,
    )


@app.command
def train(
    data: str,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    preset: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    start: str | None = None,
    stages: list[str] | None = None,
    rounds: int | None = None,
    glance_px: int | None = None,
    patch_px: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    looks: int | None = None,
    height_px: int | None = None,
    width_px: int | None = None,
    fit: Literal["crop", "stretch", "whole"] | None = None,
    flip: bool | None = None,
    crop: float | None = None,
    in_memory: bool | None = None,
    check_files: bool | None = None,
    max_bad_files: int | None = None,
    scenes: tuple[int, int, int] | None = None,
    batch_size: int | None = None,
    precision: Literal["no", "bf16", "fp16"] | None = None,
    accumulation: int | None = None,
    workers: int | None = None,
    processes: int = 1,
    seed: int | None = None,
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None,
    json: Json = False,
) -> None:
    """Train on your images: initialise, then stages I to III. The same command again goes on where it was stopped.

    Example: gf train photos/ --backbone tf_efficientnet_lite0 --weights pretrained --set aim.epochs=8

    Parameters
    ----------
    data
        A folder with train/ and val/ of class folders, or of class folders; a CSV of path,label; or the built-in world signs.
    output
        The run's folder; runs/NAME when left out.
    preset
        A network of `gf models`.
    backbone
        Any timm backbone instead of a preset.
    weights
        "pretrained" (those that timm names), or a file; left out: trained from nothing.
    start
        A bundle whose network is trained on, with the same preset or backbone and sizes.
    stages
        What to run: initialise, 1, 2, 3, or joint (one stage instead of three). Give it several times or with commas.
    rounds
        How often stages II and III are gone through.
    glance_px
        Side of the glance.
    patch_px
        Side of the patches; several sizes, smallest first, make a network that chooses among them: --patch-px 32 48 64.
    looks
        The glance and the focus looks together.
    height_px
        Height of the images that are looked at.
    width_px
        Width of the images that are looked at.
    fit
        How pictures are brought to that size.
    flip
        Mirror images at random; --no-flip where left and right matter.
    crop
        Train on random parts of at least this share of the area; 1 turns it off.
    in_memory
        View all images once and hold them in memory.
    check_files
        Read every file once before training, and skip bad ones.
    max_bad_files
        So many unreadable files are listed and skipped; one more stops.
    scenes
        Scenes of the built-in world for training, validation and test.
    batch_size
        Images an update, over all processes.
    precision
        Mixed precision.
    accumulation
        Parts in which a batch is computed, where it does not fit.
    workers
        Processes that read files.
    processes
        Training processes on this machine; several machines: torchrun ... -m glancefocus.cli train ...
    seed
        Makes the run repeatable.
    setting
        Any other setting as name=value, such as aim.reward=increment or recognise.encoder_lr=0.005.
    """
    from glancefocus.commands.train import run_in_processes, run_training
    from glancefocus.training.recipes import default_output, train_settings

    view = {"fit": fit, "height_px": height_px, "width_px": width_px}
    view = {name: value for name, value in view.items() if value is not None}
    augment = {name: value for name, value in {"flip": flip, "crop": crop}.items() if value is not None}
    settings = train_settings(
        data,
        preset=preset,
        backbone=backbone,
        network={
            "glance_px": glance_px,
            "patch_px": None if patch_px is None else tuple(patch_px),
            "looks": looks,
            **({"view": view} if view else {}),
        },
        data={
            "in_memory": in_memory,
            "check_files": check_files,
            "max_bad_files": max_bad_files,
            "workers": workers,
            "scenes": None if scenes is None else list(scenes),
            **({"augment": augment} if augment else {}),
        },
        stages=stages,
        changes={
            "weights": weights,
            "start": start,
            "rounds": rounds,
            "batch_size": batch_size,
            "precision": precision,
            "accumulation": accumulation,
            "seed": seed,
        },
        assignments=setting,
    )
    folder = output or default_output(data)
    if processes != 1:
        words = [word for word in sys.argv[1:] if not word.startswith("--processes=")]
        while "--processes" in words:
            at = words.index("--processes")
            del words[at : at + 2]
        run_in_processes(words, processes, settings, folder)
        return
    run_training(settings, folder, as_json=json)


@app.command
def evaluate(
    bundle: Path,
    data: str,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    split: Literal["train", "val", "test", "all"] | None = None,
    latency: bool = True,
    batch_size: int = 1,
    workers: int = 0,
    max_bad_files: int = 10,
    json: Json = False,
) -> None:
    """Measure a bundle on labelled images: accuracy per look, at every budget, by every exit score; with a report.

    Example: gf evaluate runs/signs/bundle signs -o report

    Parameters
    ----------
    bundle
        A folder written by training or by `gf import`.
    data
        A folder with val/ or test/ of class folders, or of class folders; a CSV of path,label; a built-in world; or the folder of
        a look record that was made before.
    output
        Write report.html, figures, and the numbers as JSON and CSV into this folder.
    split
        Which images to measure on; left out: test, or else val, or else all there are.
    latency
        Measure milliseconds on this device, too.
    batch_size
        Images looked at together when milliseconds are measured.
    workers
        Processes that read files.
    max_bad_files
        So many unreadable files are skipped; one more stops.
    """
    from glancefocus.commands.evaluate import evaluate_bundle

    evaluate_bundle(
        bundle,
        data,
        report=output,
        split=split,
        latency=latency,
        batch_size=batch_size,
        workers=workers,
        max_bad_files=max_bad_files,
        as_json=json,
    )


@app.command
def budget(
    bundle: Path,
    data: str,
    *,
    macs: float | None = None,
    ms: float | None = None,
    curve: Annotated[bool, Parameter(negative="")] = False,
    solver: Literal["direct", "geometric", "geometric-paper", "genetic"] | None = None,
    score: Literal["confidence", "entropy", "value", "random"] | None = None,
    on: Literal["held-out", "train"] = "held-out",
    calibrate: Annotated[bool, Parameter(negative="")] = False,
    batch_size: int = 1,
    workers: int = 0,
    max_bad_files: int = 10,
    store: bool = True,
    json: Json = False,
) -> None:
    """Find the thresholds that achieve the most within a budget, and store them in the bundle.

    Example: gf budget runs/signs/bundle signs --macs 9e6

    Parameters
    ----------
    bundle
        A folder written by training or by `gf import`.
    data
        As for `gf evaluate`.
    macs
        Multiply-adds that an answer may cost on average, such as 2e8.
    ms
        Milliseconds that it may take on average; how long looks take on this device is measured and stored.
    curve
        Solve all budgets, and keep the cheapest thresholds that are as good as the best.
    solver
        direct: the most accurate thresholds. geometric: shares that rise or fall from look to look by one factor (the released
        code); geometric-paper: that only fall. genetic: several patch sizes. Left out: direct, or genetic.
    score
        What thresholds are compared with; left out: as the bundle does.
    on
        Choose on held-out images and measure on others, or choose on training images as in the paper.
    calibrate
        First find one temperature for each look that makes confidences honest.
    batch_size
        Images looked at together when milliseconds are measured.
    workers
        Processes that read files.
    max_bad_files
        So many unreadable files are skipped; one more stops.
    store
        Write thresholds and curve into the bundle; --no-store only shows them.
    """
    from glancefocus.commands.budget import BudgetAsked, set_budget

    asked = BudgetAsked(macs, ms, curve, solver, score, on, calibrate, batch_size, workers, max_bad_files, store)
    set_budget(bundle, data, asked, as_json=json)


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


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 a mistake of the user's, told in a sentence, 130 interrupted."""
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
    except KeyboardInterrupt as stop:
        if type(stop) is KeyboardInterrupt:  # a run that saved itself has said so
            print("gf: interrupted.", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
