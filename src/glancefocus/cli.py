"""The command `gf`: reads the words, calls what does the job, and turns a user's mistake into one sentence and exit code 2.

Nothing heavy is imported before a job needs it: `gf --help` is instant.
"""

import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

import glancefocus
from glancefocus.errors import GlancefocusError

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
    files: list[str],
    *,
    looks: int | None = None,
    thresholds: list[float] | None = None,
    budget_macs: float | None = None,
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
        One confidence for each look but the last: stop above it. Give it several times: --thresholds 0.9 --thresholds 0.8.
    budget_macs
        Average multiply-adds that an answer may cost; chooses among the bundle's stored operating points.
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
    from glancefocus.commands.predict import predict_files

    return predict_files(
        bundle,
        files,
        looks=looks,
        thresholds=thresholds,
        budget_macs=budget_macs,
        topk=topk,
        draw=draw,
        batch_size=batch_size,
        max_pixels=max_pixels,
        as_json=json,
    )


@app.command
def demo(*, output: Path = Path("demo"), json: Json = False) -> None:
    """Show predictions of an untrained network on built-in pictures: that everything is installed, not that it knows anything.

    Example: gf demo

    Parameters
    ----------
    output
        The folder to write.
    """
    from glancefocus.commands.demo import run_demo

    run_demo(output, as_json=json)


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
    except KeyboardInterrupt:
        print("gf: interrupted.", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
