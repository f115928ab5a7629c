"""The words of `gf evaluate` and `gf budget`. Nothing heavy is imported before they are read."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from glancefocus.cli.words import BundleName, Json, LightWeights, Runtime, Threads
from glancefocus.values import BadFiles, BatchSize, Milliseconds, MultiplyAdds, Workers


def evaluate(
    bundle: BundleName,
    data: str,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    split: Literal["train", "val", "test", "all"] | None = None,
    latency: bool = True,
    batch_size: BatchSize = 1,
    runtime: Runtime = None,
    light_weights: LightWeights = False,
    threads: Threads = None,
    workers: Workers = 0,
    max_bad_files: BadFiles = 10,
    rivals: Literal["none", "as-is", "tuned"] = "as-is",
    json: Json = False,
) -> None:
    """Measure a bundle on labelled images: accuracy per look, at every budget, by every exit score; with a report.

    Example: gf evaluate runs/signs/bundle signs -o report

    Parameters
    ----------
    data
        A folder with val/ or test/ of class folders, or of class folders; a CSV of path,label; a built-in world; or the folder of
        a look record that was made before.
    output
        Write report.html, figures, and the numbers as JSON and CSV into this folder.
    split
        Which images to measure on: train, val, test or all. Left out: test, or else those that were held out from training, or
        else all; images that trained the network are recognised by their content and left out.
    latency
        Measure milliseconds on this device in this runtime, too.
    batch_size
        Images looked at together when milliseconds are measured.
    workers
        Processes that read files.
    max_bad_files
        Skip up to this many unreadable files, then abort.
    rivals
        What to compare with: the run's backbone on the same images resized to several sizes, as it is; tuned: also tuned at two
        smaller sizes, which takes as long as training it again; none: nothing.
    """
    from glancefocus.bundle.hub import local_folder
    from glancefocus.cli.evaluate import evaluate_bundle

    evaluate_bundle(
        local_folder(bundle),
        data,
        report=output,
        split=split,
        latency=latency,
        batch_size=batch_size,
        runtime=runtime,
        light_weights=light_weights,
        threads=threads,
        workers=workers,
        max_bad_files=max_bad_files,
        rivals=rivals,
        as_json=json,
    )


def budget(
    bundle: BundleName,
    data: str,
    *,
    macs: MultiplyAdds | None = None,
    ms: Milliseconds | None = None,
    curve: Annotated[bool, Parameter(negative="")] = False,
    solver: Literal["direct", "geometric", "geometric-paper", "genetic"] | None = None,
    score: Literal["confidence", "entropy", "value", "random"] | None = None,
    on: Literal["held-out", "train"] = "held-out",
    split: Literal["train", "val", "test", "all"] | None = None,
    calibrate: Annotated[bool, Parameter(negative="")] = False,
    batch_size: BatchSize = 1,
    runtime: Runtime = None,
    light_weights: LightWeights = False,
    threads: Threads = None,
    workers: Workers = 0,
    max_bad_files: BadFiles = 10,
    store: bool = True,
    json: Json = False,
) -> None:
    """Find the thresholds that achieve the most within a budget, and store them in the bundle.

    Example: gf budget runs/signs/bundle signs --macs 9e6

    Parameters
    ----------
    data
        As for `gf evaluate`.
    macs
        Multiply-adds that an answer may cost on average, such as 2e8.
    ms
        Milliseconds that it may take on average; how long looks take on this device, in this runtime, is measured and stored.
    curve
        Solve all budgets, and keep the cheapest thresholds that are as good as the best.
    solver
        For one budget, and for all with --curve. direct: the most accurate thresholds. geometric: shares that rise or fall from
        look to look by one factor (the released code); geometric-paper: that only fall. genetic: several patch sizes. Left out:
        direct, or genetic.
    score
        What thresholds are compared with; left out: as the bundle does.
    on
        Choose on held-out images and measure on others, or choose on training images as in the paper.
    split
        Which images choose: train, val, test or all; where no others are held out, all of them choose, and each is measured with
        thresholds that were chosen without it. Left out: val. Images that trained the network are left out of val, test and data
        that it does not know.
    calibrate
        First fit one temperature per look, so that confidences match accuracies. Where no others are held out, one half of the
        images then chooses and the other half measures.
    batch_size
        Images looked at together when milliseconds are measured.
    workers
        Processes that read files.
    max_bad_files
        Skip up to this many unreadable files, then abort.
    store
        Write thresholds and curve into the bundle; --no-store only shows them.
    """
    from glancefocus.bundle.hub import local_folder, refuse_writing
    from glancefocus.cli.budget import BudgetAsked, set_budget

    if store:
        refuse_writing(bundle)
    asked = BudgetAsked(macs, ms, curve, solver, score, on, calibrate, batch_size, workers, max_bad_files, store, split)
    set_budget(
        local_folder(bundle), data, asked, runtime=runtime, light_weights=light_weights, threads=threads, as_json=json
    )
