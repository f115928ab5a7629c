"""The words of `gf bench`. Nothing heavy is imported before they are read."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from glancefocus.cli.words import Json, Threads
from glancefocus.values import BatchSize, MultiplyAdds, Rounds, Share


def bench(
    network: str,
    data: str | None = None,
    *,
    runtime: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    batch: Annotated[list[BatchSize] | None, Parameter(consume_multiple=True)] = None,
    threads: Threads = None,
    exits: Annotated[list[Share] | None, Parameter(consume_multiple=True)] = None,
    budget_macs: MultiplyAdds | None = None,
    backbone: Path | None = None,
    light_policy: Annotated[bool, Parameter(negative="")] = False,
    light_weights: bool | None = None,
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None,
    rounds: Rounds | None = None,
    everything: Annotated[bool, Parameter(name="--all", negative="")] = False,
    split: Literal["train", "val", "test", "all"] | None = None,
    json: Json = False,
) -> None:
    """Measure the wall clock against the plain backbone, side by side: how much of the multiply-adds saved reaches the clock.

    Example: gf bench runs/signs/bundle signs --runtime onnx openvino

    Parameters
    ----------
    network
        A bundle, its name on the hub (hf://user/name), or a preset of `gf models`, which gets made-up weights.
    data
        Labelled images, as for `gf evaluate`: thresholds are then such that glancefocus is as accurate as the backbone. Left out:
        images are noise, and leave after each look in given shares.
    runtime
        Inference backends: plain, eager, compile, onnx, openvino; several are measured one after the other. Left out: eager, onnx
        and openvino where they are installed.
    batch
        Images looked at together; several are measured. Left out: 1 32.
    threads
        Threads of the CPU. Left out: 1 for batches of one image, as on a phone, otherwise one for each core.
    exits
        The share of images that leaves after each look, such as 0.5,0.2,0.1,0.1,0.1. Left out: as the bundle's thresholds do, or
        as the paper's networks at their backbone's accuracy.
    budget_macs
        Instead: average multiply-adds of an image; shares fall or rise from look to look by one factor.
    backbone
        Weights of the plain backbone. Left out: backbone.safetensors beside the bundle, where training puts it.
    light_policy
        For presets: a small policy, 1x1 convolution to 32 channels, 256 units.
    light_weights
        int8 weights in classifier and policy (eager, onnx) and in the encoders' last layers (onnx), for small batches. Left out:
        without them; both with and without them for --all.
    setting
        For presets: name=value of the network, such as policy.units=128; may be given several times.
    rounds
        Measured rounds; backbone and glancefocus once in each. Left out: 3 to 7, so that everything takes about two minutes.
    everything
        Measure all that there is: all runtimes installed (on a CPU without compile), with and without light weights, batches of
        1, 64 and 128, 7 rounds.
    split
        With data, which images to measure on: train, val, test or all. Left out: as for `gf evaluate`. Other images, or one half
        of these, choose the thresholds.
    """
    from glancefocus.bundle.hub import local_folder
    from glancefocus.cli.bench import BenchAsked, bench_network

    asked = BenchAsked(
        runtimes=None if runtime is None else _words(runtime),
        batches=batch,
        threads=threads,
        exits=exits,
        budget_macs=budget_macs,
        backbone=backbone,
        light_policy=light_policy,
        light_weights=light_weights,
        changes=setting or (),
        rounds=rounds,
        everything=everything,
        split=split,
    )
    bench_network(str(local_folder(network)), data, asked, as_json=json)


def _words(given: list[str]) -> list[str]:
    """Words given apart or with commas."""
    return [part for text in given for part in text.split(",") if part]
