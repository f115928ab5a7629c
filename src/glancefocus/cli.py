"""The command `gf`: reads the words, calls what does the job, and turns a user's mistake into one sentence and exit code 2.

Nothing heavy is imported before a job needs it: `gf --help` is instant.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

import glancefocus
from glancefocus.commands.words import Json
from glancefocus.commands.words_bench import bench
from glancefocus.commands.words_budget import budget, evaluate
from glancefocus.commands.words_export import export
from glancefocus.commands.words_predict import predict
from glancefocus.commands.words_train import train
from glancefocus.errors import GlancefocusError

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


app.command(predict)
app.command(train)
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


def _let_threads_rest() -> None:
    """Make threads of GNU's OpenMP, with which torch computes, spin for a fraction of the usual milliseconds after their work.

    They would take the cores from those who have something to do: ONNX Runtime's threads, loaders, other programs. torch reads the
    number when it is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 a mistake of the user's, told in a sentence, 130 interrupted."""
    _let_threads_rest()
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
